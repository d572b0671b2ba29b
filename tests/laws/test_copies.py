"""A run holds the user's own code: moved, or used from another folder, it is measured, judged again and resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.config import load
from coterie.episode_files import EpisodeFile
from coterie.training.build import build
from coterie.training.loop import train
from coterie.training.user_files import UserFileCopies
from coterie.user_code import imported_files, original_path, run_file
from tests.commands import coterie, stdout_of
from tests.forked import run_python
from tests.games import game
from tests.hangs import HANG

MINE = """\
import json
from dataclasses import dataclass, field
from pathlib import Path

import helpers
from coterie.credit.team import Team
from coterie.algorithms.grpo import Grpo
from coterie.types import Task
from coterie.workflows.chain import Chain

BESIDE = Path(__file__).parent / "beside.json"

@dataclass(frozen=True)
class Words:
    rows: str = "rows.txt"
    folder: str = "more/rows"
    kind: str = "train"  # there is a folder of that name
    end: str = "."

    def tasks(self, split):
        assert json.loads(BESIDE.read_text()) == {"beside": True} and Path(self.folder).is_dir()
        words = Path(self.rows).read_text().split()
        return [Task(f"{split}/{i}", f"Say {word}.", word) for i, word in enumerate(words)]

    def open(self, task):
        return None

    async def score(self, episode):
        episode.reward = helpers.worth(episode.answer)

class Flow(Chain):
    pass

@dataclass(frozen=True)
class Learns(Grpo):
    pass

@dataclass(frozen=True)
class Shares(Team):
    pass
"""
HELPERS = """\
from pathlib import Path

def worth(text):
    from package.inner import share  # not before it is needed
    assert (Path(__file__).parent / "beside.json").is_file()
    return share(text)
"""
INNER = "def share(text):\n    return sum(sign in 'aeiou' for sign in text) / max(1, len(text))\n"
REWARD = "from helpers import worth\n\ndef vowels(answer, truth):\n    return worth(answer)\n"


def home_in(folder: Path, name: str = "helpers") -> Path:
    """Where a user keeps files of their own. In one process modules of two homes need two names."""
    home = folder / "home"
    for inside in ("package", "more/rows", "train"):
        (home / inside).mkdir(parents=True)
    texts = {"mine.py": MINE, f"{name}.py": HELPERS, "package/inner.py": INNER, "reward.py": REWARD}
    texts |= {"beside.json": '{"beside": true}', "rows.txt": "one two three four five six", "math.py": "1 / 0\n"}
    texts |= {"unused.py": "", "rows.jsonl": '{"question": "Say a.", "answer": "a"}\n' * 6}
    for file, text in texts.items():
        (home / file).write_text(text.replace("helpers", name))
    return home


def trained_at(home: Path, model: Path, **parts: Any) -> Path:
    """A run of one step, trained by a process of its own, whose code is then gone; its data stays."""
    game(home, model, **parts)
    (home / "vowels.py").unlink()
    done = run_python(["-m", "coterie", "train", "game.yaml", "steps=1"], home, seconds=HANG)
    assert done.returncode == 0, done.stderr
    for code in home.rglob("*.py"):
        if "runs" not in code.relative_to(home).parts:
            code.unlink()
    return home / "runs" / "game"


@pytest.fixture(scope="module")
def model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("llama")


def test_a_run_that_is_moved_is_measured_judged_again_and_resumed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        "env": "mine.py:Words",
        "workflow": "mine.py:Flow",
        "algorithm": "mine.py:Learns",
        "credit": "mine.py:Shares",
    }
    run = trained_at(home_in(tmp_path), model, **parts)
    held = {path.relative_to(run / "code").as_posix() for path in (run / "code").rglob("*") if path.is_file()}
    assert held == {"0/mine.py", "0/helpers.py", "0/package/inner.py", "sources.json", "config.yaml"}
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert {key: stored[key]["name"] for key in parts} == {key: f"code/0/{name}" for key, name in parts.items()}
    home = tmp_path / "home"
    assert stored["env"] | {"rows": str(home / "rows.txt"), "folder": str(home / "more/rows")} == stored["env"]
    assert (stored["env"]["kind"], stored["env"]["end"]) == ("train", ".")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.rename(elsewhere / "moved")
    monkeypatch.chdir(elsewhere)
    assert "team, step 1" in stdout_of("eval", "moved", "--no-baselines")
    assert "turns" in stdout_of("replay", "moved", "credit=own")
    assert "resuming after step 1" in stdout_of("train", "--resume", "moved", "steps=2")
    assert yaml.safe_load(Path("moved/config.yaml").read_text())["env"]["name"] == "code/0/mine.py:Words"
    shutil.copytree("moved", tmp_path / "copied")
    shutil.rmtree("moved")
    monkeypatch.chdir(tmp_path)
    stdout_of("train", "--resume", "copied", "steps=3")


def test_a_reward_of_one_s_own_is_held_for_the_processes_that_grade(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"}
    composed = {"name": "compose", "parts": [{"name": "reward.py:vowels"}, {"name": "exact", "weight": 0.5}]}
    run = trained_at(home_in(tmp_path, "lent"), model, env=rows, reward=composed)
    monkeypatch.chdir(tmp_path)
    stdout_of("eval", run, "--no-baselines", "--json", tmp_path / "numbers.json")
    (report,) = json.loads((tmp_path / "numbers.json").read_text())["reports"].values()
    assert report["failed"] == 0
    assert any(row["reward"] > 0 for row in EpisodeFile(run / "episodes" / "000001.jsonl.gz").rows())
    changes = tmp_path / "changes.jsonl"
    stdout_of("replay", run, "reward={name: compose, parts: [{name: code/0/reward.py:vowels}]}", "--out", changes)
    judged = [json.loads(line) for line in changes.read_text().splitlines()]
    assert judged and all(one["reward now"] == pytest.approx(one["reward"]) for one in judged)  # none was exact


def test_the_code_of_a_run_is_that_of_its_beginning(model: Path, tmp_path: Path) -> None:
    """Somebody works on while the run is stopped."""
    config = load(game(tmp_path, model))
    run = build(config, tmp_path / "run", console=False)
    train(run)
    (tmp_path / "vowels.py").write_text("raise RuntimeError('half written')\n")
    again = load(tmp_path / "run" / "config.yaml")
    assert again.env.name == f"{tmp_path / 'run' / 'code' / '0' / 'vowels.py'}:Vowels"
    assert type(again.env.instance).__name__ == "Vowels"


def test_files_of_graphs_and_games_are_held_wherever_the_config_names_them(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text(f"x = {folder!r}\n")
    one, two = tmp_path / "one" / "code.py", tmp_path / "two" / "code.py"
    tree = {
        "workflow": {"name": "graph", "agents": [{"process_path": str(one)}], "written": f"{one}, line 3"},
        "env": {"name": "aec", "game": f"{two}:make", "worlds": {"a": f"{one}:World", "b": "gone.py:World"}},
    }
    copies = UserFileCopies(tmp_path / "run")
    held = copies.config(tree)
    assert held["workflow"] == {
        "name": "graph",
        "agents": [{"process_path": "code/0/code.py"}],
        "written": f"{one}, line 3",
    }
    assert held["env"]["game"] == "code/1/code.py:make"
    assert held["env"]["worlds"] == {"a": "code/0/code.py:World", "b": "gone.py:World"}
    assert copies.files["code/1/code.py"] == b"x = 'two'\n"
    for name, content in copies.files.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    assert original_path(tmp_path / "run" / "code" / "1" / "code.py") == two and original_path(two) == two
    assert UserFileCopies(tmp_path / "run").config(held | {"x": f"{tmp_path}/run/code/1/code.py:make"})["x"] == (
        "code/1/code.py:make"
    )


def test_a_module_beside_a_user_s_file_does_not_stand_in_for_python_s(tmp_path: Path) -> None:
    home = home_in(tmp_path, "aid")
    (home / "package").rename(home / "bundle")
    (home / "aid.py").write_text("def later():\n    import bundle.inner\n")
    (home / "uses.py").write_text("import math\nimport torch\nfrom aid import later\nroot = math.sqrt(4)\n")
    assert run_file(home / "uses.py", "a_user_s").root == 2.0
    assert imported_files(home / "uses.py") == {home / "aid.py", home / "bundle" / "inner.py"}
    assert not list(home.rglob("__pycache__"))


def test_a_package_without_init_is_found_beside_a_file_though_another_folder_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_in(tmp_path, "loan")
    (tmp_path / "other" / "package").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert imported_files(home / "reward.py") == {home / "loan.py", home / "package" / "inner.py"}


def test_two_modules_of_one_name_beside_two_files_are_told_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "namesake.py").write_text(f"x = {folder!r}\n")
        (tmp_path / folder / "mine.py").write_text("import namesake\n")
    run_file(tmp_path / "one" / "mine.py", "first_of_two")
    with pytest.raises(ImportError, match=r"imports namesake, but .*one/namesake\.py is already imported"):
        run_file(tmp_path / "two" / "mine.py", "second_of_two")


# Keys that were changed by hand


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run of four steps, all of whose checkpoints are there."""
    folder = tmp_path_factory.mktemp("done")
    keep = {"every": 1, "keep": 9}
    stdout_of("train", game(folder, model, steps=4, eval={"tasks": 2, "every": 1}, checkpoint=keep), "--out", folder)
    return folder / "game"


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "run"))


def test_keys_that_were_changed_by_hand_are_told_once_and_those_of_the_command_line_are_not(run: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count("lr: 0.1\n") == 2
    config.write_text(text.replace("lr: 0.1\n", "lr: 0.05\n", 1).replace("  max_tokens: 6\n", "  max_tokens: 5\n"))
    result = coterie("train", "--resume", run, "steps=5")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        f"{config}: policies.thinker.lr was edited by hand: 0.1 → 0.05",
        f"{config}: sampling.max_tokens was edited by hand: 6 → 5",
    ]
    again = coterie("train", "--resume", run, "steps=6")
    assert (again.exit_code, again.stderr) == (0, "")  # neither steps=5 nor what was told before


def test_a_key_that_was_taken_out_by_hand_is_told(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0\n", ""))
    assert coterie("train", "--resume", run).stderr == f"{config}: seed was edited by hand: 0 → absent\n"


# Going back


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers(folder: Path, name: str) -> list[str]:
    return sorted(path.name.split(".")[0] for path in (folder / name).iterdir())


def test_going_back_sets_aside_what_was_done_since_and_goes_another_way(run: Path) -> None:
    (run / "wandb-id").write_text("abc")
    before = rows(run)
    printed = stdout_of("train", "--resume", run, "--checkpoint", 2, "steps=3")
    aside = run / "rewound" / "000002"
    assert f"resuming after step 2; later steps were moved to {aside}" in printed
    assert rows(aside) == [row for row in before if row["step"] > 2]
    assert (numbers(aside, "episodes"), numbers(aside, "checkpoints")) == (["000003", "000004"],) * 2
    assert (aside / "wandb-id").read_text() == "abc" and "steps: 4\n" in (aside / "config.yaml").read_text()
    assert [row["step"] for row in rows(run)] == [0, 1, 1, 2, 2, 3, 3]
    assert (numbers(run, "episodes")[-1], numbers(run, "checkpoints")[-1], (run / "latest").read_text()) == (
        "000003",
        "000003",
        "000003",
    )
    timeless = [{k: v for k, v in row.items() if k in ("reward", "eval/reward")} for row in rows(run)]
    assert timeless == [{k: v for k, v in row.items() if k in ("reward", "eval/reward")} for row in before][:7]
    stdout_of("train", "--resume", run, "--checkpoint", 2, "steps=3")
    assert numbers(run, "rewound") == ["000002", "000002-2"]


def test_best_is_of_the_way_that_the_run_has_gone(run: Path) -> None:
    (run / "best").write_text("000004")
    stdout_of("train", "--resume", run, "--checkpoint", 1, "steps=2")
    assert (run / "rewound" / "000001" / "best").read_text() == "000004"
    rewards = {row["step"]: row["eval/reward"] for row in rows(run) if "eval/reward" in row}
    assert rewards[int((run / "best").read_text())] == max(rewards[1], rewards[2])


def test_going_back_to_where_the_run_is_sets_nothing_aside(run: Path) -> None:
    stdout_of("train", "--resume", run, "--checkpoint", 4)
    assert not (run / "rewound").exists() and len(rows(run)) == 9


def test_a_kill_while_things_are_set_aside_loses_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename, moved = rows(run), Path.rename, []

    def killed_at_the_third(path: Path, target: Path) -> Path:
        moved.append(path)
        if len(moved) == 3:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed_at_the_third)
        coterie("train", "--resume", run, "--checkpoint", 2)
    assert len(moved) == 3
    stdout_of("train", "--resume", run, "--checkpoint", 2, "steps=3")
    asides = [run / "rewound" / name for name in ("000002", "000002-2")]
    for name in ("checkpoints", "episodes"):
        there = [number for aside in asides if (aside / name).is_dir() for number in numbers(aside, name)]
        assert sorted(there) == ["000003", "000004"]
    assert rows(asides[0]) == [row for row in before if row["step"] > 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "CONFIG", "--checkpoint", "2"], "--checkpoint 2 has no effect without --resume"),
        (["train", "--resume", "RUN", "--checkpoint", "7"], "no checkpoint '7'; there is 000000, 000001, 000002"),
    ],
)
def test_what_cannot_be_gone_back_to_is_told(words: list[str], said: str, run: Path) -> None:
    result = coterie(*[{"RUN": run, "CONFIG": "game.yaml"}.get(word, word) for word in words])
    assert result.exit_code == 2 and said in " ".join(result.stderr.replace("│", " ").split())
