"""How a graph learns: its algorithm, its critics, its adapters, and whose turn it is to train."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.compat.siirl import derive
from coterie.compat.siirl.config_draft import Draft
from coterie.compat.siirl.script import Script
from coterie.compat.siirl.settings import ADAPTERS, COMPOUND, TEAM

BY_VALUES = ("ppo", "ippo")


def learning(draft: Draft, by_node: Mapping[str, Script]) -> None:
    """Put all that is about learning; `by_node` are the nodes' own parameters."""
    script = draft.script | _of_nodes(draft, by_node)
    told = script.get("algorithm.adv_estimator")
    place = told.place if told else draft.place(("nodes",))
    name = draft.attempt(lambda: derive.algorithm(draft.cast, told.value if told else None), ("algorithm",), place)
    draft.put(("algorithm", "name"), name, place)
    for path, given in draft.attempt(lambda: list(derive.kl(script)), ("algorithm", "kl")) or ():
        draft.given(path, given)
    _adapters(draft, by_node)
    if name in BY_VALUES:
        _critics(draft, script, by_node)
    elif draft.cast.critics:
        draft.unused.add(f"the critics {', '.join(draft.cast.critics)}")
        draft.sheet.tree.pop("critics", None)
    _filter(draft, script, grouped=name not in BY_VALUES)
    _rotate(draft)
    for path, given in draft.attempt(lambda: list(derive.sizes(script, draft.sheet)), ("env", "train")) or ():
        draft.given(path, given)
    draft.unused |= set(derive.idle(script, draft.sheet))
    _for_nobody(draft)


def _of_nodes(draft: Draft, by_node: Mapping[str, Script]) -> Script:
    """What nodes say of what is the same for all here; adapters are not."""
    found: Script = {}
    for own in by_node.values():
        for key, given in ((key, given) for key, given in own.items() if key in COMPOUND and key not in ADAPTERS):
            other = found.setdefault(key, given)
            if other.value != given.value:
                told = f"{key} is the same for all here, but it is given as {other.value!r} ({other.place})"
                draft.problems.found.append(f"{told} and {given.value!r} ({given.place})")
    return found


def _adapters(draft: Draft, by_node: Mapping[str, Script]) -> None:
    """A node's own word on its policy's adapter, else the script's."""
    for node in draft.graph.nodes:
        if derive.lora(by_node[node.node_id], TEAM) is not None:
            path = ("policies", draft.cast.policy(node.agent_group), "lora")
            draft.given(path, derive.lora(draft.script | by_node[node.node_id], TEAM))
    for policy in draft.cast.policies:
        if draft.sheet.get("policies", policy, "lora") is None:
            draft.given(("policies", policy, "lora"), derive.lora(draft.script, TEAM))


def _critics(draft: Draft, script: Script, by_node: Mapping[str, Script]) -> None:
    """Where nothing is told of a critic, it is on the model of the policy it judges, with the like of its adapter."""
    for critic, roles in draft.cast.critics.items():
        policy = draft.sheet.tree["roles"][roles[0]]["policy"]
        draft.put(("critics", critic, "roles"), roles, ("nodes", critic))
        if draft.sheet.get("critics", critic, "model") is None:
            draft.given(("critics", critic, "model"), draft.sheet.get("policies", policy, "model"))
        nodes = [node for node in draft.graph.playing("CRITIC") if draft.cast.critic(node.agent_group) == critic]
        own = {key: given for node in nodes for key, given in by_node[node.node_id].items()}
        lora = derive.lora(draft.script | own, "critic.") or draft.sheet.get("policies", policy, "lora")
        draft.given(("critics", critic, "lora"), lora)
        if not any(node.trains for node in nodes):
            draft.problems.add(("nodes", critic), "is a critic that no node trains, so its values would mean nothing")
    warmup = script.get("trainer.critic_warmup")
    draft.given(("algorithm", "warmup"), warmup if warmup and warmup.value != 0 else None)


def _filter(draft: Draft, script: Script, grouped: bool) -> None:
    node, told = draft.cast.filter, script.get("algorithm.filter_groups.enable")
    place = draft.place(node.at()) if node else told.place if told and told.value is True else None
    if place is not None and grouped:
        draft.put(("algorithm", "drop_constant"), True, place)
    elif place is not None:
        draft.unused.add("dynamic sampling, for nothing is compared in groups")


def _rotate(draft: Draft) -> None:
    """Where only one policy trains, it is always its turn."""
    for node in draft.graph.playing("ACTOR"):
        cycle = node.agent_options.train_cycle
        if cycle is not None and len(draft.cast.training) > 1:
            draft.put(("algorithm", "rotate"), cycle, node.option("train_cycle"))


def _for_nobody(draft: Draft) -> None:
    """What is said for all and concerns none: rates of those that no node trains, a length where each has its own."""
    tree = draft.sheet.tree
    for name, policy in tree["policies"].items():
        if policy["frozen"] and policy.pop("lr", None) is not None:
            draft.unused.add(f"the learning rate of {name}, which no node trains")
    if all("max_tokens" in role for role in tree["roles"].values()) and "max_tokens" in tree.get("sampling", {}):
        del tree["sampling"]["max_tokens"]
        draft.unused.add("data.max_response_length, for every agent has its own")
