"""Writes a tiny GGUF file as llama.cpp does: quantised, embedding and head apart, with its tokenizer inside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from tests.models import CHATML, CONTEXT, SHAPE, tiny_model, tiny_tokenizer

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_gguf(path: Path, template: str = CHATML, eos: int = 2, add_bos: bool = False, own_head: bool = False) -> Path:
    """A tiny tied Qwen2; `own_head`: with a head that has nothing to do with its embedding."""
    writer = GGUFWriter(path, "qwen2")
    _write_shape(writer)
    _write_tokenizer(writer, template, eos, add_bos)
    weights = tiny_model("qwen2").state_dict()
    if own_head:
        weights["lm_head.weight"] = tiny_model("qwen2", seed=1).state_dict()["lm_head.weight"]
    for name, weight in weights.items():
        _write_tensor(writer, _renamed(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_shape(writer: GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_block_count(2)
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)


def _write_tokenizer(writer: GGUFWriter, template: str, eos: int, add_bos: bool) -> None:
    model = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if id < 3 else TokenType.NORMAL for id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(template)


def _renamed(name: str) -> str:
    if not name.startswith("model.layers."):
        whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        return whole[name.removesuffix(".weight")] + ".weight"
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def _write_tensor(writer: GGUFWriter, name: str, weight: torch.Tensor) -> None:
    values = weight.numpy().astype(np.float32)
    if weight.dim() == 1:
        writer.add_tensor(name, values)
        return
    kind = GGMLQuantizationType.Q4_0 if name == "token_embd.weight" else GGMLQuantizationType.Q8_0
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
