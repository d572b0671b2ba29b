"""Device placement: the device of each model."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from coterie.config import Config
from coterie.config.problems import Path, Problems
from coterie.learners.distributed import Processes

Found = Iterator[tuple[Path, str]]


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def device_of(config: Config, policy: str) -> torch.device:
    """The device that the policy names, else the run's."""
    return pick_device(config.policies[policy].device or config.device)


def device_beside(config: Config, model: str) -> torch.device:
    """The device of the policies on this model, so that a critic or an encoder can share it."""
    named = [policy.device for policy in config.policies.values() if policy.model == model and policy.device]
    return pick_device(named[0] if named else config.device)


def check_devices(config: Config, processes: Processes) -> None:
    """Check that every device exists, and that each of several processes has one device for all policies."""
    problems, gpus = Problems(config.sources), torch.cuda.device_count()
    for path, message in (*_missing(config, gpus), *(_distributed(config, gpus) if processes.size > 1 else ())):
        problems.add(path, message)
    problems.raise_any()


def _missing(config: Config, gpus: int) -> Found:
    named = {("policies", name, "device"): policy.device for name, policy in config.policies.items()}
    for path, device in ({("device",): config.device} | named).items():
        number = int(device.partition(":")[2] or 0) if device is not None and device.startswith("cuda") else -1
        if number >= gpus:
            yield path, f"{device} does not exist; this machine has {gpus} GPUs"


def _distributed(config: Config, gpus: int) -> Found:
    """Settings that do not work under torchrun."""
    for name in [name for name, policy in config.policies.items() if policy.device is not None]:
        yield (("policies", name, "device"), "not supported under torchrun: each process has one device")
    if config.engine.name == "vllm":
        yield ("engine", "name"), "vllm is not supported under torchrun; use native"
    if pick_device(config.device).type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        yield ("device",), f"torchrun started more processes than this machine has GPUs; use --nproc-per-node {gpus}"
