"""The team of a graph: roles, the policies that play them, and their critics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie.compat.siirl.check import SAMPLING, before, in_order
from coterie.compat.siirl.nodes import Node, Nodes


@dataclass(frozen=True)
class GraphTeam:
    """Roles, policies and critics of a graph."""

    graph: Nodes

    @cached_property
    def rollouts(self) -> list[Node]:
        """The roles, in the order in which they speak."""
        return [node for node in in_order(self.graph) if node.node_role == "ROLLOUT"]

    def reads(self, node: Node) -> list[str]:
        """The roles whose replies a role reads: its nearest ROLLOUT ancestors, in the order in which they speak."""
        by_id = {one.node_id: one for one in self.graph.nodes}
        nearest: set[str] = set()
        todo = list(node.dependencies)
        while todo:
            parent = by_id[todo.pop()]
            if parent.node_role == "ROLLOUT":
                nearest.add(parent.node_id)
            else:
                todo += parent.dependencies
        # A reply that another of these roles has read is already part of that role's conversation.
        read = {name for role in nearest for name in before(self.graph, by_id[role])}
        return [one.node_id for one in self.rollouts if one.node_id in nearest - read]

    @property
    def policies(self) -> list[str]:
        """The policies in the order in which they train, each named after the first role that it plays."""
        groups = sorted({node.agent_group for node in self.rollouts})
        return list(dict.fromkeys(self.policy(group) for group in groups))

    def policy(self, group: int) -> str:
        """The policy of a group's roles: its own, or that of the group whose instance it shares."""
        owner = self._owner(group, ("ROLLOUT", "ACTOR"))
        return next(node.node_id for node in self.rollouts if node.agent_group == owner)

    def critic(self, group: int) -> str | None:
        """The critic of a group's roles, named after its first node; a graph's only critic is that of all groups."""
        critics = self.graph.with_role("CRITIC")
        owner = self._owner(group, ("CRITIC",))
        if len({node.agent_group for node in critics}) == 1:
            owner = critics[0].agent_group
        nodes = [node.node_id for node in critics if node.agent_group == owner]
        return nodes[0] if nodes else None

    @property
    def critics(self) -> dict[str, list[str]]:
        """The roles of each critic."""
        found: dict[str, list[str]] = {}
        for node in self.rollouts:
            critic = self.critic(node.agent_group)
            if critic is not None:
                found.setdefault(critic, []).append(node.node_id)
        return found

    @property
    def training(self) -> list[str]:
        """The policies that some node trains."""
        groups = {node.agent_group for node in self.graph.with_role("ACTOR") if node.trains}
        learning = {self.policy(group) for group in groups}
        return [policy for policy in self.policies if policy in learning]

    @property
    def rewarded(self) -> list[str]:
        """The last role of each group that has a REWARD node."""
        last = {node.agent_group: node.node_id for node in self.rollouts}
        groups = [node.agent_group for node in self.graph.with_role("REWARD")]
        return [role for group, role in last.items() if group in groups]

    @property
    def needs_values(self) -> bool:
        """True if an ADVANTAGE node depends on a CRITIC node."""
        critics = {node.node_id for node in self.graph.with_role("CRITIC")}
        return any(critics & before(self.graph, node) for node in self.graph.with_role("ADVANTAGE"))

    @property
    def advantages_per_agent(self) -> bool:
        """True if several agents have their own ADVANTAGE node; False if one is for the whole team."""
        return len({node.agent_group for node in self.graph.with_role("ADVANTAGE")}) > 1

    @property
    def filter(self) -> Node | None:
        """The node, if any, that drops groups with equal rewards (dynamic sampling)."""
        roles = ("DYNAMIC_SAMPLING", "POSTPROCESS_SAMPLING")
        filters = (n for n in self.graph.nodes if n.node_role in roles or (n.executable_ref or "").endswith(SAMPLING))
        return next(filters, None)

    def _owner(self, group: int, roles: Sequence[str]) -> int:
        seen = [group]
        while (target := self._shared(seen[-1], roles)) is not None and target not in seen:
            seen.append(target)
        return seen[-1]

    def _shared(self, group: int, roles: Sequence[str]) -> int | None:
        nodes = [node for node in self.graph.nodes if node.node_role in roles and node.agent_group == group]
        targets = (node.agent_options.share_instance for node in nodes)
        return next((target for target in targets if target is not None), None)
