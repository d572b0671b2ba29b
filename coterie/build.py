"""Config → Run. Everything that can be wrong in a config is found before a model loads."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from coterie.algorithms.base import Algorithm
from coterie.config import Config, Policy, dump
from coterie.config.crosscheck import cross_check
from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import ClearableEngine, Router
from coterie.envs.base import TaskEnv, graded
from coterie.learners.torch import TorchLearner
from coterie.log import RunLog
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import load_adapter
from coterie.models.store import resolve
from coterie.rollout import Collector
from coterie.seeds import stable_hash
from coterie.tasks import TaskStream
from coterie.train import Run
from coterie.types import Task


def build(config: Config, folder: Path, console: bool = True, training: bool = True) -> Run:
    """Everything a run needs, with fresh weights; `checkpoint.restore` puts saved ones in."""
    algorithm: Algorithm = config.algorithm.made
    workflow = config.workflow.made
    cross_check(config, workflow, algorithm, training)
    env = graded(config.env.made, config.reward.name, config.reward.options, config.rollout.score_deadline)
    tasks = TaskStream(env.tasks("train"), config.tasks_per_step, config.seed)
    held_out = held_out_tasks(env.tasks("test"), config.eval.tasks)
    log = RunLog(folder, dump(config), config.steps, config.log.wandb, console)

    device = pick_device(config.device)
    bases = load_bases(config, device)
    engine = build_engine(config, bases)
    learners = {name: build_learner(config, name, bases[name], algorithm) for name in config.policies}
    chats = {name: base.chat for name, base in bases.items()}
    chats |= {base_policy(name): chat for name, chat in chats.items()}
    limits = config.rollout
    # A grader's own deadline does not count how long an answer waits to be graded.
    scoring = None if type(env).score is TaskEnv.score else limits.score_deadline
    collector = Collector(workflow, env, engine, chats, limits.concurrency, limits.deadline, scoring)
    rng = random.Random(stable_hash(config.seed, "algorithm"))
    return Run(config, folder, algorithm, collector, engine, learners, tasks, held_out, log, rng)


def held_out_tasks(tasks: Sequence[Task], count: int) -> list[Task]:
    if not tasks:
        raise ValueError("the environment has no held-out tasks")
    return [tasks[i] for i in range(min(count, len(tasks)))]


def pick_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def load_bases(config: Config, device: torch.device) -> dict[str, Base]:
    """The base of every policy. Adapters on one model share it; a model that is trained whole is its policy's own."""
    shared: dict[tuple[Path, str | None], Base] = {}
    bases = {}
    for name, policy in config.policies.items():
        key = (resolve(policy.model), None if policy.lora else name)
        if key not in shared:
            # Weights that are trained are kept in full precision; autocast makes them fast on CUDA.
            half = device.type == "cuda" and policy.lora is not None
            shared[key] = Base(key[0], device, torch.bfloat16 if half else torch.float32)
        bases[name] = shared[key]
    return bases


def base_policy(policy: str) -> str:
    """The name under which the engine serves a policy's base without its adapter."""
    return f"{policy} (base)"


def build_engine(config: Config, bases: dict[str, Base]) -> Router:
    engines: dict[Base, ClearableEngine] = {}
    by_policy: dict[str, ClearableEngine] = {}
    for name, base in bases.items():
        if base not in engines:
            on_it = [other for other, b in bases.items() if b is base]
            policies = {n: n if config.policies[n].lora else None for n in on_it}
            policies |= {base_policy(n): None for n in on_it}
            native = config.engine.name == "native" and base.native
            if config.engine.name == "native" and not native:
                slow = "the native engine cannot drive this model; using Hugging Face generate, slowly"
                print(f"{base.folder}: {slow}", file=sys.stderr)
            kind = NativeEngine if native else HfEngine
            engines[base] = kind(base, policies, config.engine.rows, config.engine.context)
        by_policy[name] = by_policy[base_policy(name)] = engines[base]
    return Router(by_policy)


def build_learner(config: Config, name: str, base: Base, algorithm: Algorithm) -> TorchLearner:
    policy = config.policies[name]
    whole_reference = algorithm.kl > 0 and policy.lora is None and not policy.frozen
    return TorchLearner(
        name,
        base,
        build_adapter(config, name, policy, base),
        policy.lr,
        config.learning,
        config.steps,
        frozen=policy.frozen,
        value_lr=algorithm.value_lr if algorithm.value_head else None,  # type: ignore[attr-defined]
        reference=Base(base.folder, base.device) if whole_reference else None,
    )


def build_adapter(config: Config, name: str, policy: Policy, base: Base) -> Adapter | None:
    if policy.lora is None:
        return None
    if policy.adapter is not None:
        return load_adapter(name, Path(policy.adapter), base.layers)
    lora = policy.lora
    seed = stable_hash(config.seed, "adapter", name)
    return Adapter(name, lora.rank, lora.alpha, lora.targets).attach(base.layers, seed)
