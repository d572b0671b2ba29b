"""Laws of learning: what a packed, cut, shared and recomputed forward gives is what a plain one gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from coterie.algorithms.base import Algorithm
from coterie.algorithms.ppo import Ppo
from coterie.config import Learning
from coterie.learners.batch import make_batches
from coterie.learners.learner import TorchLearner, lr_factor
from coterie.learners.logprobs import ChosenLogprobs
from coterie.learners.packing import bytes_per_token, pack_microbatches, token_budget
from coterie.rl.losses import KlEstimator, Reduce
from coterie.rl.validate import BadLoss, NotFinite
from coterie.types import Batch, Scores
from tests.episodes import random_episodes
from tests.learners import gradients, learner, random_batch
from tests.models import VOCABULARY

Folder = Callable[[str], Path]
WHOLE_LOSS = Ppo(clip=0.1, clip_high=0.3, kl=0.1, entropy=0.02, value_clip=0.3)
KINDS = ("llama", "qwen2", "qwen3", "gemma3")


def assert_same_gradients(some: dict[str, Tensor], others: dict[str, Tensor], near: float = 1e-6) -> None:
    assert some.keys() == others.keys()
    size = float(torch.cat([g.flatten() for g in others.values()]).norm())
    assert size > 1e-3, "a gradient of nothing proves nothing"
    for name, gradient in some.items():
        assert float((gradient - others[name]).norm()) < near * size, name


# The reference: every row padded to the longest, the model's own attention, all logits, autograd.


def padded(batch: Batch) -> tuple[Tensor, Tensor]:
    lengths = torch.bincount(batch.row)
    ids = torch.zeros(batch.rows, int(lengths.max()), dtype=torch.long)
    ids[batch.row, batch.positions] = batch.tokens
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def plain_scores(made: TorchLearner, batch: Batch, named: dict[str, Tensor]) -> Scores:
    """Scores of the sampled tokens by Hugging Face's own forward, as a function of the learner's parameters."""
    model = AutoModelForCausalLM.from_pretrained(made.base.folder, attn_implementation="eager")
    weights: dict[str, Tensor] = dict(model.named_parameters())
    if made.adapter is None:
        weights |= {name: tensor for name, tensor in named.items() if not name.startswith("head.")}
    else:
        for layer in made.adapter.pairs:
            down, up = (named[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
            weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + made.adapter.scale * up @ down
    ids, real = padded(batch)
    inputs = {"input_ids": ids, "attention_mask": real.long(), "output_hidden_states": True, "use_cache": False}
    out = functional_call(model, weights, kwargs=inputs, tie_weights=True)
    row, before = batch.row[batch.mask], batch.positions[batch.mask] - 1
    logp = (out.logits[row, before] / batch.temperature[batch.mask][:, None]).log_softmax(-1)
    chosen = logp.gather(1, batch.tokens[batch.mask][:, None])[:, 0]
    values = None
    if made.value_head is not None:
        values = (out.hidden_states[-1][row, before] @ named["head.weight"].t() + named["head.bias"])[:, 0]
    return Scores(chosen, -(logp.exp() * logp).sum(-1), values)


def leaves(made: TorchLearner) -> dict[str, Tensor]:
    named = dict(made.parameters())
    if made.value_head is not None:
        named |= {f"head.{name}": p for name, p in made.value_head.named_parameters()}
    return {name: p.detach().clone().requires_grad_() for name, p in named.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_a_packed_forward_is_the_padded_one_of_hugging_face(kind: str, lora: bool, model_folder: Folder) -> None:
    made = learner(model_folder(kind), lora, head=True)
    batch = random_batch(made, seed=1)
    named = leaves(made)
    plain = plain_scores(made, batch, named)
    assert plain.values is not None
    torch.testing.assert_close(made.logprobs(batch)[batch.mask], plain.logprobs.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(made.scores(batch).values[batch.mask], plain.values.detach(), atol=1e-4, rtol=0)

    weights = WHOLE_LOSS.loss_weights(batch)
    part = batch.each(lambda column: column[batch.mask])
    (WHOLE_LOSS.loss(plain, part) * weights[batch.mask]).sum().backward()
    expected = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in named.items()}
    assert_same_gradients(gradients(made, batch, weights, WHOLE_LOSS.loss), expected, near=1e-5)


def test_the_reported_entropy_and_gap_are_those_of_the_plain_forward(model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    plain = plain_scores(made, batch, leaves(made))
    off = (plain.logprobs - batch.logprobs[batch.mask]).detach()
    metrics = made.fit(batch, Algorithm().loss_weights(batch), Algorithm().loss)
    assert metrics["entropy"] == pytest.approx(float(plain.entropy.detach().mean()), abs=1e-4)
    assert metrics["logprob_gap"] == pytest.approx(float(off.abs().mean()), abs=1e-4)
    assert metrics["logprob_gap_max"] == pytest.approx(float(off.abs().max()), abs=1e-4)
    assert metrics["kl_step"] == pytest.approx(-float(off.mean()), abs=1e-4)


@pytest.mark.parametrize("budget", [100_000, 60], ids=["one microbatch", "many"])
@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_reported_ratio_clip_fraction_and_kl_are_those_of_the_plain_forward(
    level: Any, budget: int, model_folder: Folder
) -> None:
    made = learner(model_folder("llama"), microbatch_tokens=budget)
    batch = random_batch(made)
    said = batch.mask
    new = plain_scores(made, batch, leaves(made)).logprobs.detach().double()
    moved, turn = (new - batch.old_logprobs[said]).tolist(), batch.turn[said].tolist()
    if level == "turn":
        moved = [sum(m for m, other in zip(moved, turn, strict=True) if other == t) for t in turn]
    ratios = [math.exp(m) for m in moved]
    good = batch.advantages[said].tolist()
    clipped = [(a > 0 and r > 1.1) or (a < 0 and r < 0.95) for a, r in zip(good, ratios, strict=True)]
    off = (batch.ref_logprobs[said] - new).tolist()
    far = [math.exp(x) - 1 - x for x in off]
    algorithm = Algorithm(epochs=2, level=level, clip=0.05, clip_high=0.1, kl=0.3, kl_estimator="k1")
    metrics = made.fit(batch, algorithm.loss_weights(batch), algorithm.loss, algorithm.token_metrics)
    count = len(ratios)
    assert 0.1 < sum(clipped) / count < 0.9
    assert metrics["ratio_mean"] == pytest.approx(sum(ratios) / count, rel=1e-3)
    assert metrics["ratio_max"] == pytest.approx(max(ratios), rel=1e-3)
    assert metrics["clip_fraction"] == pytest.approx(sum(clipped) / count, abs=1e-6)
    assert metrics["kl"] == pytest.approx(sum(far) / count, rel=1e-3)


@pytest.mark.parametrize("budget", [100_000, 60], ids=["one microbatch", "many"])
@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_rows_without_an_advantage_have_no_gradient_and_need_no_backward(
    lora: bool, level: Any, budget: int, model_folder: Folder
) -> None:
    algorithm, found, passes = Algorithm(epochs=2, level=level), [], []
    for weights_of in (algorithm.loss_weights, algorithm.gradient_weights):
        made = learner(model_folder("llama"), lora, microbatch_tokens=budget)
        batch = random_batch(made, seed=2)
        batch.advantages = torch.where(batch.row % 3 > 0, 0.0, batch.advantages)
        run: list[tuple[bool, int]] = []
        true = made.base.hidden
        made.base.hidden = lambda tokens, *given, true=true, run=run: (  # type: ignore[method-assign]
            run.append((torch.is_grad_enabled(), len(tokens))) or true(tokens, *given)  # type: ignore[func-returns-value]
        )
        found.append((gradients(made, batch, weights_of(batch), algorithm.loss),
                      made.fit(batch, weights_of(batch), algorithm.loss, algorithm.token_metrics)))  # fmt: skip
        passes.append(run)
    (plain, measured), (less, measured_too) = found
    assert_same_gradients(less, plain)
    assert measured_too == pytest.approx(measured, rel=1e-4, abs=1e-6)  # of all rows
    assert all(with_gradient for with_gradient, _ in passes[0])
    backward, forward_only = (sum(n for on, n in passes[1] if on is kind) for kind in (True, False))
    assert forward_only > 0 and backward < sum(n for _, n in passes[0])


def test_a_batch_without_any_advantage_has_a_gradient_of_zero(model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    batch.advantages = torch.zeros(len(batch))
    weights = Algorithm().gradient_weights(batch)
    assert not weights.any()
    found = gradients(made, batch, weights, Algorithm().loss)  # none would keep Adam from its momentum
    assert found.keys() == made.parameters().keys() and not any(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("algorithm", [Algorithm(entropy=0.02), Algorithm(kl=0.1), WHOLE_LOSS])
def test_other_terms_of_a_loss_act_on_tokens_without_an_advantage(algorithm: Algorithm, model_folder: Folder) -> None:
    batch = random_batch(learner(model_folder("llama")))
    batch.advantages = torch.zeros(len(batch))
    assert torch.equal(algorithm.gradient_weights(batch), algorithm.loss_weights(batch))
    in_reward = Algorithm(kl=0.1, kl_in="reward")
    assert not in_reward.gradient_weights(batch).any()


@pytest.mark.parametrize("reduce", get_args(Reduce))
def test_cutting_a_batch_into_microbatches_changes_no_gradient(reduce: Reduce, model_folder: Folder) -> None:
    algorithm = Ppo(reduce=reduce, kl=0.1, entropy=0.02)
    found = []
    for budget in (100_000, 150, 40, 1):
        made = learner(model_folder("llama"), head=True, microbatch_tokens=budget)
        batch = random_batch(made, seed=2)
        found.append(
            (
                len(list(pack_microbatches(batch, budget))),
                gradients(made, batch, algorithm.loss_weights(batch), algorithm.loss),
            )
        )
    counts = [count for count, _ in found]
    assert counts[0] == 1 and counts[-1] == batch.rows and counts == sorted(counts)
    for _, cut in found[1:]:
        assert_same_gradients(cut, found[0][1])


def test_a_stream_holds_no_more_than_its_budget_unless_one_row_is_longer(model_folder: Folder) -> None:
    batch = random_batch(learner(model_folder("llama")), seed=3, count=10)
    longest = int(batch.positions.max()) + 1
    for budget in (10, longest, 200):
        cut = list(pack_microbatches(batch, budget))
        assert all(len(stream.tokens) <= max(budget, longest) for stream in cut)
        assert sorted(torch.cat([s.index for s in cut]).tolist()) == batch.mask.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_of_conversations_that_branch_is_computed_once(seed: int) -> None:
    batch = make_batches(random_episodes(seed, count=20), require_advantages=False)["policy"]
    rows = [tuple(batch.tokens[batch.row == r].tolist()) for r in range(batch.rows)]
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    repeated = len(rows) - len(set(rows))  # a row that is there twice has its last token twice
    (stream,) = pack_microbatches(batch, 100_000)
    assert len(stream.tokens) == len(prefixes) + repeated < 0.7 * len(batch)
    assert max(len(span.prefix) for span in stream.layout.spans) > 1


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_sharing_a_beginning_changes_no_gradient(
    kind: str, model_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for share in (True, False):
        made = learner(model_folder(kind), lora=False)
        batch = random_batch(made, seed=4, count=8)
        monkeypatch.setattr(made, "microbatches", lambda b, s=share: pack_microbatches(b, 100_000, share=s))
        found.append(gradients(made, batch, WHOLE_LOSS.loss_weights(batch), Algorithm(entropy=0.02).loss))
    shared, apart = (sum(len(s.tokens) for s in pack_microbatches(batch, 100_000, share=s)) for s in (True, False))
    assert shared < 0.8 * apart == 0.8 * len(batch)
    assert_same_gradients(found[0], found[1], near=5e-6)  # sums of float32 in another order


@pytest.mark.filterwarnings("error::FutureWarning")  # of a new transformers, which a user would read in every run
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_gradient_checkpointing_changes_no_gradient(lora: bool, model_folder: Folder) -> None:
    found = []
    for recompute in (False, True):
        made = learner(model_folder("llama"), lora, checkpointing=recompute)
        batch = random_batch(made, seed=5)
        found.append(gradients(made, batch, Algorithm().loss_weights(batch), Algorithm(entropy=0.02).loss))
    assert_same_gradients(found[0], found[1])


def test_gradient_checkpointing_takes_less_memory(model_folder: Folder) -> None:
    peaks = [update_peak(model_folder("llama"), 4096, rows=24, checkpointing=on) for on in (False, True)]
    assert peaks[1] < 0.7 * peaks[0]


def test_log_probs_are_those_of_the_temperature_that_was_sampled(model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    for heat in (0.5, 2.0):
        batch.temperature = torch.full((len(batch),), heat)
        plain = plain_scores(made, batch, leaves(made))
        torch.testing.assert_close(made.logprobs(batch)[batch.mask], plain.logprobs.detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_the_reference_is_the_model_as_it_was_given(lora: bool, model_folder: Folder) -> None:
    made = learner(model_folder("llama"), lora, reference=True)
    batch = random_batch(made)
    before = made.logprobs(batch, reference=True)
    for _ in range(3):
        made.fit(batch, Algorithm().loss_weights(batch), Algorithm().loss)
    assert torch.equal(made.logprobs(batch, reference=True), before)
    untouched = learner(model_folder("llama"), lora=False).logprobs(batch)
    torch.testing.assert_close(before, untouched, atol=1e-4, rtol=0)
    assert float((made.logprobs(batch) - untouched).abs().max()) > 0.01


@pytest.mark.parametrize("estimator", get_args(KlEstimator)[1:])
def test_a_kl_in_the_loss_draws_the_policy_to_its_reference(estimator: KlEstimator, model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    batch.advantages = torch.zeros(len(batch))
    batch.ref_logprobs = made.logprobs(batch, reference=True)
    algorithm = Algorithm(kl=1.0, kl_estimator=estimator)
    far = float((made.logprobs(batch) - batch.ref_logprobs).abs().mean())
    for _ in range(20):
        made.fit(batch, algorithm.loss_weights(batch), algorithm.loss)
    assert float((made.logprobs(batch) - batch.ref_logprobs).abs().mean()) < 0.5 * far


# Memory


class LargestTensor(TorchDispatchMode):
    """Watches how many numbers the largest tensor has that any operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


@pytest.mark.parametrize("learning", [True, False], ids=["forward and backward", "forward"])
def test_all_logits_never_exist_at_the_same_time(learning: bool, model_folder: Folder) -> None:
    base = learner(model_folder("llama")).base
    count = 2051
    hidden = torch.randn(count, base.hidden_size, requires_grad=learning)
    tokens, heat = torch.randint(0, VOCABULARY, (count,)), torch.ones(count)
    with LargestTensor() as watch, torch.set_grad_enabled(learning):
        logprobs, entropy = ChosenLogprobs(base)(hidden, tokens, heat)
        if learning:
            (logprobs + entropy).sum().backward()
    assert hidden.numel() < count * VOCABULARY / 4 > watch.size


def peak_bytes(action: Callable[[], Any]) -> int:
    """The most memory that was taken at once while the action ran, beyond what was there."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        action()
    live = peak = 0
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def flat_batch(lengths: list[int]) -> Batch:
    """Rows of random tokens that begin differently, all but the first token sampled."""
    size, zeros = sum(lengths), torch.zeros(sum(lengths))
    draw = torch.Generator().manual_seed(0)
    positions = torch.cat([torch.arange(n) for n in lengths])
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    columns = dict.fromkeys(
        ("logprobs", "old_logprobs", "words", "advantages", "returns", "values", "ref_logprobs"), zeros
    )
    tokens, heat = torch.randint(3, VOCABULARY, (size,), generator=draw), torch.ones(size)
    return Batch(
        tokens,
        positions,
        row,
        positions > 0,
        **columns,
        temperature=heat,
        turn=row,
        episode=row,
        role=row,
        roles=("r",),
    )


def update_peak(folder: Path, budget: int, rows: int, longest: int = 40, checkpointing: bool = False) -> int:
    made = learner(folder, microbatch_tokens=budget, checkpointing=checkpointing)
    batch = flat_batch([40] * (rows - 1) + [longest])
    weights = Algorithm().loss_weights(batch)
    made.fit(batch, weights, Algorithm().loss)  # the optimiser's own memory is there from now on
    return peak_bytes(lambda: made.fit(batch, weights, Algorithm().loss))


def test_the_memory_of_an_update_grows_with_the_token_budget_and_not_with_the_batch(model_folder: Folder) -> None:
    llama = model_folder("llama")
    small = update_peak(llama, budget=400, rows=20)
    assert update_peak(llama, budget=400, rows=80) < 1.1 * small
    assert update_peak(llama, budget=400, rows=20, longest=400) < 2 * small  # one long row pads no other
    assert update_peak(llama, budget=800, rows=20) > 1.5 * small


# Steps


def test_the_learning_rate_rises_then_follows_its_schedule() -> None:
    def rates(**learning: Any) -> list[float]:
        return [lr_factor(step, 6, Learning(**learning)) for step in range(7)]

    assert rates() == [1.0] * 7
    assert rates(schedule="linear") == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])
    assert rates(schedule="cosine") == pytest.approx([1, 0.93301, 0.75, 0.5, 0.25, 0.06699, 0], abs=1e-5)
    assert rates(warmup=3) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1])
    assert rates(warmup=2, schedule="linear") == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0])


def test_a_step_s_rate_is_the_peak_times_its_share_for_weights_and_value_head(model_folder: Folder) -> None:
    made = learner(model_folder("llama"), head=True, warmup=1, schedule="linear")
    assert made.optimizer is not None
    made.optimizer.param_groups[1]["peak"] = 4e-2
    for step in (0, 5):
        made.begin(step)
        share = lr_factor(step, made.steps, made.learning)
        assert [group["lr"] for group in made.optimizer.param_groups] == pytest.approx([1e-2 * share, 4e-2 * share])


def test_the_first_step_of_adam_moves_every_weight_by_the_learning_rate(model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    before = {name: p.detach().clone() for name, p in made.parameters().items()}
    batch = random_batch(made)
    made.fit(batch, Algorithm().loss_weights(batch), Algorithm().loss)
    moves = torch.cat([(p.detach() - before[name]).abs().flatten() for name, p in made.parameters().items()])
    assert float(moves.max()) == pytest.approx(1e-2, rel=1e-3)
    assert made.version == 1


def test_a_gradient_that_is_no_number_moves_nothing_and_says_whose_it_is(model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    before = {name: parameter.detach().clone() for name, parameter in made.parameters().items()}
    batch.advantages[batch.mask.nonzero()[0]] = torch.nan
    with pytest.raises(NotFinite, match="policy policy: its gradient norm is nan"):
        made.fit(batch, Algorithm().loss_weights(batch), Algorithm().loss)
    assert all(torch.equal(before[name], parameter) for name, parameter in made.parameters().items())
    assert all(parameter.grad is None for parameter in made.parameters().values()) and made.version == 0


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            lambda scores, batch: scores.logprobs.mean(),
            r"a tensor of shape \[\], expected \[\d+\], one number per token",
        ),
        (lambda scores, batch: scores.logprobs[:, None], r"a tensor of shape \[\d+, 1\], expected"),
        (lambda scores, batch: 1.0, r"<lambda> returned a float, expected \[\d+\]"),
        (lambda scores, batch: scores.logprobs.detach(), "returned a loss without a gradient"),
    ],
    ids=["scalar", "column", "float", "detached"],
)
def test_a_loss_is_one_number_per_token_with_a_gradient(loss: Any, said: str, model_folder: Folder) -> None:
    made = learner(model_folder("llama"))
    batch = random_batch(made)
    with pytest.raises(BadLoss, match=said):
        made.fit(batch, Algorithm().loss_weights(batch), loss)


def test_gradients_are_clipped_to_the_norm_over_all_of_a_policy_s_weights(model_folder: Folder) -> None:
    norms = []
    for scale in (1.0, 1e-6):
        made = learner(model_folder("llama"), head=True, clip_norm=0.01)
        assert made.optimizer is not None
        groups = [{"params": group["params"]} for group in made.optimizer.param_groups]
        made.optimizer = torch.optim.SGD(groups, lr=1.0)  # type: ignore[assignment]
        before = leaves(made)
        batch = random_batch(made)
        metrics = made.fit(batch, scale * Ppo().loss_weights(batch), Ppo().loss)
        moved = torch.cat([(now - before[name]).flatten() for name, now in leaves(made).items()]).detach()
        norms.append((metrics["grad_norm"], float(moved.norm())))
    (steep, held), (gentle, free) = norms
    assert steep > 0.01 and held == pytest.approx(0.01, rel=1e-2)
    assert gentle == pytest.approx(1e-6 * steep, rel=1e-2) and free == pytest.approx(gentle, rel=0.05)


def test_the_token_budget_is_the_config_s_or_what_the_machine_allows(model_folder: Folder) -> None:
    base = learner(model_folder("llama")).base
    assert token_budget(base, Learning(microbatch_tokens=77)) == 77
    assert token_budget(base, Learning()) == 4096
    whole, thrifty = (bytes_per_token(base.model.config, 2, checkpointing, gates=2) for checkpointing in (False, True))
    layer, running = 2 * (10 * 64 + 2 * 96), 4 * 2 * 96
    assert (whole, thrifty) == (3 * layer + running, 3 * 4 * 64 + layer + running)


def test_a_resumed_policy_learns_as_its_config_says_now(model_folder: Folder) -> None:
    before, after = (learner(model_folder("llama"), weight_decay=decay) for decay in (0.0, 0.1))
    assert before.optimizer is not None and after.optimizer is not None
    before.optimizer.param_groups[0]["peak"] = 1e-4
    after.restore(before.state())
    after.begin(0)
    assert after.current_lr == 1e-2 and after.optimizer.param_groups[0]["weight_decay"] == 0.1
