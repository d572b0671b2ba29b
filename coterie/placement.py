"""Which device a model is on."""

from __future__ import annotations

import os

import torch

from coterie.config import Config, ConfigError
from coterie.processes import Processes


def pick_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def device_of(config: Config, policy: str) -> torch.device:
    """The one that it names, else the run's."""
    return pick_device(config.policies[policy].device or config.device)


def device_beside(config: Config, model: str) -> torch.device:
    """Where the policies on this model are, for a critic or an encoder that may share it with them."""
    named = [policy.device for policy in config.policies.values() if policy.model == model and policy.device]
    return pick_device(named[0] if named else config.device)


def must_have_devices(config: Config, processes: Processes) -> None:
    """Every device is there; of several processes each has one, and all policies on it."""
    there = torch.cuda.device_count()
    for name, policy in config.policies.items():
        if policy.device is None:
            continue
        if processes.size > 1:
            raise ConfigError(f"policies.{name}.device: under torchrun every process has all policies on one device")
        device = torch.device(policy.device)
        if device.type == "cuda" and (device.index or 0) >= there:
            raise ConfigError(f"policies.{name}.device: {policy.device} is not there; this machine has {there} GPUs")
    if processes.size == 1:
        return
    if config.engine.name == "vllm":
        raise ConfigError("engine.name: vllm speaks in one process, and torchrun has started several; use native")
    if pick_device(config.device).type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) > there:
        raise ConfigError(f"device: torchrun starts more processes here than there are GPUs; --nproc-per-node {there}")
