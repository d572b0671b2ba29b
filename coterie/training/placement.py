"""Which device a model is on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from coterie.config import Config
from coterie.config.problems import Path, Problems
from coterie.learners.distributed import Processes

Found = Iterator[tuple[Path, str]]


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
    problems, there = Problems(config.sources), torch.cuda.device_count()
    for path, message in (*_absent(config, there), *(_of_several(config, there) if processes.size > 1 else ())):
        problems.add(path, message)
    problems.raise_any()


def _absent(config: Config, there: int) -> Found:
    named = {("policies", name, "device"): policy.device for name, policy in config.policies.items()}
    for path, device in ({("device",): config.device} | named).items():
        number = int(device.partition(":")[2] or 0) if device is not None and device.startswith("cuda") else -1
        if number >= there:
            yield path, f"{device} is not there; this machine has {there} GPUs"


def _of_several(config: Config, there: int) -> Found:
    """What processes that torchrun has started cannot do."""
    for name in [name for name, policy in config.policies.items() if policy.device is not None]:
        yield ("policies", name, "device"), "under torchrun every process has all policies on one device"
    if config.engine.name == "vllm":
        yield ("engine", "name"), "vllm speaks in one process, and torchrun has started several; use native"
    if pick_device(config.device).type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) > there:
        yield ("device",), f"torchrun starts more processes here than there are GPUs; --nproc-per-node {there}"
