"""The wheel alone: installed beside its dependencies, without the checkout, it trains, shows, serves and exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SMALL = ["steps=2", "tasks_per_step=2", "episodes_per_task=4", "eval.tasks=4", "eval.every=0"]
QUESTIONS = ["3 + 5", "What is 7 + 2?", "Say a colour."]
# Reads an exported model as anybody would, and prints its greedy replies.
PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
assert not any(name.startswith("coterie") for name in sys.modules)
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
for question in json.loads(sys.argv[2]):
    message = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1]:]
    print(json.dumps(tokenizer.decode(out, skip_special_tokens=True)))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the built wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    venv.create(folder / "venv", symlinks=True)
    python, (wheel,) = folder / "venv/bin/python", folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "venv/lib").glob("*/site-packages")
    # A plain line of a .pth file: the .pth files in that folder, such as the checkout's own, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv/bin"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which everything is run."""
    return tmp_path_factory.mktemp("empty")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(installed: Path, empty: Path, *words: str) -> str:
    done = subprocess.run([installed / words[0], *words[1:]], cwd=empty, env=environment(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()


@contextmanager
def started(installed: Path, empty: Path, *words: str) -> Iterator[str]:
    """The address that a server prints on its first line."""
    command = [installed / "coterie", *words, "--port", "0"]
    process = subprocess.Popen(command, cwd=empty, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait(30)


def test_the_wheel_trains_shows_serves_and_exports_what_plain_transformers_answers_alike(
    installed: Path, empty: Path
) -> None:
    where = "import coterie, pathlib; print(pathlib.Path(coterie.__file__).parent)"
    package = Path(run(installed, empty, "python", "-c", where).strip())
    assert installed.parent in package.parents and ROOT not in package.parents and (package / "py.typed").is_file()
    assert list(package.parent.glob("*.dist-info/licenses/LICENSE"))
    run(installed, empty, "coterie", "demo", *SMALL)
    with started(installed, empty, "view") as url:
        (shown,) = httpx.get(f"{url}/api/runs").json()
        assert (shown["name"], shown["state"], shown["step"]) == ("demo", "finished", 2)
        assert "uPlot" in httpx.get(f"{url}/static/uplot.js").text
    with started(installed, empty, "serve", "runs/demo") as url:
        served = [answer(url, question) for question in QUESTIONS]
    run(installed, empty, "coterie", "export", "runs/demo", "--merge", "models")
    plain = run(installed, empty, "python", "-c", PLAIN, "models/first", json.dumps(QUESTIONS))
    assert [json.loads(line).partition("\n")[0] for line in plain.splitlines()] == served
    assert len(set(served)) > 1 and all(served)


def answer(url: str, question: str) -> str:
    """The greedy reply of the first role, which ends at a line break as in training."""
    body = {"model": "demo/first", "messages": [{"role": "user", "content": question}], "temperature": 0}
    reply = httpx.post(f"{url}/chat/completions", json=body, timeout=120).json()
    return str(reply["choices"][0]["message"]["content"])


def test_a_recipe_of_the_wheel_is_where_work_begins(installed: Path, empty: Path) -> None:
    assert "results/split_work/team" in run(installed, empty, "coterie", "recipes")
    assert run(installed, empty, "coterie", "init", "demo", "--out", "mine").split() == [
        "mine/demo.yaml",
        "mine/relay.py",
    ]
    # Typer's completion asks the program itself, by variables that the shell's function sets.
    asked = environment() | {"_COTERIE_COMPLETE": "complete_bash", "COMP_WORDS": "coterie ser", "COMP_CWORD": "1"}
    done = subprocess.run([installed / "coterie"], env=asked, cwd=empty, capture_output=True, text=True)
    assert done.stdout.split() == ["serve"]
