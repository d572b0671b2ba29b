"""Laws of value decomposition: what each role's message is worth, learned from what the team earned."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.grpo import Grpo
from coterie.algorithms.qmix import Qmix
from coterie.algorithms.vdn import Vdn
from coterie.config import ConfigError
from coterie.learners.critics import joint_context
from coterie.learners.mixer import Mixer, in_rounds, team_rewards
from coterie.learners.replay_buffer import JointTurns, ReplayBuffer
from coterie.learners.text_encoder import HiddenStates
from coterie.models.base import Base
from coterie.rl.mixers import (
    Additive,
    Decomposition,
    Monotonic,
    Utility,
    monotonic,
    polyak_update,
    standardized_by,
    td_target,
)
from coterie.types import Episode, Turn
from tests.episodes import credited, episode, turn
from tests.laws.test_resume import assert_same_run
from tests.runs import naming_config, resumed, started, trained

Folder = Callable[[str], Path]
ROLES = ("left", "right", "judge")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def disturbed(module: nn.Module, seed: int = 0) -> Any:
    """With other weights than it began with."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data += torch.randn(parameter.shape, dtype=torch.float64, generator=draw)
    return module


class Letters:
    """An encoder by hand: how often each letter occurs, and a one."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[*(float(text.count(sign)) for sign in "abcdefgh:"), 1.0] for text in texts])


# The formulas


def slow_line(layer: nn.Linear, x: Sequence[float]) -> list[float]:
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def slow_mlp(layers: nn.Sequential, x: Sequence[float]) -> float:
    first, _, second = layers
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    return slow_line(second, [max(0.0, h) for h in slow_line(first, x)])[0]


def slow_qmix(mixing: Monotonic, q: Sequence[float], s: Sequence[float]) -> float:
    """h = ELU(qᵀ|W1(s)| + b1(s)); Q_tot = h·|W2(s)| + V(s)"""
    shift, second, flat = slow_line(mixing.b1, s), slow_line(mixing.w2, s), slow_line(mixing.w1, s)
    total = slow_mlp(mixing.v, s)
    for j in range(len(shift)):
        x = shift[j] + sum(q[i] * abs(flat[i * len(shift) + j]) for i in range(len(q)))
        total += (x if x > 0 else math.exp(x) - 1) * abs(second[j])
    return total


def slow_value(team: Decomposition, s: list[float], actions: list[list[float]], present: list[bool]) -> float:
    q = [slow_mlp(u.layers, s + a) if here else 0.0 for u, a, here in zip(team.roles, actions, present, strict=True)]  # type: ignore[arg-type]
    return slow_qmix(team.mixing, q, s) if isinstance(team.mixing, Monotonic) else sum(q)


@pytest.mark.parametrize("kind", ["vdn", "qmix"])
def test_a_team_s_value_is_the_formula_s(kind: str) -> None:
    mixing = Additive() if kind == "vdn" else Monotonic(3, 5, 4)
    team = disturbed(Decomposition(3, 5, 6, mixing))
    state, actions, present = numbers(9, 5), numbers(9, 3, 5, seed=1), numbers(9, 3, seed=2) > -0.5
    slow = [slow_value(team, *row) for row in zip(state.tolist(), actions.tolist(), present.tolist(), strict=True)]
    torch.testing.assert_close(team(state, actions, present), torch.tensor(slow, dtype=torch.float64))


def test_what_a_role_that_said_nothing_would_have_been_worth_changes_nothing() -> None:
    team = disturbed(Decomposition(3, 5, 6, Monotonic(3, 5, 4)))
    state, actions, present = numbers(4, 5), numbers(4, 3, 5, seed=1), torch.tensor([[True, False, True]] * 4)
    other = actions.clone()
    other[:, 1] += 1
    assert torch.equal(team(state, actions, present), team(state, other, present))
    assert not torch.equal(team(state, actions, present), team(state, other, ~present))


@pytest.mark.parametrize("seed", range(5))
def test_no_role_s_good_is_the_team_s_harm(seed: int) -> None:
    mixing = disturbed(Monotonic(3, 5, 4), seed)
    assert float(mixing.w1(numbers(50, 5, seed=seed)).detach().min()) < 0  # the weights themselves would do harm
    q = (5 * numbers(50, 3, seed=seed + 1)).requires_grad_()
    mixing(q, numbers(50, 5, seed=seed)).sum().backward()
    assert q.grad is not None and float(q.grad.min()) >= 0 and float(q.grad.max()) > 0


def units(roles: int, hidden: int, shift: float = 0.0) -> Monotonic:
    """Weights that no state changes: every role counts one in each of the hidden units, which count one together."""
    mixing = Monotonic(roles, 5, hidden).double()
    for parameter in mixing.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(mixing.w1.bias)
    nn.init.constant_(mixing.w2.bias, -1 / hidden)  # its absolute value counts
    nn.init.constant_(mixing.b1.bias, shift)
    nn.init.constant_(mixing.v[2].bias, -shift)  # type: ignore[arg-type]
    return mixing


@pytest.mark.parametrize("hidden", [1, 4])
def test_unit_weights_make_qmix_vdn(hidden: int) -> None:
    q, state = numbers(40, 3), numbers(40, 5, seed=1)
    total = Additive()(q, state)
    plain = units(3, hidden)(q, state)
    up = total > 0
    assert 5 < int(up.sum()) < 35
    # ELU is the identity above zero only; shifted up before it and down after it, the sum is the same everywhere.
    torch.testing.assert_close(plain[up], total[up])
    torch.testing.assert_close(plain[~up], total[~up].exp() - 1)
    torch.testing.assert_close(units(3, hidden, shift=20.0)(q, state), total)


def test_identity_weights_make_qmix_vdn() -> None:
    q = numbers(20, 3).abs()
    first, one = torch.eye(3, dtype=torch.float64).expand(20, 3, 3), torch.ones(20, 3, dtype=torch.float64)
    torch.testing.assert_close(monotonic(q, first, 0 * one, one, 0 * one[:, 0]), q.sum(dim=1))


def test_qmix_begins_near_the_sum() -> None:
    mixing = Monotonic(3, 64, 16).double()
    q, state = 0.1 * numbers(30, 3).abs(), numbers(30, 64, seed=1)
    off = (mixing(q, state) - mixing(0 * q, state)).detach() - q.sum(dim=1)
    assert float(off.abs().max()) < 0.3 * float(q.sum(dim=1).max())


def test_targets_look_one_round_ahead_and_never_past_the_end() -> None:
    reward, following = torch.tensor([1.0, 2.0]), torch.tensor([10.0, math.nan])
    assert td_target(reward, torch.tensor([False, True]), following, 0.9).tolist() == pytest.approx([10.0, 2.0])


def test_targets_follow_by_the_declared_share() -> None:
    slow, fast = disturbed(Utility(3, 2)), disturbed(Utility(3, 2), seed=1)
    before = [parameter.detach().clone() for parameter in slow.parameters()]
    polyak_update(slow, fast, 0.25)
    for was, now, ahead in zip(before, slow.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(now.data, 0.75 * was + 0.25 * ahead.data)


def test_utilities_are_standardised_by_those_of_the_role_that_are_known() -> None:
    utilities, known, present = numbers(4, 3), 3 * numbers(9, 3, seed=1) + 2, numbers(9, 3, seed=2) > 0
    standard = standardized_by(utilities, known, present, epsilon=0.0)
    for role in range(3):
        own = known[present[:, role], role].tolist()
        mean = sum(own) / len(own)
        deviation = math.sqrt(sum((q - mean) ** 2 for q in own) / (len(own) - 1))
        expected = [(q - mean) / deviation for q in utilities[:, role].tolist()]
        assert standard[:, role].tolist() == pytest.approx(expected)


# JointTurns and the buffer


def ragged(seed: int, count: int = 12) -> list[Episode]:
    """Conversations of up to three rounds in which roles may be missing, with rewards of turns on the way."""
    draw = random.Random(seed)
    episodes = []
    for e in range(count):
        turns: list[Turn] = []
        for _ in range(draw.randint(1, 3)):
            there = [role for role in ROLES if draw.random() < 0.7] or ["judge"]
            for role in there:
                nth = sum(t.role == role for t in turns)
                said = replace(turn(role, round=nth), text="".join(draw.choices("abcdefgh", k=3)))
                said.seen = tuple(i for i in range(len(turns)) if draw.random() < 0.9)
                said.reward = draw.choice([None, draw.random()])
                turns.append(said)
        episodes.append(episode(turns, draw.random(), f"task {e % 3}", e))
    return episodes


def test_a_round_is_the_nth_message_of_every_role_that_has_one() -> None:
    talk = [turn("left"), turn("right"), turn("left", round=1), turn("judge"), turn("left", round=2)]
    talk[0].reward, talk[2].reward = 0.5, 0.25
    rounds = list(in_rounds(played := episode(talk, reward=1.0)))
    assert [list(said) for said in rounds] == [["left", "right", "judge"], ["left"], ["left"]]
    assert team_rewards(played, rounds) == [0.5, 0.25, 1.0]


def test_the_state_of_a_round_is_what_was_known_when_it_began() -> None:
    left, right = replace(turn("left"), text="a"), replace(turn("right"), text="b", seen=(0,))
    later = replace(turn("left", round=1), text="c", seen=(0, 1))
    mixer = Mixer(Letters(), ROLES, Vdn(), 0)
    rounds = mixer._joint_turns([played := episode([left, right, later])])
    assert torch.equal(rounds.state, mixer._vectors([joint_context(played, left), joint_context(played, later)]))
    assert rounds.present.tolist() == [[True, True, False], [True, False, False]]
    assert rounds.done.tolist() == [False, True] and not rounds.actions[~rounds.present].any()


def numbered(start: int, count: int) -> JointTurns:
    """An episode whose rounds are numbered by their rewards."""
    order = torch.arange(start, start + count, dtype=torch.float64)
    vectors = order[:, None].float().expand(count, 2)
    done = torch.arange(count) == count - 1
    return JointTurns(vectors, vectors[:, None], torch.ones(count, 1, dtype=torch.bool), order, order, done)


@pytest.mark.parametrize("capacity", [1, 3, 7, 100])
def test_the_buffer_keeps_the_latest_rounds_and_knows_their_successors(capacity: int) -> None:
    buffer, start = ReplayBuffer(capacity, 1, 2), 0
    for length in [3, 1, 4, 2, 5, 1, 3]:
        buffer.add(numbered(start, length))
        start += length
        assert buffer.entries.reward.tolist() == list(range(max(0, start - capacity), start))
    now, later = buffer.sample(200, torch.Generator().manual_seed(0))
    going_on = ~now.done
    assert torch.equal(later.reward[going_on], now.reward[going_on] + 1)
    assert len(set(now.reward.tolist())) == min(capacity, start)
    again, _ = buffer.sample(200, torch.Generator().manual_seed(0))
    assert torch.equal(now.reward, again.reward)


# The mixer


@pytest.mark.parametrize("kind", [Vdn, Qmix])
@pytest.mark.parametrize("target", ["td", "return"])
def test_a_fit_learns_what_the_formula_says(kind: type[Vdn], target: Any) -> None:
    how = kind(target=target, gamma_turn=0.9, value_fits=1, draw=30, width=4)
    mixer = Mixer(Letters(), ROLES, how, 3)
    disturbed(mixer.online)
    disturbed(mixer.target, seed=1)
    before = copy.deepcopy((mixer.online, mixer.target))
    episodes = ragged(0)
    loss = mixer.fit(episodes, 0)["critic/loss"]
    expected = slow_loss(mixer, *before, episodes, target)
    assert loss == pytest.approx(expected, rel=1e-6)


def slow_loss(mixer: Mixer, online: Decomposition, slow: Decomposition, episodes: list[Episode], target: str) -> float:
    """Half the squared error of Q_tot, on the rounds that the mixer's random stream picks."""
    wanted, values = [], []
    for played in episodes:
        said = list(in_rounds(played))
        rewards, rounds = team_rewards(played, said), mixer._joint_turns([played])
        columns = [
            (rounds.state[k].tolist(), rounds.actions[k].tolist(), rounds.present[k].tolist()) for k in range(len(said))
        ]
        for k in range(len(said)):
            values.append(slow_value(online, *columns[k]))
            if target == "return":
                wanted.append(sum(0.9 ** (j - k) * rewards[j] for j in range(k, len(said))))
            else:
                wanted.append(rewards[k] + (0.9 * slow_value(slow, *columns[k + 1]) if k + 1 < len(said) else 0.0))
    picked = torch.randint(len(values), (30,), generator=torch.Generator().manual_seed(3)).tolist()
    return sum(0.5 * (values[i] - wanted[i]) ** 2 for i in picked) / len(picked)


def test_targets_of_utilities_and_mixture_begin_as_copies_and_follow_at_every_fit() -> None:
    mixer = Mixer(Letters(), ROLES, Qmix(value_fits=1, polyak=0.1), 0)
    start = {name: tensor.clone() for name, tensor in mixer.online.state_dict().items()}
    assert all(torch.equal(tensor, mixer.target.state_dict()[name]) for name, tensor in start.items())
    mixer.fit(ragged(0), 0)
    for name, tensor in mixer.target.state_dict().items():
        torch.testing.assert_close(tensor, start[name].lerp(mixer.online.state_dict()[name], 0.1))
    moved = {
        name.split(".")[0] for name, tensor in start.items() if not torch.equal(tensor, mixer.target.state_dict()[name])
    }
    assert moved == {"roles", "mixing"}


def test_roles_that_are_missing_from_rounds_are_counted() -> None:
    episodes = ragged(1)
    missing = sum(len(ROLES) - len(said) for played in episodes for said in in_rounds(played))
    mixer = Mixer(Letters(), ROLES, Vdn(warmup=0), 0)
    metrics = mixer.fit(episodes, 0)
    assert metrics["critic/absent"] == missing > 0
    assert metrics["critic/buffer"] == sum(len(list(in_rounds(played))) for played in episodes)
    mixer.read(episodes)
    assert all(spoken.utility is not None for played in episodes for spoken in played.turns)


def test_a_step_without_episodes_teaches_nothing() -> None:
    mixer = Mixer(Letters(), ROLES, Vdn(warmup=0), 0)
    mixer.read([])
    assert mixer.fit([], 0) == {} and mixer.fitted_steps == 0


def test_in_the_warm_up_roles_earn_the_team_s_reward_and_then_their_utilities() -> None:
    how = Vdn(warmup=2)
    mixer, plain = Mixer(Letters(), ROLES, how, 0), Grpo()
    for step in range(4):
        episodes, same = ragged(step), ragged(step)
        mixer.read(episodes)
        credited(how, episodes)
        credited(plain, same)
        ours = [float(spoken.advantages[0]) for e in episodes for spoken in e.turns if spoken.advantages is not None]
        theirs = [float(spoken.advantages[0]) for e in same for spoken in e.turns if spoken.advantages is not None]
        assert (ours == theirs) == (step < 2)
        mixer.fit(episodes, step)


def test_a_turn_s_credit_is_its_utility_held_against_its_peers_alone() -> None:
    episodes = [episode([turn("left"), turn("left", round=1)], float(i), repeat=i) for i in range(2)]
    for spoken, utility in zip([t for e in episodes for t in e.turns], [1.0, 2.0, 4.0, 9.0], strict=True):
        spoken.utility = utility
    credited(Vdn(scale="none"), episodes)
    assert [float(t.advantages[0]) for e in episodes for t in e.turns if t.advantages is not None] == [-3, -2, 0, 5]


@pytest.mark.parametrize("scale", ["none", "deviation"])
def test_utilities_say_nothing_where_the_team_always_earned_the_same(scale: Any) -> None:
    """There they are error, and a policy that follows an error unlearns what it knew."""
    same = [episode([turn("left")], 1.0, "same", i) for i in range(2)]
    other = [episode([turn("left")], float(i == 0), "other", i) for i in range(2)]
    for played, utility in zip([*same, *other], [0.1, -0.1, 0.1, -0.1], strict=True):
        played.turns[0].utility = utility
    credited(Vdn(scale=scale), [*same, *other])
    advantages = [float(e.turns[0].advantages[0]) for e in (*same, *other) if e.turns[0].advantages is not None]
    assert advantages[:2] == [0.0, 0.0] and advantages[2] == pytest.approx(-advantages[3]) and advantages[2] > 0


def test_leaving_the_reference_costs_where_utilities_say_nothing() -> None:
    same = [episode([turn("left")], 1.0, repeat=i) for i in range(2)]
    for played, utility, reference in zip(same, (3.0, -2.0), (-1.0, -3.0), strict=True):
        played.turns[0].utility, played.turns[0].ref_logprobs = utility, torch.tensor([reference])
    credited(Vdn(scale="none", kl=0.5, kl_in="reward"), same)
    assert [float(e.turns[0].advantages[0]) for e in same if e.turns[0].advantages is not None] == [0.5, -0.5]


def test_equal_messages_are_worth_the_same_to_the_bit() -> None:
    how = Vdn(warmup=1)
    mixer = Mixer(Letters(), ROLES, how, 0)
    mixer.fit(ragged(0), 0)
    alike = [episode([replace(turn("left"), text="abc")], float(i % 2), repeat=i) for i in range(37)]
    mixer.read(alike)
    credited(how, alike)
    assert max(abs(float(e.turns[0].advantages[0])) for e in alike if e.turns[0].advantages is not None) < 1e-9


@pytest.mark.parametrize(
    "how", [Vdn(value_fits=30, value_lr=1e-2), Qmix(value_fits=30, value_lr=1e-2)], ids=["vdn", "qmix"]
)
def test_an_additive_game_is_taken_apart(how: Vdn) -> None:
    """The team earns f(left) + g(right); the second role even reads what the first one said."""
    f = {"a": 0.0, "b": 0.3, "c": 0.6, "d": 0.9}
    g = {"a": 0.8, "b": 0.1, "c": 0.4, "d": 0.0}
    mixer, draw = Mixer(Letters(), ROLES[:2], replace(how, warmup=1), 0), random.Random(0)

    def game(left: str, right: str) -> Episode:
        first, second = replace(turn("left"), text=left), replace(turn("right"), text=right, seen=(0,))
        return episode([first, second], f[left] + g[right])

    for step in range(8):
        mixer.fit([game(draw.choice("abcd"), draw.choice("abcd")) for _ in range(32)], step)
    games = [game(sign, sign) for sign in "abcd"]
    mixer.read(games)
    for place, worth in enumerate((f, g)):
        learned = {played.turns[place].text: played.turns[place].utility for played in games}
        assert sorted(learned, key=lambda sign: learned[sign] or 0.0) == sorted(worth, key=worth.__getitem__)


# The encoder


TEXTS = ["What is 12 + 30?", "", "The answer is 42.", "e", "Say the word before the last one. " * 4]


def test_a_text_s_vector_is_the_base_s_own_mean_whatever_it_is_encoded_with(
    model_folder: Folder, team_base: Callable[[str], Base]
) -> None:
    base = team_base("llama")  # with adapters on it
    together = HiddenStates(base, 1000).encode(TEXTS)
    assert not together.requires_grad and together.shape == (5, base.hidden_size) and not together[1].any()
    torch.testing.assert_close(HiddenStates(base, 1).encode(TEXTS), together, atol=1e-5, rtol=1e-4)
    plain = Base(model_folder("llama"))
    for text, vector in zip(TEXTS, together, strict=True):
        if text:
            ids = torch.tensor([plain.tokenizer.encode(text, add_special_tokens=False)])
            with torch.no_grad(), plain.with_own_attention():
                own = plain.trunk(input_ids=ids, use_cache=False).last_hidden_state[0].mean(dim=0)
            torch.testing.assert_close(vector, own, atol=1e-4, rtol=1e-4)


def test_a_text_that_is_too_long_is_known_by_its_end(team_base: Callable[[str], Base]) -> None:
    base = team_base("llama")
    long = "e a " * base.context
    end = base.tokenizer.decode(base.tokenizer.encode(long, add_special_tokens=False)[-base.context :])
    vectors = HiddenStates(base, 100).encode([long, end])
    torch.testing.assert_close(vectors[0], vectors[1])


# Whole runs


OWN = '''
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Counting:
    """How often each of some letters occurs."""
    letters: str = "ea"

    def encode(self, texts):
        return torch.tensor([[float(text.count(sign)) for sign in self.letters] for text in texts])

class Mute:
    pass
'''


def mixed(model: Path, name: str, **changes: Any) -> dict[str, Any]:
    tree = naming_config(model, algorithm={"name": name, "warmup": 1, "buffer": 20, "value_fits": 4}, **changes)
    tree["workflow"] |= {"rounds": 2}
    return tree


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_twice_two_steps_with_a_mixer_are_four_steps(name: str, model_folder: Folder, tmp_path: Path) -> None:
    tree = mixed(model_folder("llama"), name)
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 2}, tmp_path / "halves")
    again = resumed(tree, tmp_path / "halves")
    assert_same_run(again, straight)
    one, other = again.critic, straight.critic
    assert isinstance(one, Mixer) and isinstance(other, Mixer) and one.fitted_steps == other.fitted_steps == 4
    for mine, theirs in ((one.online, other.online), (one.target, other.target)):
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(vars(one.buffer.entries), vars(other.buffer.entries), rtol=0, atol=0)
    torch.testing.assert_close(one.optimizer.state_dict(), other.optimizer.state_dict(), rtol=0, atol=0)
    assert torch.equal(one.generator.get_state(), other.generator.get_state()) and len(one.buffer) == 20


def test_an_encoder_of_a_user_s_own_is_used(model_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    tree = mixed(model_folder("llama"), "vdn", steps=2, encoder={"name": "own.py:Counting", "letters": "eai"})
    run = trained(tree, tmp_path)
    assert isinstance(run.critic, Mixer) and run.critic.features == 3


def test_whole_models_that_train_leave_the_encoder_as_it_was(model_folder: Folder, tmp_path: Path) -> None:
    tree = mixed(model_folder("llama"), "vdn", steps=2)
    tree["policies"] = {
        name: {"model": str(model_folder("llama")), "lr": 1e-2, "lora": None} for name in ("left", "right")
    }
    run = started(tree, tmp_path)
    assert isinstance(run.critic, Mixer)
    before = run.critic.encoder.encode(TEXTS)
    trained_run = trained(tree, tmp_path / "trained")
    assert isinstance(trained_run.critic, Mixer) and torch.equal(trained_run.critic.encoder.encode(TEXTS), before)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"encoder": "own.py:Counting", "algorithm": "grpo"}, "encoder: has no effect"),
        ({"encoder": "own.py:Mute"}, r"encoder: .*has no method encode"),
        ({"encoder": {"name": "own.py:Counting", "leters": "e"}}, "encoder.leters: unknown key"),
        ({"algorithm": {"name": "vdn", "warmup": 4}}, "algorithm.warmup: 4 steps in a run of steps=4"),
        ({"algorithm": {"name": "qmix", "warmup": 1, "target": "return", "polyak": 0.5}}, "algorithm.polyak: has no"),
        ({"credit": "own"}, "credit: has no effect after the warm-up"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    changes: dict[str, Any], complaint: str, model_folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=complaint):
        started(mixed(model_folder("llama"), "vdn") | changes, tmp_path)
