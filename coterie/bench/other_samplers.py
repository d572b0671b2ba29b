"""Samplers to compare with: Hugging Face `generate`, its continuous batching, vLLM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from coterie.bench.shapes import SHAPES, scratch

Ids = tuple[int, ...]


class _AtLimits(StoppingCriteria):
    """Ends each row at its own length."""

    def __init__(self, ends: Tensor) -> None:
        self.ends = ends

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return input_ids.shape[1] >= self.ends


@torch.no_grad()
def generate(model: PreTrainedModel, prompts: Sequence[Ids], limits: Sequence[int], sample: bool = True) -> list[Ids]:
    """Plain `generate` on prompts of one length; it runs until the longest row has ended."""
    ids = torch.tensor(prompts, device=model.device)
    ends = ids.shape[1] + torch.tensor(limits, device=model.device)
    out = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(max_new_tokens=max(limits), do_sample=sample, top_k=0 if sample else None),
        stopping_criteria=StoppingCriteriaList([_AtLimits(ends)]),
    )
    return [tuple(row[ids.shape[1] :][:limit]) for row, limit in zip(out.tolist(), limits, strict=True)]


def continuous(model: PreTrainedModel, prompts: Sequence[Ids], limits: Sequence[int]) -> list[Ids]:
    """Continuous batching of `generate`; it takes one limit, so every row runs to the longest."""
    how = GenerationConfig(max_new_tokens=max(limits), do_sample=True, eos_token_id=-1, pad_token_id=0)
    out = model.generate_batch([list(prompt) for prompt in prompts], generation_config=how)  # type: ignore[operator]
    return [tuple(answer.generated_tokens) for answer in out.values()]


class Vllm:
    """vLLM with random weights of the same shape."""

    def __init__(self, shape: str) -> None:
        from vllm import LLM

        folder = scratch()
        config = SHAPES[shape].to_dict() | {"torch_dtype": "bfloat16", "architectures": [architecture(shape)]}
        (folder / "config.json").write_text(json.dumps(config))
        self.engine = LLM(str(folder), load_format="dummy", skip_tokenizer_init=True, gpu_memory_utilization=0.4)

    def __call__(self, prompts: Sequence[Ids], limits: Sequence[int]) -> list[Ids]:
        from vllm import SamplingParams

        how = [SamplingParams(max_tokens=limit, temperature=1.0, ignore_eos=True, detokenize=False) for limit in limits]
        out = self.engine.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], how, use_tqdm=False)
        return [tuple(answer.outputs[0].token_ids) for answer in out]


def architecture(shape: str) -> str:
    return {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[SHAPES[shape].model_type]
