"""The parameters of rLLM's launch scripts (verl's names) as overrides of a config; Coterie's own keys work, too."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.compat.siirl.config_draft import Parameters
from coterie.compat.siirl.learning import kl_settings, lora_settings
from coterie.compat.siirl.parameter_table import SETTINGS, TEAM, is_without_effect, minibatches
from coterie.compat.siirl.parameters import leaves, split
from coterie.config.problems import ConfigError, Problems, Sources, dotted, undotted
from coterie.errors import did_you_mean

OWN_ADAPTERS = "trainer.agent_names"  # each agent has an adapter of its own
# Parameters of rLLM's internals, and switches for what Coterie always does.
IGNORED = ("rllm.", "ray_init.", "trainer.lora_adapter_path", "trainer.rejection_sample", "agent.", "hydra.")
PLACES = ("{policy}", "{role}")


def as_overrides(config: Any) -> list[str]:
    """`key=value` texts from what rLLM accepts as its config: such texts, or a mapping, nested or with dotted keys."""
    if config is None:
        return []
    if isinstance(config, Mapping):
        return [f"{'.'.join(path)}={json.dumps(value)}" for path, value in leaves(config, ())]
    if isinstance(config, str) or not all(isinstance(text, str) for text in config):
        raise ConfigError('config: a mapping, or a list like ["data.train_batch_size=8"]')
    return [text.lstrip("+") for text in config]  # Hydra's mark of a new key


def has_own_adapters(overrides: Sequence[str], roles: Sequence[str]) -> bool:
    """True if the parameters ask for an adapter per agent instead of one for all; rejects agents that are not roles."""
    lists = [value for key, _, value in (text.partition("=") for text in overrides) if key == OWN_ADAPTERS]
    for name in (name for names in lists for name in re.findall(r"[^\s,'\"\[\]]+", names)):
        if name not in roles:
            known = f"it has {', '.join(roles)}{did_you_mean(name, roles)}"
            raise ConfigError(f"{OWN_ADAPTERS}: the workflow has no role {name!r}; {known}")
    return bool(lists)


def translate(overrides: Sequence[str], roles: Sequence[str], policies: Sequence[str], evaluates: bool) -> list[str]:
    """The overrides with Coterie's keys. Parameters without a counterpart are named on stderr, once.

    `evaluates` is False if there are no held-out rows; then parameters of the evaluation have no effect.
    """
    problems = Problems(Sources("the config given to AgentTrainer"))
    dropped = [text for text in overrides if text.startswith((*IGNORED, OWN_ADAPTERS))]
    parameters, own = split([text for text in overrides if text not in dropped], problems)
    problems.raise_any()
    unused = [text.partition("=")[0] for text in dropped if not text.startswith(OWN_ADAPTERS)]
    unused += [name for name in parameters if is_without_effect(name) or not _applies(name, evaluates)]
    if unused:
        print(f"config: without effect here: {', '.join(sorted(unused))}", file=sys.stderr)
    names = {"{policy}": policies, "{role}": roles}
    applied = {name: sourced for name, sourced in parameters.items() if _applies(name, evaluates)}
    translated = [*_plain(applied, names), *_compound(applied, policies)]
    return [f"{key}={json.dumps(value)}" for key, value in translated] + own


def _applies(name: str, evaluates: bool) -> bool:
    """False for parameters of critics, which these configs do not have, and of the evaluation if there is none."""
    keys = SETTINGS[name].to if name in SETTINGS else ()
    return not any(key.startswith("critics.") or (key.startswith("eval.") and not evaluates) for key in keys)


def _plain(parameters: Parameters, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Parameters with a key of their own."""
    for name, sourced in parameters.items():
        keys = SETTINGS[name].to if name in SETTINGS and sourced.value is not None else ()
        for path in map(undotted, keys):
            gap = next((part for part in path if part in PLACES), None)
            for filled in names[gap] if gap is not None else [""]:
                yield (
                    dotted(tuple(filled if part == gap else part for part in path)),
                    SETTINGS[name].read(sourced.value),
                )


def _compound(parameters: Parameters, policies: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Parameters that depend on others, or have other units here."""
    values = {name: sourced.value for name, sourced in parameters.items()}
    if (estimator := values.get("algorithm.adv_estimator")) is not None:
        yield "algorithm.adv_estimator", estimator  # which configs accept as it is
    if "trainer.total_epochs" in values and "trainer.total_training_steps" not in values:
        yield "epochs", values["trainer.total_epochs"]
    prompt, reply = values.get("data.max_prompt_length"), values.get("data.max_response_length")
    if prompt is not None and reply is not None:
        yield "engine.context", prompt + reply
    mini, batch = values.get(f"{TEAM}actor.ppo_mini_batch_size"), values.get("data.train_batch_size")
    if mini is not None and batch is not None and minibatches(batch, mini) > 1:
        yield "algorithm.minibatches", minibatches(batch, mini)
    for path, sourced in kl_settings(parameters):
        yield dotted(path), sourced.value
    if (lora := lora_settings(parameters, TEAM)) is not None:
        yield from ((f"policies.{policy}.lora", lora.value) for policy in policies)
