"""Programs that a model writes run under bubblewrap alone, unless the config says `sandbox: unsafe`."""

from __future__ import annotations

from coterie.config.config import Config
from coterie.config.problems import Problems
from coterie.sandbox import allow_unsafe
from coterie.sandbox.bubblewrap import problem
from coterie.types import Env


def must_be_protected(config: Config, env: Env) -> None:
    """Raise a ConfigError if the team executes programs and cannot do so safely; asked before any model loads."""
    unsafe = config.sandbox == "unsafe"
    allow_unsafe(unsafe)
    executing = executes_programs(config, env)
    if unsafe or not executing or problem() is None:
        return
    problems = Problems(config.sources)
    anyway = "`sandbox: unsafe` runs them all the same, and then they can read and change your files"
    problems.add(("sandbox",), f"{' and '.join(executing)} would execute programs, but {problem()}. {anyway}")
    problems.raise_any()


def executes_programs(config: Config, env: Env) -> list[str]:
    """The parts that say of themselves that they execute what a model wrote.

    A part of the user's own need not have the attribute; the sandbox itself refuses what was not announced.
    """
    parts = {
        f"workflow {config.workflow.name}": config.workflow.instance,
        f"env {config.env.name} with reward {config.reward.name}": env,
    }
    return [name for name, part in parts.items() if getattr(part, "needs_sandbox", False)]
