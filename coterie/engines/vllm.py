"""vLLM as the engine, in this process: for models that it serves faster. `pip install -e '.[vllm]'`.

vLLM has its own copy of the weights, so updated weights are pushed to it before the next request. It also has its own
sampler: a seed reproduces its tokens, but not those of the other engines. With tensor parallelism vLLM runs one process
per GPU, and these read new weights from files in shared memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from coterie.engines.requests import loop_failed, reply_room
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.models.lora import Adapter
from coterie.models.peft import save_adapter
from coterie.types import OnTokens, Sample, Sampling, Stop, Weights
from coterie.watchdog import watchdog_paused

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for max_lora_rank
SHARED_MEMORY = "/dev/shm"
BUCKET = 4 << 30  # bytes of weights per file
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where weights can be pushed
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are shared with the learner
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass
class PendingRequest:
    """One request in vLLM, and its tokens so far."""

    future: asyncio.Future[Sample]
    version: int
    stop_text: StopText | None
    on_tokens: OnTokens | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmEngine:
    """Continuous batching by vLLM for all policies on one base."""

    def __init__(
        self,
        base: Base,
        policies: dict[str, str | None],
        rows: int = 64,
        context: int | None = None,
        tensor_parallel: int = 1,
        memory: float = 0.9,
    ) -> None:
        """`policies`: the adapter of each policy; None is the base model itself. `memory`: vLLM's share of a GPU's
        memory (gpu_memory_utilization) if the base has no weights in this process."""
        if find_spec("vllm") is None:
            raise ValueError("engine.name: vllm is not installed; `pip install -e '.[vllm]'` brings it")
        if base.device.index:
            raise ValueError(f"engine.name: vllm runs on the first GPU only, and {base.folder} is on {base.device}")
        self.base, self.policies = base, dict(policies)
        self.context = min(context or base.context, base.context)
        adapters = sorted({name for name in policies.values() if name})
        self.server = VllmServer(base, adapters, rows, self.context, tensor_parallel, memory)
        self.versions = dict.fromkeys(policies, 0)
        self.pending: dict[str, PendingRequest] = {}
        self.numbers = count()
        self.driver: asyncio.Task[None] | None = None

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        """The weights have changed; they are pushed to vLLM before its next request."""
        adapter = self.policies[policy]
        if adapter is None and self.base.weightless:
            self.server.pushed = weights
        else:
            self.base.load_weights(adapter, weights)
        self.versions[policy] = version
        self.server.mark_stale(adapter)

    def clear(self) -> None:
        """Empty the prefix cache; vLLM keeps its memory."""
        self.server.reset_prefix_cache()

    async def sample(
        self,
        policy: str,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        on_tokens: OnTokens | None = None,
    ) -> Sample:
        if not (room := reply_room(self.base, self.context, prompt_ids, sampling)):
            return Sample((), (), "length", self.versions[policy])
        name = str(next(self.numbers))
        with watchdog_paused():  # the first request starts vLLM
            self.server.add_request(name, self.policies[policy], list(prompt_ids), room, seed, sampling)
        stop_text = StopText(self.base.tokenizer, sampling.stop) if sampling.stop else None
        request = PendingRequest(
            asyncio.get_running_loop().create_future(), self.versions[policy], stop_text, on_tokens
        )
        self.pending[name] = request
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
            self.driver.add_done_callback(self._driver_done)
        return await request.future

    async def _drive(self) -> None:
        """The engine loop: step vLLM until no request is left."""
        while self.pending:
            await asyncio.sleep(0)
            self._remove([name for name, request in self.pending.items() if request.future.done()])  # cancelled
            with watchdog_paused():
                for output in self.server.step() if self.pending else ():
                    self._append(output.request_id, output.outputs[0])

    def _append(self, name: str, output: Any) -> None:
        """Append a request's new tokens, and resolve it if it has finished."""
        if name not in self.pending:  # cancelled and removed meanwhile
            return
        request, stop = self.pending[name], None
        for token, logprobs in zip(output.token_ids, output.logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprobs[token].logprob)
            stop = stop or self._stop(request, token)
        if request.on_tokens is not None and output.token_ids:
            new = len(output.token_ids)
            request.on_tokens(request.ids[-new:], request.logprobs[-new:])
        if stop or output.finish_reason:
            self._remove([name])
            sample = Sample(tuple(request.ids), tuple(request.logprobs), stop or "length", request.version)
            request.future.set_result(sample)

    def _stop(self, request: PendingRequest, token: int) -> Stop | None:
        if token in self.base.chat.end_ids:
            return "end"
        return "stop" if request.stop_text is not None and request.stop_text.feed(token) else None

    def _remove(self, names: list[str]) -> None:
        for name in names:
            del self.pending[name]
        self.server.abort(names)

    def _driver_done(self, driver: asyncio.Task[None]) -> None:
        if loop_failed(driver, [request.future for request in self.pending.values()]):
            self._remove(list(self.pending))


class VllmServer:
    """One vLLM engine with a copy of one base; started at the first request, when all adapters are attached."""

    def __init__(
        self,
        base: Base,
        adapters: Sequence[str],
        rows: int,
        context: int,
        tensor_parallel: int = 1,
        memory: float = 0.9,
    ) -> None:
        self.base, self.rows, self.context = base, rows, context
        self.tensor_parallel, self.memory = tensor_parallel, memory
        self.adapters = {name: number for number, name in enumerate(adapters, start=1)}
        self.pushed: Weights | None = None  # of a weightless base: new weights of the whole model; None: unchanged
        self.stale: set[str | None] = {*adapters} or {None}
        self.engine: Any = None

    def mark_stale(self, adapter: str | None) -> None:
        """vLLM's copy of this adapter, or of the whole model, is out of date."""
        if adapter is not None or not self.adapters:  # with adapters, the base's own weights are never trained
            self.stale.add(adapter)

    def add_request(
        self, name: str, adapter: str | None, prompt: list[int], room: int, seed: int, sampling: Sampling
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._push_weights()
        params = SamplingParams(
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            logprobs=0,  # of the sampled token alone
            stop_token_ids=sorted(self.base.chat.end_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        lora = self._lora_request(adapter, "pushed before") if adapter else None
        self.engine.add_request(name, {"type": "token", "prompt_token_ids": prompt}, params, lora_request=lora)

    def step(self) -> Any:
        return self.engine.step()

    def abort(self, names: list[str]) -> None:
        if names:
            self.engine.abort_request(names)

    def reset_prefix_cache(self) -> None:
        if self.engine is not None:
            self.engine.reset_prefix_cache()

    def _push_weights(self) -> None:
        """Push all stale weights, and start vLLM if necessary."""
        if not self.stale:
            return
        if self.engine is None:
            self.engine = self._start()
        for adapter in self.stale:
            if adapter is None:
                self._push_model()
                continue
            with TemporaryDirectory(dir=shared_memory()) as folder:
                save_adapter(self._adapter(adapter), Path(folder), str(self.base.folder))
                self.engine.add_lora(self._lora_request(adapter, folder, load_inplace=True))
        self.stale.clear()
        self.reset_prefix_cache()

    def _push_model(self) -> None:
        """Push a whole model: through this process's memory, or through files that vLLM's processes read."""
        if not self.base.weightless:
            weights = ((name, tensor.detach()) for name, tensor in self.base.model.named_parameters())
            self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        elif self.pushed is not None:
            with TemporaryDirectory(dir=shared_memory()) as folder:
                write_buckets(self.pushed, Path(folder))
                self.engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            self.pushed = None
        if self.base.device.type == "cpu":
            self.engine.apply_model(_repack_lm_head)

    def _lora_request(self, adapter: str, folder: str, load_inplace: bool = False) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(adapter, self.adapters[adapter], folder, load_inplace=load_inplace)

    def _adapter(self, name: str) -> Adapter:
        """The adapter with its current weights, collected from the layers."""
        pairs = {layer: lora.pairs[name] for layer, lora in self.base.layers.items() if name in lora.pairs}
        pair = next(iter(pairs.values()))
        rank, targets = len(pair.down), sorted({layer.rpartition(".")[2] for layer in pairs})
        adapter = Adapter(name, rank, pair.scale * rank, targets)
        adapter.pairs = pairs
        return adapter

    def _start(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        cuda = self.base.device.type == "cuda"
        config = EngineArgs(
            model=str(self.base.folder),
            skip_tokenizer_init=True,
            generation_config="vllm",  # not the model's own, which may have penalties
            dtype="bfloat16" if self.base.bf16 else "float32",
            max_model_len=self.context,
            max_num_seqs=self.rows,
            logprobs_mode="processed_logprobs",
            enforce_eager=not cuda,
            disable_log_stats=True,
            **self._memory_options(),
            **self._lora_options(),
        ).create_engine_config()
        return LLMEngine(config, Executor.get_class(config), log_stats=False)

    def _memory_options(self) -> dict[str, Any]:
        """Options for GPU placement and memory."""
        if not self.base.weightless:
            return {"kv_cache_memory_bytes": self._cache_bytes()}
        # Not Ray, vLLM's default inside a Ray worker: its Ray workers would get no GPUs.
        placed = {"tensor_parallel_size": self.tensor_parallel, "distributed_executor_backend": "mp"}
        return {"gpu_memory_utilization": self.memory} | (placed if self.tensor_parallel > 1 else {})

    def _lora_options(self) -> dict[str, Any]:
        if not self.adapters:
            return {}
        max_rank = max(self._adapter(name).rank for name in self.adapters)
        # One slot more than adapters: on CPU a row without an adapter reads the last slot, which must be empty.
        slots = len(self.adapters) + 1
        return {"enable_lora": True, "max_loras": slots, "max_lora_rank": next(r for r in RANKS if r >= max_rank)}

    def _cache_bytes(self) -> int:
        """KV cache memory: enough for all rows, but at most half of the free memory, as the learner needs the rest."""
        config, cuda = self.base.model.config.get_text_config(), self.base.device.type == "cuda"
        own = config.hidden_size // config.num_attention_heads
        layers, heads, dim = self.base.kv_shape or (config.num_hidden_layers, config.num_attention_heads, own)
        token = 2 * (2 if self.base.bf16 else 4) * layers * heads * dim
        host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(token * self.rows * self.context, (torch.cuda.mem_get_info()[0] if cuda else host) // 2)


def shared_memory() -> str | None:
    """A folder in shared memory; None, for the default temporary folder, where there is none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def write_buckets(weights: Weights, folder: Path) -> None:
    """Write a model's weights as a few large safetensors files."""
    buckets: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in weights.items():
        if used and used + tensor.nbytes > BUCKET:
            buckets.append({})
            used = 0
        buckets[-1][name] = tensor.contiguous()
        used += tensor.nbytes
    for number, bucket in enumerate(buckets, start=1):
        name = f"model-{number:05d}-of-{len(buckets):05d}.safetensors"
        save_file(bucket, folder / name, metadata={"format": "pt"})


def _repack_lm_head(model: nn.Module) -> None:
    """Repack the LM head: on CPU it has a packed copy of its weight, which vLLM does not update for tied embeddings."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
