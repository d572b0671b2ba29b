"""The learning options of a graph's config: algorithm, critics, adapters, KL, batch sizes, rotation of policies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path as File
from typing import Any

from coterie.compat.siirl.config_draft import ConfigDraft, Parameters, Sourced
from coterie.compat.siirl.parameter_table import ADAPTERS, COMPOUND, TEAM, minibatches
from coterie.compat.siirl.team import GraphTeam
from coterie.config.problems import Path
from coterie.config.registry import find, options_of
from coterie.config.verl_names import algorithm_of
from coterie.data.files import parse_rows

KL_TYPES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
BY_VALUES = ("ppo", "ippo", "mappo", "happo")  # algorithms with critics
CENTRAL = ("mappo", "happo")  # whose critics read the joint context
KL = 0.001  # siiRL's default
TASKS = 8  # default tasks_per_step
LOSS, LOSS_WEIGHT, LOSS_TYPE = (f"{TEAM}actor.{key}" for key in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"))
PROMPT = f"{TEAM}rollout.prompt_length"
REWARD, REWARD_WEIGHT = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"


def algorithm_name(team: GraphTeam, estimator: Any) -> str:
    """`adv_estimator` if set; else PPO or IPPO if critics come before advantages in the graph, else GRPO."""
    name = "ppo" if estimator is None else algorithm_of(estimator)
    if name != "ppo":
        return name
    if estimator is None and not team.needs_values:
        return "grpo"
    return "ippo" if team.advantages_per_agent or (estimator == "gae" and len(team.policies) > 1) else "ppo"


def kl_settings(parameters: Parameters) -> Iterator[tuple[Path, Sourced]]:
    """The KL to the reference policy: in the loss, in the reward, or off."""
    if _is_on(parameters, LOSS) and _is_on(parameters, REWARD):
        raise ValueError("use_kl_loss and use_kl_in_reward are both on; here the KL is in one of them")
    if _is_on(parameters, LOSS):
        yield ("algorithm", "kl"), _weight(parameters, LOSS_WEIGHT, LOSS)
        if LOSS_TYPE in parameters:
            how = parameters[LOSS_TYPE]
            if how.value not in KL_TYPES:
                raise ValueError(f"kl_loss_type {how.value!r} has no counterpart here; {', '.join(KL_TYPES)} have")
            yield ("algorithm", "kl_estimator"), Sourced(KL_TYPES[how.value], how.place)
    elif _is_on(parameters, REWARD):
        yield ("algorithm", "kl"), _weight(parameters, REWARD_WEIGHT, REWARD)
        yield ("algorithm", "kl_in"), Sourced("reward", parameters[REWARD].place)


def lora_settings(parameters: Parameters, lead: str) -> Sourced | None:
    """The adapter; rank 0 trains all weights; None if no rank is set."""
    rank = parameters.get(f"{lead}model.lora_rank")
    if rank is None or rank.value == 0:
        return None if rank is None else Sourced(None, rank.place)
    lora: dict[str, Any] = {"rank": rank.value}
    if (alpha := parameters.get(f"{lead}model.lora_alpha")) is not None:
        lora["alpha"] = alpha.value
    if (targets := parameters.get(f"{lead}model.target_modules")) is not None:
        lora["targets"] = targets.value
    return Sourced(lora, rank.place)


def batch_sizes(parameters: Parameters, draft: ConfigDraft) -> Iterator[tuple[Path, Sourced]]:
    """Minibatches, steps and context, which siiRL gives in other units: tasks, epochs, prompt length."""
    tasks = draft.get("tasks_per_step")
    batch = tasks.value if tasks is not None and _is_count(tasks.value) else TASKS
    mini = parameters.get(f"{TEAM}actor.ppo_mini_batch_size")
    if mini is not None and _is_count(mini.value) and minibatches(batch, mini.value) > 1:
        yield ("algorithm", "minibatches"), Sourced(minibatches(batch, mini.value), mini.place)
    epochs, train = parameters.get("trainer.total_epochs"), draft.get("env", "train")
    if epochs is not None and train is not None and draft.get("steps") is None:
        steps = epochs.value * max(1, sum(1 for _ in parse_rows(File(train.value))) // batch)
        yield ("steps",), Sourced(steps, epochs.place)
    prompt = parameters.get(PROMPT) or parameters.get("data.max_prompt_length")
    reply = parameters.get(f"{TEAM}rollout.response_length") or parameters.get("data.max_response_length")
    if prompt is not None:
        yield ("workflow", "prompt_length"), prompt
    if prompt is not None and reply is not None and draft.get("engine", "context") is None:
        whole = prompt.value + reply.value if _is_count(prompt.value) and _is_count(reply.value) else prompt.value
        yield ("engine", "context"), Sourced(whole, prompt.place)


def unused_parameters(parameters: Parameters, draft: ConfigDraft) -> Iterator[str]:
    """Parameters without effect, because the one they belong to is off or missing."""
    goes_with = {
        LOSS_WEIGHT: _is_on(parameters, LOSS),
        LOSS_TYPE: _is_on(parameters, LOSS),
        REWARD_WEIGHT: _is_on(parameters, REWARD),
        "trainer.total_epochs": "trainer.total_training_steps" not in parameters
        and draft.get("env", "train") is not None,
        "data.max_prompt_length": PROMPT not in parameters,
    }
    for lead in (TEAM, "critic."):
        rank = parameters.get(f"{lead}model.lora_rank")
        there = rank is not None and rank.value != 0
        goes_with |= {f"{lead}model.lora_alpha": there, f"{lead}model.target_modules": there}
    yield from (key.removeprefix(TEAM) for key, there in goes_with.items() if key in parameters and not there)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_on(parameters: Parameters, key: str) -> bool:
    return key in parameters and parameters[key].value is True


def _weight(parameters: Parameters, key: str, switch: str) -> Sourced:
    """The weight of the KL, by default siiRL's, with the place of the switch that turns it on."""
    return parameters[key] if key in parameters else Sourced(KL, parameters[switch].place)


def put_learning(draft: ConfigDraft, by_node: Mapping[str, Parameters]) -> None:
    """Set all keys of learning; `by_node` are the nodes' own parameters."""
    parameters = draft.parameters | _of_nodes(draft, by_node)
    estimator = parameters.get("algorithm.adv_estimator")
    place = estimator.place if estimator else draft.place(("nodes",))
    requested = estimator.value if estimator else None
    name = draft.attempt(lambda: algorithm_name(draft.team, requested), ("algorithm",), place)
    draft.put(("algorithm", "name"), name, place)
    for path, value in draft.attempt(lambda: list(kl_settings(parameters)), ("algorithm", "kl")) or ():
        draft.put_sourced(path, value)
    _adapters(draft, by_node)
    if name in BY_VALUES:
        _critics(draft, parameters, by_node, central=name in CENTRAL)
    elif draft.team.critics:
        draft.unused.add(f"the critics {', '.join(draft.team.critics)}")
        draft.tree.pop("critics", None)
    _filter(draft, parameters, grouped=name not in BY_VALUES)
    _rotate(draft)
    for path, value in draft.attempt(lambda: list(batch_sizes(parameters, draft)), ("env", "train")) or ():
        draft.put_sourced(path, value)
    draft.unused |= set(unused_parameters(parameters, draft))
    _drop_unused(draft)


def _of_nodes(draft: ConfigDraft, by_node: Mapping[str, Parameters]) -> Parameters:
    """Parameters of nodes that must have one value for all nodes here, unlike those of adapters."""
    found: Parameters = {}
    for own in by_node.values():
        shared = {key: value for key, value in own.items() if key in COMPOUND and key not in ADAPTERS}
        for key, value in shared.items():
            other = found.setdefault(key, value)
            if other.value != value.value:
                conflict = f"is {other.value!r} ({other.place}) and {value.value!r} ({value.place})"
                draft.problems.found.append(f"{key} has one value for all nodes, but {conflict}")
    return found


def _adapters(draft: ConfigDraft, by_node: Mapping[str, Parameters]) -> None:
    """A node's own adapter parameters, else those for all nodes."""
    for node in draft.graph.nodes:
        if lora_settings(by_node[node.node_id], TEAM) is not None:
            path = ("policies", draft.team.policy(node.agent_group), "lora")
            draft.put_sourced(path, lora_settings(draft.parameters | by_node[node.node_id], TEAM))
    for policy in draft.team.policies:
        if draft.get("policies", policy, "lora") is None:
            draft.put_sourced(("policies", policy, "lora"), lora_settings(draft.parameters, TEAM))


def _critics(draft: ConfigDraft, parameters: Parameters, by_node: Mapping[str, Parameters], central: bool) -> None:
    """A critic without parameters has the model and the adapter settings of its roles' policy."""
    for critic, roles in draft.team.critics.items():
        policy = draft.tree["roles"][roles[0]]["policy"]
        draft.put(("critics", critic, "roles"), roles, ("nodes", critic))
        if central:
            draft.put(("critics", critic, "sees"), "joint", ("nodes", critic))
        if draft.get("critics", critic, "model") is None:
            draft.put_sourced(("critics", critic, "model"), draft.get("policies", policy, "model"))
        nodes = [node for node in draft.graph.with_role("CRITIC") if draft.team.critic(node.agent_group) == critic]
        own = {key: value for node in nodes for key, value in by_node[node.node_id].items()}
        lora = lora_settings(draft.parameters | own, "critic.") or draft.get("policies", policy, "lora")
        draft.put_sourced(("critics", critic, "lora"), lora)
        if not any(node.trains for node in nodes):
            draft.problems.add(("nodes", critic), "is a critic that no node trains, so its values would mean nothing")
    warmup = parameters.get("trainer.critic_warmup")
    draft.put_sourced(("algorithm", "warmup"), warmup if warmup and warmup.value != 0 else None)


def _filter(draft: ConfigDraft, parameters: Parameters, grouped: bool) -> None:
    node, enabled = draft.team.filter, parameters.get("algorithm.filter_groups.enable")
    place = draft.place(node.at()) if node else enabled.place if enabled and enabled.value is True else None
    if place is not None and grouped:
        draft.put(("algorithm", "drop_constant"), True, place)
    elif place is not None:
        draft.unused.add("dynamic sampling: the algorithm has no groups")


def _rotate(draft: ConfigDraft) -> None:
    """`train_cycle` has no effect if only one policy trains."""
    for node in draft.graph.with_role("ACTOR"):
        cycle = node.agent_options.train_cycle
        if cycle is not None and len(draft.team.training) > 1:
            draft.put(("algorithm", "rotate"), cycle, node.option("train_cycle"))


# Keys that have no effect unless another one is above its limit.
NEED_MORE = {
    ("algorithm", "clip"): (("algorithm", "epochs", 1), ("algorithm", "minibatches", 1)),
    ("algorithm", "clip_high"): (("algorithm", "epochs", 1), ("algorithm", "minibatches", 1)),
    ("algorithm", "dual_clip"): (("algorithm", "epochs", 1), ("algorithm", "minibatches", 1)),
    ("algorithm", "value_clip"): (("algorithm", "value_fits", 1),),
    ("eval", "top_p"): (("eval", "temperature", 0),),
    ("eval", "top_k"): (("eval", "temperature", 0),),
    ("eval", "episodes_per_task"): (("eval", "temperature", 0),),
}


def drop_without_effect(draft: ConfigDraft, overridden: Collection[str]) -> None:
    """Drop, and list, keys without effect for this algorithm and these settings: siiRL's launch scripts set keys of all
    algorithms, which a config of Coterie rejects. `overridden`: Coterie's keys that are set after this."""
    known = options_of(find("algorithm", draft.tree["algorithm"]["name"]))
    for path in [path for path in draft.values if path[0] == "algorithm" and path[1] not in (*known, "name")]:
        _drop(draft, path)
    for path, others in NEED_MORE.items():
        more = [draft.get(*key) for *key, _ in others]
        above = [value and value.value > limit for value, (*_, limit) in zip(more, others, strict=True)]
        if path in draft.values and not any(above) and not {".".join(key) for *key, _ in others} & set(overridden):
            _drop(draft, path)


def _drop(draft: ConfigDraft, path: Path) -> None:
    group = draft.tree[path[0]]
    if group.pop(path[1], None) is not None:
        draft.unused.add(draft.values[path][1].place.removeprefix("override ").partition("=")[0])


def _drop_unused(draft: ConfigDraft) -> None:
    """Drop shared parameters that nothing uses: lr of frozen policies, and max_tokens if every agent has its own."""
    tree = draft.tree
    for name, policy in tree["policies"].items():
        if policy["frozen"] and policy.pop("lr", None) is not None:
            draft.unused.add(f"the learning rate of {name}, which no node trains")
    if all("max_tokens" in role for role in tree["roles"].values()) and "max_tokens" in tree.get("sampling", {}):
        del tree["sampling"]["max_tokens"]
        draft.unused.add("data.max_response_length: every agent has its own")
