"""Trains a verifier (a reward model) on labelled answers with binary cross-entropy. The best checkpoint is the one with
the best AUC within held-out questions.

Right and wrong answers to a question have the same total weight; otherwise it would learn which questions are hard.

A run's folder is like that of a team: config.yaml, status.json, metrics.jsonl, tensorboard, checkpoints with checksums,
`latest` and `best`. Everything random is a function of the seed and the step: a resumed run repeats the same bits.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.errors import UserError
from coterie.files import append_line, file_hash, filter_rows, verify_checksums, write_atomic
from coterie.learners.distributed import SINGLE_PROCESS, Processes
from coterie.models.store import write_tensors
from coterie.rewards.verifier import TooLong
from coterie.rl.validate import NotFinite
from coterie.seeds import stable_hash
from coterie.training import checkpoint
from coterie.training.log import RunLog, StepLog
from coterie.training.signals import signal_name, stop_after_step
from coterie.types import Batch, Metrics, Scores
from coterie.verifier.answers import Answer, read_answers
from coterie.verifier.metrics import Measures, measures, reliability
from coterie.verifier.model import NAME, STATE, Verifier, build_verifier, pack_rows
from coterie.verifier.plots import reliability_plot
from coterie.verifier.requests import conversation
from coterie.verifier.settings import VerifierConfig

QUESTIONS = "questions.json"  # in a run's folder: those that it trains on
PLOT = "reliability.png"
RELIABILITY = "reliability.jsonl"  # the bins of every evaluation, for the viewer
KEEP = 2  # checkpoints, besides the best
MIXED = "right and wrong answers; `coterie verifier balance` picks questions that have both"


class BadTrainingData(UserError, ValueError):
    """Answers that a verifier cannot be trained on."""


@dataclass(frozen=True)
class Example:
    """An answer as the verifier reads it."""

    answer: Answer
    ids: tuple[int, ...]  # of the whole conversation, with the end token
    weight: float = 0.0  # its share of its question's loss


@dataclass
class VerifierRun:
    """The state of a verifier's training; a checkpoint stores the parts that change."""

    config: VerifierConfig
    folder: Path
    verifier: Verifier
    training: list[list[Example]]  # by question, each with right and wrong answers
    held_out: list[Example]
    log: RunLog
    step: int = 0  # completed steps; logs count from 1
    best: float | None = None  # the best AUC within held-out questions so far
    best_step: int = 0
    too_long: int = 0  # answers that were left out: they are longer than the verifier's context
    processes: Processes = SINGLE_PROCESS
    stopping: bool = field(default=False, repr=False)
    signal: int = field(default=0, repr=False)  # that requested the stop; 0: none

    @property
    def steps(self) -> int:
        return total_steps(self.config, len(self.training))

    @property
    def evaluation_due(self) -> bool:
        """True at evenly spaced steps, and at the last."""
        count = min(self.config.evaluations, self.steps)
        return self.step * count // self.steps > (self.step - 1) * count // self.steps


def total_steps(config: VerifierConfig, questions: int) -> int:
    return config.epochs * ceil(questions / config.questions_per_step)


def split_by_question(answers: Sequence[Answer], share: float, seed: int) -> tuple[list[Answer], list[Answer]]:
    """The answers to train on and the held-out ones; all answers to a question are on the same side."""
    questions = sorted({answer.question for answer in answers}, key=lambda text: stable_hash(seed, "held out", text))
    held = set(questions[: ceil(share * len(questions))])
    sides = [answer.question in held for answer in answers]
    train, test = ([a for a, side in zip(answers, sides, strict=True) if side is kept] for kept in (False, True))
    return train, test


def build(config: VerifierConfig, folder: Path, console: bool = True) -> VerifierRun:
    """Load the answers and the model of a new run."""
    file = Path(config.answers)
    answers = read_answers(file)
    if file_hash(file) != config.answers_sha256:
        raise BadTrainingData(f"{file} has changed since this run started; a resumed run needs the same answers")
    train, test = split_by_question(answers, config.held_out, config.seed)
    check_kinds(file, train, test)  # before the model is loaded
    verifier = build_verifier(config, checkpoint=checkpoint.latest(folder))
    training, held_out = fitting(verifier, train), fitting(verifier, test)
    too_long = len(answers) - len(training) - len(held_out)
    short = [one.answer for one in training], [one.answer for one in held_out]
    check_kinds(file, *short, f"; {too_long} answers are longer than the verifier's context of {verifier.context}")
    mixed = mixed_questions(short[0])
    by_question: dict[str, list[Example]] = {}
    for one in training:
        if one.answer.question in mixed:
            by_question.setdefault(one.answer.question, []).append(one)
    measured = {id(answer) for answer in sampled_if_mixed(short[1])}
    verifier.learner.steps = total_steps(config, len(by_question))  # of the learning-rate schedule
    questions = list(dict.fromkeys(answer.question for answer in train))
    copies = {QUESTIONS: json.dumps(questions, ensure_ascii=False, indent=0).encode()}
    log = RunLog(folder, config.to_yaml(), verifier.learner.steps, None, console, copies)
    return VerifierRun(
        config,
        folder,
        verifier,
        [weighted(own) for own in by_question.values()],
        [one for one in held_out if id(one.answer) in measured],
        log,
        too_long=too_long,
    )


def fitting(verifier: Verifier, answers: Sequence[Answer]) -> list[Example]:
    """The answers that fit into the verifier's context, as it reads them."""
    examples = []
    for answer in answers:
        with suppress(TooLong):
            ids = verifier.encode(conversation(answer.question, answer.text), answer.task)
            examples.append(Example(answer, ids))
    return examples


def weighted(examples: Sequence[Example]) -> list[Example]:
    """The distinct answers to a question, with weights: its right answers count one half, and its wrong ones the other.

    right right wrong   →  ¼ ¼ ½
    right wrong wrong, the last two with the same text   →  ½ ½

    So the question alone predicts nothing, and a question counts as much as any other.
    """
    counts = Counter((one.ids, one.answer.right) for one in examples)
    sizes = Counter(one.answer.right for one in examples)
    distinct = {(one.ids, one.answer.right): one for one in examples}
    return [replace(one, weight=counts[key] / (2 * sizes[one.answer.right])) for key, one in distinct.items()]


def check_kinds(file: Path, train: Sequence[Answer], test: Sequence[Answer], why: str = "") -> None:
    """Reject answers from which nothing could be learned or measured; `why` is appended to the error."""
    for side, answers in (("training", train), ("held-out", test)):
        if not mixed_questions(answers):
            raise BadTrainingData(f"{file}: no {side} question has {MIXED}{why}")


def mixed_questions(answers: Sequence[Answer]) -> set[str]:
    """The questions that have right and wrong answers."""
    right, wrong = ({a.question for a in answers if a.right is kind} for kind in (True, False))
    return right & wrong


def sampled_if_mixed(answers: Sequence[Answer]) -> list[Answer]:
    """The answers that a policy sampled, if some question has right and wrong ones among them; else all answers.

    Perturbed answers are for training only: in use, a verifier scores sampled answers.
    """
    sampled = [answer for answer in answers if not answer.perturbed]
    return sampled if mixed_questions(sampled) else list(answers)


def train(run: VerifierRun) -> None:
    """Train to the last step, or until Ctrl-C, SIGTERM or SIGHUP."""
    with stop_after_step(run), run.log.recording_failure():
        while run.step < run.steps and not run.stopping:
            with run.log.step(run.step + 1) as log:
                with log.phase("update"):
                    log.add(training_step(run))
                run.step += 1
                if due := run.evaluation_due:
                    with log.phase("eval"):
                        evaluate_held_out(run, log)
            if due or run.stopping:
                save(run)
        if run.stopping:
            run.log.stopped(signal_name(run.signal))
        else:
            run.log.finished()


def training_step(run: VerifierRun) -> Metrics:
    """One optimizer step on all answers of the step's questions."""
    started, learner = time.perf_counter(), run.verifier.learner
    questions = step_questions(run)
    examples = [example for question in questions for example in question]
    batch = pack_rows([one.ids for one in examples], [one.answer.label for one in examples])
    learner.begin(run.step)
    try:
        metrics = learner.fit(batch, row_weights(batch, [one.weight / len(questions) for one in examples]), bce)
    except NotFinite as error:
        raise NotFinite("verifier: its gradient is not finite, so its weights were not updated; lower --lr") from error
    rate = len(batch) / (time.perf_counter() - started)
    return metrics | {"answers": len(examples), "tokens_per_second": rate}


def row_weights(batch: Batch, weights: Sequence[float]) -> Tensor:
    """The weight of each token's row: [T]."""
    return torch.tensor(weights)[batch.row]


def step_questions(run: VerifierRun) -> list[list[Example]]:
    """The questions of the next step: every epoch shuffles them anew."""
    size = run.config.questions_per_step
    epoch, part = divmod(run.step, ceil(len(run.training) / size))
    order = list(range(len(run.training)))
    random.Random(stable_hash(run.config.seed, "epoch", epoch)).shuffle(order)
    return [run.training[i] for i in order[part * size : (part + 1) * size]]


def bce(scores: Scores, batch: Batch) -> Tensor:
    """Binary cross-entropy of each row's log-odds with its label: [N]."""
    assert scores.values is not None
    return F.binary_cross_entropy_with_logits(scores.values, batch.returns, reduction="none")


def evaluate_held_out(run: VerifierRun, log: StepLog) -> None:
    """Measure the current weights on the held-out questions; note and plot the best ones."""
    scores = run.verifier.score_rows([one.ids for one in run.held_out])
    labels = [one.answer.right for one in run.held_out]
    found = measures(scores, labels, [one.answer.question for one in run.held_out])
    log.add({f"eval/{name}": value for name, value in vars(found).items()})
    bins = [vars(one) for one in reliability(scores, labels)]
    append_line(run.folder / RELIABILITY, json.dumps({"step": run.step, "bins": bins}))
    if run.best is None or found.auc_within > run.best:
        run.best, run.best_step = found.auc_within, run.step
        write_atomic(run.folder / PLOT, reliability_plot(scores, labels, summary(found)))


def summary(found: Measures) -> str:
    return f"AUC {found.auc:.3f} across, {found.auc_within:.3f} within a question, ECE {found.ece:.3f}"


def save(run: VerifierRun) -> None:
    """Write a checkpoint of this step; `best` is pointed at it if it is the best so far."""
    for pointer in ("latest", *(["best"] if run.best_step == run.step else [])):
        checkpoint.write(run.folder, run.step, lambda folder: _fill(run, folder), pointer, KEEP)


def _fill(run: VerifierRun, folder: Path) -> None:
    learner = run.verifier.learner
    learner.save(checkpoint.policy_folder(folder, NAME))
    state = {"step": run.step, "best": run.best, "best_step": run.best_step, "learner": learner.state()}
    write_tensors(state, folder / STATE)


def resume(run: VerifierRun) -> None:
    """Continue from the latest checkpoint, or from the start if there is none."""
    if (saved := checkpoint.latest(run.folder)) is not None:
        verify_checksums(saved)
        state = run.verifier.restore(saved)
        run.step, run.best, run.best_step = state["step"], state["best"], state["best_step"]
    checkpoint.remove_later(run.folder, run.step)
    run.log.resume(run.step, evaluated=True)
    filter_rows(run.folder / RELIABILITY, lambda row: row["step"] <= run.step)
    if saved is not None:
        save(run)  # killed between the two pointers, a run has no `best`
