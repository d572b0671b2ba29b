"""Writes a recipe from a MARFT profile, with the settings that MARFT has by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.compat.marft.profiles import plain_prompt, read_profiles
from coterie.config import yamltree
from coterie.learners.value_head import MARFT_FILE

LORA = {"rank": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"]}
# MARFT's defaults: actions are whole replies, GAE runs over agents and rounds, the critic has a Huber loss.
APPO = {
    "name": "ppo", "level": "turn", "gamma_turn": 0.99, "lam_turn": 0.95, "clip": 0.2, "entropy": 0.01,
    "epochs": 5, "minibatches": 4, "value_lr": 5e-4, "value_huber": 10.0,
}  # fmt: skip


def recipe(
    profile: Path, model: str = "demo", horizon: int = 1, data: Path | None = None, load_path: Path | None = None
) -> str:
    """The text of a recipe: an adapter per agent, one critic for all, and the agents themselves.

    `data`: training rows with `problem` and `final_answer`. `load_path`: a folder with an adapter per role, and the
    head of the critic.
    """
    agents = read_profiles(profile)
    lines = [
        f"# {len(agents)} agents from MARFT's profile {profile.name}, imported by `coterie import marft`.",
        "# The settings are MARFT's defaults (APPO); docs/coming-from-marft.md has its names and those here.",
    ]
    tree = {
        "tasks_per_step": 32,
        "episodes_per_task": 1,
        "policies": {agent.role: _policy(agent.role, model, load_path) for agent in agents},
        "roles": {agent.role: {"policy": agent.role} for agent in agents},
        "workflow": {
            "name": "marft",
            "horizon": horizon,
            "agents": [
                {"role": agent.role, "with_answer": agent.with_answer, "prompt": plain_prompt(agent.prompt)}
                for agent in agents
            ],
        },
        "env": {"name": "rows", "train": str(data or "train.json"), "question": "problem", "answer": "final_answer"},
        "reward": "math",
        "algorithm": APPO,
        "critics": {"team": _critic(model, load_path)},
        "sampling": {"max_tokens": 256, "temperature": 0.5},
        "learning": {"clip_norm": 0.5},
        "eval": {"tasks": 0},
    }
    return "\n".join([*lines, yamltree.write(tree)])


def _policy(role: str, model: str, load_path: Path | None) -> dict[str, Any]:
    if load_path is None:
        return {"model": model, "lr": 5e-7, "lora": LORA}
    return {"model": model, "lr": 5e-7, "adapter": str(_folder(load_path / role, "adapter_config.json"))}


def _critic(model: str, load_path: Path | None) -> dict[str, Any]:
    """A frozen base model with an MLP as value head; it reads the prompt of the agent that it values."""
    start = {} if load_path is None else {"adapter": str(_folder(load_path, MARFT_FILE))}
    return {"model": model, "frozen": True, "head": "mlp", **start}


def _folder(folder: Path, file: str) -> Path:
    if not (folder / file).is_file():
        raise ValueError(
            f"{folder}: has no {file}; a load_path has a folder with an adapter per role, and {MARFT_FILE}"
        )
    return folder.resolve()
