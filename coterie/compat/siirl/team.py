"""Who is in a graph: roles, the policies that play them, and the critics that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie.compat.siirl.check import SAMPLING, before, in_order
from coterie.compat.siirl.node import Node, Nodes


@dataclass(frozen=True)
class Cast:
    """A graph as a team."""

    graph: Nodes

    @cached_property
    def rollouts(self) -> list[Node]:
        """The roles, in the order in which they speak."""
        return [node for node in in_order(self.graph) if node.node_role == "ROLLOUT"]

    @property
    def policies(self) -> list[str]:
        """Each is called by the first role that it plays; agents train in this order."""
        groups = sorted({node.agent_group for node in self.rollouts})
        return list(dict.fromkeys(self.policy(group) for group in groups))

    def policy(self, group: int) -> str:
        """Who plays the roles of a group: its own model, or that of the group whose instance it shares."""
        owner = self._owner(group, ("ROLLOUT", "ACTOR"))
        return next(node.node_id for node in self.rollouts if node.agent_group == owner)

    def critic(self, group: int) -> str | None:
        """The critic of a group's roles, called by its first node."""
        owner = self._owner(group, ("CRITIC",))
        nodes = [node.node_id for node in self.graph.playing("CRITIC") if node.agent_group == owner]
        return nodes[0] if nodes else None

    @property
    def critics(self) -> dict[str, list[str]]:
        """The roles that each critic judges."""
        found: dict[str, list[str]] = {}
        for node in self.rollouts:
            critic = self.critic(node.agent_group)
            if critic is not None:
                found.setdefault(critic, []).append(node.node_id)
        return found

    @property
    def training(self) -> list[str]:
        """The policies that some node trains."""
        groups = {node.agent_group for node in self.graph.playing("ACTOR") if node.trains}
        learning = {self.policy(group) for group in groups}
        return [policy for policy in self.policies if policy in learning]

    @property
    def rewarded(self) -> list[str]:
        """The last role of each group that has a REWARD node."""
        last = {node.agent_group: node.node_id for node in self.rollouts}
        groups = [node.agent_group for node in self.graph.playing("REWARD")]
        return [role for group, role in last.items() if group in groups]

    @property
    def judges_by_value(self) -> bool:
        """Whether advantages wait for what critics say."""
        critics = {node.node_id for node in self.graph.playing("CRITIC")}
        return any(critics & before(self.graph, node) for node in self.graph.playing("ADVANTAGE"))

    @property
    def judges_each(self) -> bool:
        """Whether several agents have an ADVANTAGE node of their own; else one node is for the whole team."""
        return len({node.agent_group for node in self.graph.playing("ADVANTAGE")}) > 1

    @property
    def filter(self) -> Node | None:
        """The node, if any, that leaves out groups that all earned the same."""
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
