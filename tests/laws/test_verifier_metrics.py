"""Laws of a verifier's figures: each equals a slow reference, and knowing only the question is found out."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.learners.value_head import ValueHead
from coterie.rewards.verifier import TooLong
from coterie.types import Batch, Message, Scores
from coterie.verifier.answers import Answer
from coterie.verifier.baselines import baselines, by_majority, logistic
from coterie.verifier.evaluate import Evaluation, NothingToMeasure, evaluate
from coterie.verifier.metrics import ece, measures, reliability
from coterie.verifier.model import pack_rows
from coterie.verifier.plots import reliability_plot
from coterie.verifier.selection import selections
from coterie.verifier.train import Example, bce, row_weights, split_by_question, weighted
from tests.verifiers import toy_answers


def ranked(right: float, wrong: float) -> float:
    return 1.0 if right > wrong else 0.5 if right == wrong else 0.0


def pairs(scores: Sequence[float], labels: Sequence[bool], chosen: Sequence[int]) -> list[float]:
    return [ranked(scores[i], scores[j]) for i in chosen for j in chosen if labels[i] and not labels[j]]


def slow_ece(scores: Sequence[float], labels: Sequence[bool], bins: int) -> float:
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        own = [i for i, p in enumerate(scores) if low <= p < high or (b == bins - 1 and p == 1.0)]
        if own:
            confidence = sum(scores[i] for i in own) / len(own)
            total += len(own) / len(scores) * abs(confidence - sum(labels[i] for i in own) / len(own))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_every_figure_equals_its_slow_reference(seed: int) -> None:
    rng = random.Random(seed)
    scores = [rng.choice([0.0, 0.05, 0.3, 0.35, 0.71, 0.99, 1.0]) for _ in range(60)]  # with many ties
    labels = [rng.random() < 0.4 for _ in scores]
    questions = [rng.randrange(9) for _ in scores]
    found = measures(scores, labels, questions)
    groups = [[i for i, q in enumerate(questions) if q == own] for own in range(9)]
    within = [own for group in groups if (own := pairs(scores, labels, group))]
    every = [one for own in within for one in own]
    assert found.auc == pytest.approx(sum(p := pairs(scores, labels, range(60))) / len(p))
    assert found.auc_within == pytest.approx(sum(sum(own) / len(own) for own in within) / len(within))
    assert found.accuracy_within == pytest.approx(sum(every) / len(every))
    assert found.auc_within != pytest.approx(found.accuracy_within)  # questions have unequal numbers of pairs
    assert found.ece == pytest.approx(slow_ece(scores, labels, 10))
    assert (found.questions, found.answers) == (len(within), 60)
    assert found.within_low <= found.auc_within <= found.within_high


def test_calibration_by_hand() -> None:
    scores, labels = [0.1, 0.1, 0.9, 1.0], [False, True, True, True]
    assert [(b.score, b.right, b.answers) for b in reliability(scores, labels)] == [(0.1, 0.5, 2), (0.95, 1.0, 2)]
    assert ece(scores, labels) == pytest.approx((2 * 0.4 + 2 * 0.05) / 4)
    assert reliability_plot(scores, labels, "two bins").startswith(b"\x89PNG\r\n\x1a\n")


def hand_made(returns: Sequence[float]) -> Batch:
    zeros = torch.zeros(len(returns))
    columns = {name: zeros for name in Batch.__dataclass_fields__ if name != "roles"}
    return Batch(**columns | {"returns": torch.tensor(returns)}, roles=())


def test_the_loss_is_the_binary_cross_entropy() -> None:
    logits, labels = [-3.0, 0.0, 0.5, 4.0], [0.0, 1.0, 1.0, 0.0]
    found = bce(Scores(torch.zeros(0), torch.zeros(0), torch.tensor(logits)), hand_made(labels))
    chances = [1 / (1 + math.exp(-z)) for z in logits]
    slow = [-math.log(p) if y else -math.log(1 - p) for p, y in zip(chances, labels, strict=True)]
    assert found.tolist() == pytest.approx(slow, rel=1e-5)


def test_the_gradient_of_the_score_head() -> None:
    """∂/∂w Σ bce = Σ (σ(h·w + b) − y)·h, and for b the same without h; for the hidden states (σ − y)·w."""
    head, hidden = ValueHead(2), torch.tensor([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.25]], requires_grad=True)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.3, -0.7]]))
        head.bias.fill_(0.1)
    labels = [1.0, 0.0, 1.0]
    values = head(hidden)
    bce(Scores(torch.zeros(0), torch.zeros(0), values), hand_made(labels)).sum().backward()
    off = torch.sigmoid(hidden.detach() @ torch.tensor([0.3, -0.7]) + 0.1) - torch.tensor(labels)
    assert head.weight.grad is not None and head.bias.grad is not None and hidden.grad is not None
    torch.testing.assert_close(head.weight.grad, (off[:, None] * hidden.detach()).sum(0, keepdim=True))
    torch.testing.assert_close(head.bias.grad, off.sum(0, keepdim=True))
    torch.testing.assert_close(hidden.grad, off[:, None] * torch.tensor([[0.3, -0.7]]))


def test_right_and_wrong_answers_to_a_question_weigh_the_same() -> None:
    ids = {"4": (1, 4, 2), "four": (1, 5, 2), "5": (1, 6, 7, 2), "6": (1, 8, 2)}

    def shares(*given: tuple[str, bool]) -> list[tuple[str, float]]:
        examples = [Example(answer("2 + 2?", text, right), ids[text]) for text, right in given]
        return [(one.answer.text, one.weight) for one in weighted(examples)]

    assert shares(("4", True), ("four", True), ("5", False)) == [("4", 0.25), ("four", 0.25), ("5", 0.5)]
    # The same text twice is one row with the weight of two.
    many = [("4", True), ("5", False), ("5", False), ("5", False), ("6", False)]
    assert shares(*many) == [("4", 0.5), ("5", 0.375), ("6", 0.125)]
    batch = pack_rows([ids["4"], ids["5"]], [1.0, 0.0])
    assert row_weights(batch, [0.75, 0.25])[batch.mask].tolist() == [0.75, 0.25]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_all_answers_to_a_question_are_on_one_side(share: float) -> None:
    answers = toy_answers(questions=20)
    # Two tasks with the same question are one question.
    answers += [replace(answer, task="again") for answer in answers[:4]]
    train, test = split_by_question(answers, share, seed=1)
    trained, held = ({answer.question for answer in side} for side in (train, test))
    assert not trained & held and len(held) == round(20 * share) and len(train) + len(test) == len(answers)
    assert split_by_question(answers[::-1], share, seed=1)[1] == test[::-1]
    assert {a.question for a in split_by_question(answers, share, seed=2)[1]} != held


def answer(question: str, text: str, right: bool, **more: Any) -> Answer:
    return Answer(question, question, text, (), "solver", 1.0, float(right), **{"logprob": -1.0, **more})


def test_the_baselines_by_hand() -> None:
    answers = [
        answer("q", "It is 5.", True, logprob=-0.1),
        answer("q", "5.0", True, logprob=-0.2),
        answer("q", "a long way to 7", False, logprob=-2.0),
        answer("r", "blue", False, logprob=-1.0),
    ]
    assert by_majority(answers) == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1.0])
    found = baselines(answers)
    assert list(found) == ["length (shorter)", "mean log-prob", "majority"]
    assert found["mean log-prob"] == pytest.approx([math.exp(one.logprob) for one in answers])
    shorter = found["length (shorter)"]
    assert shorter[1] > shorter[3] > shorter[0] > shorter[2]
    # A perturbed answer was not sampled: it has no log-prob.
    assert "mean log-prob" not in baselines([*answers, answer("r", "red", True, logprob=math.nan, perturbed=True)])


def test_the_logistic_curve_is_the_most_likely_one() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0, 2) for _ in range(200)]
    labels = [rng.random() < 1 / (1 + math.exp(-1.5 * v + 0.5)) for v in values]
    fitted = logistic(values, labels)

    def loss(chances: Sequence[float]) -> float:
        return -sum(math.log(p if y else 1 - p) for p, y in zip(chances, labels, strict=True))

    grid = [[1 / (1 + math.exp(-a * v - b)) for v in values] for a in (0.5, 1, 1.5, 2) for b in (-1, -0.5, 0, 0.5)]
    assert loss(fitted) < min(map(loss, grid))
    assert sum(fitted) == pytest.approx(sum(labels), abs=0.1)  # a fitted intercept makes the sums equal


class Scripted:
    """A verifier that scores by a function of the question and the answer, of at most 100 characters."""

    context = 100

    def __init__(self, score: Any) -> None:
        self.score = score

    def encode(self, messages: Sequence[Message], name: str) -> Any:
        if len(messages[-1]["content"]) > self.context:
            raise TooLong(name)
        return [message["content"] for message in messages]

    def score_rows(self, rows: Sequence[Any]) -> list[float]:
        return [self.score(question, text) for question, text in rows]


def evaluated(score: Any, answers: Sequence[Answer], folder: Path, trained: Sequence[str] = ()) -> Evaluation:
    (folder / "questions.json").write_text(json.dumps(list(trained)))
    return evaluate(Scripted(score), folder, Path("a.parquet"), answers)  # type: ignore[arg-type]


def uneven() -> list[Answer]:
    """Easy questions have three right answers of four, hard ones one; all wrong answers agree with each other."""
    shares = [("easy", 3), ("hard", 1)]
    return [
        answer(f"{kind} {q}", f"{k} {'yes' if k < right else 'nay'}", k < right)
        for kind, right in shares
        for q in range(6)
        for k in range(4)
    ]


def test_a_verifier_that_only_knows_the_question_is_found_out(tmp_path: Path) -> None:
    found = evaluated(lambda question, text: 0.75 if "easy" in question else 0.25, uneven(), tmp_path)
    own = found.reports["verifier"]
    assert own.auc == pytest.approx(0.75) and own.accuracy_within == own.auc_within == 0.5 and own.ece == 0
    assert "no better than" in found.verdict
    better = evaluated(lambda question, text: 0.9 if "yes" in text else 0.1, uneven(), tmp_path)
    assert better.reports["verifier"].accuracy_within == 1.0 and "more than every baseline" in better.verdict


def test_the_verdict_says_whether_to_choose_by_the_scores(tmp_path: Path) -> None:
    """All minorities are right: eight questions are enough to be sure that the right scores choose better."""
    answers = [answer(f"question {q}", f"so {number}", number == 7) for q in range(8) for number in (5, 5, 5, 7)]
    for right, advice in ((0.9, ": use it to choose"), (0.1, ": do not rely on it to choose")):
        scored = {"so 7": right, "so 5": 0.2}
        assert evaluated(lambda _, text, scored=scored: scored[text], answers, tmp_path).verdict.endswith(advice)


def test_questions_that_it_was_trained_on_are_left_out(tmp_path: Path) -> None:
    answers = uneven()
    trained = {one.question for one in answers if "easy" in one.question}
    # Perfect on what it has seen, and wrong elsewhere.
    found = evaluated(lambda q, t: float(("yes" in t) == (q in trained)), answers, tmp_path, sorted(trained))
    assert found.reports["verifier"].accuracy_within == 0.0 and found.trained == 24
    with pytest.raises(NothingToMeasure, match=r"a\.parquet: no new question .* 48 of 48 answers"):
        evaluated(lambda q, t: 0.5, answers, tmp_path, [one.question for one in answers])


def test_answers_that_are_too_long_for_it_are_left_out(tmp_path: Path) -> None:
    long = [answer(one.question, "yes" * 40, True) for one in uneven()[:3]]
    right = lambda q, t: float("yes" in t)  # noqa: E731
    found, plain = (evaluated(right, answers, tmp_path) for answers in ([*long, *uneven()], uneven()))
    assert found.too_long == 3 and found.reports == plain.reports and found.scores == plain.scores
    with pytest.raises(NothingToMeasure, match="3 answers are longer than the verifier's context of 100"):
        evaluated(right, long, tmp_path)


def test_perturbed_answers_are_measured_apart(tmp_path: Path) -> None:
    made = [answer(one.question, "perturbed", False, logprob=math.nan, perturbed=True) for one in uneven()[::4]]
    found = evaluated(lambda q, t: 0.0 if t == "perturbed" else 0.5, [*uneven(), *made], tmp_path)
    assert found.reports["verifier"].answers == 48 and found.reports["verifier"].accuracy_within == 0.5
    assert found.perturbed is not None and found.perturbed.answers == 60 and found.perturbed.accuracy_within > 0.6


def test_a_choice_among_k_answers_is_right_as_often_as_counted_by_hand() -> None:
    def answers(question: str, texts: str, right: str, scores: Sequence[float]) -> list[tuple[Answer, float]]:
        made = [Answer(question, question, f"so {t}", (1,), "s", 1.0, float(t == right), -1.0) for t in texts]
        return list(zip(made, scores, strict=True))

    scored = [
        *answers("a", "1122", "2", (0.1, 0.2, 0.9, 0.3)),  # tie of votes: the first wins; by scores the second
        *answers("b", "3334", "4", (0.2, 0.2, 0.2, 0.9)),  # 0.6 against 0.9
        *answers("c", "5556", "5", (0.3, 0.3, 0.3, 0.8)),  # 0.9 against 0.8, though 6 has the highest score
    ]
    two, four = selections([answer for answer, _ in scored], [score for _, score in scored])
    assert (two.k, two.single, two.any) == (2, pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (four.k, four.questions, four.any) == (4, 3, 1)
    assert four.single == pytest.approx((2 + 1 + 3) / 12)
    assert (four.majority, four.weighted, four.best) == pytest.approx((1 / 3, 1, 2 / 3))
    assert four.difference.difference == pytest.approx(2 / 3)
