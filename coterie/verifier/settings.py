"""The settings of a verifier run, as its config.yaml holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from coterie.config import Learning, Lora
from coterie.errors import UserError
from coterie.limits import Count, PositiveShare, Seed, Share

FILE = "config.yaml"


class BadVerifierConfig(UserError, ValueError):
    """A run's config.yaml that is missing, damaged, or not of a verifier."""


def default_learning() -> Learning:
    return Learning(schedule="linear")


@dataclass(frozen=True)
class VerifierConfig:
    """The settings of a verifier's training."""

    answers: str  # a Parquet file of answers
    answers_sha256: str  # of that file: a resumed run must read the same answers
    model: str  # the base model
    base_sha256: str  # of its files: the adapter means nothing on another base
    lora: Lora = field(default_factory=Lora)  # the adapter that learns, if `adapter` is null
    adapter: str | None = None  # a trained PEFT adapter, such as a solver's: only a score head learns, on top of it
    learning: Learning = field(default_factory=default_learning)
    lr: PositiveShare = 5e-4  # of the adapter
    head_lr: PositiveShare = 1e-3  # of the score head
    epochs: Count = 3  # passes over the training questions
    questions_per_step: Count = 8  # a step trains on all answers of so many questions
    held_out: Share = 0.2  # share of the questions that are held out
    evaluations: Count = 10  # on the held-out questions, evenly spaced over the steps; each writes a checkpoint
    context: Count | None = None  # tokens of a conversation, at most; null: the model's own limit
    seed: Seed = 0  # of the split, the order of the questions and the adapter's first weights
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def to_yaml(self) -> str:
        return yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)


def read_settings(run: Path) -> VerifierConfig:
    """The settings of the verifier run in a folder."""
    file = run / FILE
    if not file.is_file():
        raise BadVerifierConfig(f"{run}: not a verifier run: it has no {FILE}")
    try:
        return TypeAdapter(VerifierConfig).validate_python(yaml.safe_load(file.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise BadVerifierConfig(f"{file}: not the config of a verifier: {key}: {first['msg']}") from error
    except yaml.YAMLError as error:
        raise BadVerifierConfig(f"{file}: not YAML: {error}") from error
