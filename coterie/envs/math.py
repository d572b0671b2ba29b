"""Competition mathematics, with a formula or a number for an answer."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.data.gsm8k import GSM8K
from coterie.data.math import AIME2024, DEEPSCALER, MATH500
from coterie.envs.dataset_env import Known


@dataclass(frozen=True)
class Math(Known):
    """DeepScaleR to train on and MATH-500 to measure with, or files of yours; `reward: math` fits them."""

    training = DEEPSCALER
    testing = MATH500

    prompt: str = "{question}\n\nPut your final answer within \\boxed{}."

    @classmethod
    def fitting(cls) -> list[str]:
        """All have a question, and an answer that `reward: math` reads."""
        return [source.name for source in (DEEPSCALER, MATH500, AIME2024, GSM8K)]


@dataclass(frozen=True)
class Aime(Math):
    """As `math`, measured on AIME 2024."""

    training = DEEPSCALER
    testing = AIME2024
