"""The registry of parts: built in, by name, or from a user's own file, `path/to/file.py:Name`.

Options that are functions are named in the same way, so that a resumed run can import them again.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_type_hints
from zlib import crc32

from coterie.config.problems import ConfigError
from coterie.errors import did_you_mean
from coterie.types import Part
from coterie.user_code import original_path, run_file

Kind = Literal["algorithm", "credit", "workflow", "env", "reward", "encoder"]
Options = dict[str, "Option"]  # by name

USERS = "coterie_user_"  # prefix of the module name of a user's file

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
        "agent_loop": "coterie.compat.rllm.agent_loop:AgentLoop",
        "rllm": "coterie.compat.rllm.own_workflow:OwnWorkflow",
        "marft": "coterie.compat.marft.workflow:Marft",
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
        "agent_rows": "coterie.compat.rllm.agent_loop:AgentRows",
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
        "verifier": "coterie.rewards.verifier:verifier",
        "judge": "coterie.rewards.judge:judge",
        "compose": "coterie.rewards.grader:compose",
        "row_function": "coterie.compat.rllm.rewards:row_function",
        "native": "coterie.config.registry:native",
    },
    "encoder": {"hidden": "coterie.config.settings:Hidden"},
}


# Modules with `recognizes(text)` and `translate(text, file, overrides, problems)`, imported when a config is loaded.
FOREIGN_FORMATS = ("coterie.compat.siirl.translate",)


@dataclass(frozen=True)
class Option:
    """An option: its type, and its default unless it is required."""

    hint: Any
    default: Any = MISSING


def native() -> None:
    """The reward of an environment that scores itself; it has no options."""


def default_part(kind: Kind, name: str) -> Part:
    """A built-in part with its default options."""
    cls = find(kind, name)
    return Part(name, {key: option.default for key, option in options_of(cls).items()}, cls())


def find(kind: Kind, name: str, folder: Path = Path()) -> Any:
    """The class of an algorithm, workflow or environment, or a reward's function."""
    if names_file(name):
        return _from_file(kind, name, folder)
    known = BUILTIN[kind]
    if name not in known:
        own = f"or path/to/file.py:Name{did_you_mean(name, known)}"
        raise ConfigError(f"no {kind} is called {name!r}; there are {', '.join(known)}, {own}")
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def foreign_format(text: str) -> Any:
    """The module that translates a file in another system's format, or None for a config of our own."""
    modules = map(importlib.import_module, FOREIGN_FORMATS)
    return next((module for module in modules if module.recognizes(text)), None)


def names_file(name: str) -> bool:
    return ".py:" in name


def portable_name(name: str, folder: Path) -> str:
    """A part's name that does not depend on the config's folder: relative to the current one, else absolute."""
    if not names_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    found = _user_file(path, folder)
    return name if Path(path).exists() and Path(path).resolve() == found else f"{found}:{attribute}"


def options_of(part: Any) -> Options:
    """The options of a part: a dataclass's fields, a class's arguments, a reward's keyword-only arguments."""
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
    """The object that `path/to/file.py:name` names."""
    path, _, attribute = name.rpartition(":")
    module = user_module(_user_file(path, folder))
    own = [known for known, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    if attribute not in vars(module):
        raise ConfigError(f"{path} has no {attribute}; it has {', '.join(own)}" + did_you_mean(attribute, own))
    return vars(module)[attribute]


def _from_file(kind: Kind, name: str, folder: Path) -> Any:
    part = attribute_of(name, folder)
    expected = "function" if kind == "reward" else "class"
    if not (inspect.isfunction(part) if kind == "reward" else inspect.isclass(part)):
        if kind == "reward" and callable(part):
            what = f"the class {part.__name__}" if inspect.isclass(part) else f"an instance of {type(part).__name__}"
            state = "a cached function keeps a model that it loads, see docs/adding-a-reward.md"
            raise ConfigError(f"{name} is {what}, but reward needs a function: write def score(answer, truth); {state}")
        raise ConfigError(f"{name} is a {type(part).__name__}, but {kind} needs a {expected}")
    return part


def find_path(path: Path, folder: Path) -> Path:
    """The absolute path of a file or folder, looked up in `folder`, then in the current one; as given if in neither."""
    candidates = (folder / path.expanduser(), path.expanduser())
    return next((candidate.resolve() for candidate in candidates if candidate.exists()), path)


def _user_file(path: str, folder: Path) -> Path:
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate.resolve()
    places = dict.fromkeys(str(place) for place in (folder.resolve(), Path.cwd()))
    raise ConfigError(f"there is no file {path} in {' or '.join(places)}")


@cache
def user_module(path: Path) -> ModuleType:
    """A user's file, imported once. Any exception in it becomes a ConfigError with its line."""
    try:
        return run_file(path, module_name(path))
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError(f"{path}{_line_of(error, path)}: {type(error).__name__}: {error}") from error


def module_name(path: Path) -> str:
    """The module name of a user's file: by its original path and its content, so that a copy of it on another machine,
    wherever that is, unpickles the same objects."""
    return f"{USERS}{path.stem}_{crc32(path.read_bytes(), crc32(str(original_path(path)).encode())):08x}"


def line_in_users_file(part: Any, error: BaseException) -> str | None:
    """`parts.py, line 3`, where an exception arose in a user's own part; None for a built-in part."""
    if not part.__module__.startswith(USERS):
        return None
    spec = sys.modules[part.__module__].__spec__
    path = Path(str(spec and spec.origin))  # `__file__` of a run's copy is the original's
    return f"{path}{_line_of(error, path)}"


def _line_of(error: BaseException, path: Path) -> str:
    """The innermost line of the file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


class FunctionName(str):
    """The name of a function that was given from Python; a plain `str` would be accepted by options that take text."""


def find_function(name: Any, folder: Path) -> Any:
    """The function that a config names."""
    if not isinstance(name, str) or not names_file(name):
        raise ConfigError(f"{name!r} is not the name of a function; write path/to/file.py:name")
    found = attribute_of(name, folder)
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, expected a function")
    return found


def replace_functions(value: Any, key: str) -> Any:
    """A value from Python with every function in it replaced by its name; `key` is its place in error messages."""
    if isinstance(value, Mapping):
        return {name: replace_functions(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_functions(item, f"{key}.{place}") for place, item in enumerate(value)]
    if not callable(value):
        return value
    if (name := function_name(value)) is None:
        what = getattr(value, "__qualname__", type(value).__name__)
        why = "so that a resumed run can import it again"
        raise ConfigError(f"{key}: {what} must be a function at the top of a file, {why}")
    return FunctionName(name)


def function_name(function: Any) -> str | None:
    """`/path/to/file.py:name` of a function or class; None for what cannot be imported by name, such as a lambda."""
    named = inspect.isfunction(function) or (inspect.isclass(function) and function.__module__ != "builtins")
    if not named or not function.__qualname__.isidentifier():
        return None
    file = inspect.getsourcefile(function)
    return f"{Path(file).resolve()}:{function.__qualname__}" if file is not None and Path(file).is_file() else None
