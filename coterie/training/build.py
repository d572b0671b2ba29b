"""Config → Run. All errors in a config are found before a model loads."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.config import Config, load, yamltree
from coterie.config.conflicts import check_conflicts
from coterie.config.load import to_tree
from coterie.config.requirements import require_packages, require_sandbox
from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import Router
from coterie.engines.text_player import TextPlayer
from coterie.engines.vllm import VllmEngine
from coterie.envs.base import attach_reward
from coterie.files import verify_checksums
from coterie.learners.distributed import Processes, process_group
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.rollout.agent import players_of
from coterie.rollout.collector import Collector
from coterie.rollout.playable import PlayableTeam
from coterie.seeds import stable_hash
from coterie.training import checkpoint, collapse, opponents
from coterie.training.checkpoint import MODEL_HASHES
from coterie.training.critic_factory import CriticFactory, has_critics
from coterie.training.log import NoLog, RunLog
from coterie.training.loop import Run
from coterie.training.models import (
    ModelPool,
    base_policy,
    build_adapter,
    check_max_tokens,
    text_players,
    with_local_policies,
    with_saved_adapters,
    with_saved_weights,
)
from coterie.training.placement import check_devices, device_of
from coterie.training.tasks import TaskStream, load_tasks, warn_about_tasks, with_steps
from coterie.training.user_files import UserFileCopies
from coterie.types import Engine, Env, Learner, Task, ValueEstimator

ENGINES: dict[str, Callable[..., Engine]] = {"native": NativeEngine, "hf": HfEngine, "vllm": VllmEngine}

MOST_STEPS = 10**6  # the highest value of `steps`


def build(config: Config, folder: Path, console: bool = True, training: bool = True, saved: Path | None = None) -> Run:
    """A run with fresh weights; `checkpoint.restore` loads saved ones.

    `saved`: the checkpoint that will be restored; adapters are loaded from it instead of from where they came from.
    """
    processes = process_group()
    parts = build_driver_parts(config, folder, console, training, processes)
    config = parts.config
    check_devices(config, processes)
    hashes = open_models(config, parts.env)
    models = load_models(config, saved)
    if processes.is_main:
        print_template_notes(models.bases)
    engine = build_engine(models)
    learners, critic = build_learning(models, processes, training)
    collector = build_collector(config, parts.env, engine, models.bases, processes, text_players(config))
    parts.log.chats = collector.chats
    return parts.run(collector, engine, learners, critic, hashes, processes)


@dataclass(frozen=True)
class DriverParts:
    """The parts of a run in its driver process: tasks, environment and log. Models may be in other processes."""

    config: Config  # with `steps` computed from `epochs`
    folder: Path
    env: Env
    tasks: TaskStream
    held_out: list[Task]
    log: RunLog

    def run(
        self,
        collector: Collector,
        engine: Engine,
        learners: Mapping[str, Learner],
        critic: ValueEstimator | None,
        hashes: Mapping[str, str],
        processes: Processes,
    ) -> Run:
        """The run, from these parts and those with models. `hashes`: of the verifiers that score it."""
        config = self.config
        memory = opponents.memory_of(config) | collapse.memory_of(config)
        return Run(
            config,
            self.folder,
            config.algorithm.instance,
            collector,
            engine,
            learners,
            self.tasks,
            self.held_out,
            self.log,
            rng=random.Random(stable_hash(config.seed, "algorithm")),
            credit=config.credit.instance,
            critic=critic,
            memory=memory | ({MODEL_HASHES: dict(hashes)} if hashes else {}),
            processes=processes,
        )


def build_driver_parts(
    config: Config, folder: Path, console: bool, training: bool, processes: Processes
) -> DriverParts:
    """Check the config, load the tasks and prepare the log; no model is loaded."""
    # With `epochs`, the steps are known only once the tasks are loaded; until then assume the most that are possible.
    check_conflicts(config if config.epochs is None else replace(config, steps=MOST_STEPS), training)
    require_packages(config)
    env = build_env(config)
    require_sandbox(config, env)
    tasks = TaskStream(load_tasks(env, "train", config), config.tasks_per_step, config.seed, config.shuffle)
    if config.epochs is not None:
        config = with_steps(config, len(tasks.tasks))
        check_conflicts(config, training)
    test_tasks = load_tasks(env, "test", config) if config.eval.tasks else []
    held_out = [test_tasks[i] for i in range(min(config.eval.tasks, len(test_tasks)))]
    if processes.is_main:
        warn_about_tasks(config, tasks.tasks, held_out)
    return DriverParts(config, folder, env, tasks, held_out, build_log(config, folder, console, processes))


def build_env(config: Config) -> Env:
    """The environment with its reward."""
    return attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)


@dataclass(frozen=True)
class Models:
    """The base models of all policies, snapshot slots of opponents included."""

    config: Config  # with a frozen policy for every slot
    pool: ModelPool
    bases: Mapping[str, Base]  # by policy


def load_models(config: Config, saved: Path | None, sharded: bool = False, weightless: bool = False) -> Models:
    """Load the base models of all policies with local weights. `sharded`: over the learner processes, which then cannot
    sample. `weightless`: load no weights, as only vLLM has them."""
    config = with_saved_adapters(opponents.with_slots(with_local_policies(config)), saved)
    check_max_tokens(config)
    pool = ModelPool(config, sharded, weightless)
    return Models(config, pool, load_bases(config, pool))


def build_learning(
    models: Models, processes: Processes, training: bool = True, presharded: bool = False
) -> tuple[dict[str, TorchLearner], ValueEstimator | None]:
    """A learner for each policy, and in training the critic. `presharded`: each process's learners get batches of its
    own rows alone; a critic builds whole batches itself, of all episodes."""
    config, algorithm = models.config, models.config.algorithm.instance
    own = replace(processes, presharded=presharded)
    learners = {n: build_learner(config, n, models.bases[n], algorithm, own) for n in config.policies}
    factory = CriticFactory(config, algorithm, models.pool, models.bases, processes)
    return learners, algorithm.make_critic(factory) if training else None


def for_inference(folder: Path, which: str | None = None, config: Config | None = None) -> PlayableTeam:
    """The team of a run's checkpoint, `latest` by default, or the untrained one of a config file, for inference.

    It has no learner, optimizer, critic or environment, so data sets and graders need not exist. `config`: the
    run's own with changes.
    """
    saved = checkpoint.find(folder, which or "latest") if folder.is_dir() else None
    config = config or load(folder / "config.yaml" if saved else folder)
    require_packages(config)
    require_sandbox(config, None)
    check_devices(config, process_group())
    _open_models_of(config.workflow.instance, config)
    players = text_players(config)
    own = with_local_policies(config)
    if saved is not None:
        verify_checksums(saved)
        own = with_saved_weights(own, saved)
    pool = ModelPool(own)
    bases = load_bases(own, pool)
    for name, policy in own.policies.items():
        build_adapter(own, name, policy, bases[name])
    step = int(saved.name) if saved is not None else 0
    roles = {name: role.policies[0] for name, role in config.roles.items()}
    contexts = {name: min(config.engine.context or base.context, base.context) for name, base in bases.items()}
    return PlayableTeam(
        config.name,
        step,
        config.workflow.instance,
        build_engine(Models(own, pool, bases)),
        {name: base.chat for name, base in bases.items()},
        players_of(config, config.algorithm.instance.assign_roles(step, roles), evaluating=True),
        contexts,
        config.rollout.deadline,
        players,
    )


def load_bases(config: Config, pool: ModelPool) -> dict[str, Base]:
    """The base model of each policy."""
    return {
        name: pool.load(("policies", name), policy.model, policy.lora is None, name, device_of(config, name))
        for name, policy in config.policies.items()
    }


def open_models(config: Config, env: Env) -> dict[str, str]:
    """Load the verifiers of the environment and the workflow, or connect to them; returns their hashes."""
    hashes: dict[str, str] = {}
    for part in (env, config.workflow.instance):
        hashes |= _open_models_of(part, config)
    return hashes


def _open_models_of(part: Any, config: Config) -> dict[str, str]:
    load_models = getattr(part, "open_models", None)  # a user's own part need not have it
    return load_models(config.device, config.rollout.score_deadline) if callable(load_models) else {}


def build_log(config: Config, folder: Path, console: bool, processes: Processes) -> RunLog:
    copies = UserFileCopies(folder)
    config_yaml = yamltree.write(copies.config(to_tree(config)))
    kind = RunLog if processes.is_main else NoLog
    return kind(folder, config_yaml, config.steps, config.log.wandb, console and processes.is_main, copies.files)


def build_engine(models: Models) -> Router:
    """One engine per base; it serves the policies on that base, with and without their adapters."""
    config, bases = models.config, models.bases
    engines: dict[Base, Engine] = {}
    by_policy: dict[str, Engine] = {}
    for name, base in bases.items():
        if base not in engines:
            names = [other for other, b in bases.items() if b is base]
            policies = {n: n if config.policies[n].lora else None for n in names}
            policies |= {base_policy(n): None for n in names}
            make = ENGINES[engine_name(config, base)]
            options = _parallel_options(config, len(set(bases.values()))) if base.weightless else {}
            engines[base] = make(base, policies, config.engine.rows, config.engine.context, **options)
        by_policy[name] = by_policy[base_policy(name)] = engines[base]
    return Router(by_policy)


def _parallel_options(config: Config, models: int) -> dict[str, Any]:
    """Options of vLLM in a rollout worker, where the `models` of a run share the worker's GPUs."""
    assert config.cluster is not None
    return {"tensor_parallel": config.cluster.rollout.tensor_parallel, "memory": 0.9 / models}


def engine_name(config: Config, base: Base) -> str:
    """The engine for a model: `engine.name`, or hf where the native engine does not support it. Prints warnings."""
    if (config.engine.context or 0) > base.context:
        limit = f"{base.folder} has a context of {base.context} tokens, and no more are used"
        print(f"engine.context={config.engine.context}: {limit}", file=sys.stderr)
    if config.engine.name == "native" and not base.native:
        instead = "using Hugging Face generate, which is slow"
        print(f"{base.folder}: the native engine does not support this model; {instead}", file=sys.stderr)
        return "hf"
    return config.engine.name


def build_learner(config: Config, name: str, base: Base, algorithm: Algorithm, processes: Processes) -> TorchLearner:
    policy = config.policies[name]
    needs_reference = algorithm.kl > 0 and policy.lora is None and not policy.frozen
    return TorchLearner(
        name,
        base,
        build_adapter(config, name, policy, base),
        policy.lr,
        config.learning,
        config.steps,
        frozen=policy.frozen,
        value_lr=None if has_critics(config, algorithm) else algorithm.value_head_lr,
        reference=Base(base.folder, base.device, bf16=base.bf16, sharded=base.sharded) if needs_reference else None,
        processes=processes,
    )


def build_collector(
    config: Config,
    env: Env,
    engine: Engine,
    bases: Mapping[str, Base],
    processes: Processes,
    players: Mapping[str, TextPlayer],
) -> Collector:
    chats = {name: base.chat for name, base in bases.items()}
    chats |= {base_policy(name): chat for name, chat in chats.items()}
    limits = config.rollout
    score_deadline = None if getattr(env, "own_deadline", False) else limits.score_deadline
    workflow = config.workflow.instance
    return Collector(
        workflow, env, engine, chats, limits.concurrency, limits.deadline, score_deadline, processes, players
    )


def print_template_notes(bases: Mapping[str, Base]) -> None:
    """Print warnings about chat templates, once per model."""
    seen: set[Base] = set()
    for name, base in bases.items():
        for note in base.chat.remarks if base not in seen else ():
            print(f"policies.{name}.model: {base.folder} {note}", file=sys.stderr)
        seen.add(base)
