"""The console: a live panel on a terminal or a line per step elsewhere, and the tables of all commands."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import rich
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from coterie.types import Metrics

BARS = "▁▂▃▄▅▆▇█"
COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")
WIDTH = 40  # of bars and sparklines, in characters
# Prefixes of metrics that belong to the run; any other `<name>/loss` belongs to a policy.
RUN_PREFIXES = ("reward", "seconds", "failed", "groups", "eval")
VERIFIED = "verifier/score"  # if a step has this metric, its rewards are a verifier's scores
MILLION = 1e6
FORMATS = {
    "reward": ("reward {}", ".3f"),
    "verifier/auc": ("verifier's AUC {}", ".2f"),
    "eval/reward": ("eval {}", ".3f"),
    "eval/accuracy": ("eval accuracy {}", ".3f"),
    "accuracy": ("accuracy {}", ".3f"),
    "loss": ("loss {}", ".4f"),  # of a verifier; a team has one per policy
    "eval/auc": ("held-out AUC {}", ".3f"),
    "eval/auc_within": ("within {}", ".3f"),
    "tokens_per_second": ("{} tok/s", ".0f"),
    "groups/constant": ("constant groups {}", ".3g"),
    "sandbox/unsafe": ("sandbox: unsafe, programs run unprotected", ""),
}


class Display:
    """The base of the displays; shows nothing."""

    def open(self) -> None:
        """A step begins."""

    def phase(self, name: str) -> None:
        """The step is now at this phase."""

    def recall(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Rows of the steps before a resume."""

    def write(self, step: int, metrics: Metrics) -> None:
        """A step is done."""

    def stopped(self, why: str) -> None:
        """The run was stopped by a signal, and is saved."""

    def close(self) -> None:
        """The run ends or raises."""


def display(name: str, steps: int) -> Display:
    """The live panel on a terminal, plain lines in a file or a pipe."""
    return LivePanel(name, steps) if interactive() else PlainLines(steps)


def interactive() -> bool:
    """True if lines on stdout can be redrawn."""
    return sys.stdout.isatty() and not rich.get_console().is_dumb_terminal


class PlainLines(Display):
    """One line per step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def write(self, step: int, metrics: Metrics) -> None:
        # Not rich, which would wrap the line at 80 characters.
        print(plain_line(step, self.steps, metrics), flush=True)


class LivePanel(Display):
    """Progress, rewards, time and losses, redrawn in place. Updated by the training thread, repainted by rich."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.done = self.done_here = 0
        self.started = time.monotonic()
        self.doing = self.ended = ""  # the current phase; how the run ended
        self.latest: Metrics = {}
        self.rewards: dict[str, list[float]] = {}  # "team", then each role
        self.live = Live(console=rich.get_console(), refresh_per_second=4)

    def open(self) -> None:
        if not self.live.is_started:
            self.ended = ""
            self.live.start()
            self._draw()

    def phase(self, name: str) -> None:
        self.doing = name
        self._draw()

    def recall(self, rows: Sequence[Mapping[str, float]]) -> None:
        for row in rows:
            self._remember(int(row["step"]), row)

    def write(self, step: int, metrics: Metrics) -> None:
        self.done_here += step > self.done
        self.latest = metrics if step > self.done else self.latest | metrics  # an evaluation adds to its step
        self._remember(step, metrics)
        self.doing = ""
        self._draw()

    def stopped(self, why: str) -> None:
        self.ended = f"stopped by {why}, saved"

    def close(self) -> None:
        if not self.live.is_started:
            return
        whole = f"done in {timedelta(seconds=round(time.monotonic() - self.started))}"
        broken = f"ended in step {self.done + 1}, {self.doing}" if self.done < self.steps else f"ended in {self.doing}"
        self.ended = self.ended or (broken if self.doing or self.done < self.steps else whole)
        self.doing = ""
        self._draw()
        self.live.stop()

    def _remember(self, step: int, metrics: Mapping[str, float]) -> None:
        self.done = step
        if "reward" in metrics:
            self.rewards.setdefault("team", []).append(metrics["reward"])
        for role, reward in under("reward/", metrics).items():
            self.rewards.setdefault(f"· {role}", []).append(reward)

    def _draw(self) -> None:
        now = self.latest
        counts = formatted(now, "accuracy", "loss", "tokens_per_second", "groups/constant")
        counts += [*formatted(now, "eval/reward", "eval/auc", "eval/auc_within"), failures(now)]
        counts += formatted(now, "verifier/auc", "sandbox/unsafe")
        rewards = [reward_table(self.rewards, reward_owner(now))] if self.rewards else []
        parts: list[RenderableType] = [self._progress(), *rewards]
        if now:
            parts += [share_bar(under("seconds/", now)), policy_table(now), Text("  ".join(counts))]
        self.live.update(Panel(Group(*parts), title=Text(self.name), expand=False, padding=(0, 1)))

    def _progress(self) -> Table:
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self.steps, completed=self.done, width=WIDTH)
        now = Spinner("dots", Text(self.doing)) if self.doing else Text("")
        line.add_row(bar, f"{self.done}/{self.steps} steps", self.ended or self._time_left(), now)
        return line

    def _time_left(self) -> str:
        if not self.done_here or self.done >= self.steps:
            return ""
        pace = (time.monotonic() - self.started) / self.done_here
        return f"{timedelta(seconds=round(pace * (self.steps - self.done)))} left"


def plain_line(step: int, steps: int, metrics: Metrics) -> str:
    """A step in one line: `step  12/40  reward 0.412  reasoner 0.40 actor 0.42  812 tok/s  rollout 3.1s`."""
    gaps, kls = of_policies("logprob_gap", metrics).values(), of_policies("kl", metrics).values()
    parts = [
        f"step {step:>{len(str(steps)) + 1}}/{steps}",
        *[reward_owner(metrics) + text for text in formatted(metrics, "reward")],
        *formatted(metrics, "loss"),
        " ".join(f"{role} {_number(reward, '.2f')}" for role, reward in under("reward/", metrics).items()),
        *[reward_owner(metrics, "eval/") + text for text in formatted(metrics, "eval/reward")],
        *(formatted(metrics, "accuracy", "verifier/auc") if reward_owner(metrics) else []),
        *(formatted(metrics, "eval/accuracy") if reward_owner(metrics, "eval/") else []),
        *formatted(metrics, "eval/auc", "eval/auc_within"),
        f"gap {max(gaps):.2g}" if gaps else "",
        f"kl {max(kls):.2g}" if kls else "",
        *formatted(metrics, "tokens_per_second"),
        " ".join(f"{phase} {seconds:.1f}s" for phase, seconds in under("seconds/", metrics).items()),
        failures(metrics),
        *formatted(metrics, "sandbox/unsafe"),
    ]
    return "  ".join(part for part in parts if part)


def reward_owner(metrics: Mapping[str, float], prefix: str = "") -> str:
    """The prefix `verifier's ` of a reward that is a verifier's score, which does not measure the team's accuracy."""
    return "verifier's " if prefix + VERIFIED in metrics else ""


def reward_table(rewards: Mapping[str, Sequence[float]], owner: str = "") -> Table:
    """The rewards of the team and of each role: now, mean of 10, best, and a sparkline of the last steps."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(justify="right")
    grid.columns[0].justify = "left"
    grid.add_row(
        *[Text(word, "dim") for word in (f"{owner}reward", "now", "mean of 10", "best", f"last {WIDTH} steps")]
    )
    for who, course in rewards.items():
        lately, best = course[-10:], max(filter(math.isfinite, course), default=math.nan)
        numbers = (course[-1], sum(lately) / len(lately), best)
        grid.add_row(
            Text(who), *[_number(number, ".3f") for number in numbers], Text(sparkline(course[-WIDTH:]), "cyan")
        )
    return grid


def policy_table(metrics: Metrics) -> Table:
    """Metrics of the last update per policy."""
    columns = {name: of_policies(name, metrics) for name in ("loss", "kl", "logprob_gap", "entropy", "grad_norm")}
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*[Text(word, "dim") for word in ("policy", *columns)])
    for policy in dict.fromkeys(policy for column in columns.values() for policy in column):
        numbers = [f"{column[policy]:.3g}" if policy in column else "" for column in columns.values()]
        grid.add_row(Text(policy), *numbers)
    return grid


def share_bar(phases: Mapping[str, float]) -> Text:
    """A bar of a step's time per phase, with its legend."""
    total = sum(phases.values()) or 1.0
    bar, legend = Text(), Text()
    for index, (phase, seconds) in enumerate(phases.items()):
        color = COLORS[index % len(COLORS)]
        bar.append("█" * round(WIDTH * seconds / total), color)
        legend.append(f"  {phase} {seconds:.1f}s", color)
    return bar + legend


def sparkline(values: Sequence[float]) -> str:
    """A curve of one character per value, scaled to their range; a gap where one is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) - low or 1.0
    last = len(BARS) - 1
    return "".join(BARS[round((value - low) / span * last)] if math.isfinite(value) else " " for value in values)


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of dicts: a column per key, numbers right-aligned, floats with three decimals; missing keys are empty."""
    result = Table(title=Text(title) if title else None, title_justify="left", box=rich.box.SIMPLE_HEAD)
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {name: [Text(name), *(_cell(row[name]) if name in row else Text("") for row in rows)] for name in names}
    widths, padding = _wrapped_between_words(columns, rich.get_console().width)
    result.padding = (0, 1, 0, padding)
    for name in columns:
        numeric = any(isinstance(row[name], int | float) for row in rows if name in row)
        justify: Literal["right", "left"] = "right" if numeric else "left"
        result.add_column(Text(name), justify=justify, overflow="fold", width=widths.get(name))
    for row in zip(*(cells[1:] for cells in columns.values()), strict=True):
        result.add_row(*row)
    return result


def _wrapped_between_words(columns: Mapping[str, Sequence[Text]], width: int) -> tuple[dict[str, int], int]:
    """The widths of columns that are too wide together, so that no word is broken and cells have few lines, and the
    padding on their left. No widths, and rich divides the space, if they fit, or if the longest words do not."""
    words = {
        name: [[cell_len(word) for word in cell.plain.split()] for cell in cells] for name, cells in columns.items()
    }
    full = {name: max(cell.cell_len for cell in cells) for name, cells in columns.items()}
    least = {name: max((word for cell in own for word in cell), default=0) for name, own in words.items()}
    for padding in (1, 0):
        room = width - (2 + padding) * len(columns) - 1  # one character right of each column, one beside it, one edge
        if sum(full.values()) <= room:
            return {}, padding
        if sum(least.values()) <= room:
            break
    else:
        return {}, 1
    tallest = max(len(cell) for own in words.values() for cell in own)
    for lines in range(2, tallest + 1):
        widths = {
            name: next(size for size in range(least[name], full[name] + 1) if _most_lines(own, size) <= lines)
            for name, own in words.items()
        }
        if sum(widths.values()) <= room:
            break
    for name in sorted(widths, key=lambda name: full[name] - widths[name]):  # the rest to those that need least
        widths[name] += min(full[name] - widths[name], room - sum(widths.values()))
    return widths, padding


def _most_lines(cells: Sequence[Sequence[int]], width: int) -> int:
    """The lines of the tallest cell, given the widths of its words."""
    most = 0
    for words in cells:
        lines, used = 0, width
        for word in words:
            lines, used = (lines, used + 1 + word) if used + 1 + word <= width else (lines + 1, word)
        most = max(most, lines)
    return most


def show(parts: Iterable[RenderableType]) -> None:
    """Print tables and texts."""
    for part in parts:
        # Commands to copy must not be wrapped at the 80 columns of a pipe.
        rich.get_console().print(part, soft_wrap=isinstance(part, Text))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on a terminal, a line per report elsewhere: `report(3, "24 answers")`."""
    if not interactive():
        yield lambda done, text: print(f"{what} {done:>{len(str(total))}}/{total}  {text}", flush=True)
        return
    columns = (
        TextColumn(what),
        BarColumn(WIDTH),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=rich.get_console()) as bar:
        task = bar.add_task("", total=total, text="")
        yield lambda done, text: bar.update(task, completed=done, text=text)


def visible(text: str) -> str:
    """Text with control and bidirectional characters escaped: a model may emit the code that clears the screen."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def under(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics with this prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def of_policies(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """One metric of every policy that has it. `reward/kl` is the reward of a role called `kl`, not a policy's KL."""
    parts = {key.rpartition("/"): value for key, value in metrics.items()}
    return {
        policy: value
        for (policy, slash, last), value in parts.items()
        if slash and last == name and policy.split("/")[0] not in RUN_PREFIXES
    }


def formatted(metrics: Metrics, *names: str) -> list[str]:
    """The named metrics that this step has, formatted."""
    found = [(*FORMATS[name], metrics[name]) for name in names if name in metrics]
    return [text.format(_number(number, spec)) for text, spec, number in found]


def _number(number: float, spec: str) -> str:
    """A number formatted; from a million on in four digits, so that a line stays short."""
    return format(number, spec if abs(number) < MILLION else ".4g")


def failures(metrics: Metrics) -> str:
    """Failed episodes of the step or of its evaluation by kind, and graders that were killed; empty if none."""
    failed = under("failed/", metrics) | under("eval/failed/", metrics)
    kinds = ", ".join(f"{kind} {count:.3g}" for kind, count in failed.items() if count)
    killed = metrics.get("grader_timeouts", metrics.get("eval/grader_timeouts", 0.0))
    parts = [f"failed: {kinds}" if kinds else "", f"graders killed: {killed:.2g} an episode" if killed else ""]
    return "  ".join(part for part in parts if part)


def _cell(value: Any) -> Text:
    # Text, not str: rich would parse a role called "[red]" as markup.
    return Text(f"{value:.3f}" if isinstance(value, float) else str(value))
