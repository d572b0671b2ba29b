"""Formulas against a second source: numbers that other people's code or papers give for the same inputs.

A test that is written from our own definition cannot find a mistake in the definition. The numbers here were computed
with the implementation that each test names (verl is release 0.9.1, `verl/trainer/ppo/core_algos.py`), or by hand from
the equation of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.algorithms.at_grpo import AtGrpo
from coterie.algorithms.base import Algorithm
from coterie.algorithms.cory import Cory
from coterie.algorithms.dapo import Dapo
from coterie.algorithms.dr_grpo import DrGrpo
from coterie.algorithms.dr_mas import DrMas
from coterie.algorithms.group_estimator import AVERAGES
from coterie.algorithms.grpo import Grpo
from coterie.algorithms.gspo import Gspo
from coterie.algorithms.happo import Happo, log_factor
from coterie.algorithms.ippo import Ippo
from coterie.algorithms.ppo import Ppo
from coterie.algorithms.rae import Rae
from coterie.algorithms.reinforce_pp import ReinforcePp
from coterie.algorithms.rloo import Rloo
from coterie.credit.aggregate import Aggregate
from coterie.credit.maporl import Maporl
from coterie.credit.team import Team
from coterie.kernels.logprob_entropy import forward as logprob_entropy
from coterie.learners.batch import make_batches
from coterie.rl.advantages import centered
from coterie.rl.credit import shapley_values
from coterie.rl.losses import KlEstimator, Reduce, clipped_policy_loss, kl, ratio_of, value_loss
from coterie.rl.mixers import Additive, monotonic, td_target
from coterie.rl.trees import tree_returns
from coterie.types import Batch, Episode, Scores, Turn
from tests.episodes import credited, episode, turn


def spoken(role: str, logprobs: Sequence[float], round: int = 0, **more: Any) -> Turn:
    """A turn with one token for each log-prob; other fields by name, lists as tensors."""
    made = turn(role, response=[3] * len(logprobs), logprobs=logprobs, round=round)
    tensors = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in more.items()}
    return replace(made, **tensors)


def flat(turns: Sequence[Turn], field: str) -> list[float]:
    return [x for said in turns for x in getattr(said, field).tolist()]


# Advantages with a critic


def conversations(b: str = "b") -> list[Episode]:
    """An episode of three and of two tokens with rewards 0.5 and 1, and one of two tokens that earns −1. Between the
    two turns of the first stands an observation token, which verl masks."""
    first = spoken("a", [-1.0, -0.5, -2.0], reward=0.5, values=[0.2, 0.1, 0.4], ref_logprobs=[-1.2, -0.4, -2.5])
    second = spoken(b, [-0.3, -1.2], reward=1.0, values=[0.3, 0.6], ref_logprobs=[-0.3, -0.9])
    second.round = 1 if b == "a" else 0
    alone = spoken("a", [-0.7, -0.1], reward=-1.0, values=[-0.5, 0.25], ref_logprobs=[-1.0, -0.4])
    return [episode([first, second]), episode([alone], task="other")]


def test_gae_over_the_tokens_of_a_team_with_the_kl_in_the_reward() -> None:
    """verl: compute_rewards with kl_ratio 0.1, then compute_gae_advantage_return with γ = 0.9, λ = 0.8. MARFT's
    TokenBuffer.compute_gae_and_returns (marft/buffers/token_level_buffer.py) has the same recursion over agents."""
    episodes = conversations()
    both = {"gamma_token": 0.9, "gamma_turn": 0.9, "lam_token": 0.8, "lam_turn": 0.8}
    credited(Ppo(**both, kl=0.1, kl_in="reward", whiten="batch"), episodes)
    turns = [t for e in episodes for t in e.turns]
    expected = [0.635425, 0.885313, 1.115712, 0.8496, 1.03, -0.7266, -1.03]
    assert flat(turns, "returns") == pytest.approx(expected, abs=2e-6)
    whitened = [0.319948, 0.798195, 0.70306, 0.476009, 0.312532, -0.584947, -2.024796]
    assert flat(turns, "advantages") == pytest.approx(whitened, abs=2e-6)


THREE = [("a", 0.5, 0.2), ("b", 0.0, -0.4), ("a", 1.0, 0.7)]  # role, reward, value


def three_turns() -> list[Turn]:
    """Turns of two tokens; only the value at a turn's first token counts at the level of turns."""
    return [spoken(role, [-1.0, -1.0], k, reward=r, values=[v, 9.0]) for k, (role, r, v) in enumerate(THREE)]


@pytest.mark.parametrize(
    ("kind", "advantages"), [(Ppo, [0.83712, 1.246, 0.3]), (Ippo, [1.146, 0.4, 0.3])], ids=["team", "each role"]
)
def test_gae_over_whole_turns(kind: type[Ppo], advantages: list[float]) -> None:
    """verl's compute_gae_advantage_return on rows of one token a turn, γ = 0.9, λ = 0.8: one row for the team (as
    MARFT's ActionBuffer.compute_gae_and_returns) or one row for each role (IPPO, arXiv 2011.09533)."""
    turns = three_turns()
    credited(kind(level="turn", gamma_turn=0.9, lam_turn=0.8, whiten=None), [episode(turns)])
    assert [float(t.advantages[0]) for t in turns if t.advantages is not None] == pytest.approx(advantages, abs=1e-6)


# Advantages from groups

REWARDS = [1.0, 0.0, 0.0, 0.5, 0.5, 2.0, -1.0]  # of the groups x x x y y y y


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (Grpo(), [1.154699, -0.577349, -0.577349, 0.0, 0.0, 1.224744, -1.224744]),
        (DrGrpo(reduce_length=8), [0.666667, -0.333333, -0.333333, 0.0, 0.0, 1.5, -1.5]),
        (Rloo(), [1.0, -0.5, -0.5, 0.0, 0.0, 2.0, -2.0]),
    ],
    ids=["grpo", "dr_grpo", "rloo"],
)
def test_group_advantages(algorithm: Grpo, expected: list[float]) -> None:
    """verl: compute_grpo_outcome_advantage with and without norm_adv_by_std_in_grpo, compute_rloo_outcome_advantage.
    TRL's GRPOTrainer divides by std + 1e-4 instead of 1e-6, by the same unbiased std. A group of one gets 0 here and
    its own reward in verl."""
    tasks = "xxxyyyy"
    episodes = [episode([turn()], r, t, i) for i, (r, t) in enumerate(zip(REWARDS, tasks, strict=True))]
    credited(algorithm, episodes)
    assert flat([e.turns[0] for e in episodes], "advantages") == pytest.approx(expected, abs=2e-6)


def test_at_grpo_compares_turns_of_one_agent_at_one_state() -> None:
    """PettingLLMs' compute_advantage is verl's compute_grpo_outcome_advantage on a uid for each agent, turn and prompt
    (pettingllms/verl/ray_trainer.py; arXiv 2510.11062): the same numbers, however often a task was played."""
    first = [spoken("a", [-1.0], reward=r) for r in REWARDS[:3]]
    later = [spoken("a", [-1.0], 1, reward=r, prompt_ids=(7, 8)) for r in REWARDS[3:]]
    credited(AtGrpo(), [episode([t], repeat=i) for i, t in enumerate([*first, *later])])
    expected = [1.154699, -0.577349, -0.577349, 0.0, 0.0, 1.224744, -1.224744]
    assert flat([*first, *later], "advantages") == pytest.approx(expected, abs=2e-6)


def test_dr_mas_takes_the_statistics_of_each_agent_alone() -> None:
    """verl's compute_grpo_outcome_advantage on groups named `{uid}_{agent_id}`, as DrMAS does with group_by_agent_id
    (github.com/langfengQ/DrMAS; arXiv 2602.08847)."""
    rewards = {"a": [1.0, 0.0, 0.0], "b": [10.0, 30.0, 20.0]}
    turns = [[spoken(role, [-1.0], reward=rewards[role][i]) for role in "ab"] for i in range(3)]
    credited(DrMas(), [episode(pair, repeat=i) for i, pair in enumerate(turns)])
    assert flat([a for a, _ in turns], "advantages") == pytest.approx([1.154699, -0.577349, -0.577349], abs=2e-6)
    assert flat([b for _, b in turns], "advantages") == pytest.approx([-1.0, 1.0, 0.0], abs=2e-6)


def test_reinforce_pp_with_a_conversation_of_two_turns() -> None:
    """verl's compute_rewards with kl_ratio 0.1, then compute_reinforce_plus_plus_outcome_advantage with γ = 1: returns
    1.47 1.49 1.48 | 1.03 1.03 and −1.06 −1.03, then whitened (arXiv 2501.03262, equations 8 to 10)."""
    episodes = conversations(b="a")
    credited(ReinforcePp(kl=0.1), episodes)
    expected = [0.722984, 0.740198, 0.731591, 0.344278, 0.344278, -1.454574, -1.428753]
    assert flat([t for e in episodes for t in e.turns], "advantages") == pytest.approx(expected, abs=2e-6)


def test_rae_holds_a_reward_against_the_average_of_before() -> None:
    """SPIRAL's prepare_trajectories (train_spiral.py): the baseline is read before it is updated, then
    b ← 0.95·b + 0.05·R (arXiv 2506.24119). A role's first game is held against itself here, not against zero."""
    memory: dict[str, Any] = {}
    found = []
    for reward in (1.0, 0.0, 1.0):
        played = [episode([turn()], reward)]
        Team().assign(played, {}, team_chain=False)
        Rae().compute_advantages(played, memory)
        found += flat(played[0].turns, "advantages")
    assert found == pytest.approx([0.0, -1.0, 1 - 0.95])
    assert list(memory[AVERAGES].values()) == pytest.approx([0.95 * 0.95 + 0.05])


def test_magrpo_s_returns_and_baseline() -> None:
    """CoMLRL's MAGRPOTrainer: compute_returns takes r + γ·mean of the children, and each node's completions are held
    against their mean (comlrl/trainers/reinforce/magrpo.py; arXiv 2508.04652). γ = 0.5."""
    parents = {("e", 0): None, ("f", 0): None} | {("e", 1): ("e", 0), ("g", 1): ("e", 0)}
    parents |= {("f", 1): ("f", 0), ("h", 1): ("f", 0)}
    rewards = {("e", 0): 1.0, ("f", 0): 0.0, ("e", 1): 2.0, ("g", 1): 4.0, ("f", 1): 0.0, ("h", 1): 1.0}
    found = tree_returns(rewards, parents, gamma=0.5)
    assert found == pytest.approx(rewards | {("e", 0): 2.5, ("f", 0): 0.25})
    names = list(found)
    group = torch.tensor([list(parents.values()).index(parents[name]) for name in names])
    advantages = dict(zip(names, centered(torch.tensor([found[n] for n in names]), group).tolist(), strict=True))
    expected = {("e", 0): 1.125, ("f", 0): -1.125, ("e", 1): -1.0, ("g", 1): 1.0, ("f", 1): -0.5, ("h", 1): 0.5}
    assert advantages == pytest.approx(expected)


# Policy losses

OLD, NEW = [[-1.0, -0.5, -2.0], [-0.7, -0.1]], [[-0.6, -0.9, -1.95], [-0.3, -2.0]]
SAMPLER = [[-1.1, -0.5, -3.5], [-0.9, -0.05]]


def two_answers() -> tuple[Batch, Tensor]:
    """Of three tokens with an advantage of 1.5 and of two with −0.8; and what the learner thinks of them now."""
    turns = [
        spoken("a", sampler, old_logprobs=old, advantages=[advantage] * len(old))
        for sampler, old, advantage in zip(SAMPLER, OLD, (1.5, -0.8), strict=True)
    ]
    batch = make_batches([episode([t], task=str(i)) for i, t in enumerate(turns)])["policy"]
    return batch, torch.tensor([x for row in NEW for x in row]).requires_grad_()


def loss_of(algorithm: Algorithm) -> tuple[float, list[float], float]:
    """The loss, its gradient by log-prob, and the clip fraction."""
    batch, new = two_answers()
    part, scores = batch.each(lambda column: column[batch.mask]), Scores(new, torch.zeros(5))
    loss = (algorithm.loss(scores, part) * algorithm.loss_weights(batch)[batch.mask]).sum()
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad.tolist(), float(algorithm.token_metrics(scores, part).clip_fraction.mean())


@pytest.mark.parametrize(
    ("reduce", "loss", "slopes"),
    [
        ("token", -0.548477, [0.0, -0.201096, -0.315381, 0.0, 0.0]),
        ("turn", -0.310398, [0.0, -0.16758, -0.262818, 0.0, 0.0]),
        ("turn_sum", -1.371193, [0.0, -0.50274, -0.788453, 0.0, 0.0]),
        ("fixed", -0.137119, [0.0, -0.050274, -0.078845, 0.0, 0.0]),
    ],
)
def test_ppo_s_loss_with_dual_clip_and_each_way_to_add_it_up(reduce: Reduce, loss: float, slopes: list[float]) -> None:
    """verl's compute_policy_loss_vanilla with clip 0.2, 0.28 and c = 1.4 (arXiv 1707.06347, equation 7; dual clip:
    arXiv 1912.09729), and agg_loss: token-mean, seq-mean-token-mean, seq-mean-token-sum and, divided by 10 (Dr. GRPO,
    arXiv 2503.20783), seq-mean-token-sum-norm; its pg_clipfrac is 0.4."""
    length = 10 if reduce == "fixed" else None
    how = Algorithm(epochs=2, clip=0.2, clip_high=0.28, dual_clip=1.4, reduce=reduce, reduce_length=length)
    found, gradient, clipped = loss_of(how)
    assert found == pytest.approx(loss, abs=2e-6)
    assert gradient == pytest.approx(slopes, abs=2e-6)
    assert clipped == pytest.approx(0.4)


def test_truncated_importance_weights() -> None:
    """verl's compute_policy_loss_vanilla with rollout_is_weights = min(π_old/π_sampler, 2), by token."""
    how = Algorithm(epochs=2, clip=0.2, clip_high=0.28, dual_clip=1.4, truncate=2.0)
    assert loss_of(how)[0] == pytest.approx(-0.860893, abs=2e-6)


@pytest.mark.parametrize(
    ("clip", "loss", "slopes", "clipped"),
    [
        ((0.2, 0.28), -0.442605, [-0.254202, -0.254202, -0.254202, 0.0, 0.0], 0.4),
        ((3e-4, 4e-4), -0.35042, [0.0] * 5, 1.0),
    ],
)
def test_gspo_s_loss(clip: tuple[float, float], loss: float, slopes: list[float], clipped: float) -> None:
    """verl's compute_policy_loss_gspo, seq-mean-token-mean (arXiv 2507.18071, equations 5 and 7)."""
    how = replace(Gspo(), clip=clip[0], clip_high=clip[1])
    found, gradient, share = loss_of(how)
    assert found == pytest.approx(loss, abs=2e-6)
    assert gradient == pytest.approx(slopes, abs=2e-6)
    assert share == pytest.approx(clipped)
    assert (Gspo().clip, Gspo().clip_high) == (3e-4, 4e-4)  # section 5.1 of the paper


def test_dapo_clips_higher_leaves_out_what_is_equal_and_counts_tokens_alike() -> None:
    """arXiv 2503.14476: clip 0.2 and 0.28 (equation 10), no group that is all right or all wrong (equation 11), token
    mean over all answers (equation 12; verl's agg_loss token-mean), no answers that were cut off (section 3.4)."""
    rewards = {"all right": [1.0, 1.0], "all wrong": [0.0, 0.0], "mixed": [1.0, 0.0]}
    episodes = [episode([turn()], r, task, i) for task, some in rewards.items() for i, r in enumerate(some)]
    cut = episode([replace(turn(), stop="length")], 0.0, "mixed", 2)
    credited(Dapo(), [*episodes, cut])
    assert {e.task.id for e in [*episodes, cut] if e.turns[0].advantages is not None} == {"mixed"}
    assert cut.turns[0].advantages is None
    assert Dapo().clip_range == (0.2, 0.28)
    found = loss_of(replace(Dapo(), dual_clip=1.4))
    assert found[0] == pytest.approx(-0.548477, abs=2e-6)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.2, -0.1, -1.5]), ("k2", [0.02, 0.005, 1.125]), ("k3", [0.018731, 0.005171, 1.981689])],
)
def test_kl_estimators(estimator: KlEstimator, expected: list[float]) -> None:
    """verl's kl_penalty_forward, which follows joschu.net/blog/kl-approx.html; k3 is also TRL's per_token_kl. verl
    holds k3 below 10, which nothing here does."""
    policy, reference = torch.tensor([[-1.0, -0.5, -2.0], [-1.2, -0.4, -0.5]])
    assert kl(policy, reference, estimator).tolist() == pytest.approx(expected, abs=2e-6)


def test_kl_and_entropy_are_those_of_the_distributions() -> None:
    """torch.distributions: kl_divergence and Categorical.entropy."""
    logits = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    policy, reference = (torch.distributions.Categorical(logits=some) for some in logits)
    for estimator in ("k1", "k3"):
        mean = (policy.probs * kl(policy.logits, reference.logits, estimator)).sum(-1)  # type: ignore[arg-type]
        torch.testing.assert_close(mean, torch.distributions.kl_divergence(policy, reference))
    tokens = torch.tensor([0, 3, 6, 2])
    logprobs, entropy, _ = logprob_entropy(logits[0].float(), tokens, torch.ones(4))
    torch.testing.assert_close(entropy.double(), policy.entropy(), atol=1e-5, rtol=0)
    torch.testing.assert_close(logprobs.double(), policy.log_prob(tokens), atol=1e-5, rtol=0)


def test_value_losses() -> None:
    """verl's compute_value_loss with cliprange_value 0.2, token by token; PyTorch's huber_loss."""
    values, old, returns_ = torch.tensor([[0.5, -1.0, 2.0], [0.2, 0.1, 1.9], [1.0, -0.5, 0.0]])
    assert value_loss(values, old, returns_, clip=0.2).tolist() == pytest.approx([0.18, 0.125, 2.0])
    torch.testing.assert_close(
        value_loss(values, old, returns_, huber=0.7), F.huber_loss(values, returns_, reduction="none", delta=0.7)
    )


# Several agents


@pytest.mark.parametrize(("advantage", "loss"), [(2.0, -2.652410), (-2.0, 3.315513)])
def test_happo_s_factor_multiplies_the_clipped_loss(advantage: float, loss: float) -> None:
    """HARL: the factor grows by exp(new − old) of every agent updated so far (OnPolicyHARunner.train), and the loss is
    −factor·min(ratio·A, clip(ratio)·A) (HAPPO.update; arXiv 2304.09870). The first agent's two tokens moved by 0.2 and
    −0.1, so the factor is e^0.1; the second one's ratio is 1.5. Here it spans the episode, there a time step."""
    before = spoken("a", [-1.0, -2.0], old_logprobs=[-1.0, -2.0], advantages=[0.0, 0.0])
    after = replace(spoken("b", [-1.0], old_logprobs=[-1.0], advantages=[advantage]), policy="second")
    batches = make_batches([episode([before, after])])
    moved = batches["policy"].old_logprobs + 0.0
    moved[batches["policy"].mask] += torch.tensor([0.2, -0.1])
    factor = ratio_of(Happo().clamped(log_factor(batches["second"], [(batches["policy"], moved)])))[-1:]
    assert float(factor) == pytest.approx(math.exp(0.1))
    found = clipped_policy_loss(torch.tensor([1.5]), advantage * factor, 0.2, 0.2)
    assert float(found) == pytest.approx(loss, abs=1e-5)


def test_qmix_and_vdn_mix_utilities() -> None:
    """PyMARL's QMixer.forward (src/modules/mixers/qmix.py; arXiv 1803.11485) and VDNMixer (arXiv 1706.05296), by hand:
    (1, −2)·|W1| + b1 = (−2.5, −0.5), ELU, ·|W2| = −2.229299, + V = 3."""
    first = torch.tensor([[[0.5, -1.0], [2.0, 0.25]]])
    q, shift, second = torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, -1.0]]), torch.tensor([[-2.0, 1.0]])
    assert float(monotonic(q, first, shift, second, torch.tensor([3.0]))) == pytest.approx(0.770701, abs=1e-6)
    assert float(Additive()(q, torch.zeros(1, 4))) == -1.0


def test_td_targets_of_mixed_values() -> None:
    """PyMARL's QLearner: r + γ·(1 − terminated)·Q_tot⁻ (src/learners/q_learner.py). There is no maximum over actions
    here: what was said next is the action, for texts cannot be enumerated."""
    targets = td_target(torch.tensor([1.0, 1.0]), torch.tensor([False, True]), torch.tensor([2.0, 2.0]), gamma=0.9)
    assert targets.tolist() == pytest.approx([2.8, 1.0])


def test_cory_pays_both_the_sum_each_less_its_own_kl() -> None:
    """arXiv 2410.06101, section 3: r(s, a₁) + r(s, a₂) for both, and the token-level KL penalty of each policy."""
    pioneer = spoken("pioneer", [-1.0], reward=0.25, ref_logprobs=[-1.5], values=[0.0])
    observer = spoken("observer", [-1.0], reward=0.5, ref_logprobs=[-0.8], values=[0.0])
    played = [episode([pioneer, observer])]
    Aggregate(mode="sum").assign(played, {}, team_chain=False)
    Cory(kl=0.1, whiten=None).compute_advantages(played, {})
    assert flat([pioneer, observer], "advantages") == pytest.approx([0.75 - 0.05, 0.75 + 0.02])


MAPORL = {"a": [1.0, 0.5, 0.0], "b": [0.0, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("horizon", "share", "of_a", "of_b"),
    [
        ("discounted", "all", [0.913669, 0.5, 0.0], [0.194245, 0.884615, 1.0]),
        ("discounted", "individual", [0.827338, 0.384615, 0.0], [0.280576, 1.0, 1.0]),
        ("last", "all", [0.5] * 3, [0.5] * 3),
        ("last", "individual", [0.0] * 3, [1.0] * 3),
        ("current", "all", [0.5, 0.75, 0.5], [0.5, 0.75, 0.5]),
        ("current", "individual", MAPORL["a"], MAPORL["b"]),
    ],
)
def test_maporl_s_scores_over_turns(horizon: Any, share: Any, of_a: list[float], of_b: list[float]) -> None:
    """MAPoRL's score_rule with rule_discount 0.3 (trl/trl/trainer/ppov2_trainer_multi_different_model.py; arXiv
    2502.18439), worked out for two agents over three turns."""
    turns = [spoken(role, [-1.0], t, reward=MAPORL[role][t]) for t in range(3) for role in "ab"]
    Maporl(horizon=horizon, share=share).assign([episode(turns)], {}, team_chain=False)
    assert [t.credit for t in turns if t.role == "a"] == pytest.approx(of_a, abs=1e-6)
    assert [t.credit for t in turns if t.role == "b"] == pytest.approx(of_b, abs=1e-6)


@pytest.mark.parametrize(
    ("own", "peers", "bonus"),
    [
        ((1.0, 0.0), (1.0, 1.0), -0.1),  # −α1: a new answer, and wrong
        ((1.0, 0.0), (0.0, 0.0), -0.01),  # −α0: talked into a wrong one
        ((0.0, 1.0), (0.0, 0.0), 0.1),  # +α1
        ((0.0, 1.0), (1.0, 1.0), 0.01),  # +α0
    ],
)
def test_maporl_s_incentives_to_revise(own: tuple[float, float], peers: tuple[float, float], bonus: float) -> None:
    """MAPoRL's bonus_rule with α0 = 0.01 and α1 = 0.1 (same file). Its terms for influence, α2 and α3, have the
    opposite sign there and are left out at the first turn; here they reward peers who become right, at every turn."""
    turns = [spoken(role, [-1.0], t, reward=score[t]) for t in range(2) for role, score in (("a", own), ("b", peers))]
    plain, shaped = (Maporl(horizon="current", share="individual", alpha0=x, alpha1=10 * x) for x in (0.0, 0.01))
    earned = []
    for credit in (plain, shaped):
        credit.assign([episode(turns)], {}, team_chain=False)
        earned.append(turns[2].credit)
    assert earned[1] - earned[0] == pytest.approx(bonus)


def test_shapley_values_of_the_glove_game() -> None:
    """The textbook example: one left glove, two right ones, a pair is worth 1: shares 2/3, 1/6, 1/6."""
    worth = {
        frozenset(some): float("L" in some and len(some) > 1) for some in [(), "L", "R", "S", "LR", "LS", "RS", "LRS"]
    }
    assert shapley_values(worth, ["L", "R", "S"]) == pytest.approx({"L": 2 / 3, "R": 1 / 6, "S": 1 / 6})
