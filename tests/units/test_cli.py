"""The command line teaches, trains, measures, resumes, and says plainly what a user can put right."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import typer

from coterie import __version__
from coterie.bench import app as bench
from coterie.cli import data, verifier
from coterie.cli.app import app
from coterie.cli.commands import new_run_folder
from coterie.cli.report import dialogue, visible
from coterie.config import load
from coterie.episode_rows import read_episodes
from coterie.models.base import Base
from coterie.models.peft import save_adapter
from coterie.training import loop
from coterie.training.build import build
from tests.commands import coterie, stdout_of
from tests.episodes import episode, turn
from tests.forked import Python
from tests.games import game
from tests.oracle import random_adapter

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny_model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("llama")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, str]:
    """A run of two steps, and what the command printed."""
    folder = tmp_path_factory.mktemp("trained")
    printed = stdout_of("train", game(folder, tiny_model), "--out", folder, "--examples", 2)
    return folder / "game", printed


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_no_option_has_its_own_name_as_placeholder() -> None:
    """Typer 0.27 takes `metavar="LR"` of `lr` for its name: the option would be `--LR`."""

    def options(command: Any) -> Iterator[Any]:
        yield from (one for one in command.params if one.param_type_name == "option")
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)

    apps = (app, data.app, verifier.app, bench.app)  # the last three are loaded when they are called
    found = [option for one in apps for option in options(typer.main.get_command(one))]
    assert len(found) > 50 and [one.name for one in found if one.metavar == str(one.name).upper()] == []


@pytest.mark.parametrize("command", ["train", "eval", "check", "schema"])
def test_help_shows_each_command_at_work(command: str) -> None:
    assert f"  {command} " in stdout_of("--help")
    assert f"\n    coterie {command}" in stdout_of(command, "--help")


def test_asking_for_help_does_not_wait_for_torch() -> None:
    code = "import sys; from coterie.cli.app import app; app(['--help'], standalone_mode=False); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.endswith("False\n"), done.stdout + done.stderr


def test_a_mistake_in_a_config_is_told_before_the_models_library_is_imported(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("stps: 3\n")
    code = (
        "import sys; from pathlib import Path; from coterie.cli.commands import train\n"
        "try: train(Path('wrong.yaml'), [], Path('runs'), 0)\n"
        "except ValueError as error: print('transformers' in sys.modules, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("False stps: unknown key")


def test_the_version_is_the_package_s() -> None:
    assert stdout_of("--version") == f"coterie {__version__}\n"


def test_the_schema_is_json() -> None:
    assert "policies" in json.loads(stdout_of("schema"))["properties"]


def test_training_leaves_a_run_and_says_what_it_will_do_and_what_comes_next(trained: tuple[Path, str]) -> None:
    run, printed = trained
    assert [(row["step"], "eval/reward" in row) for row in metrics(run)] == [(1, False), (2, False), (2, True)]
    assert (run / "latest").read_text() == "000002"
    assert "2 steps × 3 tasks × 4 episodes, grpo" in printed and "LoRA, rank 2" in printed
    assert f"coterie eval {run}" in printed and f"coterie train --resume {run} steps=4" in printed


def test_examples_show_dialogues_and_scores_before_and_after(trained: tuple[Path, str]) -> None:
    _, printed = trained
    assert printed.count("answer: ") == 2
    assert "What is 1 + 7?" in printed and "untrained team" in printed and "after 2 steps" in printed


def test_evaluating_a_run_gives_the_number_that_training_gave(trained: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = trained
    printed = stdout_of("eval", run, "--json", tmp_path / "numbers.json")
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    team, single, as_reasoner = numbers["reports"].values()  # its tokens pay for one answer, so there is no vote
    assert next(iter(numbers["reports"])) == "team, step 2" and numbers["tasks"] == 5
    assert {f"eval/{name}": value for name, value in team.items()}.items() <= metrics(run)[-1].items()
    assert 6 < single["tokens"] <= 12 and 6 < as_reasoner["tokens"] <= 12  # as many as both roles together
    assert single["failed"] == as_reasoner["failed"] == 0
    words = (
        "team, step 2",
        "single agent",
        "agent as reasoner",
        "pass@1",
        "reasoner",
        "actor",
        "truncated",
    )
    for word in words:
        assert word in printed
    for line in (
        "with the bare question, at most 12 tokens",
        "with the prompt of the first role, at most",
    ):
        assert line in printed


def test_options_of_eval_reach_the_config(trained: tuple[Path, str], tmp_path: Path) -> None:
    where = tmp_path / "numbers.json"
    options = ["--tasks", 2, "--episodes", 3, "--temperature", 1, "--checkpoint", 1, "--no-baselines", "--json", where]
    printed = stdout_of("eval", trained[0], *options)
    numbers = json.loads(where.read_text())
    assert (numbers["step"], numbers["tasks"], numbers["episodes_per_task"]) == (1, 2, 3)
    assert list(numbers["reports"]) == ["team, step 1"] and "pass@3" in printed


def test_a_config_is_evaluated_as_an_untrained_team(tmp_path: Path, tiny_model: Path) -> None:
    assert "team, untrained" in stdout_of("eval", game(tmp_path, tiny_model), "--no-baselines")
    assert not (tmp_path / "game").exists()


def test_a_whole_model_and_a_frozen_one_are_evaluated_too(tmp_path: Path, tiny_model: Path) -> None:
    policies = {"thinker": {"model": str(tiny_model), "lora": None}, "doer": {"model": str(tiny_model), "frozen": True}}
    assert "single agent" in stdout_of("eval", game(tmp_path, tiny_model, policies=policies), "--tasks", 1)


def test_a_team_that_is_all_frozen_can_be_evaluated_but_not_trained(tmp_path: Path, tiny_model: Path) -> None:
    changes = ["policies.thinker.frozen=true", "policies.doer.frozen=true"]
    config = game(tmp_path, tiny_model)
    assert "team, untrained" in stdout_of("eval", config, *changes, "--no-baselines")
    assert "nothing to train" in coterie("train", config, *changes, "--out", tmp_path).stderr


def test_a_run_needs_the_adapter_that_it_began_from_only_to_begin(tmp_path: Path, tiny_model: Path) -> None:
    save_adapter(random_adapter(Base(tiny_model), "a", 3, ("q_proj", "up_proj"), seed=1), tmp_path / "start", "any")
    policies = {"thinker": {"model": str(tiny_model), "adapter": "start"}, "doer": {"model": str(tiny_model)}}
    config = game(tmp_path, tiny_model, policies=policies)
    printed = stdout_of("train", config, "steps=1", "--out", tmp_path)
    assert "the adapter" in printed and printed.count("LoRA, rank 16") == 1
    shutil.rmtree(tmp_path / "start")
    run = tmp_path / "game"
    assert "team, step 1" in stdout_of("eval", run, "--no-baselines")
    assert "resuming after step 1" in stdout_of("train", "--resume", run, "steps=2")
    assert json.loads((run / "checkpoints/000002/policies/thinker/adapter_config.json").read_text())["r"] == 3
    assert "no adapter_config.json" in plainly(coterie("train", config, "name=new", "--out", tmp_path))


def test_a_context_beyond_the_model_s_own_is_said_to_be_its_own(
    tmp_path: Path, tiny_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build(load(game(tmp_path, tiny_model), ["engine.context=4096"]), tmp_path, console=False, training=False)
    said = capfd.readouterr().err
    assert f"engine.context=4096: {tiny_model} has a context of 512 tokens, and no more are used" in said
    build(load(game(tmp_path, tiny_model), ["engine.context=512"]), tmp_path, console=False, training=False)
    assert "engine.context" not in capfd.readouterr().err


def test_resuming_goes_on_to_the_new_last_step(tmp_path: Path, tiny_model: Path) -> None:
    stdout_of("train", game(tmp_path, tiny_model), "steps=1", "--out", tmp_path)
    printed = stdout_of("train", "--resume", tmp_path / "game", "steps=2", "eval.tasks=3")
    assert "resuming after step 1" in printed
    assert [row["step"] for row in metrics(tmp_path / "game")] == [1, 2, 2]
    assert len(read_episodes(tmp_path / "game" / "episodes" / "000002.jsonl.gz")) == 12


def test_a_run_without_memory_goes_on_with_less_and_keeps_to_it(
    trained: tuple[Path, str], tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = tmp_path / "game", game(tmp_path, tiny_model)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "measure_movement", full_at_step(2))
        told = plainly(coterie("train", config, "--out", tmp_path))
    again = f"`coterie train --resume {run} learning.microbatch_tokens=N` continues after step 1"
    assert "step 2, record: CUDA out of memory" in told and again in told
    stdout_of("train", "--resume", run, "learning.microbatch_tokens=64", "learning.checkpointing=true", "engine.rows=4")
    rewards = [[row["reward"] for row in metrics(folder) if "reward" in row] for folder in (run, trained[0])]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    stdout_of("train", "--resume", run, "steps=3")
    saved = load(run / "config.yaml")
    assert (saved.learning.microbatch_tokens, saved.learning.checkpointing, saved.engine.rows) == (64, True, 4)
    for key in ("algorithm=rloo", "engine.context=256", "learning={microbatch_tokens: 64}"):
        assert "cannot change when a run is resumed" in plainly(coterie("train", "--resume", run, key))


def full_at_step(step: int) -> Callable[..., None]:
    """Raises as a GPU does whose memory is full."""

    def full(learners: Any, played: Any, before: Any, done: int) -> None:
        if done + 1 == step:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    return full


def test_the_untrained_team_of_a_resumed_run_is_the_one_it_began_with(
    trained: tuple[Path, str], tmp_path: Path, tiny_model: Path
) -> None:
    stdout_of("train", game(tmp_path, tiny_model), "steps=1", "--out", tmp_path)
    printed = stdout_of("train", "--resume", tmp_path / "game", "steps=2", "--examples", 1)
    row = next(line for line in trained[1].splitlines() if "untrained team" in line)
    assert row in printed.splitlines()


def plainly(result: Any) -> str:
    """The text of a user's mistake: on stderr, without a traceback, with exit code 2."""
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    return str(result.stderr)


NO_MODEL = "policies.doer.model=/there/is/none"
MISTAKES = {
    "no config": (["train"], "pass a config, as in `coterie train recipes/demo.yaml`"),
    "no such file": (["train", "nowhere.yaml"], "nowhere.yaml: there is no such file; `coterie init NAME` copies"),
    "wrong type": (["train", "CONFIG", "steps=many"], "steps: got the text 'many'"),
    "contradiction": (["train", "CONFIG", "episodes_per_task=1"], "episodes_per_task: is 1"),
    "no model": (["train", "CONFIG", "name=new", NO_MODEL], "policies.doer.model: model /there/is/none: no such file"),
    "nothing to share": (["train", "CONFIG", "name=new", "credit=aggregate"], "no turn was given a reward of its own"),
    "folder for config": (["train", "RUN"], "is a run's folder; `coterie train --resume"),
    "out of a resumed run": (["train", "--resume", "RUN", "--out", "OUT"], "--out has no effect with --resume"),
    "no run": (["train", "--resume", "OUT"], "is not a run: it has no config.yaml"),
    "another run": (["train", "--resume", "RUN", "policies.doer.lr=1"], "policies.doer.lr: cannot change when a run"),
    "no key of a resumed run": (["train", "--resume", "RUN", "stps=4"], "stps: unknown key; Config has"),
    "a similar key of a resumed run": (["train", "--resume", "RUN", "stps=4"], "did you mean steps? (override stps=4)"),
    "no key of a replay": (["replay", "RUN", "algorith=rloo"], "algorith: unknown key; Config has"),
    "a key inside a replay": (["replay", "RUN", "policies.doer.lrr=1"], "policies.doer.lrr: unknown key; Policy has"),
    "a length of a replay": (["replay", "RUN", "epochs=1"], "epochs: cannot change in a replay"),
    "another rule of a resumed run": (
        ["train", "--resume", "RUN", "algorithm.name=ppo"],
        "algorithm.name: cannot change",
    ),
    "many": (
        ["train", "--resume", "RUN", "max_sampled_tokens=0"],
        "max_sampled_tokens: got 0, expected a whole number",
    ),
    "no override": (["train", "--resume", "RUN", "steps"], "an override looks like key=value"),
    "going back": (["train", "--resume", "RUN", "steps=1"], "has done 2 steps already"),
    "no checkpoint": (["eval", "RUN", "--checkpoint", "7"], "no checkpoint '7'; there is 000001, 000002"),
    "checkpoint of config": (["eval", "CONFIG", "--checkpoint", "best"], "whose team is untrained"),
    "other policies": (["eval", "RUN", "policies.doer.lora.rank=4"], "policies.doer.lora.rank: cannot change"),
    "greedy repeats": (["eval", "RUN", "--episodes", "2"], "at eval.temperature=0 all 2 episodes"),
    "eval of a checkpoint": (["eval", "CHECKPOINT"], "is a checkpoint; `coterie eval"),
    "no place for numbers": (
        ["eval", "RUN", "--json", "no/where.json"],
        "no/where.json: the folder no does not exist",
    ),
    "a folder for numbers": (["eval", "RUN", "--json", "OUT"], "is a folder; name a file in it"),
    "no place for changes": (["replay", "RUN", "--out", "no/where.jsonl"], "--out no/where.jsonl: the folder no"),
    "no place for times": (["bench", "rollout", "--quick", "--out", "no/where.json"], "the folder no does not exist"),
    "eval of nothing": (["eval", "OUT"], "is not a run"),
    "check of nothing": (["check", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_plainly(
    mistake: str, trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some make a run
    run, words = trained[0], MISTAKES[mistake][0]
    places = {
        "RUN": run,
        "OUT": run.parent,
        "CONFIG": run.parent / "game.yaml",
        "CHECKPOINT": run / "checkpoints/000001",
    }
    result = coterie(*[places.get(word, word) for word in words])
    assert MISTAKES[mistake][1] in plainly(result)


def test_a_second_run_gets_a_folder_of_its_own(tmp_path: Path, tiny_model: Path) -> None:
    config = game(tmp_path, tiny_model)
    for _ in range(2):
        stdout_of("train", config, "steps=1", "--out", tmp_path)
    steps = [len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) for name in ("game", "game-2")]
    assert steps == [2, 2]


def test_runs_that_start_together_share_no_folder(tmp_path: Path) -> None:
    with ExitStack() as together:
        taken = [together.enter_context(new_run_folder(tmp_path / "runs" / "game")) for _ in range(3)]
        assert [path.name for path in taken] == ["game", "game-2", "game-3"]
        (taken[1] / "config.yaml").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["game-2"]  # the others never began


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    config = game(tmp_path, tmp_path / "no-model")
    assert "no-model" in plainly(coterie("train", config, "--out", tmp_path))
    assert not (tmp_path / "game").exists()


def test_too_many_failures_stop_a_run_with_the_first_cause(tmp_path: Path, tiny_model: Path) -> None:
    result = coterie("train", game(tmp_path, tiny_model), "env.broken=true", "--out", tmp_path)
    assert result.exit_code == 2
    assert "12 of 12 episodes failed" in result.stderr and "the scale is broken" in result.stderr


def test_a_part_that_lacks_its_data_says_so_plainly(tmp_path: Path, tiny_model: Path) -> None:
    config = game(tmp_path, tiny_model, env={"name": "rows", "train": "no.jsonl"}, reward="exact")
    assert "no.jsonl: no such file" in plainly(coterie("check", config))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_told_before_a_model_loads(tmp_path: Path) -> None:
    said = plainly(coterie("train", game(tmp_path, tmp_path / "no-model"), "device=cuda", "--out", tmp_path))
    assert said == "device: cuda does not exist; this machine has 0 GPUs (override device=cuda)\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("log.wandb=teams", "log.wandb: wandb is not installed; `pip install -e '.[wandb]'` installs it"),
        ("engine.name=vllm", "engine.name: vllm is not installed; `pip install -e '.[vllm]'` installs it"),
    ],
)
def test_a_package_that_is_missing_is_told_with_the_key_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    for name in ("wandb", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    config = game(tmp_path, tmp_path / "no-model")
    assert plainly(coterie("train", config, change, "--out", tmp_path)) == f"{said} (override {change})\n"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"name": "rows", "train": "none.jsonl"}, "env.train: Rows has no training tasks in {here}/none.jsonl ("),
        (
            {"name": "rows", "train": "some.jsonl", "test": "none.jsonl"},
            "env.test: Rows has no held-out tasks in {here}/none.jsonl (",
        ),
        ({"name": "gsm8k"}, "env: openai/gsm8k: download from the Hugging Face hub failed"),
    ],
)
def test_an_environment_without_tasks_is_told_with_its_key_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], said: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "some.jsonl").write_text('{"question": "1 + 1", "answer": 2}\n')
    told = plainly(coterie("train", game(tmp_path, tmp_path / "no-model", env=env, reward="number"), "--out", tmp_path))
    assert told.startswith(said.format(here=tmp_path)) and "game.yaml, line" in told


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("({'question': '1'} for _ in range(9))", "env: Vowels.tasks returned a generator, expected a list of Task"),
        ("[{'question': '1'}]", "env: Vowels.tasks returned a list of dict, expected Task"),
        ("None", "env: Vowels.tasks returned a NoneType, expected a list of Task"),
    ],
)
def test_an_environment_that_gives_no_tasks_is_told_what_is_wanted(tmp_path: Path, tasks: str, said: str) -> None:
    config = game(tmp_path, tmp_path / "no-model")
    code = (tmp_path / "vowels.py").read_text()
    start = code.index("        return [Task(")
    (tmp_path / "vowels.py").write_text(code[:start] + f"        return {tasks}\n" + code[code.index("\n", start) :])
    assert plainly(coterie("train", config, "--out", tmp_path)).startswith(said)


def test_held_out_tasks_that_are_trained_on_are_told(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, terms in (("train", range(4)), ("test", range(3, 6))):
        rows = [{"question": f"{n} + {n}", "answer": 2 * n} for n in terms]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = {"name": "rows", "train": "train.jsonl", "test": "test.jsonl"}
    build(load(game(tmp_path, tiny_model, env=env, reward="number")), tmp_path / "run", console=False)
    assert "1 of 3 held-out tasks are also trained on, for example test/1" in capsys.readouterr().err
    apart = load(game(tmp_path, tiny_model, env=env, reward="number"), ["env.limit=3", "eval.tasks=3"])
    build(apart, tmp_path / "apart", console=False)
    assert capsys.readouterr().err == ""


def test_layers_that_a_model_lacks_are_told_with_the_policy_that_asks_for_them(
    tmp_path: Path, tiny_model: Path
) -> None:
    config = game(tmp_path, tiny_model)
    said = plainly(coterie("train", config, "policies.doer.lora.targets=[query]", "--out", tmp_path))
    assert said.startswith("policies.doer.lora.targets: no layer is called query; this model has")
    assert said.endswith("(override policies.doer.lora.targets=[query])\n")


def test_a_bug_keeps_its_traceback(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(*arguments: Any) -> None:
        raise RuntimeError("a bug, not a mistake in the config")

    monkeypatch.setattr("coterie.training.build.build_engine", buggy)
    result = coterie("train", game(tmp_path, tiny_model), "--out", tmp_path)
    assert isinstance(result.exception, RuntimeError)


def test_check_shows_prompts_and_passes_where_there_is_something_to_learn(tmp_path: Path, tiny_model: Path) -> None:
    printed = stdout_of("check", game(tmp_path, tiny_model))
    assert "<|im_start|>assistant" in printed and "actor: prompt" in printed
    for word in ("rewards of 16 episodes", "singleton", "log-prob gap", "with credit", "problem"):
        assert word in printed
    assert not (tmp_path / "game").exists()


def test_check_fails_where_training_would_teach_nothing(tmp_path: Path, tiny_model: Path) -> None:
    config = game(tmp_path, tiny_model)
    constant = coterie("check", config, "env.wins=false")
    assert constant.exit_code == 1 and "no trained token has an advantage" in constant.stdout
    few = coterie("check", config, "env.wins=false", "--tasks", 1)
    assert few.exit_code == 0 and "warning: 4 episodes are too few to know whether rewards differ" in few.stdout
    broken = coterie("check", config, "env.broken=true", "--tasks", 1, "--episodes", 2)
    assert broken.exit_code == 1 and "2 of 2 episodes failed" in broken.stdout


def test_a_model_cannot_speak_to_the_terminal() -> None:
    assert visible("a\x1b[2J\tb\n[red]é") == "a\\x1b[2J\\tb\n[red]é"


def test_a_dialogue_of_unequal_length_shows_all_turns() -> None:
    """An episode that failed early is beside one that was played to the end."""
    lost = episode([turn("reasoner")])
    lost.error, lost.error_kind = "…", "TimeoutError"
    assert dialogue(lost, episode([turn("reasoner"), turn("actor")])).row_count == 3


@contextmanager
def training(tmp_path: Path, model: Path, **how: Any) -> Iterator[Python]:
    """`coterie train` in a process of its own, which would not save for a long time."""
    config = game(tmp_path, model, checkpoint={"every": 1000})
    words = ["-m", "coterie", "train", str(config), "steps=1000", "--out", str(tmp_path)]
    process = Python(words, tmp_path, os.environ | {"TERM": "xterm"}, **how)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def pipe() -> Iterator[tuple[IO[str], int]]:
    """What a process prints, and the file descriptor for it to print to."""
    reads, writes = os.pipe()
    with open(reads) as output:
        yield output, writes


def not_nohup() -> None:
    """The tests may run under nohup, which processes inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_the_run_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path, tiny_model: Path) -> None:
    with (
        pipe() as (stdout, writes),
        open(tmp_path / "stderr", "w") as stderr,
        training(tmp_path, tiny_model, streams={1: writes, 2: stderr.fileno()}, before=not_nohup) as process,
    ):
        os.close(writes)
        for line in stdout:
            if line.startswith("step"):
                break
        process.send_signal(number)
        rest = stdout.read()
        assert process.wait() == 128 + number
    told = (tmp_path / "stderr").read_text()
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"{name}: finishing this step, then saving a checkpoint; a second signal stops at once" in told
    assert "Traceback" not in told
    done = int((tmp_path / "game" / "latest").read_text())
    assert f"{done} of 1000 steps done" in rest and f"coterie train --resume {tmp_path / 'game'} " in rest
    stdout_of("train", "--resume", tmp_path / "game", f"steps={done + 1}")


def own_terminal() -> None:
    not_nohup()
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path: Path, tiny_model: Path) -> None:
    ours, theirs = pty.openpty()
    with training(tmp_path, tiny_model, streams=dict.fromkeys((0, 1, 2), theirs), before=own_terminal) as process:
        os.close(theirs)
        seen = b""
        while b"2/1000 steps" not in seen:
            seen = seen[-2000:] + os.read(ours, 4096)
        os.close(ours)  # the kernel sends SIGHUP
        assert process.wait() == 128 + signal.SIGHUP
    assert int((tmp_path / "game" / "latest").read_text()) >= 2


def nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path, tiny_model: Path) -> None:
    with pipe() as (stdout, writes), training(tmp_path, tiny_model, streams={1: writes}, before=nohup) as process:
        os.close(writes)
        lines = (line for line in stdout if line.startswith("step"))
        next(lines)
        process.send_signal(signal.SIGHUP)
        later = [next(lines).split("/")[0] for _ in range(3)]
    assert len(set(later)) == 3 and not (tmp_path / "game" / "latest").exists()
