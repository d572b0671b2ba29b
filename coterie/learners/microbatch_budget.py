"""How many tokens go through a model at once while it learns."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from coterie.config.settings import Learning
from coterie.models.base import Base

ON_CPU = 4096
PART = 1 / 6  # of a GPU's memory is for activations; small models then launch few, large kernels
LEAST, MOST = 1024, 1 << 16


def token_budget(base: Base, learning: Learning) -> int:
    """As the config says, or as this machine allows. How a batch is cut changes no gradient."""
    if learning.microbatch_tokens is not None:
        return learning.microbatch_tokens
    if base.device.type != "cuda":
        return ON_CPU
    memory = torch.cuda.get_device_properties(base.device).total_memory
    wide = next(base.model.parameters()).element_size()
    gates = 4 if base.trainable_forward is None or base.use_hf_modules else 2
    kept = bytes_per_token(base.model.config.get_text_config(), wide, learning.checkpointing, gates)
    return max(LEAST, min(MOST, int(PART * memory / kept)))


def bytes_per_token(config: PreTrainedConfig, wide: int, checkpointing: bool, gates: int) -> int:
    """What a backward needs of a token: in every layer about ten vectors as wide as the model and some, `gates`, as
    wide as its MLP; with checkpointing one in full precision, and all of one layer. While a layer runs, both halves of
    its MLP are there in full precision."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    mlp = getattr(config, "intermediate_size", 4 * hidden)
    layer = wide * (10 * hidden + gates * mlp)
    return (layers * 4 * hidden + layer if checkpointing else layers * layer) + 4 * 2 * mlp
