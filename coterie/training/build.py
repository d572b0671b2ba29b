"""Config → Run. Everything that can be wrong in a config is found before a model loads."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.config import Config, ConfigError, CriticConfig, Lora, Policy, yamltree
from coterie.config.conflicts import check_conflicts
from coterie.config.load import to_tree
from coterie.config.problems import Path as Names
from coterie.config.problems import Problems
from coterie.config.reader import key_and_message
from coterie.config.registry import line_in_users_file
from coterie.config.requirements import require_packages, require_sandbox
from coterie.config.settings import Hidden
from coterie.engines.hf import HfEngine
from coterie.engines.native.engine import NativeEngine
from coterie.engines.router import ClearableEngine, Router
from coterie.engines.vllm import VllmEngine
from coterie.envs.base import attach_reward
from coterie.errors import ModelError
from coterie.learners.critics import Critic, Critics
from coterie.learners.distributed import Processes, process_group
from coterie.learners.learner import TorchLearner
from coterie.learners.mixer import Mixer
from coterie.learners.packing import token_budget
from coterie.learners.text_encoder import HiddenStates
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.lora_targets import targets_for
from coterie.models.peft import load_adapter
from coterie.models.store import max_context_length, read_config, resolve
from coterie.rl.mixers import MixerOptions
from coterie.rollout.collector import Collector
from coterie.seeds import stable_hash
from coterie.training import collapse, opponents
from coterie.training.checkpoint import policy_folder
from coterie.training.log import NoLog, RunLog
from coterie.training.loop import Run
from coterie.training.placement import check_devices, device_beside, device_of
from coterie.training.tasks import TaskStream
from coterie.training.user_files import UserFileCopies
from coterie.types import Batch, Encoder, Env, Loss, Split, Task


def build(config: Config, folder: Path, console: bool = True, training: bool = True, saved: Path | None = None) -> Run:
    """Everything a run needs, with fresh weights; `checkpoint.restore` puts saved ones in.

    `saved`: the checkpoint that will be restored, so that nothing it holds is looked for where it once came from.
    """
    algorithm: Algorithm = config.algorithm.instance
    workflow = config.workflow.instance
    check_conflicts(config, training)
    require_packages(config)
    env = attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)
    require_sandbox(config, env)
    tasks = TaskStream(tasks_of(env, "train", config), config.tasks_per_step, config.seed)
    unseen = tasks_of(env, "test", config)
    held_out = [unseen[i] for i in range(min(config.eval.tasks, len(unseen)))]
    processes = process_group()
    if processes.is_main:
        tell_of_known(held_out, tasks.tasks)
        tell_of_few(config, tasks.tasks)
        tell_of_late_evaluation(config)
    check_devices(config, processes)
    record = RunLog if processes.is_main else NoLog
    copies = UserFileCopies(folder)
    config_yaml = yamltree.write(copies.config(to_tree(config)))
    shown = console and processes.is_main
    log = record(folder, config_yaml, config.steps, config.log.wandb, shown, copies.files)

    shared: Shared = {}
    everyone = as_saved(opponents.with_slots(config), saved)
    bases = load_bases(everyone, shared)
    if processes.is_main:
        tell_of_templates(bases)
    engine = build_engine(everyone, bases)
    learners = {name: build_learner(everyone, name, bases[name], algorithm, processes) for name in everyone.policies}
    chats = {name: base.chat for name, base in bases.items()}
    chats |= {base_policy(name): chat for name, chat in chats.items()}
    limits = config.rollout
    scoring = None if getattr(env, "own_deadline", False) else limits.score_deadline
    collector = Collector(workflow, env, engine, chats, limits.concurrency, limits.deadline, scoring, processes)
    rng = random.Random(stable_hash(config.seed, "algorithm"))
    factory = CriticFactory(config, algorithm, shared, bases, processes)
    critic = algorithm.make_critic(factory) if training else None
    return Run(
        config, folder, algorithm, collector, engine, learners, tasks, held_out, log, rng,
        config.credit.instance, critic, opponents.memory_of(config) | collapse.memory_of(config),
        processes=processes,
    )  # fmt: skip


def tasks_of(env: Env, split: Split, config: Config) -> Sequence[Task]:
    """An environment's tasks; what it says of its files is told with the key and the line that names them."""
    own = config.env.options
    named = split in own and own[split] is not None
    with blaming(config, ("env",), own, ("env", split) if named else ("env",)):
        try:
            return _checked_tasks(env, split)
        except (Exception, SystemExit) as error:
            if (where := line_in_users_file(type(env), error)) is None or isinstance(error, NotTasks):
                raise
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


class NotTasks(ValueError):
    """What an environment gives for its tasks is none."""


def _checked_tasks(env: Env, split: Split) -> Sequence[Task]:
    tasks, name = env.tasks(split), type(env).__name__
    if not isinstance(tasks, Sequence):
        raise NotTasks(f"{name}.tasks gave a {type(tasks).__name__}; a list of Task is wanted")
    if not tasks:
        raise NotTasks(f"{name} has no {'training' if split == 'train' else 'held-out'} tasks")
    odd = [task for task in tasks if not isinstance(task, Task)]
    if odd:
        raise NotTasks(f"{name}.tasks gave a list of {type(odd[0]).__name__}; Task is wanted")
    first: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if first.setdefault(task.id, number) != number:
            both = f"tasks {first[task.id]} and {number} of {split}, counted from 0, are both called {task.id!r}"
            raise NotTasks(f"{both}; each needs an id of its own: groups and seeds are found by it")
    return tasks


def tell_of_few(config: Config, tasks: Sequence[Task]) -> None:
    """A step that asks for more tasks than there are meets some of them again, which may not be meant."""
    if config.tasks_per_step > len(tasks):
        there = f"there are {len(tasks)} training tasks, so a step meets some of them more than once"
        print(f"tasks_per_step={config.tasks_per_step}: {there}; {len(tasks)} meet each once", file=sys.stderr)


def tell_of_late_evaluation(config: Config) -> None:
    """Not an error: a short trial of a long recipe, `steps=2`, is a usual thing to do."""
    if config.eval.every > config.steps:
        ends = f"a run of steps={config.steps} ends before, so it is evaluated at its beginning and its end only"
        print(f"eval.every={config.eval.every}: {ends}", file=sys.stderr)


def tell_of_known(held_out: Sequence[Task], trained: Sequence[Task]) -> None:
    """Say so where held-out tasks are trained on. Those without an answer are games, which are the same every time."""
    asked = {task.prompt for task in held_out if task.answer is not None}
    seen = {_all_but_its_name(task) for task in trained if task.prompt in asked} if asked else set()
    known = [task.id for task in held_out if _all_but_its_name(task) in seen] if seen else []
    if known:
        measured = "so what is measured there is what the team remembers; see env.train and env.test"
        many = f"{len(known)} of {len(held_out)} held-out tasks are also trained on, {known[0]} for one"
        print(f"{many}, {measured}", file=sys.stderr)


def _all_but_its_name(task: Task) -> str:
    return repr((task.prompt, task.answer, task.meta))


def tell_of_templates(bases: Mapping[str, Base]) -> None:
    """Say once of each model what its template makes of messages, where that is not what a user may think."""
    told: set[Base] = set()
    for name, base in bases.items():
        for remark in base.chat.remarks if base not in told else ():
            print(f"policies.{name}.model: {base.folder} {remark}", file=sys.stderr)
        told.add(base)


@contextmanager
def blaming(config: Config, path: Names, options: Mapping[str, Any], otherwise: Names | None = None) -> Iterator[None]:
    """What a part complains of is told with its key and its line: of the option it names, else of all."""
    try:
        yield
    except (ValueError, ImportError, ModelError) as error:
        found, message = key_and_message(str(error), options, path)
        problems = Problems(config.sources)
        problems.add(otherwise or path if found == path else found, message)
        raise ConfigError(problems.found[0]) from error


Shared = dict[tuple[Path, str | None, torch.device], Base]


def load_bases(config: Config, shared: Shared) -> dict[str, Base]:
    """The base of every policy, on its device."""
    bases = {}
    must_leave_room(config)
    for name, policy in config.policies.items():
        with blaming(config, ("policies", name, "model"), {}):
            bases[name] = load_base(config, policy.model, policy.lora is None, name, device_of(config, name), shared)
    return bases


def must_leave_room(config: Config) -> None:
    """A turn and its prompt fit into the model's context together; its config says how long that is."""
    contexts: dict[str, int | None] = {}
    for name, policy in config.policies.items():
        with blaming(config, ("policies", name, "model"), {}):
            if policy.model not in contexts:
                contexts[policy.model] = max_context_length(read_config(resolve(policy.model)))
    problems = Problems(config.sources)
    for name, role in config.roles.items():
        most = config.sampling_of(name).max_tokens
        for model in {config.policies[policy].model for policy in role.policies}:
            if (context := contexts[model]) is not None and most >= context:
                path = ("sampling", "max_tokens") if role.max_tokens is None else ("roles", name, "max_tokens")
                room = f"{most} tokens for {name} leave no room for a prompt"
                problems.add(path, f"{room}: {model} reads {context} tokens at most, prompt and answer together")
    problems.raise_any()


def load_base(config: Config, model: str, whole: bool, owner: str, device: torch.device, shared: Shared) -> Base:
    """Adapters on one model share it; a model that is trained whole is its owner's own."""
    key = (resolve(model), owner if whole else None, device)
    if key not in shared:
        wanted = config.learning.precision
        half = wanted == "bf16" or (wanted == "auto" and device.type == "cuda")
        # Weights that are trained are kept in full precision; autocast makes them fast.
        dtype = torch.bfloat16 if half and not whole else torch.float32
        shared[key] = Base(key[0], device, dtype, bf16=half)
    return shared[key]


def base_policy(policy: str) -> str:
    """The name under which the engine serves a policy's base without its adapter."""
    return f"{policy} (base)"


ENGINES: dict[str, Callable[..., ClearableEngine]] = {"native": NativeEngine, "hf": HfEngine, "vllm": VllmEngine}


def build_engine(config: Config, bases: dict[str, Base]) -> Router:
    engines: dict[Base, ClearableEngine] = {}
    by_policy: dict[str, ClearableEngine] = {}
    for name, base in bases.items():
        if base not in engines:
            on_it = [other for other, b in bases.items() if b is base]
            policies = {n: n if config.policies[n].lora else None for n in on_it}
            policies |= {base_policy(n): None for n in on_it}
            kind: str = config.engine.name
            if kind == "native" and not base.native:
                kind = "hf"
                slow = "the native engine cannot drive this model; using Hugging Face generate, slowly"
                print(f"{base.folder}: {slow}", file=sys.stderr)
            if (config.engine.context or 0) > base.context:
                most = f"{base.folder} reads {base.context} tokens at most, and no more are used"
                print(f"engine.context={config.engine.context}: {most}", file=sys.stderr)
            engines[base] = ENGINES[kind](base, policies, config.engine.rows, config.engine.context)
        by_policy[name] = by_policy[base_policy(name)] = engines[base]
    return Router(by_policy)


def build_learner(config: Config, name: str, base: Base, algorithm: Algorithm, processes: Processes) -> TorchLearner:
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
        value_lr=None if critics_of(config, algorithm) else algorithm.value_head_lr,
        reference=Base(base.folder, base.device, bf16=base.bf16) if whole_reference else None,
        processes=processes,
    )


def as_saved(config: Config, saved: Path | None) -> Config:
    """The config with a checkpoint's adapters in the place of those that the policies began from."""
    if saved is None:
        return config
    begun = {name: policy for name, policy in config.policies.items() if policy.adapter is not None}
    own = {name: replace(policy, adapter=policy_folder(saved, name)) for name, policy in begun.items()}
    return replace(config, policies=config.policies | own)


def build_adapter(config: Config, name: str, policy: Policy, base: Base) -> Adapter | None:
    if policy.lora is None:
        return None
    if policy.adapter is not None:
        with blaming(config, ("policies", name, "adapter"), {}):
            return load_adapter(name, policy.adapter, base.layers)
    with blaming(config, ("policies", name), vars(policy)):
        return fresh_adapter(name, policy.lora, base, stable_hash(config.seed, "adapter", name))


def fresh_adapter(name: str, lora: Lora, base: Base, seed: int) -> Adapter:
    targets, left_out = targets_for(base.model, base.layers, lora.targets, lora.rank)
    if left_out and process_group().is_main:
        why = "; ".join(f"{layer} {reason}" for layer, reason in left_out.items())
        print(f"{name}: no adapter on some layers: {why}", file=sys.stderr)
    return Adapter(name, lora.rank, lora.alpha, targets).attach(base.layers, seed)


def critics_of(config: Config, algorithm: Algorithm) -> dict[str, CriticConfig]:
    """Those of the config; where the algorithm wants a central one and is given none, one on the team's own model."""
    if config.critics or not algorithm.central_critic:
        return config.critics
    models = [policy.model for policy in config.policies.values() if not policy.frozen]
    return {"team": CriticConfig(sees="joint", model=models[0])} if models else {}


@dataclass(frozen=True)
class CriticFactory:
    """Builds the critics that an algorithm asks for in `make_critic`."""

    config: Config
    algorithm: Algorithm
    shared: Shared
    bases: Mapping[str, Base]
    processes: Processes

    def critics(self, loss: Loss, weights: Callable[[Batch], Tensor], lr: float, fits: int) -> Critics | None:
        """The config's critics; None where values come from a head on the policy's trunk."""
        learning = frozenset(name for name, policy in self.config.policies.items() if not policy.frozen)
        critics = {}
        for name, settings in critics_of(self.config, self.algorithm).items():
            device = device_beside(self.config, settings.model)
            with blaming(self.config, ("critics", name, "model"), {}):
                whole = settings.lora is None
                base = load_base(self.config, settings.model, whole, f"critic {name}", device, self.shared)
            learner = build_critic(self.config, name, settings, base, lr, self.processes)
            roles = frozenset(settings.roles or self.config.roles)
            for policy in sorted(learning & players(self.config, self.algorithm, roles)):
                must_read_alike(name, base, policy, self.bases[policy])
            critics[name] = Critic(learner, roles, learning, settings.sees)
        return Critics(critics, loss, weights, fits) if critics else None

    def mixer(self, options: MixerOptions) -> Mixer:
        encoder = build_encoder(self.config, self.shared)
        return Mixer(encoder, list(self.config.roles), options, stable_hash(self.config.seed, "mixer"))


def build_critic(
    config: Config, name: str, critic: CriticConfig, base: Base, value_lr: float, processes: Processes
) -> TorchLearner:
    """A head on an adapter, which may live on the policies' own base, or on a whole model of its own."""
    owner, adapter = f"critic {name}", None
    if owner in config.policies:
        raise ConfigError(f"policies.{owner}: critics.{name} goes by that name; call one of them otherwise")
    if critic.lora is not None:
        with blaming(config, ("critics", name), vars(critic)):
            adapter = fresh_adapter(owner, critic.lora, base, stable_hash(config.seed, "critic", name))
    return TorchLearner(
        owner, base, adapter, critic.lr, config.learning, config.steps,
        value_lr=value_lr, is_critic=True, processes=processes,
    )  # fmt: skip


def players(config: Config, algorithm: Algorithm, roles: Collection[str]) -> set[str]:
    """The policies that play any of these roles at some step."""
    seats = {name: role.policies[0] for name, role in config.roles.items()}
    played = (algorithm.assign_roles(step, seats) for step in range(config.steps))
    first = {policy for at_step in played for role, policy in at_step.items() if role in roles}
    return first.union(*(config.roles[role].policies[1:] for role in roles))


def must_read_alike(critic: str, base: Base, policy: str, other: Base) -> None:
    """A critic reads the very ids that were sampled, so they have to mean the same to it."""
    if base.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise ConfigError(
            f"critics.{critic}: {base.folder} has another tokenizer than policies.{policy} ({other.folder}), so it "
            "would read other words than were said; judge those roles by a critic on a model with the same tokenizer"
        )


def build_encoder(config: Config, shared: Shared) -> Encoder:
    """A user's own, or a model's hidden states: that of the adapters, or a copy where policies train whole models."""
    made = config.encoder.instance
    if not isinstance(made, Hidden):
        return made
    model = made.model or next(iter(config.policies.values())).model
    with blaming(config, ("encoder",), config.encoder.options):
        base = load_base(config, model, False, "encoder", device_beside(config, model), shared)
    return HiddenStates(base, token_budget(base, config.learning))
