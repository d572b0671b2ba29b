"""Builds critics and mixers for algorithms: `Algorithm.make_critic(factory)` calls one of its methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

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
from coterie.learners.value_head import has_head, load_head
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import ADAPTER_CONFIG, load_adapter
from coterie.rl.mixers import MixerOptions
from coterie.seeds import stable_hash
from coterie.training.models import ModelPool, config_errors, fresh_adapter
from coterie.training.placement import device_beside
from coterie.types import Batch, Encoder, Loss

TEAM = "team"  # the name of a centralized critic that the config does not name


def has_critics(config: Config, algorithm: Algorithm) -> bool:
    """True if values come from critics of their own: the config's, or those that a centralized critic needs."""
    trains = any(not policy.frozen for policy in config.policies.values())
    return bool(config.critics) or (algorithm.central_critic and trains)


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
        for name, settings in self._settings().items():
            device = device_beside(self.config, settings.model)
            whole = settings.lora is None and not settings.frozen
            base = self.pool.load(("critics", name), settings.model, whole, f"critic {name}", device)
            learner = self._learner(name, settings, base, lr)
            roles = frozenset(settings.roles or self.config.roles)
            for policy in sorted(trained & self._policies_of(roles)):
                if not _same_tokenizer(base, self.bases[policy]):
                    raise ConfigError(self._other_tokenizer(name, settings, policy))
            critics[name] = Critic(learner, roles, trained, settings.sees)
        return Critics(critics, loss, weights, fits) if critics else None

    def mixer(self, options: MixerOptions) -> Mixer:
        return Mixer(self._encoder(), list(self.config.roles), options, stable_hash(self.config.seed, "mixer"))

    def _settings(self) -> dict[str, CriticConfig]:
        """The config's critics; without any, an algorithm that needs a centralized critic gets one per tokenizer."""
        if self.config.critics or not self.algorithm.central_critic:
            return self.config.critics
        return self._by_tokenizer("joint")

    def _by_tokenizer(self, sees: Literal["own", "joint", "reply"]) -> dict[str, CriticConfig]:
        """One critic per tokenizer, since a critic reads the sampled token ids. A role whose policies have different
        tokenizers is assigned by its first one; `critics` then raises."""
        groups: dict[str, list[str]] = {}  # the roles, by the first policy with that tokenizer
        for role in self.config.roles:
            trained = [name for name in self._policies_of([role]) if not self.config.policies[name].frozen]
            for policy in sorted(trained, key=list(self.config.policies).index)[:1]:
                same = (one for one in groups if _same_tokenizer(self.bases[one], self.bases[policy]))
                groups.setdefault(next(same, policy), []).append(role)
        named = {TEAM if len(groups) == 1 else f"{TEAM}_{policy}": policy for policy in groups}
        return {
            name: CriticConfig(tuple(groups[policy]), sees, self.config.policies[policy].model)
            for name, policy in named.items()
        }

    def _other_tokenizer(self, name: str, critic: CriticConfig, policy: str) -> str:
        other = f"critics.{name}: {critic.model} has another tokenizer than policies.{policy}"
        lines = [
            f"  {key}: {{roles: [{', '.join(one.roles or self.config.roles)}], model: {one.model}, sees: {one.sees}}}"
            for key, one in self._by_tokenizer(critic.sees).items()
        ]
        why = f"{other}, whose token ids it would read; with one critic per tokenizer:"
        return "\n".join([why, "critics:", *lines])

    def _learner(self, name: str, critic: CriticConfig, base: Base, value_lr: float) -> TorchLearner:
        """A value head on an adapter or a frozen model, which may share the policies' base, or on a whole model."""
        config, owner = self.config, f"critic {name}"
        if owner in config.policies:
            raise ConfigError(f"policies.{owner}: this name is used by critics.{name}; rename one of them")
        with config_errors(config, ("critics", name), vars(critic)):
            adapter = self._adapter(owner, name, critic, base)
        learner = TorchLearner(
            owner, base, adapter, critic.lr, config.learning, config.steps,
            value_lr=value_lr, is_critic=True, processes=self.processes,
            head=critic.head, trains_trunk=not critic.frozen,
        )  # fmt: skip
        if critic.adapter is not None and has_head(critic.adapter) and learner.value_head is not None:
            with config_errors(config, ("critics", name, "adapter")):
                load_head(learner.value_head, critic.adapter)
        return learner

    def _adapter(self, owner: str, name: str, critic: CriticConfig, base: Base) -> Adapter | None:
        """The critic's adapter: loaded, fresh, or none if the whole model or only its head is trained."""
        folder = critic.adapter
        if folder is not None and (folder / ADAPTER_CONFIG).is_file():
            return load_adapter(owner, folder, base.layers)
        if folder is not None and not has_head(folder):
            raise ValueError(f"adapter: {folder} has neither a PEFT adapter ({ADAPTER_CONFIG}) nor a value head")
        if critic.lora is None or critic.frozen:
            return None
        return fresh_adapter(owner, critic.lora, base, stable_hash(self.config.seed, "critic", name))

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
        model = encoder.model or next(policy.model for policy in self.config.policies.values() if not policy.by_text)
        base = self.pool.load(("encoder",), model, False, "encoder", device_beside(self.config, model))
        return HiddenStates(base, token_budget(base, self.config.learning))


def _same_tokenizer(base: Base, other: Base) -> bool:
    return base is other or base.tokenizer.get_vocab() == other.tokenizer.get_vocab()
