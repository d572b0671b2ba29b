"""Episodes → one padding-free batch per policy, and numbers computed on a batch → back to the turns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.types import Batch, Episode, Turn

_PER_TOKEN = ("advantages", "returns", "values", "ref_logprobs")


def join(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Join turns that extend each other, so that a conversation is one row.

    prompt      response
    [q]         [a]          →  [q a r b]   mask  0 1 0 1
    [q a r]     [b]
    [z]         [c]          →  [z c]       mask  0 1
    """
    rows: list[list[Turn]] = []
    for turn in turns:
        for row in rows:
            whole = row[-1].prompt_ids + row[-1].response_ids
            if row[-1].policy == turn.policy and turn.prompt_ids[: len(whole)] == whole:
                row.append(turn)
                break
        else:
            rows.append([turn])
    return rows


def make_batches(episodes: Sequence[Episode], require_advantages: bool = True) -> dict[str, Batch]:
    """A batch per policy of the turns that have advantages, or of all turns sampled in these episodes."""
    roles = tuple(dict.fromkeys(turn.role for episode in episodes for turn in episode.turns))
    rows: dict[str, list[tuple[int, list[Turn]]]] = {}
    number: dict[int, int] = {}  # id(turn) → its index over the whole step
    for e, episode in enumerate(episodes):
        turns = [t for t in _sampled_turns(episode) if not (require_advantages and t.advantages is None)]
        for turn in turns:
            number[id(turn)] = len(number)
        for row in join(turns):
            rows.setdefault(row[0].policy, []).append((e, row))
    return {policy: _pack(own_rows, number, roles) for policy, own_rows in sorted(rows.items())}


def trained_turns(episodes: Sequence[Episode]) -> list[Turn]:
    """The turns of `make_batches(episodes)`; `batch.turn` is an index into them."""
    return [turn for episode in episodes for turn in _sampled_turns(episode) if turn.advantages is not None]


def _sampled_turns(episode: Episode) -> list[Turn]:
    """The turns that were sampled in this episode and can be trained on."""
    return [turn for turn in episode.turns if turn.response_ids and turn.trainable]


def scatter_to_turns(episodes: Sequence[Episode], batch: Batch, numbers: Tensor, field: str) -> None:
    """Write numbers [T] to `field` of the turns; the batch is of `make_batches(episodes, require_advantages=False)`."""
    turns = [turn for episode in episodes for turn in _sampled_turns(episode)]
    indices, sizes = torch.unique_consecutive(batch.turn[batch.mask], return_counts=True)
    for turn, part in zip(indices.tolist(), numbers[batch.mask].split(sizes.tolist()), strict=True):
        setattr(turns[turn], field, part)


def _pack(rows: list[tuple[int, list[Turn]]], number: dict[int, int], roles: tuple[str, ...]) -> Batch:
    columns: dict[str, list[Tensor]] = {}

    def add(**column: Tensor) -> None:
        for name, value in column.items():
            columns.setdefault(name, []).append(value)

    for r, (episode, turns) in enumerate(rows):
        tokens = torch.tensor(turns[-1].prompt_ids + turns[-1].response_ids)
        length = len(tokens)
        row = {name: torch.zeros(length) for name in ("logprobs", "old_logprobs", "words", *_PER_TOKEN)}
        mask, temperature = torch.zeros(length, dtype=torch.bool), torch.ones(length)
        turn_at, role_at = torch.zeros(length, dtype=torch.long), torch.zeros(length, dtype=torch.long)
        for turn in turns:
            own = slice(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.response_ids))
            mask[own], temperature[own] = True, turn.temperature or 1.0
            turn_at[own], role_at[own] = number[id(turn)], roles.index(turn.role)
            row["logprobs"][own] = torch.tensor(turn.logprobs)
            row["old_logprobs"][own] = row["logprobs"][own] if turn.old_logprobs is None else turn.old_logprobs
            row["words"][own] = len(turn.text.split())
            for name in _PER_TOKEN:
                if (column := getattr(turn, name)) is not None:
                    row[name][own] = column
        add(tokens=tokens, positions=torch.arange(length), row=torch.full((length,), r), mask=mask, **row)
        add(temperature=temperature, turn=turn_at, role=role_at, episode=torch.full((length,), episode))
    return Batch(**{name: torch.cat(parts) for name, parts in columns.items()}, roles=roles)
