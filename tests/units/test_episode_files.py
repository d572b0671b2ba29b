"""What a run remembers: prompts once, episodes one by one, and why every turn was or was not trained on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.episode_files import TURN_COLUMNS, BadEpisodes, EpisodeFile, packed, summary, write_episode_rows
from coterie.episode_rows import episode_row, read_episodes
from coterie.rl.groups import describe_key
from coterie.statistics import standard_error
from coterie.training.loop import Run
from coterie.types import Turn
from coterie.view.run_folder import RunFolder
from tests.episodes import episode, random_episodes, turn
from tests.runs import naming_config, started, trained


@pytest.fixture(scope="module")
def run(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    tree = naming_config(model_folder("llama"), steps=2, eval={"tasks": 2, "every": 1})
    tree["policies"]["right"] = {"model": str(model_folder("llama")), "frozen": True}
    tree["algorithm"] = {"name": "grpo", "drop_constant": True}
    return trained(tree, tmp_path_factory.mktemp("remembered"))


def turns(run: Run) -> list[Turn]:
    return [t for step in (1, 2) for e in read_episodes(run.folder / f"episodes/{step:06d}.jsonl.gz") for t in e.turns]


@pytest.mark.parametrize("seed", range(4))
def test_prompts_that_are_shared_or_continued_come_back_whole(seed: int, tmp_path: Path) -> None:
    rows = [episode_row(one) for one in random_episodes(seed)]
    write_episode_rows(tmp_path / "000001.jsonl.gz", rows)
    file = EpisodeFile(tmp_path / "000001.jsonl.gz")
    assert [file.row(line) for line in reversed(range(len(rows)))][::-1] == json.loads(json.dumps(rows, default=list))


def test_a_number_that_all_tokens_share_is_stored_once(tmp_path: Path) -> None:
    credited = [turn(response=(1, 2, 3)), turn(response=(1, 2, 3)), turn(response=(1,)), turn(response=())]
    for one, advantages in zip(credited, ([0.1234567] * 3, [0.5, 1e-9, 2e6], [0.25], []), strict=True):
        one.advantages = torch.tensor(advantages)
    write_episode_rows(tmp_path / "000001.jsonl.gz", [episode_row(episode(credited))])
    (back,) = read_episodes(tmp_path / "000001.jsonl.gz")
    for one, other in zip(credited, back.turns, strict=True):
        assert one.advantages is not None and torch.equal(one.advantages, other.advantages)
    assert gzip.decompress((tmp_path / "000001.jsonl.gz").read_bytes()).count(b'"advantages":0.1234567') == 1


def test_numbers_that_32_bits_do_not_hold_come_back_exactly(tmp_path: Path) -> None:
    odd = [turn(response=(1, 2, 2**31 - 1)), turn(response=(5,)), turn(response=())]
    for one, logprobs in zip(odd, ((-0.1, -1e-300, float("-inf")), (-0.5,), ()), strict=True):
        one.logprobs = logprobs
    write_episode_rows(tmp_path / "000001.jsonl.gz", [episode_row(episode(odd))])
    (back,) = read_episodes(tmp_path / "000001.jsonl.gz")
    assert [t.logprobs for t in back.turns] == [t.logprobs for t in odd]
    assert [t.response_ids for t in back.turns] == [t.response_ids for t in odd]


def test_a_shared_prompt_is_stored_once(tmp_path: Path) -> None:
    prompt = tuple(range(10_000, 10_400))
    first = turn(prompt=prompt, response=(1, 2))
    follow = turn(prompt=(*prompt, 1, 2, 77777), response=(3,), round=1)
    rows = [episode_row(episode([first, follow], repeat=n)) for n in range(8)]
    write_episode_rows(tmp_path / "000001.jsonl.gz", rows)
    stored = gzip.decompress((tmp_path / "000001.jsonl.gz").read_bytes()).decode()
    assert stored.count(packed("prompt_ids", prompt)) == stored.count(packed("prompt_ids", (77777,))) == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "000001.jsonl.gz"
    write_episode_rows(path, [episode_row(episode([turn()]))])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadEpisodes, match=r"000001\.jsonl\.gz: damaged, it ends too early"):
        EpisodeFile(path).row(0)


def test_episodes_of_earlier_versions_still_open(tmp_path: Path) -> None:
    row = json.loads(json.dumps(episode_row(episode([turn(), turn(round=1)], reward=1.0)), default=list))
    later = ("group", "left_out", "credit_parts", "movement", "messages", "started", "ended")
    row["turns"] = [{k: v for k, v in t.items() if k not in later} for t in row["turns"]]
    (tmp_path / "000003.jsonl").write_text(json.dumps(row) + "\n")
    (back,) = read_episodes(tmp_path / "000003.jsonl")
    assert back.turns == [turn(), turn(round=1)] and EpisodeFile(tmp_path / "000003.jsonl").index[0]["reward"] == 1.0


def test_numbers_that_an_earlier_version_stored_as_lists_are_read(tmp_path: Path) -> None:
    played = episode([turn(response=(3, 4)), turn(round=1)], reward=1.0)
    played.turns[0].advantages = torch.tensor([0.5, -0.25])
    row = json.loads(json.dumps(episode_row(played), default=list))
    line = gzip.compress(json.dumps(row).encode() + b"\n")
    header = {"format": 2, "index": [{"at": 0, "size": len(line)} | summary(row, {})], "groups": []}
    (tmp_path / "000001.jsonl.gz").write_bytes(gzip.compress(json.dumps(header).encode() + b"\n") + line)
    (back,) = read_episodes(tmp_path / "000001.jsonl.gz")
    assert back.turns[0].advantages is not None and back.turns[0].advantages.tolist() == [0.5, -0.25]
    assert [(t.response_ids, t.logprobs) for t in back.turns] == [(t.response_ids, t.logprobs) for t in played.turns]


def test_every_turn_says_what_it_was_compared_with_or_why_it_was_left_out(run: Run) -> None:
    for t in turns(run):
        assert t.credit == sum((t.credit_parts or {}).values())
        assert (t.advantages is None) <= (t.left_out is not None)
        if t.role == "right":
            assert t.left_out in ("frozen", "constant")
        assert t.group is not None and t.group.size == 4 and t.group.key["role"] == t.role


def test_the_index_counts_the_members_of_every_group(run: Run) -> None:
    file = EpisodeFile(run.folder / "episodes" / "000001.jsonl.gz")
    numbers = [t[TURN_COLUMNS.index("group")] for entry in file.index for t in entry["turns"]]
    assert [numbers.count(n) for n in range(len(file.groups))] == [group["size"] for group in file.groups]


def test_entropy_and_movement_are_those_of_the_update(run: Run) -> None:
    measured = [t for t in turns(run) if t.movement is not None]
    assert measured and all(t.entropy is not None and t.policy == "left" for t in measured)
    assert any(t.movement.abs().max() > 1e-4 for t in measured if t.movement is not None)
    trained_turns = [t for t in turns(run) if t.advantages is not None and t.policy == "left"]
    assert all(t.entropy is not None and len(t.entropy) == len(t.response_ids) for t in trained_turns)


def test_entropies_have_a_standard_error_over_tasks(run: Run) -> None:
    by_task: dict[str, list[float]] = {}
    for e in read_episodes(run.folder / "episodes/000001.jsonl.gz"):
        for t in (t for t in e.turns if t.policy == "left" and t.advantages is not None and t.entropy is not None):
            by_task.setdefault(e.task.id, []).append(float(t.entropy.mean()))
    row = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[1])
    assert row.get("stderr/left/entropy") == (
        pytest.approx(error) if (error := standard_error([*by_task.values()])) else None
    )


def test_movement_of_a_step_that_changes_nothing_is_zero(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=1)
    for policy in tree["policies"].values():
        policy["lr"] = 1e-30
    played = read_episodes(trained(tree, tmp_path).folder / "episodes" / "000001.jsonl.gz")
    moved = [t.movement for e in played for t in e.turns if t.movement is not None]
    assert moved and torch.cat(moved).abs().max() < 1e-4


def test_held_out_episodes_and_prompts_are_stored(run: Run) -> None:
    assert [path.name for path in sorted((run.folder / "eval").iterdir())] == [f"00000{n}.jsonl.gz" for n in range(3)]
    stored = EpisodeFile(run.folder / "eval" / "000000.jsonl.gz").row(0)["turns"][0]
    chat = run.collector.chats["left"]
    assert stored["messages"] and tuple(chat.prompt(stored["messages"])) == tuple(stored["prompt_ids"])
    assert stored["prompt"] == chat.tokenizer.decode(stored["prompt_ids"])


def test_the_strings_of_tokens_make_up_the_text_without_a_tokenizer(run: Run) -> None:
    tokenizer = run.collector.chats["left"].tokenizer
    for t in turns(run):
        texts = RunFolder(run.folder).token_texts(t.policy, t.response_ids)
        assert texts is not None and len(texts) == len(t.response_ids)
        assert "".join(texts) == tokenizer.decode(list(t.response_ids))


def test_the_status_tells_how_a_run_ended(
    run: Run, model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RunFolder(run.folder).state()["state"] == "finished"
    broken = started(naming_config(model_folder("llama")), tmp_path)

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(broken.collector.engine, "sample", fails)
    monkeypatch.setattr(type(broken.algorithm), "update", fails)
    from coterie.training.loop import train

    with pytest.raises(Exception, match="by chance"):
        train(broken)
    state = RunFolder(tmp_path).state()
    assert state["state"] == "failed" and "by chance" in state["cause"]


def test_a_long_part_of_a_group_key_is_shown_as_a_hash() -> None:
    key = (("task", "gsm-1"), ("turn", 0), ("prompt", tuple(range(500))))
    shown = describe_key(key)
    assert shown["task"] == "gsm-1" and shown["turn"] == 0 and str(shown["prompt"]).startswith("#")
    assert shown != describe_key((*key[:2], ("prompt", tuple(range(501)))))
