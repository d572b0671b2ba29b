"""Small real models with random weights and a tokenizer of their own: no test has to download anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 384
CONTEXT = 512
SENTENCES = """A team of two adds numbers: the reasoner writes the sum and the actor copies the answer.
What is 12 + 30? The answer is 42. What is 7 + 8? The answer is 15. Is it true that 99 + 1 is 100? Yes, it is.
system user assistant You are a helpful assistant who thinks step by step and then says the final answer.
Say the word before the last one; the other agents read what you wrote and vote for the best of them."""

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,  # wide, so that the greedy token does not hinge on rounding
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS: dict[str, tuple[type[PreTrainedModel], type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"num_hidden_layers": 3, "tie_word_embeddings": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_hidden_layers": 2, "tie_word_embeddings": True}),
    # A head size that is not hidden / heads, as in the real ones, and a head of its own.
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"num_hidden_layers": 2, "head_dim": 24, "tie_word_embeddings": False}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "query_pre_attn_scalar": 32,
            "initializer_range": 0.05,  # Gemma scales its embeddings up; wider, it would only repeat its prompt
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        },
    ),
}


def tiny(kind: str, folder: Path, seed: int = 0) -> Path:
    """A tiny llama, qwen2, qwen3 or gemma3 with its tokenizer, saved in `folder`; the same one every time."""
    model = tiny_model(kind, seed)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_model(kind: str, seed: int = 0, **shape: int) -> PreTrainedModel:
    """The model alone, in eval mode, float32; `shape` is put in the place of the kind's own."""
    model_class, config_class, extra = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**{**SHAPE, **extra, **shape}))
        _disturb(model)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return model.eval()


@torch.no_grad()
def _disturb(model: PreTrainedModel) -> None:
    # Fresh norms are all ones and fresh biases all zeros: code that forgot them would go unnoticed.
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 384 tokens with a ChatML template; any text round-trips through it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(word, special=True) for word in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES.splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
