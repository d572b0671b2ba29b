"""The nouns of Coterie, and the shapes of the parts that act on them. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, runtime_checkable

if TYPE_CHECKING:  # for a process that only grades it would take longer than the grading
    from torch import Tensor

Stop = Literal["end", "stop", "length"]  # the model ended its turn · a stop string · no room left
Split = Literal["train", "test"]


class Message(TypedDict):
    """One chat message. `role` is the chat template's word (system, user, assistant), not a seat in the team."""

    role: str
    content: str


@dataclass(frozen=True)
class Task:
    """One problem: what a prompt needs, and the reference answer that only graders see."""

    id: str
    prompt: str
    answer: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How a turn is drawn. Temperature 0 is greedy; its log-probs are those of temperature 1."""

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(
                f"nothing can be drawn with max_tokens {self.max_tokens}, temperature {self.temperature}, top_p "
                f"{self.top_p}, top_k {self.top_k}; they are at least 1, at least 0, above 0 and at most 1, at least 0"
            )


def is_correct(reward: float) -> bool:
    """Whether it is all that an answer can earn; weights of graders that add up to 1 may miss it by rounding."""
    return reward >= 1 - 1e-6


@dataclass(frozen=True)
class Sample:
    """What an engine answers: the sampled ids with their own log-probs, and which weights spoke."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    version: int


@dataclass
class Turn:
    """One generation by one role: what it read, what it said, what that was worth.

    The first block is written when the turn is sampled and never changes; `None` below means
    nobody has judged this turn, which is not a credit of zero.
    """

    role: str
    policy: str
    version: int  # of the weights that spoke
    round: int  # how often this role has spoken before in the episode
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # the sampler's own, one per response id
    temperature: float
    text: str
    stop: Stop
    seen: tuple[int, ...] = ()  # the turns of its episode that had been said when this one was asked for
    # False: replayed from another episode, written by nobody, excluded by the workflow, or sampled with a truncated
    # distribution (top_p, top_k, greedy): no gradient comes from it.
    trainable: bool = True
    replayed: bool = False  # said in another episode: its origin
    # Why nobody learns from it at this step; then its reward moves no baseline either. "round": of one that rests.
    dropped: Literal["stale", "round"] | None = None

    reward: float | None = None  # this turn's own, on top of the team's
    credit: float | None = None  # what credit makes of all rewards: this turn's part
    utility: float | None = None  # what a mixer says this message is worth to the team, standardised
    old_logprobs: Tensor | None = None  # [L], the learner's own before any update of the step
    ref_logprobs: Tensor | None = None  # [L], of the reference policy
    entropy: Tensor | None = None  # [L]
    values: Tensor | None = None  # [L]
    advantages: Tensor | None = None  # [L]
    returns: Tensor | None = None  # [L]


@dataclass
class Episode:
    """All turns of one workflow run on one task. The team's reward and a turn's own are two
    fields: copied onto every turn, the team's would count once for each."""

    id: str
    task: Task
    repeat: int
    turns: list[Turn] = field(default_factory=list)
    answer: Any = None
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None  # the traceback, when the episode failed
    error_kind: str | None = None  # its exception class, to count failures by
    seed: int = 0  # its turns are sampled with
    origin: str | None = None  # of a fork: the episode that it begins like
    fork: str | None = None  # and what it is for


@dataclass(frozen=True)
class Outcome:
    """What a workflow may return instead of a bare answer, when it has more to tell.

    What is judged by the answer key is judged when all is said: `judge` gets a function that grades any answer to the
    task as the team's would be, gives turns their rewards, and returns more metrics.
    """

    answer: Any
    metrics: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None  # the team's, where the world has said it; the environment's score may say otherwise
    judge: Callable[[Grade], Awaitable[Mapping[str, float]]] | None = None


@dataclass(frozen=True)
class Fork:
    """An episode to play again in part: some turns are given, the rest is said anew."""

    origin: Episode
    purpose: str
    fixed_turns: Mapping[tuple[str, int], Turn | str]  # by role and its nth turn: a recorded turn, or a text
    resample: int = 0  # 0: the origin's seed, n: the nth fresh one

    @property
    def id(self) -> str:
        return f"{self.origin.id}/{self.purpose}.{self.resample}"


@dataclass
class Batch:
    """Rows for one policy, one after the other without padding; every tensor is [T].

    A value belongs to the token it stands at: `logprobs[t]` is that of `tokens[t]` given what
    stands before it in its row, and is meaningful only where `mask[t]`.
    """

    tokens: Tensor
    positions: Tensor
    row: Tensor  # which row a token is in, ascending
    mask: Tensor  # True where the token was sampled by this policy
    logprobs: Tensor  # the sampler's
    old_logprobs: Tensor  # the learner's own before any update of the step, where they were read; else the sampler's
    advantages: Tensor
    returns: Tensor
    values: Tensor
    ref_logprobs: Tensor
    temperature: Tensor
    words: Tensor  # in the turn's text
    turn: Tensor  # a number per turn, the same over a whole step
    episode: Tensor  # a number per episode
    role: Tensor  # index into `roles`
    roles: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> int:
        return int(self.row[-1]) + 1 if len(self) else 0

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same change made to every tensor."""
        return Batch(
            **{f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "roles"}, roles=self.roles
        )

    def take(self, rows: Sequence[int]) -> Batch:
        """Some of the rows, in the order of this batch and numbered anew."""
        wanted = self.mask.new_zeros(self.rows)
        wanted[list(rows)] = True
        keep = wanted[self.row]
        taken = self.each(lambda column: column[keep])
        taken.row = taken.row.unique_consecutive(return_inverse=True)[1]
        return taken


class TokenMetrics(NamedTuple):
    """What an update did at each sampled token; each is [N], and its mean is a metric of this name."""

    ratio_mean: Tensor  # of new over old probability, as the loss has it; its maximum is `ratio_max`
    clip_fraction: Tensor  # 1 where the clip takes the gradient away
    kl: Tensor  # to the reference policy; 0 where none was read


@dataclass
class Scores:
    """What the learner's own forward says of the sampled tokens; each is [N]. A critic has values alone."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


# One number per sampled token, from the learner's scores and the batch cut to those tokens [N].
Loss = Callable[[Scores, Batch], "Tensor"]
# Of the same: what the metrics tell of each token.
Measure = Callable[[Scores, Batch], "TokenMetrics"]
Metrics = dict[str, float]
Grade = Callable[[Any], Awaitable[float]]  # an answer → what the environment would give for it


class Engine(Protocol):
    """Where tokens come from."""

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample: ...

    def weights_changed(self, policy: str, version: int) -> None:
        """From now on `policy` speaks with weights of this version."""


class Learner(Protocol):
    """The weights of one policy and the only place with gradients."""

    frozen: bool
    version: int

    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        """Of the sampled tokens, [T]; of the reference policy if asked."""

    def scores(self, batch: Batch) -> Scores:
        """All that one forward says of the sampled tokens, without gradients; each [T]."""

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None) -> Metrics:
        """One optimiser step on Σ weights·loss; `measure` says what else to report."""

    def fit_together(self, lessons: Sequence[tuple[Any, Batch, Tensor, Loss, Measure]]) -> list[Metrics]:
        """A fit of each of several learners of this kind, where none has to wait for another."""


class ValueEstimator(Protocol):
    """Says what turns are worth, and learns it."""

    def read(self, episodes: Sequence[Episode]) -> None:
        """Write `turn.values`, or what this critic knows instead, before any update of the step."""

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        """Learn from what was earned."""

    def save(self, folder: Path) -> None:
        """All that a resumed run needs, into a folder of its own."""

    def load(self, folder: Path) -> None: ...


class Agent(Protocol):
    """One role at work on one episode."""

    role: str

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn: ...

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        """Go on from exactly these ids; no template is laid over them."""

    @property
    def chat(self) -> Any:
        """How its model writes conversations: `chat.prompt(messages)` are ids, `chat.tokenizer` is the model's own."""


class Team(Protocol):
    """The agents of an episode, by name: `team.solver` or `team["solver"]`."""

    def __getattr__(self, role: str) -> Agent: ...
    def __getitem__(self, role: str) -> Agent: ...


class World(Protocol):
    """What an episode acts on, one per episode. One that has a `close`, async or not, is closed when the episode ends.

    Worlds for several roles have `reset` and `step` instead: see `coterie.envs.worlds.world.MultiAgentWorld`.
    """

    def observe(self) -> str: ...
    def act(self, text: str) -> None: ...

    @property
    def done(self) -> bool: ...


@runtime_checkable
class Workflow(Protocol):
    """How roles talk about one task. Its fields are its options in the config.

    It may also say `needs_sandbox` (it executes what a model wrote), `judges_turns` (it gives each turn its reward) and
    `problems(config)`, which yields conflicts with the rest of the config as (dotted key, message).
    """

    @property
    def roles(self) -> Sequence[str]: ...

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        """Play the task; what it returns is the team's answer, or an `Outcome`."""


@runtime_checkable
class Env(Protocol):
    """Where tasks come from and what an answer is worth. Its fields are its options in the config.

    It may also say `needs_sandbox` and `problems(config)`, as a workflow may, and `own_deadline`: `score` limits its
    own time, so that `rollout.score_deadline` does not apply.
    """

    def tasks(self, split: Split) -> Sequence[Task]: ...
    def open(self, task: Task) -> Any:
        """A world for one episode, or None where there is nothing to act on."""

    async def score(self, episode: Episode) -> None:
        """Write `episode.reward`, and where roles earn their own, `turn.reward` and metrics."""


@runtime_checkable
class Encoder(Protocol):
    """Texts as vectors that never learn, such as a sentence embedder's. Its fields are its options in the config."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, D]; the same text always becomes the same vector."""


# (what the team answered, the reference) → score. Async where it has to wait.
Reward = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Part:
    """A workflow, environment, reward or algorithm: its name, all its options, and the instance built from them."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    instance: Any = field(default=None, compare=False, repr=False)  # a reward's function has its options bound


@dataclass(frozen=True)
class Weighted(Part):
    """One of several parts of a kind: `{name: math, weight: 0.9}` among the parts of a composed reward."""

    weight: float = 1.0
