"""The config of every algorithm on every game, as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Tree = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """One game: workflow, environment, roles, and changes to the config of `config_of`."""

    workflow: Tree
    env: Tree
    roles: tuple[str, ...]
    zero_sum: bool = False  # measured by exploitability instead of reward
    changes: Tree = field(default_factory=dict)
    options: Tree = field(default_factory=dict)  # options of every algorithm in this game
    settings: dict[str, Tree] = field(default_factory=dict)  # by algorithm: further options in this game
    only: tuple[str, ...] = ()  # the algorithms to run by default, if a run takes minutes; empty: all


def part(file: str, name: str, **options: Any) -> Tree:
    return {"name": f"{HERE / file}.py:{name}", **options}


TEAM, PLAYERS = ("left", "right"), ("first", "second")
AT_ONCE = part("matrix", "AtOnce", order=list(TEAM))
# Policy gradients circle around an equilibrium. An entropy bonus draws them in; as it and the learning rate decay, they
# settle near it, and the average of the snapshots in the pool is nearer still.
SELF_PLAY: Tree = {
    "credit": "own",
    "opponents": {"share": 0.1, "every": 5, "keep": 32},
    "collapse": {},
    "learning": {"schedule": "cosine"},
}
GAMES: dict[str, Setup] = {
    "naming": Setup(
        part("naming", "OneByOne", order=list(TEAM)),
        part("naming", "Naming", letters={"left": "a", "right": "b"}, prompt="."),
        TEAM,
    ),
    "additive": Setup(AT_ONCE, part("matrix", "Additive"), TEAM),
    "climbing": Setup(AT_ONCE, part("matrix", "Climbing"), TEAM),
    "pennies": Setup(
        part("pennies", "PenniesTable"),
        part("pennies", "Pennies"),
        PLAYERS,
        True,
        SELF_PLAY | {"steps": 80, "tasks_per_step": 8},
        {"entropy": 1.0, "entropy_halves": 40, "minibatches": 4},
    ),
    "kuhn": Setup(
        part("kuhn", "KuhnTable"),
        part("kuhn", "Kuhn"),
        PLAYERS,
        True,
        SELF_PLAY | {"steps": 320, "tasks_per_step": 6, "episodes_per_task": 48},
        {"entropy": 0.5, "entropy_halves": 96, "minibatches": 4},
        # Compared with turns of the same deal and prompt, in chips: that has the least noise.
        {"grpo": {"group_by": ["task", "role", "prompt"], "scale": "none"}},
        ("grpo",),
    ),
}

# Options of an algorithm, the same in every game.
SETTINGS: dict[str, Tree] = {
    "dr_grpo": {"reduce_length": 1},  # a turn is one token
    "dapo": {"drop_truncated": False},  # a turn is one token, so every turn is truncated
    "cory": {"swap": 1},  # a run is short, and both have to learn both roles
}
CHANGES: dict[str, Tree] = {
    "cory": {"steps": 80},  # each policy has to learn both roles
    "at_grpo": {"episodes_per_task": 2},  # it plays each of them seven times: as many turns as the others have
}
# In zero-sum games the team's reward is 0: algorithms that share one reward, or one chain of credit, cannot learn.
FOR_TEAMS = ("ppo", "cory", "magrpo", "vdn_token", "vdn", "qmix")


def plays(algorithm: str, game: str) -> bool:
    """False for team algorithms on zero-sum games."""
    return not (GAMES[game].zero_sum and algorithm in FOR_TEAMS)


def config_of(game: str, algorithm: str, model: Path, seed: int) -> Tree:
    """A run of one algorithm on one game. In a team every role trains its own whole tiny model; in a zero-sum game one
    adapter plays both roles, so that its snapshots can play against it."""
    setup = GAMES[game]
    own = SETTINGS.get(algorithm, {}) | setup.settings.get(algorithm, {})
    options: Tree = {"name": algorithm, **setup.options, **own}
    policies: Tree = {role: {"model": str(model), "lora": None, "lr": 3e-3} for role in setup.roles}
    roles = {role: role for role in setup.roles}
    if setup.zero_sum:
        policies = {"player": {"model": str(model), "lora": {"rank": 8, "alpha": 16.0}, "lr": 8e-4}}
        roles = dict.fromkeys(setup.roles, "player")
    tree: Tree = {
        "name": f"{game}-{algorithm}-{seed}",
        "seed": seed,
        "steps": 40,
        "tasks_per_step": 4,
        "episodes_per_task": 8,
        "policies": policies,
        "roles": roles,
        "workflow": setup.workflow,
        "env": setup.env,
        "reward": "native",
        "algorithm": options,
        "sampling": {"max_tokens": 1},
        "eval": {"tasks": 64, "episodes_per_task": 4, "temperature": 1.0},
        "checkpoint": {"every": 100_000},
        "engine": {"rows": 32},
        "device": "cpu",
    }
    return tree | CHANGES.get(algorithm, {}) | setup.changes
