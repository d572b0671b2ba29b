"""The verifier: a reward model that reads a conversation and gives the probability that its last reply is right.

It is a base model with a LoRA adapter and a score head (a value head). The value at a token is computed before
that token is read, so an end token is appended and the score is its value: it covers the whole reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.errors import ModelError, UserError
from coterie.files import file_hash, verify_checksums
from coterie.learners.batch import make_batches
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import load_adapter
from coterie.models.store import read_tensors, resolve
from coterie.rewards.verifier import TooLong
from coterie.seeds import stable_hash
from coterie.training.checkpoint import find, policy_folder
from coterie.training.models import fresh_adapter
from coterie.training.placement import pick_device
from coterie.types import Batch, Episode, Message, Task, Turn
from coterie.verifier.settings import BadVerifierConfig, VerifierConfig, read_settings

NAME = "verifier"  # of the adapter, and of its folder in a checkpoint
STATE = "state.pt"
BASE_FILES = ("*.safetensors", "config.json", "tokenizer*", "*.jinja", "vocab*", "*.model")


class BadConversation(UserError, ValueError):
    """A conversation without a reply at its end, which the verifier cannot score."""


class Verifier:
    """A base model with the adapter and the score head of a verifier. Not thread-safe."""

    def __init__(self, learner: TorchLearner, context: int, hash: str = "") -> None:
        """`context`: tokens of a conversation with its end token, at most. `hash`: of the weights and the base."""
        self.learner, self.context, self.hash = learner, context, hash

    @classmethod
    def load(cls, run: Path, device: torch.device | str = "auto", checkpoint: str = "best") -> Verifier:
        """The verifier of a run; `checkpoint`: best, latest or a step's number."""
        config = read_settings(run)
        folder = find(run, checkpoint)
        verify_checksums(folder)
        verifier = build_verifier(config, device, folder)
        verifier.restore(folder)
        verifier.hash = _weights_hash(verifier, config.base_sha256)
        return verifier

    def restore(self, folder: Path) -> dict[str, Any]:
        """Load the weights and the optimizer of a checkpoint; returns its whole state."""
        state = read_tensors(folder / STATE)
        self.learner.load(policy_folder(folder, NAME))
        self.learner.restore(state["learner"])
        return state

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        """The probability that the last message of each conversation, the assistant's, is right."""
        return self.score_rows([self.encode(one, f"conversation {i}") for i, one in enumerate(conversations, 1)])

    def score_rows(self, rows: Sequence[tuple[int, ...]]) -> list[float]:
        """The scores of encoded conversations; equal ones are computed once."""
        if not rows:
            return []
        distinct = list(dict.fromkeys(rows))
        chances = torch.sigmoid(self.logits(pack_rows(distinct)).double()).tolist()
        by_row = dict(zip(distinct, chances, strict=True))
        return [by_row[row] for row in rows]

    def logits(self, batch: Batch) -> Tensor:
        """The log-odds of each row, in fp32 on the CPU: [rows]."""
        values = self.learner.scores(batch).values
        assert values is not None
        return values[batch.mask]

    def encode(self, messages: Sequence[Message], name: str) -> tuple[int, ...]:
        """The ids of a conversation with its end token; `name` identifies it in errors."""
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise BadConversation(f"{name}: the last message must be the assistant's, after at least one other")
        chat = self.learner.base.chat
        ids = (*chat.prompt(messages[:-1]), *chat.reply(messages[-1]["content"]), chat.end_id)
        if len(ids) > self.context:
            raise TooLong(f"{name}: {len(ids)} tokens are more than the verifier's context of {self.context}")
        return ids


def pack_rows(rows: Sequence[tuple[int, ...]], labels: Sequence[float] | None = None) -> Batch:
    """Rows of token ids as a batch in which the last token of each is the sampled one, with the label as its return."""
    episodes = []
    for i, (ids, label) in enumerate(zip(rows, labels or [0.0] * len(rows), strict=True)):
        turn = Turn(NAME, NAME, 0, 0, ids[:-1], ids[-1:], (0.0,), 1.0, "", "end", returns=torch.tensor([label]))
        episodes.append(Episode(str(i), Task(str(i), "", None), 0, [turn]))
    return make_batches(episodes, require_advantages=False)[NAME]


def build_verifier(
    config: VerifierConfig, device: torch.device | str | None = None, checkpoint: Path | None = None
) -> Verifier:
    """A verifier with a fresh score head and a fresh adapter. A fixed adapter (`config.adapter`) is loaded instead:
    from its copy in the `checkpoint` of a run, or from its own folder."""
    folder = resolve(config.model)
    if (found := base_hash(folder)) != config.base_sha256:
        raise ModelError(
            f"{folder}: not the base that this verifier was trained on: its files have the hash {found[:12]}, "
            f"not {config.base_sha256[:12]}"
        )
    on = pick_device(str(device or config.device))
    bf16 = config.learning.precision == "bf16" or (config.learning.precision == "auto" and on.type == "cuda")
    base = Base(folder, on, torch.bfloat16 if bf16 else torch.float32, bf16=bf16)
    adapter = _adapter(config, base, checkpoint)
    learner = TorchLearner(
        NAME, base, adapter, config.lr, config.learning, 1, value_lr=config.head_lr, is_critic=True,
        trains_trunk=config.adapter is None,
    )  # fmt: skip
    return Verifier(learner, min(base.context, config.context or base.context))


def _adapter(config: VerifierConfig, base: Base, checkpoint: Path | None) -> Adapter:
    option = "--rank" if config.adapter is None else "--adapter"
    try:
        if config.adapter is None:
            return fresh_adapter(NAME, config.lora, base, stable_hash(config.seed, NAME))
        return load_adapter(NAME, policy_folder(checkpoint, NAME) if checkpoint else Path(config.adapter), base.layers)
    except ValueError as error:
        raise BadVerifierConfig(f"{option}: {error}") from error


def base_hash(folder: Path) -> str:
    """A hash of the files of a base model that change what it computes: weights, config, tokenizer, template."""
    files = sorted({file for pattern in BASE_FILES for file in folder.glob(pattern) if file.is_file()})
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name} {file_hash(file)}\n".encode())
    return whole.hexdigest()


def _weights_hash(verifier: Verifier, base: str) -> str:
    """A hash of base, adapter and score head: on one kind of device, equal hashes mean equal scores."""
    head = verifier.learner.value_head
    assert head is not None
    whole = hashlib.sha256(base.encode())
    for name, tensor in (verifier.learner.parameters() | dict(head.named_parameters())).items():
        whole.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return whole.hexdigest()
