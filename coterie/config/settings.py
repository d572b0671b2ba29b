"""The config as frozen dataclasses: every key with its type, limits and default.

The comment beside a field describes its key in the JSON schema and in docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo

from coterie.config.problems import Sources
from coterie.config.registry import Kind, default_part, find_path
from coterie.limits import (
    Amount,
    AmountFromZero,
    Count,
    CountFromZero,
    FieldLimits,
    Names,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    Share,
    Temperature,
)
from coterie.types import Part, Sampling, check_stop

PARTS: tuple[Kind, ...] = ("workflow", "env", "reward", "algorithm", "credit", "encoder")
DEMO = "demo"  # the built-in model; never a folder of that name


def _model(name: str, info: ValidationInfo) -> str:
    """A folder or file of that name becomes an absolute path; any other name is the hub's."""
    return name if name == DEMO else str(find_path(Path(name), info.context["folder"]))  # type: ignore[index]


Model = Annotated[str, AfterValidator(_model)]


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter. The base weights are frozen and shared by all policies on the same base."""

    rank: Count = 16  # rank of the two factors
    alpha: Positive = 32.0  # the product of the factors is scaled by alpha / rank
    # layers with an adapter, by the end of their names; null: q_proj … down_proj, or all linear layers without these
    targets: tuple[str, ...] | Literal["all-linear"] | None = None


@dataclass(frozen=True)
class Policy:
    """A model that plays roles, and how it learns."""

    model: Model = DEMO  # a folder, a hub name, a .gguf file, or `demo` for the built-in tiny model
    lora: Lora | None = field(default_factory=Lora)  # the adapter to train; null trains all weights
    adapter: Path | None = None  # a PEFT folder to start from; its rank, alpha and targets stay
    lr: PositiveShare = 1e-4  # the learning rate
    frozen: bool = False  # if true, it plays but does not learn
    device: str | None = None  # `cpu`, `cuda`, `cuda:1` …; null: the run's `device`
    api: str | None = None  # an OpenAI-compatible endpoint instead of a model, as https://host/v1; never trained
    key_env: str | None = None  # the environment variable with the endpoint's key
    api_deadline: Positive = 60.0  # seconds for a reply of the endpoint, retries included
    api_concurrency: Count = 8  # requests to the endpoint at once
    api_rate: Positive | None = None  # requests to the endpoint per minute, at most; null: no limit
    human: bool = False  # if true, a person types its replies at the terminal, in `coterie chat` and `coterie eval`

    @property
    def by_text(self) -> bool:
        """True if an endpoint or a person plays it, by text and without token ids."""
        return self.api is not None or self.human


@dataclass(frozen=True)
class CriticConfig:
    """A separate value model for some roles. Without critics, PPO puts a value head on the policy itself."""

    roles: tuple[str, ...] = ()  # the roles whose turns it values; none named: all
    # before a turn: `own`, the role's prompt; `joint`, the task and all turns so far; `reply`, the task alone
    sees: Literal["own", "joint", "reply"] = "own"
    model: Model = DEMO  # the model, as in policies
    lora: Lora | None = field(default_factory=Lora)  # its adapter, as in policies; null trains all weights
    # a folder to start from: a PEFT adapter, a value head (value_head.safetensors, or MARFT's value_head.pth), or both
    adapter: Path | None = None
    head: Literal["linear", "mlp"] = "linear"  # the value head: one layer, or three (1024, 512) with ReLU
    frozen: bool = False  # if true, only the value head learns, on the model as it is
    lr: PositiveShare = 1e-4  # learning rate of the model; that of its value head is algorithm.value_lr


@dataclass(frozen=True)
class Hidden:
    """Encode a text as a model's mean hidden state, with adapters off; the default encoder of mixers."""

    model: Model | None = None  # the model that encodes; null: that of the first policy


@dataclass(frozen=True)
class Role:
    """The policy of a workflow's role, and its sampling; `solver: small` is short for `solver: {policy: small}`."""

    policy: str | Names  # a policy, or a list with one per turn of the role; the last one plays all later turns
    max_tokens: Count | None = None  # tokens of a reply, at most; null: as in `sampling`
    temperature: Temperature | None = None  # the sampling temperature; null: as in `sampling`
    stop: tuple[str, ...] | None = None  # texts that end a reply; null: as in `sampling`

    def __post_init__(self) -> None:
        check_stop(self.stop or ())

    @property
    def policies(self) -> tuple[str, ...]:
        return (self.policy,) if isinstance(self.policy, str) else self.policy


@dataclass(frozen=True)
class Opponents:
    """Self-play against the past: in some steps, snapshots of the adapters play all roles but one."""

    share: Share = 0.5  # share of the steps that are played against snapshots
    every: Count = 10  # steps between snapshots
    keep: Count = 8  # snapshots kept; the oldest is dropped


@dataclass(frozen=True)
class Collapse:
    """Warn of collapse: constant replies, near-zero entropy or constant rewards."""

    steps: Count = 10  # steps in a row for which a sign must hold
    same: Share = 0.99  # sign: one reply makes up more than this share of a role's turns
    entropy: NotNegative = 0.01  # sign: a policy's mean entropy is below this, in nats


@dataclass(frozen=True)
class Learning:
    """How gradients become optimizer steps, the same for every policy.

    Trained weights and optimizer states are fp32 whatever the precision; frozen weights are in the precision.
    """

    warmup: CountFromZero = 0  # steps in which the learning rate rises linearly to its value
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # how the learning rate changes after the warm-up
    weight_decay: NotNegative = 0.0  # the weight decay of AdamW
    clip_norm: Positive = 1.0  # gradients are scaled down to this norm
    # tokens per forward and backward; null: 4096 on a CPU, on a GPU what a sixth of its memory holds
    microbatch_tokens: Count | None = None
    # the precision of matrix products; `auto`: bf16 on a GPU, fp32 on a CPU
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    checkpointing: bool = False  # gradient checkpointing: recompute activations; less memory, more time


@dataclass(frozen=True)
class Rollout:
    """How episodes are played: concurrency, deadlines, and how many may fail."""

    concurrency: Count = 64  # episodes played at the same time
    deadline: Positive = 300.0  # seconds for an episode
    score_deadline: Positive = 30.0  # seconds for grading an answer
    max_failed: Share = 0.5  # share of a step's episodes that may fail; with more, the run stops


@dataclass(frozen=True)
class EngineConfig:
    """The inference engine, which samples tokens."""

    name: Literal["native", "hf", "vllm"] = "native"  # Coterie's own engine, transformers' generate, or vLLM
    rows: Count = 64  # sequences decoded at the same time
    context: Count | None = None  # tokens of prompt and reply together; null: the model's own limit


@dataclass(frozen=True)
class RolloutWorkers:
    """Rollout workers: processes on the cluster that have an engine and play episodes."""

    workers: Count = 1  # workers, at most
    least: Count | None = None  # workers that must be ready before a step starts; null: all
    gpus: NotNegative = 0.0  # GPUs per worker; with tensor_parallel, per rank of it
    cpus: NotNegative = 1.0  # CPU cores per worker
    tensor_parallel: Count = 1  # GPUs that a model is split over, on one node; more than 1 needs engine.name: vllm

    @property
    def all_gpus(self) -> float:
        """GPUs of a worker."""
        return self.gpus * self.tensor_parallel

    @property
    def resources(self) -> dict[str, object]:
        """What a worker asks Ray for."""
        return {"num_cpus": self.cpus, "num_gpus": self.all_gpus}


@dataclass(frozen=True)
class LearnerWorkers:
    """Learner workers: processes on the cluster that hold the weights and their optimizers, and share each batch."""

    workers: Count = 1  # data-parallel ranks
    shard: bool = False  # shard the models over the ranks with FSDP2: for models that do not fit on one GPU
    gpus: NotNegative = 0.0  # GPUs per rank
    cpus: NotNegative = 1.0  # CPU cores per rank


@dataclass(frozen=True)
class Graders:
    """Graders: CPU processes on the cluster that run workflow, environment and sandbox; rollout workers only sample."""

    workers: Count = 1  # graders; the rollout workers are divided evenly among them
    cpus: NotNegative = 1.0  # CPU cores per grader


@dataclass(frozen=True)
class Cluster:
    """Train on a Ray cluster: this process is the driver; rollout workers play episodes, learner workers train."""

    address: str = "auto"  # address of the head node; `auto`: this machine; `local`: start Ray here
    rollout: RolloutWorkers = field(default_factory=RolloutWorkers)  # the rollout workers
    learner: LearnerWorkers = field(default_factory=LearnerWorkers)  # the learner workers
    graders: Graders | None = None  # where workflow, environment and sandbox run; null: in the rollout workers
    chunk: Count = 8  # episodes per call of a worker; rounded up to whole groups, which share a prompt
    ahead: CountFromZero = 0  # steps that rollout runs ahead of the learners, a fixed lag; needs algorithm.truncate
    # seconds that a rollout worker may exceed the deadline of its episodes, or a learner may take to answer a heartbeat
    patience: Positive = 60.0
    restarts: CountFromZero = 10  # restarts of the learners without a new checkpoint, at most; then the run stops

    @property
    def samplers_per_grader(self) -> int:
        return self.rollout.workers // self.graders.workers if self.graders else 0


@dataclass(frozen=True)
class Evaluation:
    """How the team is evaluated on held-out tasks."""

    every: CountFromZero = 0  # steps between evaluations; 0: only at the end
    before_training: bool | None = None  # also before the first step; null: if `every` is set
    tasks: AmountFromZero = 100  # held-out tasks; 0: no evaluation, and no held-out tasks are needed
    episodes_per_task: Amount = 1  # repeats of each task
    temperature: Temperature = 0.0  # the sampling temperature; 0: greedy
    top_p: PositiveShare = 1.0  # nucleus sampling; 1: off
    top_k: CountFromZero = 0  # sample from the k most likely tokens; 0: all


@dataclass(frozen=True)
class Checkpoints:
    """When checkpoints are written, and which ones are kept."""

    every: Count = 10  # steps between checkpoints
    keep: Count = 2  # the last ones to keep
    best: bool | None = None  # also keep the one with the best evaluation; null: if eval.every is set


@dataclass(frozen=True)
class Logging:
    """Where metrics go besides the run's folder."""

    wandb: str | None = None  # a Weights & Biases project


# Keys that change memory and rounding only, so that a run that ran out of memory can resume with other values.
# engine.context is not one of them: a smaller one truncates replies and rejects prompts.
MEMORY_KEYS = ("learning.microbatch_tokens", "learning.checkpointing", "engine.rows")
ENCODER = Part("hidden", {"model": None}, Hidden())
SAMPLING = FieldLimits(max_tokens=Count, temperature=Temperature, top_p=PositiveShare, top_k=CountFromZero)


@dataclass(frozen=True)
class Config:
    """A whole run: the team, its workflow, its tasks, and how it learns."""

    policies: dict[str, Policy]  # the models that play and learn, by name
    roles: dict[str, Role]  # the policy and sampling of each role of the workflow
    workflow: Part  # the order in which the roles speak about a task
    env: Part  # where tasks come from
    reward: Part  # how an answer is graded
    algorithm: Part  # how rewards become advantages and a loss
    credit: Part = field(default_factory=lambda: default_part("credit", "team"))  # how the team's reward reaches turns
    critics: dict[str, CriticConfig] = field(default_factory=dict)  # value models, by name
    encoder: Part = ENCODER  # how a mixer (vdn, qmix) encodes texts
    name: str = "run"  # the name of the run and its folder; default: the file's
    folder: str | None = None  # the run's folder; null: the name, in the folder that --out gives
    resume: bool = False  # resume the run that the run's folder has already, instead of starting another one beside it
    seed: Seed = 0  # the seed of sampling, shuffling and fresh weights
    steps: Amount = 100  # training steps
    epochs: Amount | None = None  # passes over the training tasks, instead of `steps`; the last step is filled up
    max_sampled_tokens: Count | None = None  # end after the step that reaches this many sampled tokens; null: no limit
    tasks_per_step: Amount = 8  # tasks played in a step
    shuffle: bool = True  # shuffle the training tasks before each pass over them; false: keep their order
    episodes_per_task: Amount = 8  # episodes of each task in a step: the group size of GRPO
    sampling: Annotated[Sampling, SAMPLING] = field(default_factory=Sampling)  # how turns are sampled in training
    opponents: Opponents | None = None  # self-play against snapshots; null: off
    collapse: Collapse | None = None  # warn when the run collapses; null: off
    learning: Learning = field(default_factory=Learning)  # optimizer, precision and memory
    rollout: Rollout = field(default_factory=Rollout)  # concurrency and deadlines
    engine: EngineConfig = field(default_factory=EngineConfig)  # the inference engine
    cluster: Cluster | None = None  # where to train: on a Ray cluster; null: in this process
    eval: Evaluation = field(default_factory=Evaluation)  # evaluation on held-out tasks
    checkpoint: Checkpoints = field(default_factory=Checkpoints)  # when to save
    log: Logging = field(default_factory=Logging)  # where metrics go
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where models run; `auto`: on a GPU if there is one
    # `bubblewrap` isolates programs that a model wrote; `unsafe` runs them even where bubblewrap does not work
    sandbox: Literal["bubblewrap", "unsafe"] = "bubblewrap"
    _sources: Sources = field(default_factory=Sources, compare=False, repr=False)

    @property
    def sources(self) -> Sources:
        """Where each key was written, for error messages."""
        return self._sources

    def sampling_of(self, role: str) -> Sampling:
        """How a role's turns are sampled in training: its own settings over `sampling`."""
        own = vars(self.roles[role])
        given = {key: own[key] for key in ("max_tokens", "temperature", "stop") if own[key] is not None}
        return replace(self.sampling, **given)

    def evaluation_sampling_of(self, role: str) -> Sampling:
        """How a role's turns are sampled in evaluation: as in training, with eval's temperature, top_p and top_k."""
        how = self.eval
        return replace(self.sampling_of(role), temperature=how.temperature, top_p=how.top_p, top_k=how.top_k)
