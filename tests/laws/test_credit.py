"""Laws of credit: what each turn earns, out of the team's reward and the turns' own."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.algorithms.grpo import Grpo
from coterie.algorithms.ppo import Ppo
from coterie.config import ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.credit.aggregate import Aggregate
from coterie.credit.base import Credit
from coterie.credit.difference import Difference
from coterie.credit.influence import Influence
from coterie.credit.maporl import Maporl, has_box, repeated_share
from coterie.credit.own import Own
from coterie.credit.team import Team
from coterie.episode_rows import read_episodes
from coterie.rl.credit import returns_to_go, shapley_values
from coterie.types import Episode
from tests.episodes import episode, turn
from tests.runs import naming_config, trained, written


def spoken(*rewards: tuple[str, float | None], reward: float = 0.0, **more: Any) -> Episode:
    """An episode of turns by (role, own reward), in play order."""
    count: dict[str, int] = {}
    turns = []
    for role, own in rewards:
        turns.append(replace(turn(role, round=count.setdefault(role, 0)), reward=own))
        count[role] += 1
    return episode(turns, reward, **more)


def ragged(seed: int) -> Episode:
    """Two to four roles in one to four rounds. Some leave early, some turns have no score."""
    draw = random.Random(seed)
    roles = [f"role {i}" for i in range(draw.randint(2, 4))]
    stays = {role: draw.randint(1, 4) for role in roles}
    turns = [(role, t) for t in range(4) for role in draw.sample(roles, len(roles)) if t < stays[role]]
    scored = [(role, None if draw.random() < 0.15 else draw.choice([0.0, 1.0, draw.random()])) for role, _ in turns]
    return spoken(*scored, ("role 0", 0.5), reward=draw.random(), task=f"task {seed}")


def credit_of(credit: Credit, played: Episode, team_chain: bool = False) -> list[float]:
    credit.assign([played], {}, team_chain)
    assert all(isinstance(t.credit, float) for t in played.turns)
    return [t.credit for t in played.turns if t.credit is not None]


def scores(played: Episode) -> dict[tuple[str, int], float]:
    return {(t.role, t.round): t.reward for t in played.turns if t.reward is not None}


SEEDS = range(10)
TWO = [("a", 0.5), ("b", None), ("a", 0.25), ("b", 2.0)]


# Team and own


def test_the_team_s_reward_stands_at_each_role_s_own_last_turn() -> None:
    assert credit_of(Team(), spoken(*TWO, reward=1.0)) == [0.5, 0.0, 1.25, 3.0]


def test_where_reward_flows_along_the_whole_team_it_stands_there_once() -> None:
    assert credit_of(Team(), spoken(*TWO, reward=1.0), team_chain=True) == [0.5, 0.0, 0.25, 3.0]


def test_with_all_turns_every_turn_earns_the_team_s_reward() -> None:
    assert credit_of(Team(turns="all"), spoken(*TWO, reward=1.0)) == [1.5, 1.0, 1.25, 3.0]


def test_every_turn_counts_the_team_s_reward_once_with_last_turns_and_gamma_one_or_all_turns_and_gamma_zero() -> None:
    for seed in SEEDS:
        played = ragged(seed)
        for each in played.turns:
            each.reward = None
        at_last = credit_of(Team(), played)
        everywhere = credit_of(Team(turns="all"), played)
        roles = [t.role for t in played.turns]
        flowing, cut = returns_to_go(at_last, roles, 1.0), returns_to_go(everywhere, roles, 0.0)
        assert flowing == cut == [played.reward] * len(played.turns)


def test_a_role_without_a_reward_of_its_own_gets_nothing_or_shares_the_team_s() -> None:
    turns = [("a", 0.5), ("b", None), ("c", None), ("b", None), ("a", None)]
    assert credit_of(Own(), spoken(*turns, reward=1.0)) == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert credit_of(Own(share_reward=True), spoken(*turns, reward=1.0)) == [0.5, 0.0, 1.0, 1.0, 0.0]
    # Along one chain the two would count it twice.
    assert credit_of(Own(share_reward=True), spoken(*turns, reward=1.0), team_chain=True) == [0.5, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
def test_what_is_earned_later_counts_less_with_every_turn_in_between(gamma: float) -> None:
    """G_k = Σ_{j≥k} γ^{j−k} r_j, of the same role or of the whole team, as it is written."""
    for seed in SEEDS:
        played, draw = ragged(seed), random.Random(seed)
        rewards = [draw.gauss(0, 1) for _ in played.turns]
        roles = [t.role for t in played.turns]
        for chain in (roles, [""] * len(roles)):
            expected = [
                sum(gamma ** (j - k) * rewards[j] for j in range(k, len(roles)) if chain[j] == chain[k])
                for k in range(len(roles))
            ]
            assert returns_to_go(rewards, chain, gamma) == pytest.approx(expected)


def test_a_turn_of_grpo_counts_what_its_role_earns_later_or_what_all_do() -> None:
    played = spoken(("a", 1.0), ("b", 2.0), ("a", 4.0), reward=8.0)
    for chain, expected in (("role", [1 + 12 / 4, 2 + 8, 12]), ("team", [1 + 2 / 2 + 12 / 4, 2 + 12 / 2, 12])):
        algorithm = Grpo(chain=chain, gamma_turn=0.5, baseline="none", scale="none")
        Team().assign([played], {}, team_chain=algorithm.chain == "team")
        algorithm.compute_advantages([played], {})
        assert [float(t.advantages[0]) for t in played.turns] == pytest.approx(expected)


def test_a_reward_of_zero_is_a_reward() -> None:
    assert credit_of(Own(share_reward=True), spoken(("a", 0.0), ("b", None), reward=1.0)) == [0.0, 1.0]


def test_what_each_role_earned_in_an_episode_is_a_metric() -> None:
    first, second = spoken(*TWO, reward=1.0), spoken(("a", None), reward=0.5)
    second.turns[0].trainable = True
    first.turns[0].trainable = False  # replayed: no credit of this episode
    assert Team().assign([first, second], {}, team_chain=False) == {"credit/a": (1.25 + 0.5) / 2, "credit/b": 3.0}


# Aggregation


def round_reward(played: Episode, mode: str, role: str, t: int) -> float:
    given = {r: s for (r, at), s in scores(played).items() if at == t}
    first = played.turns[0].role
    if not given:
        return 0.0
    several: dict[str, Any] = {"sum": sum, "max": max, "mean": lambda values: sum(values) / len(values)}
    if mode in several:
        return float(several[mode](list(given.values())))
    return given.get(role if mode == "own" else first, 0.0)


MODES = ["sum", "max", "mean", "first", "own"]


@pytest.mark.parametrize("mode", MODES)
def test_rounds_are_put_together_as_defined(mode: Any) -> None:
    for seed in SEEDS:
        played = ragged(seed)
        last = max(t.round for t in played.turns)
        final = {t.role: t for t in played.turns}
        dense = [round_reward(played, mode, t.role, t.round) for t in played.turns]
        sparse = [
            0.0 if final[t.role] is not t else round_reward(played, mode, t.role, t.round if mode == "own" else last)
            for t in played.turns
        ]
        ahead = [
            sum(round_reward(played, mode, t.role, later) for later in range(t.round, last + 1)) for t in played.turns
        ]
        assert credit_of(Aggregate(mode=mode), played) == pytest.approx(dense)
        assert credit_of(Aggregate(mode=mode, when="sparse"), played) == pytest.approx(sparse)
        assert credit_of(Aggregate(mode=mode, when="accumulative"), played) == pytest.approx(ahead)


def test_accumulated_rewards_are_dense_ones_that_have_flown_back() -> None:
    played = spoken(*[(role, random.Random(7 * t).random()) for t in range(4) for role in "ab"])
    roles = [t.role for t in played.turns]
    flown = returns_to_go(credit_of(Aggregate(mode="mean"), played), roles, 1.0)
    assert credit_of(Aggregate(mode="mean", when="accumulative"), played) == pytest.approx(flown)


def test_along_the_whole_team_a_round_pays_once() -> None:
    for seed in SEEDS:
        played = ragged(seed)
        total = sum(round_reward(played, "sum", "", t) for t in range(5))
        assert sum(credit_of(Aggregate(), played, team_chain=True)) == pytest.approx(total)


@pytest.mark.parametrize("credit", [Aggregate(), Influence(), Maporl()], ids=lambda c: type(c).__name__)
def test_credit_made_of_own_rewards_says_so_where_there_are_none(credit: Credit) -> None:
    with pytest.raises(ValueError, match=r"no turn was given a reward of its own.*turn\.reward"):
        credit.assign([spoken(("a", None), ("b", None), reward=1.0)], {}, team_chain=False)
    assert credit.assign([], {}, team_chain=False) == {}


# MaPoRL

KNOWN = [("a", 1.0), ("b", 0.0), ("a", 0.5), ("b", 1.0), ("a", 0.0), ("b", 1.0)]


def test_maporl_gives_the_known_values() -> None:
    assert credit_of(Maporl(), spoken(*KNOWN))[0] == pytest.approx(0.91367, abs=5e-6)
    assert credit_of(Maporl(share="individual"), spoken(*KNOWN))[0] == pytest.approx(0.82734, abs=5e-6)


@pytest.mark.parametrize(
    ("horizon", "share", "of_a", "of_b"),
    [
        ("last", "all", [0.5, 0.5], [0.5, 0.5]),
        ("current", "all", [0.5, 0.5], [0.5, 0.5]),
        ("current", "individual", [1.0, 1.0], [0.0, 0.0]),
        ("last", "individual", [1.0, 1.0], [0.0, 0.0]),
    ],
)
def test_maporl_shares_the_score_of_the_last_and_of_the_current_round(
    horizon: Any, share: Any, of_a: list[float], of_b: list[float]
) -> None:
    """As `score_rule` in MAPoRL's released trainer (ppov2_trainer_multi_different_model.py)."""
    found = credit_of(Maporl(horizon=horizon, share=share), spoken(("a", 1.0), ("b", 0.0), ("a", 1.0), ("b", 0.0)))
    assert (found[0::2], found[1::2]) == (of_a, of_b)


def test_a_share_among_several_roles_has_an_effect_whatever_the_horizon(tmp_path: Path) -> None:
    for horizon in ("discounted", "last", "current"):
        tree = naming_config(tmp_path, algorithm={"name": "grpo", "gamma_turn": 0.0})
        tree["credit"] = {"name": "maporl", "horizon": horizon, "share": "individual"}
        config = written(tree, tmp_path)
        assert list(config.credit.instance.problems(config)) == []


def slow_score(played: Episode, i: str, t: int, gamma: float, horizon: str, share: str) -> float:
    """R_{t,i}, term by term; a term that nobody has a score for is in neither sum."""
    s, x = scores(played), max(u.round for u in played.turns)
    terms: list[tuple[int, float]] = []
    for later in range(t, x + 1):
        team = [score for (_, at), score in s.items() if at == later]
        if (later == t and horizon == "discounted") or share == "individual":
            team = [s[i, later]] if (i, later) in s else []
        if team:
            terms.append((later, sum(team) / len(team)))
    if horizon == "last":
        return terms[-1][1] if terms else 0.0
    if horizon == "current":
        return next((score for later, score in terms if later == t), 0.0)
    below = sum(gamma ** (later - t) for later, _ in terms)
    return sum(gamma ** (later - t) * score for later, score in terms) / below if terms else 0.0


@pytest.mark.parametrize("share", ["all", "individual"])
@pytest.mark.parametrize("horizon", ["discounted", "last", "current"])
def test_scores_over_turns_are_as_defined_also_where_roles_leave_early(horizon: Any, share: Any) -> None:
    for seed in SEEDS:
        played = ragged(seed)
        credit = Maporl(gamma=0.1 + 0.02 * seed, horizon=horizon, share=share)
        wanted = [slow_score(played, t.role, t.round, credit.gamma, horizon, share) for t in played.turns]
        assert credit_of(credit, played) == pytest.approx(wanted, abs=1e-12)


def slow_incentive(played: Episode, i: str, t: int, alpha: tuple[float, float, float, float]) -> float:
    s, x = scores(played), max(u.round for u in played.turns)

    def c(role: str, at: int) -> int | None:
        return None if (role, at) not in s else int(s[role, at] > 0.5)

    def peers(at: int) -> bool | None:
        theirs = [int(score > 0.5) for (role, when), score in s.items() if when == at and role != i]
        return sum(theirs) / len(theirs) > 0.5 if theirs else None

    total = 0.0
    if t >= 1 and peers(t - 1) is not None:
        if (c(i, t - 1), c(i, t)) == (1, 0):
            total -= alpha[1] if peers(t - 1) else alpha[0]
        if (c(i, t - 1), c(i, t)) == (0, 1):
            total += alpha[0] if peers(t - 1) else alpha[1]
    if t < x and c(i, t) is not None:
        if (peers(t), peers(t + 1)) == (False, True):
            total += alpha[3] if c(i, t) else alpha[2]
        if (peers(t), peers(t + 1)) == (True, False):
            total -= alpha[2] if c(i, t) else alpha[3]
    return total


def test_incentives_are_as_defined() -> None:
    for seed in range(30):
        played = ragged(seed)
        alpha = (0.01, 0.1, 1.0, 10.0)
        plain = credit_of(Maporl(), played)
        with_them = credit_of(Maporl(alpha0=alpha[0], alpha1=alpha[1], alpha2=alpha[2], alpha3=alpha[3]), played)
        wanted = [slow_incentive(played, t.role, t.round, alpha) for t in played.turns]
        assert [a - b for a, b in zip(with_them, plain, strict=True)] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("own", "peer", "change"),
    [
        ((1, 0), (1, 1), (0.0, -0.1)),  # left peers who were right
        ((1, 0), (0, 0), (0.0, -0.01)),  # joined peers who were wrong
        ((0, 1), (0, 0), (0.0, 0.1)),  # left peers who were wrong
        ((0, 1), (1, 1), (0.0, 0.01)),  # joined peers who were right
        ((1, 1), (0, 1), (10.0, 0.0)),  # convinced them
        ((0, 0), (0, 1), (1.0, 0.0)),  # they found out in spite of it
        ((0, 0), (1, 0), (-10.0, 0.0)),  # misled them
        ((1, 1), (1, 0), (-1.0, 0.0)),  # they went astray in spite of it
    ],
)
def test_each_incentive_by_hand(own: tuple[int, int], peer: tuple[int, int], change: tuple[float, float]) -> None:
    played = spoken(("a", own[0]), ("b", peer[0]), ("a", own[1]), ("b", peer[1]))
    plain = credit_of(Maporl(), played)
    credit = credit_of(Maporl(alpha0=0.01, alpha1=0.1, alpha2=1.0, alpha3=10.0), played)
    assert [credit[k] - plain[k] for k in (0, 2)] == pytest.approx(change)


def test_a_bad_reply_loses_the_penalty_once() -> None:
    texts = ["", r"I think that it is \boxed{4}", "a b c d " * 5 + r"\boxed{4}", "it is four I am sure"]
    played = spoken(*[("a", 1.0)] * 4)
    for each, text in zip(played.turns, texts, strict=True):
        each.text = text
    credit = Maporl(penalty=0.5, min_words=3, max_repeated=0.3, boxed=True, horizon="current")
    metrics = credit.assign([played], {}, team_chain=False)
    assert [t.credit for t in played.turns] == [0.5, 1.0, 0.5, 0.5]
    assert metrics["penalised"] == 0.75


def test_runs_of_words_and_boxes_are_found() -> None:
    assert repeated_share("a b c d a b c d") == pytest.approx(1 / 5)
    assert repeated_share("a b c") == repeated_share("") == 0.0
    assert has_box(r"so \boxed{ 3 }") and not has_box(r"so \boxed{ }") and not has_box("boxed{3}")


# Influence


def test_influence_is_the_sign_of_how_the_others_fared_next() -> None:
    for seed in SEEDS:
        played = ragged(seed)
        s = scores(played)
        wanted = []
        for t in played.turns:
            peers = {role for role, _ in s} - {t.role}
            moves = [s[j, t.round + 1] - s[j, t.round] for j in peers if {(j, t.round), (j, t.round + 1)} <= s.keys()]
            moved = sum(moves) / len(moves) if moves and t.reward is not None else 0.0
            wanted.append((t.reward or 0.0) + 0.2 * ((moved > 1e-12) - (moved < -1e-12)))
        assert credit_of(Influence(), played) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "credit",
    [
        Influence(),
        Influence(mode="mean"),
        Maporl(alpha1=0.5, alpha3=0.25),
        Aggregate(),
        Own(),
        Own(share_reward=True),
        Team(),
    ],
    ids=str,
)
def test_the_order_of_agents_does_not_matter(credit: Credit) -> None:
    for seed in SEEDS:
        played = ragged(seed)
        straight = {(t.role, t.round): e for t, e in zip(played.turns, credit_of(credit, played), strict=True)}
        turns = [t for at in range(5) for t in reversed(played.turns) if t.round == at]
        turned = credit_of(credit, replace(played, turns=turns))
        assert {(t.role, t.round): e for t, e in zip(turns, turned, strict=True)} == straight  # to the bit


def test_moves_that_cancel_have_no_sign_whatever_the_order() -> None:
    """The three swap scores, so nothing changes in sum; added from left to right, one order leaves −5.6e-17."""
    before, after = {"b": 0.1, "c": 0.2, "d": 0.3}, {"b": 0.3, "c": 0.1, "d": 0.2}
    for order in itertools.permutations("bcd"):
        turns = [("a", 1.0), *((r, before[r]) for r in order), ("a", 1.0), *((r, after[r]) for r in order)]
        assert credit_of(Influence(), spoken(*turns))[0] == 1.0


# Difference


def test_leaving_one_out_is_the_reward_less_the_mean_of_the_task_s_others() -> None:
    episodes = [spoken(("a", None), ("b", 0.5), reward=r, repeat=i) for i, r in enumerate([1.0, 0.0, 0.5])]
    episodes.append(spoken(("a", None), reward=1.0, task="another"))
    Difference(by="leave_one_out").assign(episodes, {}, team_chain=False)
    found = [[t.credit for t in e.turns] for e in episodes]
    assert found == [[0.75, 1.25], [-0.75, -0.25], [0.0, 0.5], [0.0]]


def fake(played: Episode, credit: Difference, reward: dict[frozenset[str], float]) -> dict[str, Episode]:
    """The forks that credit asks for, as if played; by the roles that could still speak."""
    roles = {t.role for t in played.turns}
    counterfactuals = {}
    for fork in credit.forks([played]):
        silent = {role for (role, _), fixed in fork.fixed_turns.items() if isinstance(fixed, str)}
        counterfactuals[fork.id] = Episode(fork.id, played.task, 0, reward=reward[frozenset(roles - silent)])
    return counterfactuals


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shapley_shares_are_the_mean_over_all_orders_and_sum_to_what_the_team_adds(count: int) -> None:
    for seed in range(5):
        draw = random.Random(seed)
        roles = "abcd"[:count]
        coalitions = [frozenset(some) for size in range(count + 1) for some in itertools.combinations(roles, size)]
        value = {some: draw.random() for some in coalitions}
        played = spoken(*[(role, None) for role in roles], reward=value[frozenset(roles)])
        credit = Difference(by="shapley")
        counterfactuals = fake(played, credit, value)
        assert len(counterfactuals) == 2**count - 1
        credit.assign([played], counterfactuals, team_chain=False)
        for t in played.turns:
            gains = []
            for order in itertools.permutations(roles):
                before = frozenset(order[: order.index(t.role)])
                gains.append(value[before | {t.role}] - value[before])
            assert t.credit == pytest.approx(sum(gains) / len(gains))
        total = sum(t.credit or 0.0 for t in played.turns)
        assert total == pytest.approx(value[frozenset(roles)] - value[frozenset()])


def test_two_who_add_the_same_share_alike_and_one_who_adds_nothing_gets_nothing() -> None:
    by_coalition = {
        frozenset(some): float("a" in some or "b" in some)
        for n in range(4)
        for some in itertools.combinations("abc", n)
    }
    assert shapley_values(by_coalition, "abc") == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})


def test_a_role_s_difference_stands_at_its_last_turn_and_a_failed_comparison_is_counted() -> None:
    played = spoken(("a", None), ("b", 0.5), ("a", None), reward=1.0)
    credit = Difference()
    counterfactuals = fake(played, credit, {frozenset("b"): 0.25, frozenset("a"): 1.5})
    metrics = credit.assign([played], counterfactuals, team_chain=False)
    assert [t.credit for t in played.turns] == [0.0, 0.0, 0.75]
    assert metrics["difference/missing"] == 0
    lost = {name: e for name, e in counterfactuals.items() if "'b'" not in name}
    metrics = credit.assign([played], lost, team_chain=False)
    assert [t.credit for t in played.turns] == [0.0, 0.5, 0.75] and metrics["difference/missing"] == 1
    by_coalition = Difference(by="shapley")
    assert by_coalition.assign([played], {}, team_chain=False)["difference/missing"] == 2


def test_a_failed_episode_is_not_played_again() -> None:
    played = spoken(("a", None))
    played.error = "Traceback …"
    assert Difference().forks([played]) == []


# Credit and algorithm


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "all turns": ({"credit": {"name": "team", "turns": "all"}}, "algorithm.gamma_turn: must be 0: credit team already"),
    "accumulated": ({"credit": {"name": "aggregate", "when": "accumulative"}}, "algorithm.gamma_turn: must be 0"),
    "maporl": ({"credit": "maporl"}, "algorithm.gamma_turn: must be 0: credit maporl"),
    "judged turns": (
        {"credit": "own", "workflow": "refine", "roles": {"optimizer": "policy", "evaluator": "policy"}},
        "algorithm.gamma_turn: must be 0: refine gives each turn its complete reward",
    ),
    "gamma": (
        {"credit": {"name": "maporl", "horizon": "last", "gamma": 0.5}},
        "credit.gamma: has no effect with horizon: last",
    ),
    "share": (
        {"credit": {"name": "maporl", "share": "individual"}, "roles": {"left": "left"}},
        "credit.share: has no effect: there is one role",
    ),
    "penalty": ({"credit": {"name": "maporl", "penalty": 1.0}}, "credit.penalty: has no effect without a rule"),
    "rule": ({"credit": {"name": "maporl", "boxed": True}}, "credit.boxed: has no effect while credit.penalty is 0"),
    "default": (
        {"credit": {"name": "difference", "by": "leave_one_out", "default": "?"}},
        "credit.default: has no effect",
    ),
    "lone episode": (
        {"credit": {"name": "difference", "by": "leave_one_out"}, "episodes_per_task": 1},
        "episodes_per_task: is 1",
    ),
    "mixed": ({"credit": "difference", "algorithm": "ppo"}, "credit: Ppo adds later credit along the whole team"),
}


@pytest.mark.parametrize("name", WRONG)
def test_credit_that_does_not_fit_the_algorithm_is_refused(name: str, tmp_path: Path) -> None:
    changes, complaint = WRONG[name]
    config = written(naming_config(tmp_path, **changes), tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_conflicts(config)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("roles", [4, 5])
def test_coalitions_are_played_for_teams_of_up_to_four(roles: int, tmp_path: Path) -> None:
    names = [f"role {i}" for i in range(roles)]
    tree = naming_config(tmp_path, credit={"name": "difference", "by": "shapley"})
    tree |= {"roles": dict.fromkeys(names, "left"), "policies": {"left": tree["policies"]["left"]}}
    tree["workflow"] |= {"order": names}
    config = written(tree, tmp_path)
    if roles > 4:
        with pytest.raises(ConfigError, match=r"credit\.by: shapley plays every coalition of up to 4 roles, not of 5"):
            check_conflicts(config)
    else:
        check_conflicts(config)


@pytest.mark.parametrize("names", [["left"], ["left", "right"]], ids=["one", "two"])
def test_one_role_has_nobody_to_influence(names: list[str], tmp_path: Path) -> None:
    tree = naming_config(tmp_path, credit="influence")
    tree |= {"roles": {name: name for name in names}, "policies": {name: tree["policies"][name] for name in names}}
    tree["workflow"] |= {"order": names}
    config = written(tree, tmp_path)
    if len(names) == 1:
        with pytest.raises(
            ConfigError, match="credit: influence has no effect: a single role has no other to influence"
        ):
            check_conflicts(config)
    else:
        check_conflicts(config)


def test_an_influence_of_no_weight_is_refused(tmp_path: Path) -> None:
    config = written(naming_config(tmp_path, credit={"name": "influence", "weight": 0}), tmp_path)
    with pytest.raises(ConfigError, match=r"credit\.weight: is 0"):
        check_conflicts(config)


def test_credit_that_looks_ahead_counts_once_in_every_algorithm() -> None:
    played = spoken(("a", None), ("b", None), ("a", None), reward=1.0)
    credit_of(Team(turns="all"), played)
    assert Grpo(gamma_turn=0.0).turn_returns(played) == [1.0, 1.0, 1.0]
    for each in played.turns:
        each.values = torch.zeros(len(each.response_ids))
    Ppo(gamma_turn=0.0, whiten=None).compute_advantages([played], {})
    assert [each.returns.tolist() for each in played.turns if each.returns is not None] == [[1.0]] * 3


VOWELS = "def vowels(answer, truth):\n    return sum(sign in 'aeiou' for sign in answer) / max(1, len(answer))\n"


@pytest.mark.parametrize("credit", ["maporl", "influence", "aggregate", "own"])
def test_a_debate_in_which_every_answer_is_graded_trains_on_own_rewards(
    credit: str, model_folder: Any, tmp_path: Path
) -> None:
    (tmp_path / "vowels.py").write_text(VOWELS)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "Say {i}.", "answer": "{i}"}}\n' for i in range(4)))
    tree = naming_config(model_folder("llama"), steps=1, algorithm={"name": "grpo", "gamma_turn": 0.0}, credit=credit)
    tree |= {
        "workflow": {"name": "debate", "roles": ["left", "right"], "rounds": 2, "grade": "each"},
        "env": {"name": "rows", "train": str(tmp_path / "rows.jsonl"), "test": str(tmp_path / "rows.jsonl")},
        "reward": f"{tmp_path}/vowels.py:vowels",
    }
    trained(tree, tmp_path)
    episodes = read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")
    assert len({t.reward for e in episodes for t in e.turns}) > 4 and len(episodes[0].turns) == 4
    before = [[t.credit for t in e.turns] for e in episodes]
    BY_NAME[credit].assign(episodes, {}, team_chain=False)
    assert [[t.credit for t in e.turns] for e in episodes] == before
    assert any(t.advantages is not None and bool(t.advantages.abs().max() > 0.1) for e in episodes for t in e.turns)


BY_NAME: dict[str, Credit] = {"maporl": Maporl(), "influence": Influence(), "aggregate": Aggregate(), "own": Own()}
