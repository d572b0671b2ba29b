"""Laws of games whose best answer is known, of opponents out of the past and of the collapse alarm."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from coterie.algorithms.base import Algorithm
from coterie.bench.games import QUICK, Result, play, started_run, tables
from coterie.cli.app import app
from coterie.config import Config, ConfigError, load
from coterie.config.conflicts import check_conflicts
from coterie.config.registry import BUILTIN
from coterie.episode_rows import read_episodes
from coterie.games import kuhn, pennies
from coterie.games.matrix import Additive
from coterie.games.measure import final_exploitability, kuhn_strategy
from coterie.games.model import LATE, SIGNS, is_late, tiny_player
from coterie.games.plot import plot
from coterie.games.policy_probs import reply_probs
from coterie.games.setups import GAMES, config_of, plays
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.training.collapse import memory_of, watch
from coterie.training.loop import Run, train
from coterie.training.opponents import TAKEN, slots
from coterie.types import Episode, Task, Team
from tests.episodes import episode, turn
from tests.laws.test_resume import assert_same_run
from tests.runs import resumed, started, trained

ALGORITHMS = list(BUILTIN["algorithm"])
SHORT = ("magrpo", "happo", "qmix")  # by trees, by values, by utilities; by groups: test_training; the slow law has all


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_player(tmp_path_factory.mktemp("games") / "model", head=1.0)


# Kuhn poker


def equilibrium(alpha: float) -> dict[str, float]:
    """The known family: the first player may bluff with a jack up to a third of the time."""
    first = {"j": alpha, "q": 0.0, "k": 3 * alpha, "jpb": 0.0, "qpb": alpha + 1 / 3, "kpb": 1.0}
    return first | {"jp": 1 / 3, "qp": 0.0, "kp": 1.0, "jb": 0.0, "qb": 1 / 3, "kb": 1.0}


def random_strategy(seed: int) -> dict[str, float]:
    draw = random.Random(seed)
    return {state: draw.random() for state in kuhn.SETS}


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 3])
def test_nobody_wins_against_an_equilibrium_and_the_first_player_loses_an_eighteenth(alpha: float) -> None:
    strategy = equilibrium(alpha)
    assert kuhn.value(strategy, strategy) == pytest.approx(-1 / 18)
    assert kuhn.exploitability(strategy, strategy) == pytest.approx(0.0, abs=1e-12)


def test_who_plays_kuhn_poker_at_random_loses_what_was_worked_out_by_hand() -> None:
    uniform = dict.fromkeys(kuhn.SETS, 0.5)
    # As first: king 3/2 by either move, queen 1/2 by betting, jack −1/2 by betting; a third of each.
    assert kuhn.best_response(kuhn.FIRST, uniform) == pytest.approx(1 / 2)
    # As second: king (2 + 3/2)/2, queen (0 + 1/2)/2, jack (−1 − 1/2)/2 after a bet or a pass; a third of each.
    assert kuhn.best_response(kuhn.SECOND, uniform) == pytest.approx(5 / 12)
    assert kuhn.exploitability(uniform, uniform) == pytest.approx(11 / 24)


@pytest.mark.parametrize("role", [kuhn.FIRST, kuhn.SECOND])
@pytest.mark.parametrize("seed", range(5))
def test_a_best_response_is_the_best_of_all_pure_strategies(role: str, seed: int) -> None:
    other = random_strategy(seed)
    own = [state for state in kuhn.SETS if state[1:] in kuhn.HISTORIES[role]]
    values = []
    for bets in product((0.0, 1.0), repeat=len(own)):
        pure = other | dict(zip(own, bets, strict=True))
        values.append(kuhn.value(pure, other) if role == kuhn.FIRST else -kuhn.value(other, pure))
    assert kuhn.best_response(role, other) == pytest.approx(max(values))


@pytest.mark.parametrize("seed", range(5))
def test_the_average_of_strategies_earns_the_average_of_what_they_earn(seed: int) -> None:
    several, other = [random_strategy(10 * seed + i) for i in range(4)], random_strategy(seed + 1000)
    mixed = kuhn.average(several)
    assert kuhn.value(mixed, other) == pytest.approx(sum(kuhn.value(s, other) for s in several) / 4)
    assert kuhn.value(other, mixed) == pytest.approx(sum(kuhn.value(other, s) for s in several) / 4)


def test_only_fair_coins_cannot_be_exploited() -> None:
    assert pennies.exploitability(0.5, 0.5) == 0.0
    assert pennies.exploitability(1.0, 0.5) == pytest.approx(0.5)
    assert pennies.exploitability(0.0, 1.0) == pytest.approx(1.0)


# The tiny model


def test_a_tiny_player_can_say_every_letter_and_the_chances_are_the_model_s_own(model: Path) -> None:
    base = Base(model)
    learner = TorchLearner("player", base, None, 1e-3, Config.__dataclass_fields__["learning"].default_factory(), 1)
    prompts = ["fk", "rj", "l"]
    said = {sign: reply_probs(learner, learner.base.chat, prompts, sign) for sign in SIGNS}
    for prompt in prompts:
        ids = torch.tensor([base.chat.prompt([{"role": "user", "content": prompt}])])
        with base.with_own_attention(), torch.no_grad():
            expected = base.model(input_ids=ids, use_cache=False).logits[0, -1].softmax(-1)
        found = torch.tensor([said[sign][prompt] for sign in SIGNS])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        late = sum(said[sign][prompt] for sign in SIGNS if is_late(sign))
        assert reply_probs(learner, learner.base.chat, prompts, LATE)[prompt] == pytest.approx(late, abs=1e-5)
        assert float(found.min()) > 0.001


# Games and algorithms


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_can_be_put_to_every_game(algorithm: str, model: Path, tmp_path: Path) -> None:
    for game in GAMES:
        if plays(algorithm, game):
            path = tmp_path / f"{game}.yaml"
            path.write_text(yaml.safe_dump(config_of(game, algorithm, model, 0)))
            config = load(path)
            check_conflicts(config)


@dataclass(frozen=True)
class Sometimes:
    """The left one speaks in three tasks of four, the right one in every other; in one of four nobody does."""

    @property
    def roles(self) -> Sequence[str]:
        return "left", "right"

    async def run(self, task: Task, team: Team, world: Any) -> None:
        number = int(task.id.rpartition("/")[2]) % 4
        if number:
            await team.left.say("a")
        if number > 1:
            await team.right.say("b")


@dataclass(frozen=True)
class Late(Additive):
    """A game that half of all letters win."""

    async def score(self, episode: Episode) -> None:
        episode.reward = sum(is_late(turn.text) for turn in episode.turns) / 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_role_absent_from_some_episodes_is_handled_and_counted_by_every_algorithm(
    algorithm: str, model: Path, tmp_path: Path
) -> None:
    tree = config_of("additive", algorithm, model, 0)
    own = {
        "workflow": f"{__file__}:Sometimes",
        "env": {"name": f"{__file__}:Late", "size": 4},
        "steps": 2,
        "eval": {"tasks": 1},
    }
    if algorithm in ("vdn", "qmix"):
        own["algorithm"] = tree["algorithm"] | {"warmup": 1}  # so that the second step is judged by utilities
    run = trained(tree | own, tmp_path)
    for row in [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][:2]:
        played = read_episodes(tmp_path / "episodes" / f"{row['step']:06}.jsonl.gz")
        spoke = [{turn.role for turn in episode.turns} for episode in played]
        assert 0 < sum("right" in there for there in spoke) < sum("left" in there for there in spoke) < len(spoke)
        for role in ("left", "right"):
            assert row[f"absent/{role}"] == sum(role not in there for there in spoke)
        assert all(math.isfinite(number) for number in row.values() if isinstance(number, float))
    assert all(learner.version >= 2 for learner in run.learners.values())


@pytest.mark.parametrize("algorithm", SHORT)
def test_an_algorithm_of_every_kind_learns_the_naming_game(algorithm: str, tmp_path: Path) -> None:
    assert play("naming", algorithm, 0, tmp_path).reached >= 0.95


def test_what_adds_up_is_learned_too(tmp_path: Path) -> None:
    assert play("additive", "grpo", 0, tmp_path).reached >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("game", ["naming", "additive"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_finds_the_best_of_what_adds_up(algorithm: str, game: str, seed: int, tmp_path: Path) -> None:
    assert play(game, algorithm, seed, tmp_path).reached >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_average_of_a_player_s_past_comes_near_the_equilibrium_of_kuhn_poker(seed: int, tmp_path: Path) -> None:
    result = play("kuhn", "grpo", seed, tmp_path)
    assert result.average is not None and result.average < 0.05
    assert result.reached < 0.05  # and so does the last policy by itself


def test_games_that_nobody_plays_are_refused_and_the_quick_ones_are_of_both_kinds() -> None:
    result = CliRunner().invoke(app, ["bench", "games", "--games", "kuhn", "--algorithms", "ppo"])
    assert result.exit_code == 2 and "no algorithm plays kuhn: ppo share" in result.output
    assert QUICK == ("naming", "additive")


def test_results_are_a_table_and_a_picture() -> None:
    results = [Result("naming", "grpo", seed, 0.9 + seed / 20, None, 2.0, [0.5]) for seed in range(3)]
    results.append(Result("kuhn", "grpo", 0, 0.04, 0.03, 9.0, [0.0]))
    assert [shown.row_count for shown in tables(results)] == [1, 1]
    picture = plot([(r.game, r.algorithm, r.reached, r.game == "kuhn") for r in results])
    assert picture.count("<circle") == 4 and picture.count("#b3261e") == 1


# Opponents


POOL = {"share": 1.0, "every": 2, "keep": 2}


def self_play(model: Path, **changes: Any) -> dict[str, Any]:
    short = {"steps": 6, "episodes_per_task": 4, "opponents": POOL, "checkpoint": {"every": 1}, "eval": {"tasks": 2}}
    return config_of("kuhn", "grpo", model, 0) | short | changes


def played_by(run: Run, step: int) -> dict[str, str]:
    run.step = step
    return {role: seat.policy for role, seat in run.players().items()}


def test_snapshots_play_one_seat_in_a_share_of_the_steps(model: Path, tmp_path: Path) -> None:
    run = started(self_play(model, opponents=POOL | {"share": 0.5}), tmp_path)
    assert all(set(played_by(run, step).values()) == {"player"} for step in range(50))  # there are none yet
    run.memory[TAKEN] = 1
    teams = [played_by(run, step) for step in range(200)]
    past = [[role for role, policy in team.items() if policy != "player"] for team in teams]
    assert {len(roles) for roles in past} == {0, 1} and 70 < sum(map(len, past)) < 130
    assert {roles[0] for roles in past if roles} == {"first", "second"}
    assert {policy for team in teams for policy in team.values()} == {"player", slots(run.config, "player")[0]}
    assert {seat.policy for seat in run.players(evaluating=True).values()} == {"player"}


def test_a_snapshot_is_what_the_policy_was_and_stays_so(model: Path, tmp_path: Path) -> None:
    run = started(self_play(model, steps=3), tmp_path)
    first, second = slots(run.config, "player")
    run.config = Config(**{**vars(run.config), "steps": 2})
    train(run)
    weights = {name: p.clone() for name, p in run.learners["player"].parameters().items()}
    assert all(torch.equal(p, weights[name]) for name, p in run.learners[first].parameters().items())
    run.config = Config(**{**vars(run.config), "steps": 3})
    train(run)  # a step in which the snapshot plays one seat
    assert all(torch.equal(p, weights[name]) for name, p in run.learners[first].parameters().items())
    assert any(not torch.equal(p, weights[name]) for name, p in run.learners["player"].parameters().items())
    assert kuhn_strategy(run, first) != kuhn_strategy(run, "player")
    assert run.learners[second].version == 0 and run.memory[TAKEN] == 1


def test_a_run_with_opponents_goes_on_to_the_bit(model: Path, tmp_path: Path) -> None:
    tree = self_play(model, collapse={"steps": 2}, opponents=POOL | {"every": 1}, learning={})
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 3}, tmp_path / "halves")
    again = resumed(tree, tmp_path / "halves")
    assert_same_run(again, straight)
    assert again.memory == straight.memory and again.memory[TAKEN] == 6
    assert final_exploitability(again) == final_exploitability(straight)


def test_opponents_that_cannot_be_kept_or_met_are_refused(model: Path, tmp_path: Path) -> None:
    whole = {"policies": {"player": {"model": str(model), "lora": None}}}
    with pytest.raises(ConfigError, match=r"lora: is null, and opponents are snapshots of adapters"):
        started(self_play(model, **whole), tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"opponents.share: is 0, so snapshots never play"):
        started(self_play(model, opponents={"share": 0.0, "every": 2}), tmp_path / "never")
    with pytest.raises(ConfigError, match=r"opponents.every: has no effect"):
        started(self_play(model, opponents={"every": 100}), tmp_path / "late")


# Doubt that fades, and the alarm


def test_the_bonus_for_doubt_halves_again_and_again() -> None:
    assert Algorithm(entropy=0.4, entropy_halves=10).at_step(20).entropy == pytest.approx(0.1)
    assert Algorithm(entropy=0.4).at_step(20).entropy == 0.4


def said(*texts: str) -> list[Episode]:
    turns = [turn("solver", policy="player") for _ in texts]
    for one, text in zip(turns, texts, strict=True):
        one.text = text
    return [episode([one]) for one in turns]


Steps = Sequence[tuple[list[Episode], dict[str, float]]]


def alarmed(model: Path, tmp_path: Path, steps: Steps, policies: dict[str, Any] | None = None) -> list[Any]:
    """The metric and how much is told, step by step."""
    tree, path = self_play(model, collapse={"steps": 2, "entropy": 0.1}), tmp_path / "config.yaml"
    tree["policies"] |= policies or {}
    path.write_text(yaml.safe_dump(tree))
    config = load(path)
    memory = memory_of(config)
    found = [watch(config, memory, episodes, metrics) for episodes, metrics in steps]
    return [(metrics["collapse"], len(news)) for metrics, news in found]


@pytest.mark.parametrize(
    ("episodes", "metrics", "word"),
    [
        (said("h", "h"), [{"credit/first": 0.1}, {"credit/first": 0.2}] * 2, "same"),
        (said("h", "t"), [{"player/entropy": 0.05, "credit/first": i / 10} for i in range(4)], "entropy"),
    ],
)
def test_a_sign_of_collapse_that_lasts_raises_the_alarm_and_is_told_once(
    episodes: list[Episode], metrics: list[dict[str, float]], word: str, model: Path, tmp_path: Path
) -> None:
    steps = [(episodes, numbers) for numbers in metrics]
    assert alarmed(model, tmp_path, steps) == [(0.0, 0), (1.0, 1), (1.0, 0), (1.0, 0)], word


def test_rewards_that_stand_still_raise_the_alarm_and_it_ends_when_they_move(model: Path, tmp_path: Path) -> None:
    rewards = [0.5, 0.5, 0.5, 0.25, 0.25]
    steps = [(said("h", "t"), {"credit/first": r, "credit/second": -r}) for r in rewards]
    assert alarmed(model, tmp_path, steps) == [(0.0, 0), (0.0, 0), (1.0, 1), (0.0, 0), (0.0, 0)]


@pytest.mark.parametrize("policy", ["a frozen one", "player (past 0)"])
def test_who_does_not_learn_may_always_say_the_same(policy: str, model: Path, tmp_path: Path) -> None:
    frozen = {"policies": {"a frozen one": {"model": str(model), "frozen": True}}}
    episodes = said("h", "h")
    steps = [(episodes, {"credit/first": i / 10}) for i in range(3)]
    assert alarmed(model, tmp_path, steps, **frozen) == [(0.0, 0), (1.0, 1), (1.0, 0)]
    for played in episodes:
        played.turns[0].policy = policy
    assert alarmed(model, tmp_path, steps, **frozen) == [(0.0, 0)] * 3


def test_one_turn_or_a_step_in_which_nobody_earned_is_no_sign_of_collapse(model: Path, tmp_path: Path) -> None:
    lone: Steps = [(said("h"), {"credit/first": i / 10}) for i in range(3)]
    assert alarmed(model, tmp_path, lone) == [(0.0, 0)] * 3
    assert alarmed(model, tmp_path, [([], {})] * 3) == [(0.0, 0)] * 3


def test_a_run_whose_player_can_say_one_thing_only_raises_the_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certain = tiny_player(tmp_path / "model", head=1000.0)
    run = trained(self_play(certain, steps=4, collapse={"steps": 2}), tmp_path / "run")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()[:4]]
    assert [row["collapse"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert capsys.readouterr().err.count("the entropy of player was below 0.01") == 1


def test_a_run_of_players_who_doubt_raises_no_alarm(model: Path, tmp_path: Path) -> None:
    run = started_run("pennies", "rae", 0, tmp_path / "run")
    run.config = Config(**{**vars(run.config), "steps": 3})
    train(run)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()[:3]]
    assert [row["collapse"] for row in rows] == [0.0] * 3
