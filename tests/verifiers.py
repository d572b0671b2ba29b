"""Toy answers and a verifier on a tiny model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.config import Lora
from coterie.verifier.answers import Answer, write_answers
from coterie.verifier.model import Verifier, base_hash, build_verifier
from coterie.verifier.settings import VerifierConfig
from coterie.verifier.train import VerifierRun, build, file_hash


def toy_answers(questions: int = 24, each: int = 4, seed: int = 0) -> list[Answer]:
    """Half of the answers to each question are right: those that say yes, whatever the question is."""
    rng, answers = random.Random(seed), []
    for q in range(questions):
        for k in range(each):
            right = k % 2 == 0
            text = f"The answer is {rng.randrange(100)}. {'Yes, it is' if right else 'No, the other'}"
            question = f"Is it true that {q} + {q % 7} is {2 * q}?"
            answers.append(Answer(f"q{q}", question, text, (5, 2), "solver", 1.0, float(right), -rng.random(), False))
    return answers


def shuffled_within(answers: Sequence[Answer], seed: int = 0) -> list[Answer]:
    """The labels of each question dealt anew among its answers: nothing is left to learn."""
    rng, out = random.Random(seed), []
    for question in dict.fromkeys(answer.question for answer in answers):
        own = [answer for answer in answers if answer.question == question]
        labels = [answer.label for answer in own]
        rng.shuffle(labels)
        out += [replace(answer, label=label) for answer, label in zip(own, labels, strict=True)]
    return out


def config(model: Path, file: Path, **options: Any) -> VerifierConfig:
    settings = {"epochs": 3, "lr": 1e-2, "head_lr": 1e-2, "lora": Lora(rank=4, alpha=8.0), "evaluations": 3, **options}
    return VerifierConfig(str(file), file_hash(file), str(model), base_hash(model), **settings)


def built(model: Path, folder: Path, answers: Sequence[Answer] | None = None, **options: Any) -> VerifierRun:
    """A run in `folder` on toy answers, which are beside it."""
    file = folder.with_suffix(".parquet")
    if not file.exists():
        write_answers(file, toy_answers() if answers is None else answers)
    return build(config(model, file, **options), folder, console=False)


@torch.no_grad()
def disturbed(model: Path, **options: Any) -> Verifier:
    """A verifier whose adapter and head are no longer at zero."""
    settings = VerifierConfig("", "", str(model), base_hash(model), Lora(rank=4, alpha=8.0), **options)
    verifier, draw = build_verifier(settings), torch.Generator().manual_seed(7)
    head, adapter = verifier.learner.value_head, verifier.learner.adapter
    assert head is not None and adapter is not None
    for parameter in (*head.parameters(), *(pair.up for pair in adapter.pairs.values())):
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return verifier
