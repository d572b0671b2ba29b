"""Loads models and adapters for policies, critics and encoders; policies with adapters share a base model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from coterie.config import Config, ConfigError, Lora, Policy
from coterie.config.problems import Path as Keys
from coterie.config.problems import Problems
from coterie.config.reader import key_and_message
from coterie.engines.human import HumanPlayer
from coterie.engines.remote import Endpoint, RemotePlayer
from coterie.engines.text_player import TextPlayer
from coterie.errors import ModelError
from coterie.learners.distributed import process_group
from coterie.models.base import Base
from coterie.models.chat import Chat
from coterie.models.lora import Adapter
from coterie.models.lora_targets import targets_for
from coterie.models.peft import load_adapter
from coterie.models.store import load_end_ids, load_tokenizer, max_context_length, read_config, resolve
from coterie.seeds import stable_hash
from coterie.training import opponents
from coterie.training.checkpoint import critic_folder, policy_folder


@contextmanager
def config_errors(
    config: Config, keys: Keys, options: Mapping[str, Any] | None = None, default: Keys | None = None
) -> Iterator[None]:
    """Raise errors of a part as ConfigErrors with key and line: of the option that the message names, else `default`
    or `keys`."""
    try:
        yield
    except (ValueError, ImportError, ModelError) as error:
        named, message = key_and_message(str(error), options or {}, keys)
        problems = Problems(config.sources)
        problems.add(default or keys if named == keys else named, message)
        raise ConfigError(problems.found[0]) from error


def with_local_policies(config: Config) -> Config:
    """The config without the policies that an endpoint or a person plays: these have no local weights."""
    return replace(config, policies={name: policy for name, policy in config.policies.items() if not policy.by_text})


def text_players(config: Config) -> dict[str, TextPlayer]:
    """The players of the policies without local weights: endpoints and people. An unset `key_env` is an error."""
    problems, players = Problems(config.sources), dict[str, TextPlayer]()
    for name, policy in config.policies.items():
        if policy.human:
            players[name] = HumanPlayer(name)
        elif policy.api is not None:
            key = os.environ.get(policy.key_env) if policy.key_env else None
            if policy.key_env and not key:
                problems.add(("policies", name, "key_env"), f"the environment variable {policy.key_env} is not set")
            limits = policy.api_deadline, policy.api_concurrency, policy.api_rate
            players[name] = RemotePlayer(Endpoint(policy.api, policy.model, key, *limits))
    problems.raise_any()
    return players


@dataclass(frozen=True)
class ModelPool:
    """The loaded models. Adapters on one model share it; a model that is fully fine-tuned is not shared."""

    config: Config
    sharded: bool = False  # over the learner processes
    weightless: bool = False  # an engine has the weights elsewhere
    bases: dict[tuple[Path, str | None, torch.device], Base] = field(default_factory=dict)

    def load(self, keys: Keys, model: str, whole: bool, owner: str, device: torch.device) -> Base:
        """A model on a device. `keys`: of the config section whose `model` it is, for errors."""
        with config_errors(self.config, (*keys, "model")):
            key = (resolve(model), owner if whole else None, device)
            if key not in self.bases:
                precision = self.config.learning.precision
                bf16 = precision == "bf16" or (precision == "auto" and device.type == "cuda")
                # Trained weights stay in fp32; autocast runs their matmuls in bf16.
                dtype = torch.bfloat16 if bf16 and not whole else torch.float32
                self.bases[key] = Base(
                    key[0], device, dtype, bf16=bf16, sharded=self.sharded, weightless=self.weightless
                )
            return self.bases[key]


def check_max_tokens(config: Config) -> None:
    """Reject a `max_tokens` that leaves no room for a prompt in the model's context."""
    contexts: dict[str, int | None] = {}
    for name, policy in config.policies.items():
        with config_errors(config, ("policies", name, "model")):
            if policy.model not in contexts:
                contexts[policy.model] = max_context_length(read_config(resolve(policy.model)))
    problems = Problems(config.sources)
    for name, role in config.roles.items():
        max_tokens = config.sampling_of(name).max_tokens
        for model in {config.policies[policy].model for policy in role.policies if policy in config.policies}:
            if (context := contexts[model]) is not None and max_tokens >= context:
                path = ("sampling", "max_tokens") if role.max_tokens is None else ("roles", name, "max_tokens")
                limit = f"the context of {model} is {context} tokens, prompt and reply together"
                problems.add(path, f"{max_tokens} tokens for {name} leave no room for a prompt: {limit}")
    problems.raise_any()


def base_policy(policy: str) -> str:
    """The name under which the engine serves a policy's base without its adapter."""
    return f"{policy} (base)"


def with_saved_adapters(config: Config, saved: Path | None) -> Config:
    """The config with a checkpoint's adapters instead of those that policies and critics started from."""
    if saved is None:
        return config
    folders = {
        name: critic_folder(saved, name) for name, critic in config.critics.items() if critic.adapter is not None
    }
    critics = {name: replace(config.critics[name], adapter=folder) for name, folder in folders.items()}
    config = replace(config, critics=config.critics | critics)
    started = {name: policy for name, policy in config.policies.items() if policy.adapter is not None}
    own = {name: replace(policy, adapter=policy_folder(saved, name)) for name, policy in started.items()}
    return replace(config, policies=config.policies | own)


def with_saved_weights(config: Config, saved: Path) -> Config:
    """The config with a checkpoint's adapters and models, to play without a learner that would load them."""

    def own(name: str, policy: Policy) -> Policy:
        if policy.lora is not None:
            return replace(policy, adapter=policy_folder(saved, name))
        return policy if policy.frozen else replace(policy, model=str(policy_folder(saved, name)))

    return replace(config, policies={name: own(name, policy) for name, policy in config.policies.items()})


def build_adapter(config: Config, name: str, policy: Policy, base: Base) -> Adapter | None:
    """The policy's adapter, loaded or with fresh weights; None if the whole model is trained."""
    if policy.lora is None:
        return None
    if policy.adapter is not None:
        with config_errors(config, ("policies", name, "adapter")):
            return load_adapter(name, policy.adapter, base.layers)
    with config_errors(config, ("policies", name), vars(policy)):
        return fresh_adapter(name, policy.lora, base, stable_hash(config.seed, "adapter", name))


def fresh_adapter(name: str, lora: Lora, base: Base, seed: int) -> Adapter:
    targets, skipped = targets_for(base.model, base.layers, lora.targets, lora.rank)
    if skipped and process_group().is_main:
        why = "; ".join(f"{layer} {reason}" for layer, reason in skipped.items())
        print(f"{name}: no adapter on some layers: {why}", file=sys.stderr)
    return Adapter(name, lora.rank, lora.alpha, targets).attach(base.layers, seed)


def chats_of(config: Config) -> dict[str, Chat]:
    """The chat template of each policy's model, with and without its adapter; loads no weights."""
    policies = opponents.with_slots(with_local_policies(config)).policies
    chats = {name: _chat(resolve(policy.model)) for name, policy in policies.items()}
    return chats | {base_policy(name): chat for name, chat in chats.items()}


@cache
def _chat(folder: Path) -> Chat:
    return Chat(load_tokenizer(folder), load_end_ids(folder))
