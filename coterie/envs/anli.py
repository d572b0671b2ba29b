"""ANLI: does one text follow from another?"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.data.anli import ANLI
from coterie.envs.dataset_env import Known


@dataclass(frozen=True)
class Anli(Known):
    """A premise and a hypothesis; `reward: nli` fits them."""

    training = testing = ANLI
    gaps = ("premise", "hypothesis")

    prompt: str = (
        "{question}\n\nDoes the hypothesis follow from the premise, contradict it, or neither? "
        "Answer with one word: entailment, contradiction or neutral."
    )
