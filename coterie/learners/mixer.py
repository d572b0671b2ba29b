"""A critic of whole messages: it learns what the team earns as a mixture of what each role's message is worth."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.learners.critics import joint_context
from coterie.learners.replay_buffer import Buffer, Rounds, no_rounds
from coterie.models.store import read_tensors, write_tensors
from coterie.rl.credit import returns_to_go
from coterie.rl.mixers import Decomposition, MixerOptions, standardised_by, td_target, track
from coterie.types import Encoder, Episode, Metrics, Turn

Said = dict[str, Turn]  # one round: by role
FILE = "mixer.pt"


class Mixer:
    """Utilities, their mixture, the targets of both, and the buffer they learn from.

    A joint turn is a round: the nth message of every role that has one. Its state is what was known when the round
    began, the same for all its roles: from what a later role has read of the round it could tell an earlier
    one's message, and take the credit for it.
    """

    def __init__(self, encoder: Encoder, roles: Sequence[str], options: MixerOptions, seed: int) -> None:
        self.encoder, self.roles, self.options = encoder, list(roles), options
        self.features = encoder.encode(["?"]).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            mixing = options.mixing(len(self.roles), self.features)
            # In double precision, and small: equal messages must be worth the same, or rounding would become credit.
            self.online = Decomposition(len(self.roles), self.features, options.width, mixing).double()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=options.value_lr, fused=True)
        self.buffer = Buffer(options.buffer, len(self.roles), self.features)
        self.generator = torch.Generator().manual_seed(seed)
        self.lessons = 0  # steps it has learned from
        self._known: dict[str, Tensor] = {}  # the texts of this step

    @torch.no_grad()
    def read(self, episodes: Sequence[Episode]) -> None:
        """Write `turn.utility`, standardised over the role's messages in the buffer, once the warm-up is over."""
        if self.lessons < self.options.warmup:
            return
        said = [turns for episode in episodes for turns in in_rounds(episode)]
        rounds = self._rounds(episodes).each(_double)
        kept = self.buffer.kept.each(_double)
        known = self.online.utilities(kept.state, kept.actions)
        utilities = standardised_by(self.online.utilities(rounds.state, rounds.actions), known, kept.present)
        for turns, worth in zip(said, utilities.tolist(), strict=True):
            for role, turn in turns.items():
                turn.utility = worth[self.roles.index(role)]

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        rounds = self._rounds(episodes)
        self._known.clear()
        self.buffer.add(rounds)
        if not len(rounds):
            return {}
        fits = [self._descend() for _ in range(self.options.value_fits)]
        self.lessons += 1
        loss, mean = torch.tensor(fits, dtype=torch.float64).mean(dim=0).tolist()
        absent = float((~rounds.present).sum())
        return {"critic/loss": loss, "critic/q_mean": mean, "critic/buffer": len(self.buffer), "critic/absent": absent}

    def save(self, folder: Path) -> None:
        state = {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffer": vars(self.buffer.kept),
            "generator": self.generator.get_state(),
            "lessons": self.lessons,
        }
        write_tensors(state, folder / FILE)

    def load(self, folder: Path) -> None:
        state = read_tensors(folder / FILE)
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # the run's config may have another by now
            group["lr"] = self.options.value_lr
        self.buffer.kept = Rounds(**state["buffer"])
        self.generator.set_state(state["generator"])
        self.lessons = state["lessons"]

    def _descend(self) -> tuple[float, float]:
        """One optimiser step on joint turns from the buffer, then the targets follow: the loss and the mean Q_tot."""
        now, later = (rounds.each(_double) for rounds in self.buffer.draw(self.options.draw, self.generator))
        wanted = now.returns
        if self.options.target == "td":
            following = self.target(later.state, later.actions, later.present)
            wanted = td_target(now.reward, now.done, following, self.options.gamma_turn)
        value = self.online(now.state, now.actions, now.present)
        loss = 0.5 * ((value - wanted) ** 2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        track(self.target, self.online, self.options.polyak)
        return float(loss.detach()), float(value.detach().mean())

    def _rounds(self, episodes: Sequence[Episode]) -> Rounds:
        """What was said, as the networks see it."""
        played = [(episode, list(in_rounds(episode))) for episode in episodes]
        played = [(episode, rounds) for episode, rounds in played if rounds]
        if not played:
            return no_rounds(len(self.roles), self.features)
        said = [turns for _, rounds in played for turns in rounds]
        states = [joint_context(episode, first(turns)) for episode, rounds in played for turns in rounds]
        rewards = [team_rewards(episode, rounds) for episode, rounds in played]
        present = torch.tensor([[role in turns for role in self.roles] for turns in said])
        actions = torch.zeros(*present.shape, self.features)
        self._learn_words([*states, *(turn.text for turns in said for turn in turns.values())])
        actions[present] = self._vectors([turns[role].text for turns in said for role in self.roles if role in turns])
        togo = [returns_to_go(some, [""] * len(some), self.options.gamma_turn) for some in rewards]
        last = [k == len(some) - 1 for some in rewards for k in range(len(some))]
        return Rounds(self._vectors(states), actions, present, _flat(rewards), _flat(togo), torch.tensor(last))

    def _learn_words(self, texts: Sequence[str]) -> None:
        """Encode what is new, each text once, so that equal texts are equal to the bit."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            # Hidden states have a few huge features and lengths of their own; a norm makes texts comparable.
            vectors = F.layer_norm(self.encoder.encode(new).float().cpu(), (self.features,))
            self._known |= dict(zip(new, vectors, strict=True))

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self._known[text] for text in texts])


def in_rounds(episode: Episode) -> Iterator[Said]:
    """The joint turns of an episode: what every role said first, then what it said second…"""
    for n in sorted({turn.round for turn in episode.turns}):
        yield {turn.role: turn for turn in episode.turns if turn.round == n}


def first(turns: Said) -> Turn:
    """The turn with which a round begins."""
    return next(iter(turns.values()))


def team_rewards(episode: Episode, rounds: Sequence[Said]) -> list[float]:
    """What the team earned in each round: what its turns were given, and at the end the episode's reward."""
    rewards = [sum(turn.reward or 0.0 for turn in turns.values()) for turns in rounds]
    rewards[-1] += episode.reward
    return rewards


def _flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([number for some in numbers for number in some], dtype=torch.float64)


def _double(column: Tensor) -> Tensor:
    return column if column.dtype == torch.bool else column.double()
