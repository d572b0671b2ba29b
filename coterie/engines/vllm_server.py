"""vLLM itself: started in this process, asked for tokens, and told what was learned."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import save_adapter
from coterie.types import Sampling

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM makes room for
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where weights can be handed over
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the learner's, too
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class Server:
    """One vLLM engine with a copy of one base. It starts when it is first asked: by then all adapters are there."""

    def __init__(self, base: Base, adapters: Sequence[str], rows: int, context: int) -> None:
        self.base, self.rows, self.context = base, rows, context
        self.adapters = {name: number for number, name in enumerate(adapters, start=1)}
        self.outdated: set[str | None] = {*adapters} or {None}
        self.engine: Any = None

    def outdate(self, adapter: str | None) -> None:
        """What vLLM has of this adapter, or of the whole model, is old."""
        if adapter is not None or not self.adapters:  # a model with adapters on it does not change
            self.outdated.add(adapter)

    def ask(self, name: str, adapter: str | None, prompt: list[int], room: int, seed: int, how: Sampling) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._push()
        params = SamplingParams(
            max_tokens=room,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k,
            seed=seed,
            logprobs=0,  # of the drawn token alone
            stop_token_ids=sorted(self.base.chat.end_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        lora = self._request(adapter, "pushed before") if adapter else None
        self.engine.add_request(name, {"type": "token", "prompt_token_ids": prompt}, params, lora_request=lora)

    def step(self) -> Any:
        return self.engine.step()

    def drop(self, names: list[str]) -> None:
        if names:
            self.engine.abort_request(names)

    def forget(self) -> None:
        if self.engine is not None:
            self.engine.reset_prefix_cache()

    def _push(self) -> None:
        """Tell vLLM what has been learned since it last spoke."""
        if not self.outdated:
            return
        if self.engine is None:
            self.engine = self._started()
        for adapter in self.outdated:
            if adapter is None:
                weights = ((name, tensor.detach()) for name, tensor in self.base.model.named_parameters())
                self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
                self.engine.apply_model(_prepare_head)
                continue
            with TemporaryDirectory() as folder:
                save_adapter(self._adapter(adapter), Path(folder), str(self.base.folder))
                self.engine.add_lora(self._request(adapter, folder, load_inplace=True))
        self.outdated.clear()
        self.forget()

    def _request(self, adapter: str, folder: str, load_inplace: bool = False) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(adapter, self.adapters[adapter], folder, load_inplace=load_inplace)

    def _adapter(self, name: str) -> Adapter:
        """As it is now, out of the layers that it lives on."""
        pairs = {layer: routed.pairs[name] for layer, routed in self.base.layers.items() if name in routed.pairs}
        pair = next(iter(pairs.values()))
        rank, targets = len(pair.down), sorted({layer.rpartition(".")[2] for layer in pairs})
        adapter = Adapter(name, rank, pair.scale * rank, targets)
        adapter.pairs = pairs
        return adapter

    def _started(self) -> Any:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        cuda = self.base.device.type == "cuda"
        config = EngineArgs(
            model=str(self.base.folder),
            skip_tokenizer_init=True,
            generation_config="vllm",  # not the model's own, which may ask for penalties
            dtype="bfloat16" if self.base.bf16 else "float32",
            max_model_len=self.context,
            max_num_seqs=self.rows,
            logprobs_mode="processed_logprobs",
            kv_cache_memory_bytes=self._cache_bytes(),
            enforce_eager=not cuda,
            disable_log_stats=True,
            **self._room_for_adapters(),
        ).create_engine_config()
        return LLMEngine(config, Executor.get_class(config), log_stats=False)

    def _room_for_adapters(self) -> dict[str, Any]:
        if not self.adapters:
            return {}
        most = max(self._adapter(name).rank for name in self.adapters)
        # One slot more than adapters: on CPU a row without an adapter reads the last slot, which must be empty.
        slots = len(self.adapters) + 1
        return {"enable_lora": True, "max_loras": slots, "max_lora_rank": next(r for r in RANKS if r >= most)}

    def _cache_bytes(self) -> int:
        """Enough for all rows, but no more than half of what is free: the learner needs its share."""
        shape, cuda = self.base.model.config.get_text_config(), self.base.device.type == "cuda"
        own = shape.hidden_size // shape.num_attention_heads
        layers, heads, width = self.base.kept or (shape.num_hidden_layers, shape.num_attention_heads, own)
        token = 2 * (2 if self.base.bf16 else 4) * layers * heads * width
        host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(token * self.rows * self.context, (torch.cuda.mem_get_info()[0] if cuda else host) // 2)


def _prepare_head(model: nn.Module) -> None:
    """On CPU a head has a packed copy of its weight, which nobody renews where it is tied to the embedding."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
