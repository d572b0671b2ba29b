"""The groups of settings that make up a config, each with its defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coterie.config.paths import DEMO, Model
from coterie.limits import Amount, Count, CountFromZero, Names, NotNegative, Positive, PositiveShare, Share, Temperature


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter: the base stays as it is, and policies on one base share it."""

    rank: Count = 16
    alpha: Positive = 32.0
    targets: tuple[str, ...] | Literal["all-linear"] | None = None  # null: q_proj … down_proj; without these, all


@dataclass(frozen=True)
class Policy:
    """What plays a role: a model, and how it learns."""

    model: Model = DEMO  # a folder, a hub name, a .gguf file, or `demo`
    lora: Lora | None = field(default_factory=Lora)  # null trains the whole model
    adapter: Path | None = None  # a PEFT folder to start from, in whose shape it stays
    lr: PositiveShare = 1e-4
    frozen: bool = False
    device: str | None = None  # cpu, cuda, cuda:1 …; null: the run's


@dataclass(frozen=True)
class CriticConfig:
    """A model that says what turns of some roles are worth; without any, a head on the policy's trunk says it."""

    roles: tuple[str, ...] = ()  # none named: all
    sees: Literal["own", "joint"] = "own"  # what the role read, or the task and all that was said
    model: Model = DEMO
    lora: Lora | None = field(default_factory=Lora)
    lr: PositiveShare = 1e-4  # of the trunk; the head's is algorithm.value_lr


@dataclass(frozen=True)
class Hidden:
    """The encoder that mixers see texts through by default: a model's own mean hidden state, without adapters."""

    model: Model | None = None  # null: the first policy's


@dataclass(frozen=True)
class Role:
    """Who plays a seat in the team; `solver: small` is short for `solver: {policy: small}`."""

    policy: str | Names  # or one for its first turn, one for its second …; the last one plays all that follow
    max_tokens: Count | None = None  # null, here and below: as in `sampling`
    temperature: Temperature | None = None
    stop: tuple[str, ...] | None = None

    @property
    def policies(self) -> tuple[str, ...]:
        return (self.policy,) if isinstance(self.policy, str) else self.policy


@dataclass(frozen=True)
class Opponents:
    """Self-play against the past: snapshots of the policies' adapters that play the other seats now and then."""

    share: Share = 0.5  # of the steps; in these one role is played by who learns, all others by snapshots
    every: Count = 10  # steps between snapshots
    keep: Count = 8  # the last ones


@dataclass(frozen=True)
class Collapse:
    """When a run counts as collapsed: a sign that holds for so many steps on end."""

    steps: Count = 10
    same: Share = 0.99  # one and the same reply is more than this share of a role's turns
    entropy: NotNegative = 0.01  # a policy's mean entropy is below this, in nats


@dataclass(frozen=True)
class Learning:
    """How gradients become steps, the same for every policy.

    What is trained, and what the optimizer keeps of it, is fp32 whatever the precision; frozen weights are in it.
    """

    warmup: CountFromZero = 0  # steps
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: NotNegative = 0.0
    clip_norm: Positive = 1.0
    microbatch_tokens: Count | None = None  # null: 4096 on a CPU, on a GPU what a sixth of its memory holds
    precision: Literal["auto", "bf16", "fp32"] = "auto"  # of products; auto: bf16 on a GPU, fp32 on a CPU
    checkpointing: bool = False  # recompute activations: less memory, more time


@dataclass(frozen=True)
class Rollout:
    """How episodes are played, and when a run gives up on them."""

    concurrency: Count = 64  # episodes at once
    deadline: Positive = 300.0  # seconds an episode may take
    score_deadline: Positive = 30.0
    max_failed: Share = 0.5  # of a step's episodes


@dataclass(frozen=True)
class EngineConfig:
    """What samples tokens."""

    name: Literal["native", "hf", "vllm"] = "native"
    rows: Count = 64  # sequences decoded at once
    context: Count | None = None  # tokens, prompt and answer together; null: as long as the model's own


@dataclass(frozen=True)
class Evaluation:
    """How the team is measured on held-out tasks."""

    every: CountFromZero = 0  # steps; 0: only at the end
    tasks: Amount = 100
    episodes_per_task: Amount = 1
    temperature: Temperature = 0.0
    top_p: PositiveShare = 1.0
    top_k: CountFromZero = 0  # 0: all


@dataclass(frozen=True)
class Checkpoints:
    """When the run is saved, and what is kept."""

    every: Count = 10  # steps
    keep: Count = 2  # the last ones
    best: bool | None = None  # keep the one that evaluated best, too; null: where eval.every compares several


@dataclass(frozen=True)
class Logging:
    """Where metrics go besides the run's folder."""

    wandb: str | None = None  # a Weights & Biases project
