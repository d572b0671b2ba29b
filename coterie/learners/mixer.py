"""The mixer of VDN and QMIX: a message-level critic that learns the team's reward as a mixture of role utilities.

Online and target networks (Polyak averaging), a replay buffer, and TD or Monte-Carlo targets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.learners.critics import joint_context
from coterie.learners.replay_buffer import JointTurns, ReplayBuffer, no_joint_turns
from coterie.models.store import read_tensors, write_tensors
from coterie.rl.credit import returns_to_go
from coterie.rl.mixers import Decomposition, MixerOptions, polyak_update, standardized_by, td_target
from coterie.types import Encoder, Episode, Metrics, Turn

Round = dict[str, Turn]  # the turns of one round, by role
FILE = "mixer.pt"


class Mixer:
    """Utility networks, the mixing network, target copies of both, and the replay buffer.

    A joint turn is a round: the nth message of every role that has one. Its state is the joint context when the round
    began, the same for all its roles: a later role's own context contains earlier messages of the round, so its utility
    would include their value.
    """

    def __init__(self, encoder: Encoder, roles: Sequence[str], options: MixerOptions, seed: int) -> None:
        self.encoder, self.roles, self.options = encoder, list(roles), options
        self.features = encoder.encode(["?"]).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            mixing = options.mixing(len(self.roles), self.features)
            # Float64, small networks: equal messages must have equal utilities, or rounding would become credit.
            self.online = Decomposition(len(self.roles), self.features, options.width, mixing).double()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=options.value_lr, fused=True)
        self.buffer = ReplayBuffer(options.buffer, len(self.roles), self.features)
        self.generator = torch.Generator().manual_seed(seed)
        self.fitted_steps = 0
        self._vectors_of: dict[str, Tensor] = {}  # the encoded texts of this step

    @torch.no_grad()
    def read(self, episodes: Sequence[Episode]) -> None:
        """Write `turn.utility`, standardized over the role's messages in the buffer, once the warm-up is over."""
        if self.fitted_steps < self.options.warmup:
            return
        rounds = [turns for episode in episodes for turns in in_rounds(episode)]
        joint = self._joint_turns(episodes).each(_double)
        buffered = self.buffer.entries.each(_double)
        known = self.online.utilities(buffered.state, buffered.actions)
        utilities = standardized_by(self.online.utilities(joint.state, joint.actions), known, buffered.present)
        for turns, by_role in zip(rounds, utilities.tolist(), strict=True):
            for role, turn in turns.items():
                turn.utility = by_role[self.roles.index(role)]

    def fit(self, episodes: Sequence[Episode], step: int) -> Metrics:
        joint = self._joint_turns(episodes)
        self._vectors_of.clear()
        self.buffer.add(joint)
        if not len(joint):
            return {}
        fits = [self._optimizer_step() for _ in range(self.options.value_fits)]
        self.fitted_steps += 1
        loss, mean = torch.tensor(fits, dtype=torch.float64).mean(dim=0).tolist()
        absent = float((~joint.present).sum())
        return {"critic/loss": loss, "critic/q_mean": mean, "critic/buffer": len(self.buffer), "critic/absent": absent}

    def save(self, folder: Path) -> None:
        state = {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffer": vars(self.buffer.entries),
            "generator": self.generator.get_state(),
            "fitted_steps": self.fitted_steps,
        }
        write_tensors(state, folder / FILE)

    def load(self, folder: Path) -> None:
        state = read_tensors(folder / FILE)
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # the config may have changed since
            group["lr"] = self.options.value_lr
        self.buffer.entries = JointTurns(**state["buffer"])
        self.generator.set_state(state["generator"])
        self.fitted_steps = state["fitted_steps"]

    def _optimizer_step(self) -> tuple[float, float]:
        """One step on joint turns from the buffer, then the target networks follow: the loss and the mean Q_tot."""
        now, later = (joint.each(_double) for joint in self.buffer.sample(self.options.draw, self.generator))
        targets = now.returns
        if self.options.target == "td":
            following = self.target(later.state, later.actions, later.present)
            targets = td_target(now.reward, now.done, following, self.options.gamma_turn)
        value = self.online(now.state, now.actions, now.present)
        loss = 0.5 * ((value - targets) ** 2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        polyak_update(self.target, self.online, self.options.polyak)
        return float(loss.detach()), float(value.detach().mean())

    def _joint_turns(self, episodes: Sequence[Episode]) -> JointTurns:
        """The episodes' rounds as tensors: encoded states and messages, rewards and returns."""
        played = [(episode, list(in_rounds(episode))) for episode in episodes]
        played = [(episode, rounds) for episode, rounds in played if rounds]
        if not played:
            return no_joint_turns(len(self.roles), self.features)
        all_rounds = [turns for _, rounds in played for turns in rounds]
        states = [joint_context(episode, first_turn(turns)) for episode, rounds in played for turns in rounds]
        rewards = [team_rewards(episode, rounds) for episode, rounds in played]
        present = torch.tensor([[role in turns for role in self.roles] for turns in all_rounds])
        actions = torch.zeros(*present.shape, self.features)
        self._encode([*states, *(turn.text for turns in all_rounds for turn in turns.values())])
        messages = [turns[role].text for turns in all_rounds for role in self.roles if role in turns]
        actions[present] = self._vectors(messages)
        returns = [returns_to_go(some, [""] * len(some), self.options.gamma_turn) for some in rewards]
        last = [k == len(some) - 1 for some in rewards for k in range(len(some))]
        return JointTurns(self._vectors(states), actions, present, _flat(rewards), _flat(returns), torch.tensor(last))

    def _encode(self, texts: Sequence[str]) -> None:
        """Encode each new text once, so that equal texts have bitwise equal vectors."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors_of]
        if new:
            # Hidden states have a few huge features and different norms; layer norm makes texts comparable.
            vectors = F.layer_norm(self.encoder.encode(new).float().cpu(), (self.features,))
            self._vectors_of |= dict(zip(new, vectors, strict=True))

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self._vectors_of[text] for text in texts])


def in_rounds(episode: Episode) -> Iterator[Round]:
    """The joint turns of an episode: every role's first turn, then every role's second turn, …"""
    for n in sorted({turn.round for turn in episode.turns}):
        yield {turn.role: turn for turn in episode.turns if turn.round == n}


def first_turn(turns: Round) -> Turn:
    """The first turn of a round."""
    return next(iter(turns.values()))


def team_rewards(episode: Episode, rounds: Sequence[Round]) -> list[float]:
    """The team's reward of each round: the turns' own rewards, and in the last round the episode's."""
    rewards = [sum(turn.reward or 0.0 for turn in turns.values()) for turns in rounds]
    rewards[-1] += episode.reward
    return rewards


def _flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([number for some in numbers for number in some], dtype=torch.float64)


def _double(column: Tensor) -> Tensor:
    return column if column.dtype == torch.bool else column.double()
