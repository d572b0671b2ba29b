"""What the machine must have for a config: optional packages, and a sandbox for programs that a model writes."""

from __future__ import annotations

from importlib.util import find_spec

from coterie.config.problems import Problems
from coterie.config.settings import Config
from coterie.sandbox import allow_unsafe
from coterie.sandbox.bubblewrap import problem
from coterie.types import Env


def require_packages(config: Config) -> None:
    """Raise a ConfigError with the install command of every package that the config needs and that is missing."""
    problems = Problems(config.sources)
    if config.log.wandb is not None and find_spec("wandb") is None:
        problems.add(("log", "wandb"), "wandb is not installed; `pip install -e '.[wandb]'` installs it")
    if config.engine.name == "vllm" and find_spec("vllm") is None:
        problems.add(("engine", "name"), "vllm is not installed; `pip install -e '.[vllm]'` installs it")
    if config.cluster is not None and find_spec("ray") is None:
        problems.add(("cluster",), "ray is not installed; `pip install -e '.[ray]'` installs it")
    problems.raise_any()


def require_sandbox(config: Config, env: Env | None) -> None:
    """Raise a ConfigError if the team executes programs and bubblewrap does not work, unless `sandbox: unsafe`."""
    unsafe = config.sandbox == "unsafe"
    allow_unsafe(unsafe)
    parts = executing_parts(config, env)
    if unsafe or not parts or problem() is None:
        return
    problems = Problems(config.sources)
    anyway = "`sandbox: unsafe` runs them anyway, and then they can read and change your files"
    problems.add(("sandbox",), f"{' and '.join(parts)} would execute programs, but {problem()}. {anyway}")
    problems.raise_any()


def executing_parts(config: Config, env: Env | None) -> list[str]:
    """The parts whose `needs_sandbox` is true: they execute what a model wrote.

    A user's own part may lack the attribute; then the sandbox raises when it is first used.
    """
    parts = {
        f"workflow {config.workflow.name}": config.workflow.instance,
        f"env {config.env.name} with reward {config.reward.name}": env,
    }
    return [name for name, part in parts.items() if getattr(part, "needs_sandbox", False)]
