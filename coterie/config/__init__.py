"""YAML and `a.b=1` overrides → frozen dataclasses, strictly: an error names the key, its place and the nearest name."""

from coterie.config.load import dump, load
from coterie.config.problems import ConfigError
from coterie.config.settings import Config, CriticConfig, Learning, Lora, Policy

__all__ = ["Config", "ConfigError", "CriticConfig", "Learning", "Lora", "Policy", "dump", "load"]
