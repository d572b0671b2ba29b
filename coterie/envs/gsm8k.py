"""GSM8K: school problems in words, with a number for an answer."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.data.gsm8k import GSM8K
from coterie.envs.dataset_env import Known


@dataclass(frozen=True)
class Gsm8k(Known):
    """School problems; `reward: number` or `math` fits them."""

    training = testing = GSM8K
