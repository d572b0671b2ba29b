"""Laws of algorithms and credits that users write: the error for a wrong result says whose it is and what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from coterie.algorithms.base import Algorithm
from coterie.console import Display
from coterie.credit.base import Credit
from coterie.errors import UserError
from coterie.rl.validate import BadResult, check_advantages
from coterie.training.log import StepLog
from coterie.training.loop import train
from coterie.types import Counterfactuals, Episode, Metrics
from tests.episodes import episode, turn
from tests.runs import naming_config, started

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Gives(Credit):
    """Gives every turn the same, and returns the same."""

    each: Any = 0.5
    returned: Any = None

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        for one in (each for played in episodes for each in played.turns):
            one.credit = self.each
        return self.returned  # type: ignore[no-any-return]


WRONG_CREDIT = {
    "unset": (Gives(each=None, returned={}), "credit Gives gave none to solver's turn 1 of t/0; every turn needs a"),
    "nan": (Gives(each=NAN, returned={}), "credit Gives gave nan to solver's turn 1 of t/0; a finite number was"),
    "text": (Gives(each="1", returned={}), "credit Gives gave '1' to solver's turn 1 of t/0; a finite number was"),
    "no metrics": (Gives(), "Gives.write_credit returned None; it returns metrics, as {'groups': 4.0}, or {}"),
    "a text": (Gives(returned={"x": "y"}), "Gives.write_credit returned the metric x = 'y'; a number was expected"),
}


@pytest.mark.parametrize(("credit", "told"), WRONG_CREDIT.values(), ids=WRONG_CREDIT)
def test_credit_that_is_no_number_is_told_with_its_turn(credit: Credit, told: str) -> None:
    with pytest.raises(BadResult, match=re.escape(told)):
        credit.assign([episode([turn()], task="t")], {}, team_chain=False)


def test_credit_may_be_a_number_of_numpy() -> None:
    credit = Gives(each=numpy.float32(0.5), returned={})
    assert credit.assign([episode([turn()])], {}, team_chain=False) == {"credit/solver": 0.5}


WRONG_ADVANTAGES = {
    "list": ([1.0, 1.0], "of type list; expected a tensor of shape [2], a number per token of the reply"),
    "number": (1.0, "of type float; expected a tensor of shape [2]"),
    "array": (numpy.ones(2), "of type ndarray; expected a tensor of shape [2]"),
    "short": (torch.ones(1), "of shape [1]; expected a tensor of shape [2]"),
    "column": (torch.ones(2, 1), "of shape [2, 1]; expected a tensor of shape [2]"),
    "nan": (torch.tensor([1.0, NAN]), "nan at some tokens; finite numbers were expected"),
}


@pytest.mark.parametrize(("advantages", "told"), WRONG_ADVANTAGES.values(), ids=WRONG_ADVANTAGES)
def test_advantages_are_finite_numbers_one_per_token(advantages: Any, told: str) -> None:
    one = turn(response=(3, 4))
    one.advantages = advantages
    with pytest.raises(
        BadResult, match=re.escape(f"Mine.compute_advantages: the advantages of solver's turn 1 of t/0 are {told}")
    ):
        check_advantages("Mine", [episode([one], task="t")])


def test_turns_without_advantages_and_whole_numbers_are_fine() -> None:
    without, whole = turn(), turn(response=(3, 4))
    whole.advantages = torch.ones(2, dtype=torch.long)
    check_advantages("Mine", [episode([without, whole])])


@dataclass(frozen=True, kw_only=True)
class Poisoned(Algorithm):
    """Its advantages are NaN."""

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        for one in (each for played in episodes for each in played.turns):
            one.advantages = torch.full((len(one.response_ids),), NAN)
        return {}


def test_a_run_blames_the_algorithm_for_its_nan_and_not_the_learning_rate(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    run = started(naming_config(model_folder("llama")), tmp_path)
    run.algorithm = Poisoned()
    with pytest.raises(BadResult, match=r"Poisoned.*: the advantages of left's turn 1 of .* are nan"):
        train(run)


def test_a_metric_that_is_text_is_told() -> None:
    with pytest.raises(UserError, match="step 3: the metric loss is 'low'; a number was expected"):
        StepLog(3, Display()).add({"loss": "low"})  # type: ignore[dict-item]
