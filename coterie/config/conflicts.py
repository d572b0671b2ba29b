"""Find keys of a config that contradict each other or have no effect, before any model loads.

A part states its own conflicts: `problems(config)` yields (dotted key, message), on any part that has this method.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coterie.config.problems import Path, Problems, undotted
from coterie.config.settings import DEMO, PARTS, Config, CriticConfig, EngineConfig, Hidden, Lora, Policy
from coterie.envs.base import attach_reward
from coterie.errors import did_you_mean
from coterie.types import Encoder, Sampling

Found = Iterator[tuple[Path, str]]
DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")
MOST_EPISODES = 1_000_000  # in memory at once


def check_conflicts(config: Config, training: bool = True) -> None:
    """Raise a ConfigError that lists every conflict. `training` is False for evaluation and replay, which may ignore
    keys of training."""
    problems = Problems(config.sources)
    checks = (
        _episodes, _policies, _text_policies, _adapters, _devices, _reward, _sampling, _max_tokens, _warmup,
        _evaluation, _no_evaluation, _engine_rows, _unused_sampling, _empty_targets, _cluster,
    )  # fmt: skip
    of_training = (_policies_without_role, _all_frozen, _unused_in_training, _human_policies)
    for check in (*checks, *(of_training if training else ()), _roles):
        for path, message in check(config):
            problems.add(path, message)
    for key, message in (*_parts(config), *_critics(config), *_encoder(config), *_opponents(config)):
        problems.add(undotted(key), message)
    problems.raise_any()


def _parts(config: Config) -> Iterator[tuple[str, str]]:
    for kind in PARTS:
        find_problems = getattr(getattr(config, kind).instance, "problems", None)
        if callable(find_problems):
            yield from find_problems(config)


def _episodes(config: Config) -> Found:
    """Limit the episodes of a step or an evaluation: all are in memory at once."""
    for path, tasks, repeats in (
        (("tasks_per_step",), config.tasks_per_step, config.episodes_per_task),
        (("eval", "tasks"), config.eval.tasks, config.eval.episodes_per_task),
    ):
        if tasks * repeats > MOST_EPISODES:
            total = f"{tasks:,} tasks with {repeats:,} episodes each are {tasks * repeats:,} episodes at once"
            yield path, f"{total}; at most {MOST_EPISODES:,} are possible"


def _roles(config: Config) -> Found:
    """Every role of the workflow has an entry under `roles`, and there are no others."""
    workflow = type(config.workflow.instance).__name__
    needed = list(dict.fromkeys(config.workflow.instance.roles))
    if not needed:
        yield ("workflow",), f"{workflow}.roles is empty, so nobody would speak; name at least one role"
        return
    extra = [role for role in config.roles if role not in needed]
    missing = [role for role in needed if role not in config.roles]
    for role in missing:
        yield ("roles",), f"{workflow} has a role {role!r} that nobody plays{did_you_mean(role, extra)}"
    for role in extra:
        yield ("roles", role), f"{workflow} has no such role; it has {', '.join(needed)}{did_you_mean(role, missing)}"


def _policies(config: Config) -> Found:
    """Every role names a known policy. An override of a policy that no role names is a misspelling."""
    for name, role in config.roles.items():
        for policy in role.policies:
            if policy not in config.policies:
                known = ", ".join(config.policies) or "none"
                near = did_you_mean(policy, config.policies)
                yield ("roles", name, "policy"), f"no policy is called {policy!r}; there is {known}{near}"
    used = {policy for role in config.roles.values() for policy in role.policies}
    for name in [name for name in config.policies if name not in used]:
        if config.sources.is_overridden(("policies", name)):
            known = f"there is {', '.join(sorted(used))}{did_you_mean(name, used)}"
            yield ("policies", name), f"no role plays it; {known}"


def _text_policies(config: Config) -> Found:
    """A policy that is an endpoint or a person has no weights, and its turns have no token ids."""
    played = {name: policy for name, policy in config.policies.items() if policy.by_text}
    default = vars(Policy())
    for name, policy in config.policies.items():
        of_api = ("key_env", "api_deadline", "api_concurrency", "api_rate") if policy.api is None else ()
        of_weights = ("adapter", "device", "lr") if policy.by_text else ()
        for key in [key for key in (*of_api, *of_weights) if getattr(policy, key) != default[key]]:
            why = "has no weights here" if policy.by_text else "no endpoint plays it, which `api` would name"
            yield ("policies", name, key), f"has no effect: {name} {why}; remove it"
    for name, policy in played.items():
        if policy.api is not None and policy.human:
            yield ("policies", name), "either an endpoint (api) or a person (human) plays it, not both"
        if policy.api is not None and not policy.api.startswith(("http://", "https://")):
            yield ("policies", name, "api"), f"{policy.api!r} is not an address such as https://host/v1"
        if policy.api is not None and policy.model == DEMO:
            yield ("policies", name, "model"), "name the model that the endpoint serves"
        if policy.lora is not None or not policy.frozen:
            key = "frozen" if not policy.frozen else "lora"
            yield ("policies", name, key), f"has no effect: {name} has no weights here and cannot be trained; remove it"
    if played and config.algorithm.instance.needs_values:
        algorithm = type(config.algorithm.instance).__name__
        why = f"turns of {', '.join(played)} have no tokens, and {algorithm} values tokens"
        yield ("algorithm",), f"{why}; grpo, rloo and their family need no values"
    if any(policy.api is not None for policy in played.values()) and config.eval.top_k:
        yield ("eval", "top_k"), "endpoints have no top_k; remove it, or use top_p"


def _human_policies(config: Config) -> Found:
    for name, policy in config.policies.items():
        if policy.human:
            yield ("policies", name, "human"), "a person plays in `coterie chat` and `coterie eval`, not in training"


def _policies_without_role(config: Config) -> Found:
    """In training every policy has a role. Without training, `coterie verifier generate --policy` may use others."""
    used = {policy for role in config.roles.values() for policy in role.policies}
    for name in [name for name in config.policies if name not in used]:
        if not config.sources.is_overridden(("policies", name)):
            yield ("policies", name), "no role plays it; name it under roles, or remove it"


def _critics(config: Config) -> Iterator[tuple[str, str]]:
    """If there are critics, every trained role has exactly one, and the algorithm uses values."""
    algorithm = config.algorithm.instance
    if config.critics and not algorithm.needs_values:
        yield "critics", f"have no effect: {type(algorithm).__name__} uses no values"
        return
    critic_of: dict[str, str] = {}
    for name, critic in config.critics.items():
        for role in critic.roles or config.roles:
            if role not in config.roles:
                yield f"critics.{name}.roles", f"there is no role {role!r}{did_you_mean(role, config.roles)}"
            elif role in critic_of:
                yield f"critics.{name}.roles", f"{role} already has the critic {critic_of[role]}"
            critic_of[role] = name
        roles = [role for role in critic.roles or config.roles if role in config.roles]
        if roles and not any(_is_trained(config, role) for role in roles):
            yield f"critics.{name}", f"has no effect: only frozen policies play {', '.join(roles)}"
        if critic.frozen and critic.lr != CriticConfig().lr:
            yield f"critics.{name}.lr", "has no effect: frozen trains the value head alone, with algorithm.value_lr"
        if critic.frozen and critic.lora != Lora():
            yield f"critics.{name}.lora", "has no effect: frozen trains the value head alone"
        if algorithm.central_critic and critic.sees != "joint":
            yield f"critics.{name}.sees", f"{type(algorithm).__name__} needs critics that see the joint context: joint"
    without = [role for role in config.roles if _is_trained(config, role) and role not in critic_of]
    if config.critics and without:
        yield "critics", f"no critic for {', '.join(without)}"


def _encoder(config: Config) -> Iterator[tuple[str, str]]:
    """Only a mixer encodes texts, in VDN and QMIX."""
    algorithm, encoder = config.algorithm.instance, config.encoder
    if algorithm.needs_mixer:
        if not isinstance(encoder.instance, Hidden) and not isinstance(encoder.instance, Encoder):
            yield "encoder", f"{encoder.name} has no method encode(texts), which returns a vector per text"
    elif config.sources.is_written(("encoder",)):  # a run's own config.yaml leaves the default out
        used = "only vdn and qmix with a mixer do"
        yield "encoder", f"has no effect: {type(algorithm).__name__} encodes no texts; {used}; remove it"


def _opponents(config: Config) -> Iterator[tuple[str, str]]:
    """Opponents are snapshots of adapters, play all turns of a role, and need a run long enough to take a snapshot."""
    if config.opponents is None:
        return
    if config.opponents.share == 0:
        yield "opponents.share", "is 0, so snapshots never play; remove opponents, or give them a share of the steps"
    if len(config.roles) < 2:
        yield "opponents", "there is only one role, so nobody to play against"
    for name, policy in config.policies.items():
        if policy.lora is None and not policy.frozen:
            yield f"policies.{name}.lora", "is null, and opponents are snapshots of adapters"
    for name, role in config.roles.items():
        if len(role.policies) > 1:
            yield f"roles.{name}.policy", "an opponent plays all turns of a role; give it one policy"
    if config.opponents.every > config.steps:
        yield "opponents.every", f"has no effect: no snapshot is taken in a run of steps={config.steps}"


def _adapters(config: Config) -> Found:
    """An adapter that is loaded has its own rank, alpha and targets."""
    for name, policy in config.policies.items():
        if policy.adapter is None:
            continue
        if policy.lora is None:
            yield ("policies", name, "adapter"), "needs lora, which is null; set lora, or remove the adapter"
            continue
        for key, default in vars(Lora()).items():
            if getattr(policy.lora, key) != default:
                yield ("policies", name, "lora", key), "has no effect: the adapter keeps its own; remove it"


def _devices(config: Config) -> Found:
    """A device has a name that PyTorch knows; adapters on the same base are on the same device."""
    first: dict[str, tuple[str, str]] = {}
    for name, policy in config.policies.items():
        device = policy.device or config.device
        if policy.device is not None and not DEVICE.fullmatch(policy.device):
            yield ("policies", name, "device"), f"{policy.device!r} is not a device; use cpu, cuda or cuda:1"
        if policy.lora is None:
            continue
        other, expected = first.setdefault(policy.model, (name, device))
        if expected != device:
            shared = f"{name} and {other} are adapters on the same {policy.model} and need the same device"
            yield ("policies", name, "device"), f"{shared}, but {name} is on {device} and {other} on {expected}"


def _cluster(config: Config) -> Found:
    """Options of the cluster against each other, and against options that a cluster does not support."""
    if config.cluster is None:
        return
    for name, policy in config.policies.items():
        if policy.device is not None:
            yield ("policies", name, "device"), "not supported on a cluster: each worker has the GPUs that Ray gives it"
    rollout, learner = config.cluster.rollout, config.cluster.learner
    if learner.shard and learner.workers < 2:
        yield (
            ("cluster", "learner", "shard"),
            "needs cluster.learner.workers of 2 or more: the ranks that hold a part each",
        )
    if rollout.tensor_parallel > 1 and config.engine.name != "vllm":
        why = f"needs engine.name: vllm; {config.engine.name} has a model on one GPU"
        yield ("cluster", "rollout", "tensor_parallel"), f"{rollout.tensor_parallel} {why}"
    elif rollout.tensor_parallel > 1 and rollout.gpus != 1:
        yield ("cluster", "rollout", "gpus"), "must be 1 with tensor_parallel: each part of the model has a GPU"
    if rollout.least is not None and rollout.least > rollout.workers:
        yield ("cluster", "rollout", "least"), f"{rollout.least} is more than the {rollout.workers} workers"
    if (graders := config.cluster.graders) is not None and rollout.workers % graders.workers:
        why = f"cluster.rollout.workers must be a multiple of it, not {rollout.workers}: each has as many of its own"
        yield ("cluster", "graders", "workers"), why
    if config.cluster.ahead and config.algorithm.instance.truncate is None:
        why = "turns are sampled with older weights than those that learn from them; 2.0 is usual"
        yield ("cluster", "ahead"), f"needs algorithm.truncate: {why}"
    if config.cluster.ahead and config.opponents is not None:
        yield (
            ("cluster", "ahead"),
            "not supported with opponents, whose snapshots would be played before they are taken",
        )


def _all_frozen(config: Config) -> Found:
    if config.policies and all(policy.frozen for policy in config.policies.values()):
        yield ("policies",), "every policy is frozen, so there is nothing to train; `coterie eval` plays such a team"


def _reward(config: Config) -> Found:
    """The environment either scores itself (`reward: native`) or accepts the reward."""
    try:
        attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)
    except ValueError as error:
        yield ("reward",), str(error).removeprefix(f"reward {config.reward.name}: ")


def _sampling(config: Config) -> Found:
    """Turns that are trained on must be sampled from the full distribution, which the learner scores."""
    for key, off in {"top_p": 1.0, "top_k": 0}.items():
        if getattr(config.sampling, key) != off:
            why = "the learner scores the full distribution, so a truncated one would give wrong importance ratios"
            yield (
                ("sampling", key),
                f"training needs {off}: {why}; eval.{key} may truncate, with an eval.temperature above 0",
            )
    for name, role in config.roles.items():
        if _is_trained(config, name) and config.sampling_of(name).temperature == 0:
            path = ("sampling", "temperature") if role.temperature is None else ("roles", name, "temperature")
            yield path, f"at 0 all episodes of a task are the same, so {name} has nothing to learn from; 1.0 is usual"


def _is_trained(config: Config, role: str) -> bool:
    """True if any of the role's policies learns."""
    known = [config.policies[policy] for policy in config.roles[role].policies if policy in config.policies]
    return any(not policy.frozen for policy in known)


def _max_tokens(config: Config) -> Found:
    """A reply and its prompt must fit into the context together."""
    context = config.engine.context
    for name, role in config.roles.items():
        most = config.sampling_of(name).max_tokens
        if context is not None and most >= context:
            path = ("sampling", "max_tokens") if role.max_tokens is None else ("roles", name, "max_tokens")
            yield path, f"{most} tokens for {name} leave no room for a prompt in engine.context={context}"


def _warmup(config: Config) -> Found:
    warmup, steps = config.learning.warmup, config.steps
    if warmup >= steps:
        message = f"{warmup} steps of warm-up in a run of steps={steps} never reach the learning rate"
        yield ("learning", "warmup"), message


def _evaluation(config: Config) -> Found:
    """Greedy decoding has nothing to truncate and nothing to repeat."""
    if config.eval.temperature > 0:
        return
    for key, off in {"top_p": 1.0, "top_k": 0}.items():
        if getattr(config.eval, key) != off:
            yield ("eval", key), "has no effect while eval.temperature is 0, which always takes the likeliest token"
    if config.eval.episodes_per_task > 1:
        repeats = config.eval.episodes_per_task
        yield ("eval", "episodes_per_task"), f"at eval.temperature=0 all {repeats} episodes of a task are the same one"


def _no_evaluation(config: Config) -> Found:
    for key, off in {"every": 0, "before_training": None}.items():
        if config.eval.tasks == 0 and getattr(config.eval, key) != off:
            yield ("eval", key), "has no effect while eval.tasks is 0: nothing is evaluated"


def _unused_in_training(config: Config) -> Found:
    for name, policy in config.policies.items():
        if policy.frozen and policy.lr != Policy().lr:
            yield ("policies", name, "lr"), f"has no effect: {name} is frozen; remove it"
    if config.checkpoint.best is not None and config.eval.every == 0:
        why = "with one evaluation, at the end, the last checkpoint is the best"
        yield ("checkpoint", "best"), f"has no effect while eval.every is 0: {why}"


def _engine_rows(config: Config) -> Found:
    if config.engine.name == "hf" and config.engine.rows != EngineConfig().rows:
        yield ("engine", "rows"), "has no effect: the engine hf decodes one sequence at a time; remove it"


def _unused_sampling(config: Config) -> Found:
    """A value in `sampling` is unused if every role has its own."""
    for key in ("max_tokens", "temperature", "stop"):
        all_own = config.roles and all(getattr(role, key) is not None for role in config.roles.values())
        if all_own and getattr(config.sampling, key) != getattr(Sampling(), key):
            yield ("sampling", key), "has no effect: every role has its own"


def _empty_targets(config: Config) -> Found:
    for group, models in (("policies", config.policies), ("critics", config.critics)):
        for name, model in models.items():
            if model.lora is not None and model.lora.targets == ():
                yield (group, name, "lora", "targets"), "is empty, so no layer has an adapter and nothing can learn"
