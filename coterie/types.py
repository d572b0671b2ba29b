"""The data types (Task, Turn, Episode, Batch …) and the protocols of the parts (Engine, Learner, Env, Workflow …)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, runtime_checkable

if TYPE_CHECKING:  # importing torch would slow down processes that only grade
    from torch import Tensor

Stop = Literal["end", "stop", "length"]  # end-of-turn token · stop string · max_tokens or context reached
# Why a turn is not trained on: all rewards of its group are equal · truncated · its policy is frozen · sampled with
# stale weights · its round does not train at this step (rotate_turns) · replayed from another episode · a fixed text ·
# excluded by workflow, sampling or algorithm · an empty reply.
LeftOut = Literal["constant", "truncated", "frozen", "stale", "round", "replayed", "fixed", "excluded", "empty"]
Split = Literal["train", "test"]
Counterfactuals = Mapping[str, "Episode"]  # the episodes that forks played, by id


class Message(TypedDict):
    """One chat message. `role` is the chat template's (system, user, assistant), not a role of the team."""

    role: str
    content: str


@dataclass(frozen=True)
class Task:
    """One problem: its prompt, and the reference answer that only graders see."""

    id: str
    prompt: str
    answer: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How a turn is sampled. Temperature 0 is greedy; its log-probs are those of temperature 1."""

    max_tokens: int = 128  # tokens of a reply, at most
    temperature: float = 1.0  # the sampling temperature; 0: greedy, with the log-probs of temperature 1
    top_p: float = 1.0  # nucleus sampling; 1: off
    top_k: int = 0  # sample from the k most likely tokens; 0: all
    stop: tuple[str, ...] = ()  # texts that end a reply

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, Integral, lambda value: value >= 1, "a whole number ≥ 1")
        _check("temperature", self.temperature, Real, lambda value: 0 <= value < inf, "a number ≥ 0")
        _check("top_p", self.top_p, Real, lambda value: 0 < value <= 1, "a number > 0 and ≤ 1")
        _check("top_k", self.top_k, Integral, lambda value: value >= 0, "a whole number ≥ 0")
        check_stop(self.stop)


def _check(option: str, value: Any, kind: type, holds: Callable[[Any], bool], expected: str) -> None:
    if not isinstance(value, kind) or not holds(value):
        raise ValueError(f"{option}: got {value!r:.80}, expected {expected}")


def check_stop(stop: Sequence[str]) -> None:
    """Reject a bare string, whose characters would each be a stop string, and an empty one, which always matches."""
    listed = isinstance(stop, Sequence) and not isinstance(stop, str)
    if not listed or not all(isinstance(text, str) and text for text in stop):
        raise ValueError(f"stop: got {stop!r}, expected a list of texts that are not empty, as in ['END']")


def is_correct(reward: float) -> bool:
    """True if a reward is the full 1, up to the rounding of composed rewards."""
    return reward >= 1 - 1e-6


@dataclass(frozen=True)
class Sample:
    """An engine's completion: the sampled ids with their log-probs, and the version of the weights."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    version: int


@dataclass(frozen=True)
class GroupStats:
    """Statistics of the group that a turn was compared with: its key, and the returns of its members."""

    key: Mapping[str, str | int]  # such as {"task": "gsm8k-12", "role": "solver"}; equal for the members of a group
    own: float  # the turn's own return
    mean: float
    spread: float  # standard deviation
    size: int


@dataclass
class Turn:
    """One generation by one role: prompt and response, then rewards, credit and advantages.

    The first block is set when the turn is sampled and never changes. `None` in the second means "not computed",
    which is different from zero.
    """

    role: str
    policy: str
    version: int  # of the weights that sampled it
    round: int  # earlier turns of this role in the episode
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the sampler, one per response id
    temperature: float
    text: str
    stop: Stop
    prompt: str = ""  # the text of `prompt_ids` with control tokens; empty until the episode is stored
    seen: tuple[int, ...] = ()  # indices of the episode's turns that were finished when this one was requested
    # False: replayed from another episode, a fixed text, excluded by the workflow, or sampled with a truncated
    # distribution (top_p, top_k, greedy): no gradient comes from it.
    trainable: bool = True
    replayed: bool = False  # copied from the origin of a fork
    # Why it is excluded from this step, also from baselines: stale weights, or a round that is not being trained.
    dropped: Literal["stale", "round"] | None = None
    api_tokens: tuple[int, int] | None = None  # of a remote role, without ids: tokens of prompt and reply

    reward: float | None = None  # of this turn, in addition to the team's
    score: float | None = None  # a verifier's probability that the reply is right
    correct: bool | None = None  # whether a grader found it right; None if only a verifier scored it
    credit: float | None = None  # this turn's share of all rewards, by credit assignment
    credit_parts: Mapping[str, float] | None = None  # the summands of `credit`, such as own and team
    group: GroupStats | None = None  # its group, for algorithms with group baselines
    left_out: LeftOut | None = None  # why it has no advantage
    utility: float | None = None  # the mixer's value of this message for the team, standardized
    old_logprobs: Tensor | None = None  # [L], of the learner before any update of the step
    ref_logprobs: Tensor | None = None  # [L], of the reference policy
    entropy: Tensor | None = None  # [L]
    values: Tensor | None = None  # [L]
    advantages: Tensor | None = None  # [L]
    returns: Tensor | None = None  # [L]
    movement: Tensor | None = None  # [L], log-probs after the step's updates minus before; measured for some turns

    # For readers of the run; no computation depends on them.
    messages: Sequence[Message] | None = field(default=None, compare=False)  # the conversation it replies to
    started: float | None = field(default=None, compare=False)  # when it was requested: seconds since 1970
    ended: float | None = field(default=None, compare=False)

    @property
    def tokens(self) -> tuple[int, int]:
        """How many tokens its prompt and its reply have."""
        return self.api_tokens or (len(self.prompt_ids), len(self.response_ids))


@dataclass
class Episode:
    """One run of the workflow on one task. The team's reward is stored once, not on every turn, where it would count
    once per turn."""

    id: str
    task: Task
    repeat: int
    turns: list[Turn] = field(default_factory=list)
    answer: Any = None
    reward: float = 0.0
    correct: bool | None = None  # whether a grader found the answer right; None if only a verifier scored it
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None  # the traceback if the episode failed
    error_kind: str | None = None  # its exception class
    seed: int = 0  # of its samples
    origin: str | None = None  # of a fork: the id of the episode that it replays
    fork: str | None = None  # of a fork: its purpose


@dataclass(frozen=True)
class Outcome:
    """A workflow's answer with metrics, a reward or a judge; `run` may return it instead of a bare answer.

    `judge` runs after the episode: it gets a function that grades any answer to the task, sets the rewards of turns,
    and returns more metrics.
    """

    answer: Any
    metrics: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None  # of the team, if the world gave one; the environment's score may replace it
    judge: Callable[[Grade], Awaitable[Mapping[str, float]]] | None = None


@dataclass(frozen=True)
class Fork:
    """A request to replay an episode with some turns fixed and the rest sampled, as counterfactuals and trees need."""

    origin: Episode
    purpose: str
    fixed_turns: Mapping[tuple[str, int], Turn | str]  # by role and its nth turn: a recorded turn, or a text
    resample: int = 0  # 0: the seed of the origin; n: the nth new seed

    @property
    def id(self) -> str:
        return f"{self.origin.id}/{self.purpose}.{self.resample}"


@dataclass
class Batch:
    """Packed rows for one policy, without padding; every tensor is [T].

    `logprobs[t]` is the log-prob of `tokens[t]` given the tokens before it in its row, and is valid only where
    `mask[t]`.
    """

    tokens: Tensor
    positions: Tensor
    row: Tensor  # the row of each token, ascending
    mask: Tensor  # True where the token was sampled by this policy
    logprobs: Tensor  # of the sampler
    old_logprobs: Tensor  # of the learner before any update of the step if computed, else of the sampler
    advantages: Tensor
    returns: Tensor
    values: Tensor
    ref_logprobs: Tensor
    temperature: Tensor
    words: Tensor  # the number of words in the turn's text
    turn: Tensor  # a turn index that is unique within the step
    episode: Tensor  # an episode index
    role: Tensor  # index into `roles`
    roles: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> int:
        return int(self.row[-1]) + 1 if len(self) else 0

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor."""
        changed = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "roles"}
        return Batch(**changed, roles=self.roles)

    def take(self, rows: Sequence[int]) -> Batch:
        """Select rows, in the order of this batch, and renumber them."""
        selected = self.mask.new_zeros(self.rows)
        selected[list(rows)] = True
        keep = selected[self.row]
        taken = self.each(lambda column: column[keep])
        taken.row = taken.row.unique_consecutive(return_inverse=True)[1]
        return taken


class TokenMetrics(NamedTuple):
    """Metrics of an update per sampled token; each is [N], and its mean is logged under its name."""

    ratio_mean: Tensor  # the importance ratio new/old of the loss; its maximum is `ratio_max`
    clip_fraction: Tensor  # 1 where clipping removes the gradient
    kl: Tensor  # to the reference policy; 0 without one


@dataclass
class Scores:
    """The learner's forward pass over the sampled tokens; each is [N]. A critic has only values."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


# The loss per sampled token [N], from the learner's scores and the batch reduced to those tokens.
Loss = Callable[[Scores, Batch], "Tensor"]
# The metrics per sampled token, from the same arguments.
Measure = Callable[[Scores, Batch], "TokenMetrics"]
Metrics = dict[str, float]
Grade = Callable[[Any], Awaitable[float]]  # answer → reward of the environment
Weights = Mapping[str, "Tensor"]  # of one policy, by name: an adapter's by PEFT's names, or a whole model's
OnTokens = Callable[[Sequence[int], Sequence[float]], None]  # called with new tokens of a reply and their log-probs


class Engine(Protocol):
    """Samples tokens."""

    async def sample(
        self,
        policy: str,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        on_tokens: OnTokens | None = None,
    ) -> Sample:
        """A reply to the prompt. `on_tokens` gets its tokens while they are sampled; from some engines, all at once."""

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        """The weights of `policy` changed to this version: evict what the old ones computed from the KV cache.
        `weights`: copied into the engine's model; None if it shares the learner's, which have changed in place."""

    def clear(self) -> None:
        """Empty the KV cache; no request may be running."""


class Learner(Protocol):
    """The weights of one policy and their optimizer: the only place with gradients."""

    frozen: bool
    # While not None, `fit` records log-probs and entropy of each turn by its index, as its first pass over it saw them.
    recorded: dict[int, Tensor] | None

    @property
    def version(self) -> int:
        """The number of optimizer steps so far."""

    def begin(self, step: int) -> None:
        """Begin a training step, before any `fit` of it."""

    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        """The log-probs of the sampled tokens [T], by the current weights or the reference policy."""

    def scores(self, batch: Batch) -> Scores:
        """Log-probs, entropies and values of the sampled tokens in one forward pass without gradients; each [T]."""

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None) -> Metrics:
        """One optimizer step on Σ weights·loss; `measure` computes metrics per token."""

    def fit_together(self, jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure | None]]) -> list[Metrics]:
        """One `fit` for each of several learners, concurrently where possible."""

    def weights(self) -> Weights:
        """The current weights: not copies, where the learner is in this process."""

    def copy_from(self, other: Learner) -> None:
        """Copy weights and version of another policy on the same model, as a snapshot of it."""

    def save(self, folder: Path) -> None:
        """Write the weights: an adapter in PEFT layout, or a whole model in Hugging Face layout."""

    def load(self, folder: Path) -> None:
        """Load saved weights."""

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint beside the weights: version, optimizer, value head."""

    def restore(self, state: dict[str, Any]) -> None:
        """Load what `state` returned."""


class ValueEstimator(Protocol):
    """A critic or a mixer: estimates values of turns and learns from returns."""

    def read(self, episodes: Sequence[Episode]) -> None:
        """Write `turn.values` (a mixer: `turn.utility`) before any update of the step."""

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        """Fit to the returns of the episodes."""

    def save(self, folder: Path) -> None:
        """Write the state that a resumed run needs into a folder."""

    def load(self, folder: Path) -> None: ...


class Agent(Protocol):
    """One role in one episode."""

    role: str

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn: ...

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        """Sample a continuation of exactly these token ids, without a chat template."""

    @property
    def chat(self) -> Any:
        """The chat template of its model: `chat.prompt(messages)` gives token ids; it has a `tokenizer`."""


class Team(Protocol):
    """The agents of an episode, by name: `team.solver` or `team["solver"]`."""

    def __getattr__(self, role: str) -> Agent: ...
    def __getitem__(self, role: str) -> Agent: ...


class World(Protocol):
    """The state that an episode acts on, one per episode. A `close` method, async or not, is called at its end.

    Worlds for several roles have `reset` and `step` instead: see `coterie.envs.worlds.world.MultiAgentWorld`.
    """

    def observe(self) -> str: ...
    def act(self, text: str) -> None: ...

    @property
    def done(self) -> bool: ...


@runtime_checkable
class Workflow(Protocol):
    """How the roles work on a task. Its fields are its options in the config.

    Optional: `needs_sandbox` (it executes model output), `judges_turns` (it sets the reward of each turn),
    `needs_world` (it plays in a world of the environment, so that the team cannot be served without one),
    `problems(config)`, which yields conflicts with the rest of the config as (dotted key, message), and
    `open_models(device, deadline)`, which loads models of its own before the run and returns their hashes by name.
    """

    @property
    def roles(self) -> Sequence[str]: ...

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        """Play the task and return the team's answer, or an `Outcome`."""


@runtime_checkable
class Env(Protocol):
    """Provides tasks and scores episodes. Its fields are its options in the config.

    Optional: `needs_sandbox`, `problems(config)` and `open_models`, as of a workflow, and `own_deadline`: `score`
    limits its own time, so that `rollout.score_deadline` does not apply.
    """

    def tasks(self, split: Split) -> Sequence[Task]: ...
    def open(self, task: Task) -> Any:
        """A world for one episode, or None."""

    async def score(self, episode: Episode) -> None:
        """Write `episode.reward`, metrics, and `turn.reward` where roles have rewards of their own."""


@runtime_checkable
class Encoder(Protocol):
    """A frozen text encoder, such as a sentence embedder. Its fields are its options in the config."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [N, D], deterministic per text."""


# (the team's answer, the reference answer) → reward; may be async.
Reward = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Part:
    """A workflow, environment, reward or algorithm: its name, all its options, and the instance built from them."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    instance: Any = field(default=None, compare=False, repr=False)  # a reward: its function with the options bound


@dataclass(frozen=True)
class Weighted(Part):
    """One of several parts of a kind: `{name: math, weight: 0.9}` among the parts of a composed reward."""

    weight: float = 1.0
