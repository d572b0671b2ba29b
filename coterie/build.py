"""Config → Run. Everything that can be wrong in a config is found before a model loads."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from coterie.algorithms.base import Algorithm
from coterie.algorithms.ppo import Ppo
from coterie.config import Config, CriticConfig, Policy, dump
from coterie.config.crosscheck import cross_check
from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import ClearableEngine, Router
from coterie.envs.base import TaskEnv, graded
from coterie.learners.critics import Critics, Judge
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
    shared: Shared = {}
    bases = load_bases(config, device, shared)
    engine = build_engine(config, bases)
    learners = {name: build_learner(config, name, bases[name], algorithm) for name in config.policies}
    chats = {name: base.chat for name, base in bases.items()}
    chats |= {base_policy(name): chat for name, chat in chats.items()}
    limits = config.rollout
    # A grader's own deadline does not count how long an answer waits to be graded.
    scoring = None if type(env).score is TaskEnv.score else limits.score_deadline
    collector = Collector(workflow, env, engine, chats, limits.concurrency, limits.deadline, scoring)
    rng = random.Random(stable_hash(config.seed, "algorithm"))
    critic = build_critics(config, algorithm, device, shared)
    return Run(
        config, folder, algorithm, collector, engine, learners, tasks, held_out, log, rng, config.credit.made, critic
    )


def held_out_tasks(tasks: Sequence[Task], count: int) -> list[Task]:
    if not tasks:
        raise ValueError("the environment has no held-out tasks")
    return [tasks[i] for i in range(min(count, len(tasks)))]


def pick_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


Shared = dict[tuple[Path, str | None], Base]


def load_bases(config: Config, device: torch.device, shared: Shared) -> dict[str, Base]:
    """The base of every policy."""
    return {name: load_base(p.model, p.lora is None, name, device, shared) for name, p in config.policies.items()}


def load_base(model: str, whole: bool, owner: str, device: torch.device, shared: Shared) -> Base:
    """Adapters on one model share it; a model that is trained whole is its owner's own."""
    key = (resolve(model), owner if whole else None)
    if key not in shared:
        # Weights that are trained are kept in full precision; autocast makes them fast on CUDA.
        shared[key] = Base(key[0], device, torch.bfloat16 if device.type == "cuda" and not whole else torch.float32)
    return shared[key]


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
        value_lr=algorithm.value_lr if isinstance(algorithm, Ppo) and not critics_of(config, algorithm) else None,
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


def critics_of(config: Config, algorithm: Algorithm) -> dict[str, CriticConfig]:
    """Those of the config; where the algorithm wants a central one and is given none, one on the team's own model."""
    if config.critics or not algorithm.central:
        return config.critics
    first = next(iter(config.policies.values()))
    return {"team": CriticConfig(sees="joint", model=first.model)}


def build_critics(config: Config, algorithm: Algorithm, device: torch.device, shared: Shared) -> Critics | None:
    if not isinstance(algorithm, Ppo):
        return None
    judges = {}
    for name, critic in critics_of(config, algorithm).items():
        owner = f"critic {name}"
        base = load_base(critic.model, critic.lora is None, owner, device, shared)
        adapter = None
        if critic.lora is not None:
            seed = stable_hash(config.seed, "critic", name)
            adapter = Adapter(owner, critic.lora.rank, critic.lora.alpha, critic.lora.targets).attach(base.layers, seed)
        learner = TorchLearner(
            owner, base, adapter, critic.lr, config.learning, config.steps, value_lr=algorithm.value_lr, speaks=False
        )
        judges[name] = Judge(learner, frozenset(critic.roles or config.roles), critic.sees)
    return Critics(judges, algorithm.value_loss, algorithm.value_fits) if judges else None
