"""Where the parts of a run come from: built in, by name, or a user's own file, `path/to/file.py:Name`."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_type_hints
from zlib import crc32

from coterie.config.problems import ConfigError, did_you_mean
from coterie.user_code import run_file

Kind = Literal["algorithm", "credit", "workflow", "env", "reward", "encoder"]

USERS = "coterie_user_"  # begins the name of a module that is a user's file

BUILTIN: dict[Kind, dict[str, str]] = {
    "algorithm": {
        "grpo": "coterie.algorithms.grpo:Grpo",
        "dr_grpo": "coterie.algorithms.dr_grpo:DrGrpo",
        "rloo": "coterie.algorithms.rloo:Rloo",
        "reinforce++": "coterie.algorithms.reinforce_pp:ReinforcePp",
        "gspo": "coterie.algorithms.gspo:Gspo",
        "dapo": "coterie.algorithms.dapo:Dapo",
        "dr_mas": "coterie.algorithms.dr_mas:DrMas",
        "at_grpo": "coterie.algorithms.at_grpo:AtGrpo",
        "magrpo": "coterie.algorithms.magrpo:Magrpo",
        "rae": "coterie.algorithms.rae:Rae",
        "ppo": "coterie.algorithms.ppo:Ppo",
        "ippo": "coterie.algorithms.ippo:Ippo",
        "mappo": "coterie.algorithms.mappo:Mappo",
        "happo": "coterie.algorithms.happo:Happo",
        "cory": "coterie.algorithms.cory:Cory",
        "vdn_token": "coterie.algorithms.vdn_token:VdnToken",
        "vdn": "coterie.algorithms.vdn:Vdn",
        "qmix": "coterie.algorithms.qmix:Qmix",
    },
    "credit": {
        "team": "coterie.credit.team:Team",
        "own": "coterie.credit.own:Own",
        "aggregate": "coterie.credit.aggregate:Aggregate",
        "influence": "coterie.credit.influence:Influence",
        "maporl": "coterie.credit.maporl:Maporl",
        "difference": "coterie.credit.difference:Difference",
        "graph": "coterie.compat.siirl.credit:GraphCredit",
    },
    "workflow": {
        "single": "coterie.workflows.single:Single",
        "chain": "coterie.workflows.chain:Chain",
        "debate": "coterie.workflows.debate:Debate",
        "vote": "coterie.workflows.vote:Vote",
        "verified_vote": "coterie.workflows.verified_vote:VerifiedVote",
        "cory": "coterie.workflows.cory:Cory",
        "graph": "coterie.compat.siirl.workflow:Graph",
        "summarize": "coterie.workflows.summarize:Summarize",
        "mixture": "coterie.workflows.mixture:Mixture",
        "refine": "coterie.workflows.refine:Refine",
        "orchestrate": "coterie.workflows.orchestrate:Orchestrate",
        "multi_turn": "coterie.workflows.multi_turn:MultiTurn",
        "deepcoder": "coterie.workflows.deepcoder:DeepCoder",
        "swe": "coterie.workflows.swe:Swe",
        "math_tool": "coterie.workflows.math_tool:MathTool",
        "search": "coterie.workflows.search:Search",
        "deep_research": "coterie.workflows.deep_research:DeepResearch",
    },
    "env": {
        "reasoning_gym": "coterie.envs.reasoning_gym:ReasoningGym",
        "gsm8k": "coterie.envs.dataset_env:Gsm8k",
        "math": "coterie.envs.dataset_env:Math",
        "aime": "coterie.envs.dataset_env:Aime",
        "anli": "coterie.envs.dataset_env:Anli",
        "hotpotqa": "coterie.envs.dataset_env:HotpotQa",
        "mbpp": "coterie.envs.code:Mbpp",
        "humaneval": "coterie.envs.code:HumanEval",
        "deepcoder": "coterie.envs.code:DeepCoder",
        "rows": "coterie.envs.rows:Rows",
        "graph": "coterie.compat.siirl.env:GraphTasks",
        "graph_env": "coterie.compat.siirl.env:GraphEnv",
        "swe": "coterie.envs.swe.env:Swe",
        "nim": "coterie.envs.worlds.nim:Nim",
        "hunt": "coterie.envs.worlds.treasure_hunt:Hunt",
        "aec": "coterie.envs.worlds.pettingzoo:Aec",
    },
    "reward": {
        "exact": "coterie.rewards.exact_match:exact",
        "number": "coterie.rewards.exact_match:number",
        "math": "coterie.rewards.math:math",
        "code": "coterie.rewards.code.grader:code",
        "qa": "coterie.rewards.qa:qa",
        "nli": "coterie.rewards.nli:nli",
        "choice": "coterie.rewards.choice:choice",
        "format": "coterie.rewards.format:format",
        "length": "coterie.rewards.length:length",
        "compose": "coterie.rewards.grader:compose",
        "native": "coterie.config.registry:native",
    },
    "encoder": {"hidden": "coterie.config.settings:Hidden"},
}


# Modules with `recognizes(text)` and `translate(text, file, overrides, problems)`, imported when a config is loaded.
FOREIGN_FORMATS = ("coterie.compat.siirl.translate",)


@dataclass(frozen=True)
class Option:
    """One thing that can be set: its type, and its default unless it must be given."""

    hint: Any
    default: Any = MISSING


def native() -> None:
    """The reward of an environment that scores itself: a name in the config, with no options of its own."""


def find(kind: Kind, name: str, folder: Path = Path()) -> Any:
    """The class of an algorithm, workflow or environment, or a reward's function."""
    if is_file(name):
        return _from_file(kind, name, folder)
    known = BUILTIN[kind]
    if name not in known:
        raise ConfigError(
            f"no {kind} is called {name!r}; there are {', '.join(known)}, or path/to/file.py:Name"
            + did_you_mean(name, known)
        )
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def foreign_format(text: str) -> Any:
    """The module that translates a file in another system's format, or None for a config of our own."""
    modules = map(importlib.import_module, FOREIGN_FORMATS)
    return next((module for module in modules if module.recognizes(text)), None)


def is_file(name: str) -> bool:
    return ".py:" in name


def lasting(name: str, folder: Path) -> str:
    """The name by which a part is found wherever the config is stored: a path from here, else an absolute one."""
    if not is_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    found = _locate(path, folder)
    return name if Path(path).exists() and Path(path).resolve() == found else f"{found}:{attribute}"


def options_of(part: Any) -> dict[str, Option]:
    """What can be set on a part: a dataclass's fields, a class's arguments, a reward's keyword-only arguments."""
    if is_dataclass(part):
        hints = get_type_hints(part, include_extras=True)
        return {f.name: Option(hints[f.name], _default(f)) for f in fields(part) if f.init and f.name[0] != "_"}
    is_class = inspect.isclass(part)
    hints = get_type_hints(part.__init__ if is_class else part, include_extras=True)
    return {
        p.name: Option(hints.get(p.name, Any), MISSING if p.default is p.empty else p.default)
        for p in inspect.signature(part).parameters.values()
        if p.kind is p.KEYWORD_ONLY or (is_class and p.kind is p.POSITIONAL_OR_KEYWORD)
    }


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def attribute_of(name: str, folder: Path) -> Any:
    """What `path/to/file.py:name` names."""
    path, _, attribute = name.rpartition(":")
    module = user_module(_locate(path, folder))
    own = [known for known, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    if attribute not in vars(module):
        raise ConfigError(f"{path} has no {attribute}; it has {', '.join(own)}" + did_you_mean(attribute, own))
    return vars(module)[attribute]


def _from_file(kind: Kind, name: str, folder: Path) -> Any:
    part = attribute_of(name, folder)
    wanted = "function" if kind == "reward" else "class"
    if not (inspect.isfunction(part) if kind == "reward" else inspect.isclass(part)):
        raise ConfigError(f"{name} is a {type(part).__name__}, but {kind} wants a {wanted}")
    return part


def _locate(path: str, folder: Path) -> Path:
    """A user's file: beside the config first, then from where the command was given."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(f"there is no file {path}, neither in {folder.resolve()} nor in {Path.cwd()}")


@cache
def user_module(path: Path) -> ModuleType:
    """A user's file, run once. Whatever goes wrong in it is a ConfigError that tells where."""
    try:
        return run_file(path, f"{USERS}{path.stem}_{crc32(str(path).encode()):08x}")
    except (Exception, SystemExit) as error:  # it is not our code, so it may be anything
        raise ConfigError(f"{path}{_line_of(error, path)}: {type(error).__name__}: {error}") from error


def line_in_users_file(part: Any, error: BaseException) -> str | None:
    """`parts.py, line 3`, where an error of a user's own class or function arose; None for one of ours."""
    if not part.__module__.startswith(USERS):
        return None
    spec = sys.modules[part.__module__].__spec__
    path = Path(str(spec and spec.origin))  # not `__file__`, which in a run's copy is the original's
    return f"{path}{_line_of(error, path)}"


def _line_of(error: BaseException, path: Path) -> str:
    """The last line of a file that led to an error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
