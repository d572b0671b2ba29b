"""The straightforward baseline: a Hugging Face model with PEFT, rows padded to the longest, full logits, autograd."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from coterie.bench.options import half
from coterie.bench.shapes import shaped
from coterie.models.lora_targets import DEFAULT_TARGETS
from coterie.types import Batch


class PaddedTraining:
    """Forward and backward over padded rows, without an optimizer step."""

    def __init__(self, shape: str, device: torch.device, whole: bool, rows: int) -> None:
        """`rows`: the size of a padded batch."""
        self.rows, self.device = rows, device
        model = shaped(shape, device, half(device))
        lora = LoraConfig(r=16, lora_alpha=32, target_modules=list(DEFAULT_TARGETS))
        self.model = model if whole else get_peft_model(model, lora)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def gradients(self, batch: Batch, weights: Tensor) -> int:
        """Gradients of Σ weight · −advantage · log-prob; returns the number of tokens without padding."""
        for parameter in self.trained:
            parameter.grad = None
        for first in range(0, batch.rows, self.rows):
            part = batch.take(range(first, min(first + self.rows, batch.rows)))
            keep = (batch.row >= first) & (batch.row < first + self.rows)
            self._add(part, weights[keep])
        return len(batch)

    def _add(self, part: Batch, weights: Tensor) -> None:
        ids, mask, row, at = (x.to(self.device) for x in (*_padded(part), part.row, part.positions))
        sampled = part.mask.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logp = logits[:, :-1].float().log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        factor = (part.advantages * weights).to(self.device)
        (-(logp[row[sampled], at[sampled] - 1] * factor[sampled]).sum()).backward()


def _padded(batch: Batch) -> tuple[Tensor, Tensor]:
    sizes = torch.bincount(batch.row)
    ids = torch.zeros(batch.rows, int(sizes.max()), dtype=torch.long)
    ids[batch.row, batch.positions] = batch.tokens
    return ids, (torch.arange(ids.shape[1]) < sizes[:, None]).long()
