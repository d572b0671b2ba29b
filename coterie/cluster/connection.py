"""Connects to a Ray cluster, and checks that what a config asks for fits on its nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from coterie.config.settings import Cluster
from coterie.errors import UserError

Resources = dict[str, float]  # GPU and CPU
OBJECT_STORE = 1 << 30  # bytes of shared memory of a Ray that is started here


class CannotPlace(UserError, RuntimeError):
    """The cluster is not there, or lacks what a config asks for."""


@contextmanager
def connected(settings: Cluster) -> Iterator[None]:
    """Connect to the cluster, or start Ray on this machine; a connection that exists already is used and kept."""
    own = not ray.is_initialized()
    if own:
        _connect(settings.address)
    try:
        check_resources(settings, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        yield
    finally:
        if own:
            ray.shutdown()


def _connect(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    try:
        if address == "local":
            ray.init("local", object_store_memory=OBJECT_STORE, include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except ConnectionError as error:
        start = "start one with `ray start --head`, or let Coterie start Ray here with `cluster.address: local`"
        raise CannotPlace(f"cluster.address: there is no Ray cluster at {address}: {start}\n{error}") from error


def check_resources(settings: Cluster, nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise a CannotPlace that names what is missing. Workers are placed greedily, the largest first."""
    learner, rollout = settings.learner, settings.rollout
    needs = {
        "cluster.learner": ({"GPU": learner.gpus, "CPU": learner.cpus}, learner.workers),
        "cluster.rollout": ({"GPU": rollout.all_gpus, "CPU": rollout.cpus}, rollout.least or rollout.workers),
    }
    if settings.graders is not None:
        needs["cluster.graders"] = ({"GPU": 0.0, "CPU": settings.graders.cpus}, settings.graders.workers)
    free = [{name: node.get(name, 0.0) for name in ("GPU", "CPU")} for node in nodes]
    for key, (each, count) in sorted(needs.items(), key=lambda one: (-one[1][0]["GPU"], -one[1][0]["CPU"])):
        placed = sum(_place(each, free) for _ in range(count))
        if placed < count:
            raise CannotPlace(
                f"{key}: {count} workers with {_words(each)} each are asked for, but {_found(nodes, placed)}"
            )


def _place(each: Resources, free: Sequence[Resources]) -> bool:
    """Take what a worker needs from the first node that has it."""
    node = next((node for node in free if all(node[name] >= amount for name, amount in each.items())), None)
    for name, amount in each.items() if node else ():
        node[name] -= amount  # type: ignore[index]
    return node is not None


def _found(nodes: Sequence[Mapping[str, float]], placed: int) -> str:
    has = "; ".join(_words({name: node.get(name, 0.0) for name in ("GPU", "CPU")}) for node in nodes)
    return f"only {placed} fit on the {len(nodes)} nodes of the cluster ({has}) beside the others"


def _words(resources: Resources) -> str:
    return " and ".join(f"{amount:g} {name}s" for name, amount in resources.items())
