"""Laws of batches: episodes → packed rows and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.learners.batch import join, make_batches, scatter_to_turns
from coterie.types import Batch, Episode, Turn
from tests.episodes import episode, random_episodes, turn

SEEDS = range(8)
POLICIES = ("p", "q")


def spoken_turns(episodes: list[Episode]) -> list[Turn]:
    return [t for e in episodes for t in e.turns if t.response_ids]


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The tokens and the mask of each row."""
    return [
        (batch.tokens[batch.row == r].tolist(), batch.mask[batch.row == r].int().tolist()) for r in range(batch.rows)
    ]


def test_a_turn_continued_by_another_turn_is_one_row() -> None:
    first, second = turn(prompt=(10, 11), response=(12,)), turn(prompt=(10, 11, 12, 13), response=(14, 15))
    other = turn(prompt=(20,), response=(21,))
    batch = make_batches([episode([first, other, second])], require_advantages=False)["policy"]
    assert rows_of(batch) == [([10, 11, 12, 13, 14, 15], [0, 0, 1, 0, 1, 1]), ([20, 21], [0, 1])]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


def test_a_turn_that_goes_on_at_once_is_one_row_of_two_turns() -> None:
    batch = make_batches([episode([turn(prompt=(1,), response=(2,)), turn(prompt=(1, 2), response=(3,))])], False)
    assert rows_of(batch["policy"]) == [([1, 2, 3], [0, 1, 1])]
    assert batch["policy"].turn[1:].tolist() == [0, 1]


@pytest.mark.parametrize(
    "other",
    [
        turn(prompt=(10, 11, 12, 13), policy="other"),  # another policy read on
        turn(prompt=(10, 11, 99, 13)),  # not what was said
        turn(prompt=(10, 11), response=(12, 13)),  # a sibling, not a continuation
    ],
)
def test_what_does_not_continue_a_turn_is_a_row_of_its_own(other: Turn) -> None:
    assert len(join([turn(prompt=(10, 11), response=(12,)), other])) == 2


def test_turns_of_two_episodes_never_share_a_row() -> None:
    one, two = turn(prompt=(1,), response=(2,)), turn(prompt=(1, 2, 3), response=(4,))
    assert make_batches([episode([one]), episode([two])], require_advantages=False)["policy"].rows == 2


def test_two_branches_of_one_conversation_are_two_rows_and_no_token_is_trained_twice() -> None:
    trunk = turn(prompt=(1,), response=(2,))
    branches = [turn(prompt=(1, 2, 3), response=(4,)), turn(prompt=(1, 2, 5), response=(6,))]
    batch = make_batches([episode([trunk, *branches])], require_advantages=False)["policy"]
    assert rows_of(batch) == [([1, 2, 3, 4], [0, 1, 0, 1]), ([1, 2, 5, 6], [0, 0, 0, 1])]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sampled_token_is_in_exactly_one_batch_with_all_that_belongs_to_it(seed: int) -> None:
    episodes = random_episodes(seed, policies=POLICIES)
    turns = spoken_turns(episodes)
    draw = torch.Generator().manual_seed(seed)
    for t in turns:
        size = len(t.response_ids)
        t.advantages, t.returns, t.values, t.ref_logprobs = torch.randn(4, size, generator=draw)
    seen: dict[int, int] = {}
    for policy, batch in make_batches(episodes).items():
        for i in batch.turn[batch.mask].unique().tolist():
            where = batch.mask & (batch.turn == i)
            _check_turn(batch, where, turns[i], policy, episodes)
            seen[i] = seen.get(i, 0) + 1
    assert seen == dict.fromkeys(range(len(turns)), 1)


def _check_turn(batch: Batch, where: Tensor, spoken: Turn, policy: str, episodes: list[Episode]) -> None:
    assert spoken.policy == policy
    assert tuple(batch.tokens[where].tolist()) == spoken.response_ids
    torch.testing.assert_close(batch.logprobs[where], torch.tensor(spoken.logprobs))
    for name in ("advantages", "returns", "values", "ref_logprobs"):
        assert torch.equal(getattr(batch, name)[where], getattr(spoken, name))
    assert {batch.roles[r] for r in batch.role[where].tolist()} == {spoken.role}
    assert batch.temperature[where].tolist() == pytest.approx([spoken.temperature] * len(spoken.response_ids))
    assert {id(episodes[e]) for e in batch.episode[where].tolist()} == {
        id(e) for e in episodes if any(t is spoken for t in e.turns)
    }
    row, first = int(batch.row[where][0]), int(where.nonzero()[0])
    before = batch.tokens[(batch.row == row) & (torch.arange(len(batch)) < first)]
    assert tuple(before.tolist()) == spoken.prompt_ids


@pytest.mark.parametrize("seed", SEEDS)
def test_hand_back_is_the_inverse_of_make_batches(seed: int) -> None:
    episodes = random_episodes(seed, policies=POLICIES)
    for batch in make_batches(episodes, require_advantages=False).values():
        scatter_to_turns(episodes, batch, batch.logprobs.double() * 2, "values")
        scatter_to_turns(episodes, batch, batch.tokens, "returns")
    for spoken in spoken_turns(episodes):
        assert spoken.values is not None and spoken.returns is not None
        torch.testing.assert_close(spoken.values, 2 * torch.tensor(spoken.logprobs).double())
        assert tuple(spoken.returns.tolist()) == spoken.response_ids
    assert all(t.values is None for e in episodes for t in e.turns if not t.response_ids)


def test_turns_that_nobody_judged_are_not_trained_on() -> None:
    judged, other = turn(prompt=(1,), response=(2,)), turn(prompt=(1, 2, 3), response=(4,))
    judged.advantages = torch.ones(1)
    batches = make_batches([episode([judged, other])])
    assert rows_of(batches["policy"]) == [([1, 2], [0, 1])]
    judged.advantages = None
    assert make_batches([episode([judged, other])]) == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_taking_rows_keeps_them_whole_and_numbers_them_anew(seed: int) -> None:
    batch = make_batches(random_episodes(seed), require_advantages=False)["policy"]
    some = batch.take(range(1, batch.rows, 2))
    assert rows_of(some) == rows_of(batch)[1::2]
    assert some.row.unique().tolist() == list(range(some.rows))


def test_greedy_turns_are_scored_at_temperature_one() -> None:
    batch = make_batches([episode([turn(temperature=0.0)])], require_advantages=False)["policy"]
    assert batch.temperature.tolist() == [1.0, 1.0, 1.0]
