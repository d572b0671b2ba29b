"""Whether the keys of a config agree with each other; asked before any model loads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from coterie.config.config import PARTS, Config
from coterie.config.no_effect import empty_targets, idle_in_training, idle_rows, idle_sampling
from coterie.config.problems import Path, Problems, did_you_mean, undotted
from coterie.config.settings import Hidden, Lora
from coterie.envs.base import attach_reward
from coterie.types import Encoder

Found = Iterator[tuple[Path, str]]
DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")
MOST = 1_000_000  # episodes at once


def check_conflicts(config: Config, training: bool = True) -> None:
    """Raise a ConfigError that lists every contradiction, or pass."""
    problems = Problems(config.sources)
    checks = (
        _episodes,
        _players,
        _adapters,
        _devices,
        _reward,
        _sampling,
        _room,
        _learning,
        _evaluation,
        idle_rows,
        idle_sampling,
        empty_targets,
    )
    for check in (*checks, _anything_to_train, idle_in_training) if training else checks:
        for path, message in check(config):
            problems.add(path, message)
    for path, message in _seats(config):
        problems.add(path, message)
    for key, message in (*_parts(config), *_critics(config), *_encoder(config), *_opponents(config)):
        problems.add(undotted(key), message)
    problems.raise_any()


def _parts(config: Config) -> Iterator[tuple[str, str]]:
    """Each part knows its own conflicts with the rest of the config: `problems(config)`, where it has such a method."""
    for kind in PARTS:
        find_problems = getattr(getattr(config, kind).instance, "problems", None)
        if callable(find_problems):
            yield from find_problems(config)


def _episodes(config: Config) -> Found:
    """The episodes of a step, or of an evaluation, are all in memory at once."""
    for path, tasks, repeats in (
        (("tasks_per_step",), config.tasks_per_step, config.episodes_per_task),
        (("eval", "tasks"), config.eval.tasks, config.eval.episodes_per_task),
    ):
        if tasks * repeats > MOST:
            each = f"{tasks:,} with {repeats:,} episodes of each are {tasks * repeats:,} episodes at once"
            yield path, f"{each}; at most {MOST:,} are possible"


def _seats(config: Config) -> Found:
    """Every role of the workflow is played, and nobody else is there."""
    workflow = config.workflow.instance
    seats = list(dict.fromkeys(workflow.roles))
    if not seats:
        yield ("workflow",), f"{type(workflow).__name__}.roles is empty, so nobody would speak; name a role at least"
        return
    idle = [role for role in config.roles if role not in seats]
    empty = [seat for seat in seats if seat not in config.roles]
    kind = type(workflow).__name__
    for seat in empty:
        yield ("roles",), f"{kind} has a role {seat!r} that nobody plays{did_you_mean(seat, idle)}"
    for role in idle:
        yield ("roles", role), f"{kind} has no such role; it has {', '.join(seats)}{did_you_mean(role, empty)}"


def _players(config: Config) -> Found:
    """Every role has a policy, every policy a role."""
    for name, role in config.roles.items():
        for policy in role.policies:
            if policy not in config.policies:
                known = ", ".join(config.policies) or "none"
                near = did_you_mean(policy, config.policies)
                yield ("roles", name, "policy"), f"no policy is called {policy!r}; there is {known}{near}"
    played = {policy for role in config.roles.values() for policy in role.policies}
    for name in [name for name in config.policies if name not in played]:
        meant = f"there is {', '.join(sorted(played))}{did_you_mean(name, played)}"
        misspelt = config.sources.is_overridden(("policies", name))
        yield ("policies", name), f"no role plays it; {meant if misspelt else 'name it under roles, or leave it out'}"


def _critics(config: Config) -> Iterator[tuple[str, str]]:
    """Where turns need values, every role that learns has one critic, or all have a head on their policy's trunk."""
    algorithm = config.algorithm.instance
    if config.critics and not algorithm.needs_values:
        yield "critics", f"have no effect: {type(algorithm).__name__} asks for no values"
        return
    judged: dict[str, str] = {}
    for name, critic in config.critics.items():
        for role in critic.roles or config.roles:
            if role not in config.roles:
                yield f"critics.{name}.roles", f"nobody is called {role!r}{did_you_mean(role, config.roles)}"
            elif role in judged:
                yield f"critics.{name}.roles", f"{role} is already judged by {judged[role]}"
            judged[role] = name
        judges = [role for role in critic.roles or config.roles if role in config.roles]
        if judges and not any(_is_trained(config, role) for role in judges):
            yield f"critics.{name}", f"has no effect: nobody learns who plays {', '.join(judges)}"
        if algorithm.central_critic and critic.sees == "own":
            yield f"critics.{name}.sees", f"{type(algorithm).__name__} needs critics that see the joint context: joint"
    alone = [role for role in config.roles if _is_trained(config, role) and role not in judged]
    if config.critics and alone:
        yield "critics", f"nobody judges {', '.join(alone)}"


def _encoder(config: Config) -> Iterator[tuple[str, str]]:
    """Texts become vectors for a mixer, which VDN and QMIX have."""
    algorithm = config.algorithm.instance
    if algorithm.needs_mixer:
        if not isinstance(config.encoder.instance, Hidden) and not isinstance(config.encoder.instance, Encoder):
            yield "encoder", f"{config.encoder.name} has no method encode(texts), which gives a vector for each text"
    elif config.sources.is_written(("encoder",)):  # a run's own config.yaml leaves the usual one out
        read = "vdn and qmix with a mixer do"
        yield "encoder", f"has no effect: {type(algorithm).__name__} reads no vectors of texts; {read}; leave it out"


def _opponents(config: Config) -> Iterator[tuple[str, str]]:
    """Where a pool would have no effect, or could not be kept."""
    if config.opponents is None:
        return
    if config.opponents.share == 0:
        yield "opponents.share", "is 0, so snapshots never play; leave opponents out, or give them a share of the steps"
    if len(config.roles) < 2:
        yield "opponents", "there is only one role, so nobody to play against"
    for name, policy in config.policies.items():
        if policy.lora is None and not policy.frozen:
            yield f"policies.{name}.lora", "is null, and opponents are snapshots of adapters"
    for name, role in config.roles.items():
        if len(role.policies) > 1:
            yield f"roles.{name}.policy", "opponents take over a role as a whole; give it one policy"
    if config.opponents.every > config.steps:
        yield "opponents.every", f"has no effect: no snapshot is taken in a run of steps={config.steps}"


def _adapters(config: Config) -> Found:
    """An adapter to start from has a shape of its own."""
    for name, policy in config.policies.items():
        if policy.adapter is None:
            continue
        if policy.lora is None:
            yield ("policies", name, "adapter"), "an adapter is given, but lora is null; give lora, or leave it out"
            continue
        for key, usual in vars(Lora()).items():
            if getattr(policy.lora, key) != usual:
                yield ("policies", name, "lora", key), "has no effect: the adapter keeps its own; leave it out"


def _devices(config: Config) -> Found:
    """Every device has a name that PyTorch knows, and adapters on one model are where that is."""
    there: dict[str, tuple[str, str]] = {}
    for name, policy in config.policies.items():
        own = policy.device or config.device
        if policy.device is not None and not DEVICE.fullmatch(policy.device):
            yield ("policies", name, "device"), f"{policy.device!r} names no device; cpu, cuda and cuda:1 do"
        if policy.lora is None:
            continue
        other, place = there.setdefault(policy.model, (name, own))
        if place != own:
            shared = f"{name} and {other} are adapters on one {policy.model}, which can be on one device alone"
            yield ("policies", name, "device"), f"{shared}, but {name} is to be on {own} and {other} on {place}"


def _anything_to_train(config: Config) -> Found:
    if config.policies and all(policy.frozen for policy in config.policies.values()):
        yield ("policies",), "every policy is frozen, so there is nothing to train; `coterie eval` plays such a team"


def _reward(config: Config) -> Found:
    """The environment and the reward fit together: either it scores itself, or it takes the one that is named."""
    try:
        attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)
    except ValueError as error:
        yield ("reward",), str(error).removeprefix(f"reward {config.reward.name}: ")


def _sampling(config: Config) -> Found:
    """What is trained on must be drawn from the distribution that the learner scores: the whole one."""
    full = {"top_p": 1.0, "top_k": 0}
    for key, value in full.items():
        if getattr(config.sampling, key) != value:
            wrong = "the learner scores the whole distribution, so a cut one would give wrong ratios"
            yield ("sampling", key), f"training needs {value}: {wrong}; eval.{key} may cut"
    for name, role in config.roles.items():
        if _is_trained(config, name) and config.sampling_of(name).temperature == 0:
            path = ("sampling", "temperature") if role.temperature is None else ("roles", name, "temperature")
            yield path, f"at 0 every episode says the same, so {name} has nothing to learn from; 1.0 is usual"
        if "" in config.sampling_of(name).stop:
            path = ("sampling", "stop") if role.stop is None else ("roles", name, "stop")
            yield path, f"an empty stop string would end every turn of {name} at once"


def _is_trained(config: Config, role: str) -> bool:
    """Whether any of its turns is learned from."""
    known = [config.policies[policy] for policy in config.roles[role].policies if policy in config.policies]
    return any(not policy.frozen for policy in known)


def _room(config: Config) -> Found:
    """A turn and its prompt fit into the context together."""
    context = config.engine.context
    for name, role in config.roles.items():
        most = config.sampling_of(name).max_tokens
        if context is not None and most >= context:
            path = ("sampling", "max_tokens") if role.max_tokens is None else ("roles", name, "max_tokens")
            yield path, f"{most} tokens for {name} leave no room for a prompt in engine.context={context}"


def _learning(config: Config) -> Found:
    warmup, steps = config.learning.warmup, config.steps
    if warmup >= steps:
        yield (
            ("learning", "warmup"),
            f"{warmup} steps of warm-up in a run of steps={steps} never reach the learning rate",
        )


def _evaluation(config: Config) -> Found:
    """At temperature 0 there is one answer: nothing to cut, nothing to repeat."""
    if config.eval.temperature > 0:
        return
    unused = {"top_p": 1.0, "top_k": 0}
    for key, value in unused.items():
        if getattr(config.eval, key) != value:
            yield ("eval", key), "has no effect while eval.temperature is 0, which always takes the likeliest token"
    if config.eval.episodes_per_task > 1:
        repeats = config.eval.episodes_per_task
        yield ("eval", "episodes_per_task"), f"at eval.temperature=0 all {repeats} episodes of a task are the same one"
