"""YAML and `a.b=1` overrides → frozen dataclasses, strictly: an error names the key, its place and the nearest name."""

from coterie.config.load import dump, load
from coterie.config.problems import ConfigError
from coterie.config.settings import Config, CriticConfig, EngineConfig, Learning, Lora, Policy, Role, Rollout
from coterie.types import Part

__all__ = [
    "Config",
    "ConfigError",
    "CriticConfig",
    "EngineConfig",
    "Learning",
    "Lora",
    "Part",
    "Policy",
    "Role",
    "Rollout",
    "dump",
    "load",
]
