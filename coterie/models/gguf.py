"""Convert a GGUF file to a folder in Hugging Face layout, once: transformers takes half a minute to load GGUF."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from coterie.errors import ModelError
from coterie.models.chat import Chat, end_of_turn_id
from coterie.models.progress_bars import no_progress_bars


def convert(gguf: Path, out: Path) -> None:
    """Write a GGUF file's model and tokenizer to the folder `out`, dequantized to float32, and compare their logits."""
    with no_progress_bars():
        source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
        tie_if_same(model)
        repair_template(tokenizer, starts_with_bos(gguf))
        chat = repair_eos(tokenizer, model)
        tokenizer.save_pretrained(out)
        dequantized(model).save_pretrained(out)
        _compare(model, AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval(), chat, gguf)


def tie_if_same(model: PreTrainedModel) -> None:
    """Tie embedding and LM head if they are one matrix quantized twice; the head's copy is the more precise one."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings or not _is_same_matrix(embedding.weight, head.weight):
        return
    embedding.weight = head.weight
    model.config.tie_word_embeddings = True


def _is_same_matrix(one: Any, other: Any) -> bool:  # two weights [V, D]
    # Two quantizations of one matrix have a cosine above 0.95, separately trained matrices one near 0.
    return one.shape == other.shape and torch.cosine_similarity(one.flatten(), other.flatten(), dim=0).item() > 0.9


def starts_with_bos(gguf: Path) -> bool:
    """True if the file asks for a bos token before every prompt; Gemma generates garbage without it."""
    field = GGUFReader(gguf).get_field("tokenizer.ggml.add_bos_token")
    return field is not None and bool(field.contents())


def repair_template(tokenizer: PreTrainedTokenizerBase, bos: bool) -> None:
    """Prepend the bos token to the chat template if the file asks for it and the template lacks it."""
    if not bos or tokenizer.chat_template is None or tokenizer.bos_token is None:
        return
    greeting = [{"role": "user", "content": "Hello"}]
    if not str(tokenizer.apply_chat_template(greeting, tokenize=False)).startswith(tokenizer.bos_token):
        tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template


def repair_eos(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Chat:
    """Make the chat template's end-of-turn token the eos of tokenizer and model; GGUF files often have another."""
    end = end_of_turn_id(tokenizer)
    if end is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    chat = Chat(tokenizer)
    for config in (model.config, model.generation_config):
        config.eos_token_id = sorted(chat.end_ids)
        config.bos_token_id, config.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    return chat


def dequantized(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that can be saved: transformers refuses to save a model loaded from GGUF."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    with torch.device("meta"):  # the weights are assigned below, not copied
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


@torch.no_grad()
def _compare(model: PreTrainedModel, written: PreTrainedModel, chat: Chat, gguf: Path) -> None:
    ids = torch.tensor([chat.prompt([{"role": "user", "content": "What is 2 + 3?"}])])
    gap = (model(ids).logits - written(ids).logits).abs().max().item()
    if gap > 1e-4:
        raise ModelError(f"{gguf}: the converted model's logits differ from the file's by {gap:.2g}; nothing was kept")
