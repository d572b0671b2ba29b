"""How new weights reach vLLM's processes: a fake one stands in for it, as it does not run here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from coterie.engines import vllm
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import load_adapter

Folder = Callable[[str], Path]


class ReadsFiles:
    """Reads the weights that it is told of, at once, as vLLM does: the files are gone later."""

    def __init__(self, base: Base) -> None:
        self.base, self.files, self.whole, self.adapters = base, list[str](), dict[str, Tensor](), dict[str, Adapter]()

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        assert method == "reload_weights"
        paths = sorted(Path(kwargs["weights_path"]).iterdir())
        self.files = [path.name for path in paths]
        self.whole = {name: tensor for path in paths for name, tensor in load_file(path).items()}

    def add_lora(self, request: Any) -> None:
        assert request.load_inplace and request.folder.startswith(vllm.shared_memory() or "/tmp")
        self.adapters[request.name] = load_adapter(f"read {request.name}", Path(request.folder), self.base.layers)

    def reset_prefix_cache(self) -> None:
        pass

    def apply_model(self, change: Any) -> None:
        pass


def fake_engine(base: Base, policies: dict[str, str | None], patch: pytest.MonkeyPatch) -> tuple[Any, ReadsFiles]:
    request = ModuleType("vllm.lora.request")
    request.LoRARequest = lambda name, number, folder, load_inplace: SimpleNamespace(  # type: ignore[attr-defined]
        name=name, number=number, folder=folder, load_inplace=load_inplace
    )
    patch.setitem(sys.modules, "vllm.lora.request", request)
    patch.setattr(vllm, "find_spec", lambda name: True)
    patch.setattr(vllm.VllmServer, "_start", lambda self: reads)
    reads = ReadsFiles(base)
    return vllm.VllmEngine(base, policies, tensor_parallel=2), reads


@pytest.fixture
def weightless(model_folder: Folder) -> Base:
    return Base(model_folder("llama"), weightless=True)


def test_a_weightless_base_has_shapes_and_no_weights(weightless: Base, model_folder: Folder) -> None:
    assert all(parameter.is_meta for parameter in weightless.model.parameters())
    whole = Base(model_folder("llama"))
    assert weightless.layers.keys() == whole.layers.keys() and weightless.context == whole.context
    question = [{"role": "user", "content": "12 + 30?"}]
    assert weightless.chat.prompt(question) == whole.chat.prompt(question)  # type: ignore[arg-type]


def test_a_pushed_adapter_is_read_from_memory_and_no_request_loads_it_again(
    weightless: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Adapter("left", 4, 8.0, ("q_proj", "down_proj")).attach(weightless.layers, seed=1)
    engine, reads = fake_engine(weightless, {"left": "left"}, monkeypatch)
    new = {name: torch.randn(p.shape) for name, p in adapter.parameters().items()}
    engine.weights_changed("left", 3, new)
    engine.server._push_weights()
    torch.testing.assert_close(dict(reads.adapters["left"].parameters()), new, rtol=0, atol=0)
    assert not engine.server._lora_request("left", "pushed before").load_inplace
    reads.adapters.clear()
    engine.server._push_weights()
    assert not reads.adapters, "nothing has changed"


def test_a_pushed_model_is_read_in_few_large_files(
    weightless: Base, model_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, reads = fake_engine(weightless, {"left": None}, monkeypatch)
    new = {name: torch.randn(p.shape) for name, p in weightless.model.named_parameters()}
    size = sum(tensor.nbytes for tensor in new.values())
    monkeypatch.setattr(vllm, "BUCKET", size // 3)
    engine.server._push_weights()
    assert not reads.whole, "vLLM has read the model's folder itself"
    engine.weights_changed("left", 1, new)
    engine.server._push_weights()
    torch.testing.assert_close(reads.whole, new, rtol=0, atol=0)
    assert 3 <= len(reads.files) <= 5 and reads.files[0].startswith("model-00001-of-")
