"""The language model of the games: a tiny Llama with random weights and one token per letter."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coterie.models.progress_bars import no_progress_bars

END, UNKNOWN = "|", "."
SIGNS = (END, UNKNOWN, *"abcefghijklpqrt")  # few, because an untrained policy tries them all
LATE = tuple("ijklpqrt")  # about half of them
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{{ '|' if m['role'] == 'assistant' else '' }}{% endfor %}"
WIDTH, CONTEXT = 64, 64


def tiny_player(folder: Path, seed: int = 0, head: float = 0.25) -> Path:
    """One layer of width 64, saved in `folder` in Hugging Face layout; all letters are about equally likely.

    `head` scales the logits: adapters leave the head as it is, and need a larger one to become certain of a letter.
    """
    config = LlamaConfig(
        vocab_size=len(SIGNS),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]), no_progress_bars():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        _spread(model, head)
        model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
        model.save_pretrained(folder)
        letters().save_pretrained(folder)
    return folder


def is_late(text: str) -> bool:
    """True for letters of the second half: in a game of two moves every letter is a legal move."""
    return text in LATE


def _spread(model: LlamaForCausalLM, head: float) -> None:
    """Larger initial weights: with the default ones all prompts look alike."""
    # Orthogonal embeddings: learning about one letter hardly changes the replies to another.
    nn.init.orthogonal_(model.model.embed_tokens.weight, gain=WIDTH**0.5)
    nn.init.normal_(model.lm_head.weight, std=head / WIDTH**0.5)
    for name, weight in model.model.layers.named_parameters():
        if "norm" not in name and "q_proj" not in name and "k_proj" not in name:
            nn.init.normal_(weight, std=2 / weight.shape[1] ** 0.5)


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per letter; unknown characters become a dot."""
    tokenizer = Tokenizer(WordLevel({sign: i for i, sign in enumerate(SIGNS)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
