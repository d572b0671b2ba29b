"""Exported models give the answers of the run, with plain transformers and without Coterie."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from coterie.training.build import for_inference
from coterie.types import Sampling
from tests.commands import coterie, stdout_of
from tests.runs import naming_config, trained

QUESTIONS = ["Say your letter.", "What is 12 + 30?", "The answer is"]


@pytest.fixture(scope="module")
def run(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One adapter, one whole model."""
    tree = naming_config(model_folder("llama"), steps=2, eval={"tasks": 4, "every": 1}, name="pair")
    tree["policies"]["right"] = {"model": str(model_folder("qwen3")), "lr": 1e-2, "lora": None}
    folder = tmp_path_factory.mktemp("runs") / "pair"
    trained(tree, folder)
    return folder


def greedy(model: Any, tokenizer: Any, question: str) -> list[int]:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        out = model.eval().generate(**ids, max_new_tokens=16, do_sample=False)
    return out[0, ids["input_ids"].shape[1] :].tolist()


def expected(run: Path, policy: str, question: str) -> list[int]:
    team = for_inference(run)
    prompt = team.chats[policy].prompt([{"role": "user", "content": question}])
    return list(asyncio.run(team.engine.sample(policy, prompt, 0, Sampling(16, temperature=0))).ids)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_merged_models_answer_as_the_team_does(run: Path, tmp_path: Path) -> None:
    printed = stdout_of("export", run, "--merge", tmp_path / "out")
    assert printed.splitlines() == [f"{name}: {tmp_path / 'out' / name}" for name in ("left", "right")]
    for policy in ("left", "right"):
        folder = tmp_path / "out" / policy
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        for question in QUESTIONS:
            assert greedy(model, tokenizer, question) == expected(run, policy, question), (policy, question)


def test_adapters_load_with_peft_and_whole_models_have_none(run: Path, tmp_path: Path) -> None:
    stdout_of("export", run, "--adapter", tmp_path / "out", "--checkpoint", "1")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "left"]
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out" / "left")
    first = {n: p for n, p in model.named_parameters() if "lora_B" in n}
    assert first and any(p.abs().sum() > 0 for p in first.values())


def test_the_card_says_how_it_was_trained_and_measured(run: Path, tmp_path: Path) -> None:
    stdout_of("export", run, "--merge", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["base_model"] == ["llama", "qwen3"] and "grpo" in yaml.safe_load(head)["tags"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row["eval/reward"] for row in rows if "eval/reward" in row][-1]
    assert f"| 2 | {last:.3g} |" in body and "2 of 2 steps, each with 2 tasks × 4 episodes" in body
    assert "| `left` | left | llama | LoRA, rank 4 |" in body and str(run.parent) not in card


@contextmanager
def hub() -> Iterator[tuple[str, dict[str, bytes], list[Any]]]:
    """A hub on loopback that accepts uploads: its address, the files of each commit, the repositories made."""
    files: dict[str, bytes] = {}
    made: list[Any] = []

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != "Bearer hf_right":
                self._send(401, {"error": "who are you?"})
            elif self.path == "/api/repos/create":
                made.append(json.loads(body))
                self._send(200, {"url": f"http://{self.headers['Host']}/me/pair", "name": "me/pair"})
            elif self.path == "/api/validate-yaml":
                self._send(200, {"errors": [], "warnings": []})
            elif self.path.endswith("/preupload/main"):
                names = [file["path"] for file in json.loads(body)["files"]]
                self._send(200, {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
            elif self.path.endswith("/commit/main"):
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self._send(
                    200,
                    {
                        "commitUrl": f"http://{self.headers['Host']}/me/pair/commit/0",
                        "commitOid": "0" * 40,
                        "pullRequestUrl": None,
                    },
                )
            else:
                self._send(404, {})

        def do_GET(self) -> None:
            self._send(404, {"error": "not found"})

        def _send(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", files, made
    finally:
        server.shutdown()
        server.server_close()


def test_an_export_is_pushed_to_the_hub(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub() as (url, files, made):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        stdout_of("export", run, "--adapter", tmp_path / "out", "--push", "me/pair", "--public")
        public = made[0].get("visibility") == "public" or made[0].get("private") is False  # by the hub client's version
        assert made[0]["name"] == "pair" and public
        assert set(files) == {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
        assert files["left/adapter_model.safetensors"] == (tmp_path / "out/left/adapter_model.safetensors").read_bytes()
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        refused = coterie("export", run, "--adapter", tmp_path / "two", "--push", "me/pair")
        assert (
            refused.exit_code == 2 and "--push me/pair: the upload failed" in refused.output and "401" in refused.output
        )
        assert (tmp_path / "two" / "README.md").is_file()


def test_options_without_effect_are_refused(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for words in (
        [],
        ["--merge", out, "--adapter", out],
        ["--portable", out, "--push", "me/x"],
        ["--merge", out, "--part-mb", 4],
        ["--merge", out, "--public"],
    ):
        assert coterie("export", run, *words).exit_code == 2
    assert not out.exists()
