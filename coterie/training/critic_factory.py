"""Builds critics and mixers for algorithms: `Algorithm.make_critic(factory)` calls one of its methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.config import Config, ConfigError, CriticConfig
from coterie.config.settings import Hidden
from coterie.learners.critics import Critic, Critics
from coterie.learners.distributed import Processes
from coterie.learners.learner import TorchLearner
from coterie.learners.mixer import Mixer
from coterie.learners.packing import token_budget
from coterie.learners.text_encoder import HiddenStates
from coterie.models.base import Base
from coterie.rl.mixers import MixerOptions
from coterie.seeds import stable_hash
from coterie.training.models import ModelPool, config_errors, fresh_adapter
from coterie.training.placement import device_beside
from coterie.types import Batch, Encoder, Loss


def critics_of(config: Config, algorithm: Algorithm) -> dict[str, CriticConfig]:
    """The config's critics; without any, an algorithm that needs a centralized critic gets one on the team's model."""
    if config.critics or not algorithm.central_critic:
        return config.critics
    models = [policy.model for policy in config.policies.values() if not policy.frozen]
    return {"team": CriticConfig(sees="joint", model=models[0])} if models else {}


@dataclass(frozen=True)
class CriticFactory:
    """Builds the critics that an algorithm asks for in `make_critic`."""

    config: Config
    algorithm: Algorithm
    pool: ModelPool
    bases: Mapping[str, Base]  # of the policies
    processes: Processes

    def critics(self, loss: Loss, weights: Callable[[Batch], Tensor], lr: float, fits: int) -> Critics | None:
        """The config's critics; None if values come from a value head on the policy's model."""
        trained = frozenset(name for name, policy in self.config.policies.items() if not policy.frozen)
        critics = {}
        for name, settings in critics_of(self.config, self.algorithm).items():
            device = device_beside(self.config, settings.model)
            base = self.pool.load(("critics", name), settings.model, settings.lora is None, f"critic {name}", device)
            learner = self._learner(name, settings, base, lr)
            roles = frozenset(settings.roles or self.config.roles)
            for policy in sorted(trained & self._policies_of(roles)):
                check_same_tokenizer(name, base, policy, self.bases[policy])
            critics[name] = Critic(learner, roles, trained, settings.sees)
        return Critics(critics, loss, weights, fits) if critics else None

    def mixer(self, options: MixerOptions) -> Mixer:
        return Mixer(self._encoder(), list(self.config.roles), options, stable_hash(self.config.seed, "mixer"))

    def _learner(self, name: str, critic: CriticConfig, base: Base, value_lr: float) -> TorchLearner:
        """A value head on an adapter, which may share the policies' base, or on a whole model."""
        config, owner, adapter = self.config, f"critic {name}", None
        if owner in config.policies:
            raise ConfigError(f"policies.{owner}: this name is used by critics.{name}; rename one of them")
        if critic.lora is not None:
            with config_errors(config, ("critics", name), vars(critic)):
                adapter = fresh_adapter(owner, critic.lora, base, stable_hash(config.seed, "critic", name))
        return TorchLearner(
            owner, base, adapter, critic.lr, config.learning, config.steps,
            value_lr=value_lr, is_critic=True, processes=self.processes,
        )  # fmt: skip

    def _policies_of(self, roles: Collection[str]) -> set[str]:
        """The policies that play any of these roles at some step."""
        config = self.config
        initial = {name: role.policies[0] for name, role in config.roles.items()}
        assigned = (self.algorithm.assign_roles(step, initial) for step in range(config.steps))
        first = {policy for at_step in assigned for role, policy in at_step.items() if role in roles}
        return first.union(*(config.roles[role].policies[1:] for role in roles))

    def _encoder(self) -> Encoder:
        """The user's encoder, or the hidden states of a model without adapters."""
        encoder = self.config.encoder.instance
        if not isinstance(encoder, Hidden):
            return encoder
        model = encoder.model or next(iter(self.config.policies.values())).model
        base = self.pool.load(("encoder",), model, False, "encoder", device_beside(self.config, model))
        return HiddenStates(base, token_budget(base, self.config.learning))


def check_same_tokenizer(critic: str, base: Base, policy: str, other: Base) -> None:
    """A critic reads the sampled token ids, so its tokenizer must be the policy's."""
    if base.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise ConfigError(
            f"critics.{critic}: {base.folder} has another tokenizer than policies.{policy} ({other.folder}); use a "
            "critic with the same tokenizer for its roles"
        )
