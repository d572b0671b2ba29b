"""What a run is made of: a YAML file and `a.b=1` overrides, read strictly into frozen dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from coterie.config import yamltree
from coterie.config.functions import function_name
from coterie.config.names import unusable_names
from coterie.config.problems import ConfigError, Problems, Sources, did_you_mean
from coterie.config.reader import Limits, Reader
from coterie.config.registry import Kind, foreign_format
from coterie.config.settings import (
    Checkpoints,
    Collapse,
    CriticConfig,
    EngineConfig,
    Evaluation,
    Hidden,
    Learning,
    Logging,
    Lora,
    Opponents,
    Policy,
    Role,
    Rollout,
)
from coterie.credit.team import Team
from coterie.limits import Amount, Count, CountFromZero, PositiveShare, Seed, Temperature
from coterie.types import Part, Sampling, Weighted
from coterie.user_code import resolve_copies

__all__ = [
    "PARTS",
    "Checkpoints",
    "Collapse",
    "Config",
    "ConfigError",
    "CriticConfig",
    "EngineConfig",
    "Evaluation",
    "Hidden",
    "Learning",
    "Logging",
    "Lora",
    "Opponents",
    "Part",
    "Policy",
    "Role",
    "Rollout",
    "dump",
    "load",
]  # fmt: skip

PARTS: tuple[Kind, ...] = ("workflow", "env", "reward", "algorithm", "credit", "encoder")
ENCODER = Part("hidden", {"model": None}, Hidden())
SAMPLING = Limits(max_tokens=Count, temperature=Temperature, top_p=PositiveShare, top_k=CountFromZero)


@dataclass(frozen=True)
class Config:
    """A whole run: the team, how it talks, what it works on, and how it learns."""

    policies: dict[str, Policy]
    roles: dict[str, Role]
    workflow: Part
    env: Part
    reward: Part
    algorithm: Part
    credit: Part = field(default_factory=lambda: Part("team", dict(vars(Team())), Team()))
    critics: dict[str, CriticConfig] = field(default_factory=dict)
    encoder: Part = ENCODER
    name: str = "run"  # `load` takes the file's
    seed: Seed = 0
    steps: Amount = 100
    tasks_per_step: Amount = 8
    episodes_per_task: Amount = 8
    sampling: Annotated[Sampling, SAMPLING] = field(default_factory=Sampling)
    opponents: Opponents | None = None
    collapse: Collapse | None = None
    learning: Learning = field(default_factory=Learning)
    rollout: Rollout = field(default_factory=Rollout)
    engine: EngineConfig = field(default_factory=EngineConfig)
    eval: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    log: Logging = field(default_factory=Logging)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    sandbox: Literal["bubblewrap", "unsafe"] = "bubblewrap"  # unsafe: programs run also where bubblewrap does not work
    _sources: Sources = field(default_factory=Sources, compare=False, repr=False)

    @property
    def sources(self) -> Sources:
        """Where each key was written, for later complaints."""
        return self._sources

    def sampling_of(self, role: str) -> Sampling:
        """How a role's turns are drawn in training: its own settings over `sampling`."""
        own = self.roles[role]
        return replace(
            self.sampling,
            max_tokens=self.sampling.max_tokens if own.max_tokens is None else own.max_tokens,
            temperature=self.sampling.temperature if own.temperature is None else own.temperature,
            stop=self.sampling.stop if own.stop is None else own.stop,
        )

    def evaluation_sampling_of(self, role: str) -> Sampling:
        """How a role's turns are drawn in evaluation: as in training, at the evaluation's temperature and cuts."""
        how = self.eval
        return replace(self.sampling_of(role), temperature=how.temperature, top_p=how.top_p, top_k=how.top_k)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, or a graph in siiRL's format; each override, like `policies.solver.lr=1e-4`, goes over it."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    text = text_of(path)
    if (foreign := foreign_format(text)) is not None:
        tree, overrides = foreign.translate(text, path, overrides, problems)
    else:
        tree = yamltree.read(text, problems)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values")
    tree.setdefault("name", path.stem)
    return of(tree, problems, path.parent, overrides)


def text_of(path: Path) -> str:
    """What a file says; a ConfigError where it is not UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 on line {line}: the byte 0x{data[error.start]:02x}") from error


def of(tree: dict[str, Any], problems: Problems, folder: Path, overrides: Sequence[str] = ()) -> Config:
    """A config from plain data; paths in it are looked for in `folder` first."""
    for key in tree:  # a mapping that is given from Python has no lines
        problems.sources.places.setdefault((key,), problems.sources.file)
    _spell_out(tree)
    for override in overrides:
        yamltree.override(tree, override, problems)
        _spell_out(tree)
    _leave_out_misspelt_roles(tree, problems)
    tree = resolve_copies(tree, folder)
    config = Reader(problems, folder).value(Config, tree, ())
    problems.raise_any()
    for path, message in unusable_names(config):
        problems.add(path, message)
    problems.raise_any()
    return replace(config, _sources=problems.sources)


def dump(config: Config) -> str:
    """The whole config as YAML, defaults included; it loads to an equal one."""
    return yamltree.write(to_tree(config))


def to_tree(config: Config) -> dict[str, Any]:
    """The whole config as plain data. The usual encoder is left out: written, it would be refused where no mixer reads
    it, as when a run is judged again by another algorithm."""
    tree: dict[str, Any] = plain(config)
    if config.encoder == ENCODER:
        del tree["encoder"]
    return tree


def _spell_out(tree: dict[str, Any]) -> None:
    """Write short forms long, so that overrides can reach inside: `workflow: chain`, `solver: small`."""
    for part in PARTS:
        if part in tree and isinstance(tree[part], str):
            tree[part] = {"name": tree[part]}
    if "roles" in tree and isinstance(tree["roles"], dict):
        roles = tree["roles"].items()
        tree["roles"] = {name: {"policy": role} if isinstance(role, str) else role for name, role in roles}


def _leave_out_misspelt_roles(tree: dict[str, Any], problems: Problems) -> None:
    """A role that an override alone names, and gives no policy, is meant to be one of the others."""
    roles, sources = tree.get("roles"), problems.sources
    if not isinstance(roles, dict) or sources.is_overridden(("roles",)):
        return
    made = {name: role for name, role in roles.items() if sources.is_overridden(("roles", name))}
    for name in [name for name, role in made.items() if isinstance(role, dict) and "policy" not in role]:
        del roles[name]
        others = ", ".join(roles) or "none"
        problems.add(("roles", name), f"no such role; there is {others}{did_you_mean(name, roles)}")


def plain(value: Any) -> Any:
    """A value as YAML can hold it."""
    if isinstance(value, Part):
        weight = {"weight": value.weight} if isinstance(value, Weighted) else {}
        return {"name": value.name, **weight, **plain(value.options)}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name[0] != "_"}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if inspect.isfunction(value):
        return function_name(value)
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
