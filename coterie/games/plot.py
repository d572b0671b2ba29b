"""Plots the results of the games as SVG: a dot per run, a column per game."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LEFT, TOP, ROW, COLUMN, GAP = 110, 46, 20, 180, 24


def plot(results: Sequence[tuple[str, str, float, bool]]) -> str:
    """`results`: game, algorithm, the result of a run, and whether less is better."""
    games = list(dict.fromkeys(game for game, _, _, _ in results))
    algorithms = list(dict.fromkeys(algorithm for _, algorithm, _, _ in results))
    height, width = TOP + ROW * len(algorithms) + 30, LEFT + (COLUMN + GAP) * len(games)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for row, algorithm in enumerate(algorithms):
        drawn.append(f'<text x="{LEFT - 10}" y="{_y(row) + 4}" text-anchor="end">{escape(algorithm)}</text>')
    for column, game in enumerate(games):
        drawn += _axis(column, game, len(algorithms), any(less for g, _, _, less in results if g == game))
    for game, algorithm, reached, less in results:
        colour = "#16794c" if (reached < 0.05 if less else reached >= 0.95) else "#b3261e"
        title = f"{escape(algorithm)}, {game}: {reached:.3f}"
        x = _x(games.index(game), reached, less)
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{_y(algorithms.index(algorithm))}" r="4" fill-opacity="0.6" '
            f'fill="{colour}"><title>{title}</title></circle>'
        )
    return "\n".join([*drawn, "</svg>"])


def _axis(column: int, game: str, rows: int, less: bool) -> list[str]:
    """A game's name, its scale from 0 to 1 (0 to ½ where less is better), and the goal as a dashed line."""
    left, right, goal = (_x(column, value, less) for value in (0, 0.5 if less else 1, 0.05 if less else 0.95))
    bottom, name = _y(rows), f"{game}: {'exploitability' if less else 'share of the optimum'}"
    return [
        f'<text x="{left}" y="20" font-weight="bold">{escape(name)}</text>',
        f'<line x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="black"/>',
        f'<line x1="{goal}" x2="{goal}" y1="{TOP - 14}" y2="{bottom}" stroke="gray" stroke-dasharray="3"/>',
        f'<text x="{left}" y="{bottom + 16}">0</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{0.5 if less else 1}</text>',
    ]


def _x(column: int, value: float, less: bool) -> float:
    """Values outside the scale are drawn at its edge."""
    return LEFT + column * (COLUMN + GAP) + COLUMN * min(1.0, max(0.0, value / (0.5 if less else 1.0)))


def _y(row: int) -> int:
    return TOP + ROW * row
