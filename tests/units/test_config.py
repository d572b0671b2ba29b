"""What a config file and overrides mean, wherever they are loaded from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.config import ConfigError, Lora, dump, load, yamltree
from coterie.config.conflicts import check_conflicts
from coterie.config.problems import Problems, Sources, dotted, undotted
from tests.configs import GOOD, VARIANTS, checked, complaint


def test_a_new_role_and_its_policy_may_come_by_overrides(good: Path) -> None:
    team = ["policies.new.lr=1e-5", "roles.critic.max_tokens=4", "roles.critic.policy=new"]
    config = checked(good, [*team, "workflow={name: chain, roles: [reasoner, actor, critic]}"])
    assert config.roles["critic"].max_tokens == 4 and config.policies["new"].lr == 1e-5


def test_a_team_without_a_learner_is_a_mistake(good: Path) -> None:
    said = complaint(good, "policies.thinker.frozen=true", "policies.doer.frozen=true")
    assert "policies: every policy is frozen" in said


@pytest.mark.parametrize(
    ("peers", "tasks", "key"),
    [
        ("[prompt]", 8, "episodes_per_task: is 1, so every group has one member"),
        ("[prompt, role]", 1, "episodes_per_task: is 1, so every group has one member"),
        ("[role]", 1, "tasks_per_step: is 1, and episodes_per_task too"),
        ("[batch, role]", 1, "tasks_per_step: is 1, and episodes_per_task too"),
    ],
)
def test_nobody_is_compared_with_itself_alone(good: Path, peers: str, tasks: int, key: str) -> None:
    settings = [f"algorithm.group_by={peers}", f"tasks_per_step={tasks}"]
    assert complaint(good, *settings, "episodes_per_task=1").startswith(key)
    checked(good, [*settings, "episodes_per_task=2"])


def test_a_role_may_be_compared_over_tasks_that_are_played_once(good: Path) -> None:
    checked(good, ["algorithm.group_by=[batch, role]", "tasks_per_step=2", "episodes_per_task=1"])


def test_a_frozen_policy_has_no_rate_unless_it_is_only_evaluated(good: Path) -> None:
    frozen = ["policies.thinker.frozen=true"]
    said = complaint(good, *frozen)
    assert said == "policies.thinker.lr: has no effect: thinker is frozen; remove it (good.yaml, line 2)"
    config = load(good, frozen)
    check_conflicts(config, training=False)


def test_the_best_is_kept_where_several_are_measured(good: Path) -> None:
    for best in ("true", "false"):
        assert checked(good, [f"checkpoint.best={best}", "eval.every=5"]).checkpoint.best is (best == "true")


def test_a_frozen_role_may_be_greedy(good: Path) -> None:
    config = checked(good, ["policies.doer.frozen=true", "roles.actor.temperature=0"])
    assert config.sampling_of("actor").temperature == 0


def test_a_merge_key_takes_over_what_the_mapping_itself_does_not_say(good: Path) -> None:
    base = "thinker: &base {lr: 3e-4, lora: {rank: 2}}"
    good.write_text(GOOD.replace("thinker: {lr: 3e-4}", base).replace("  doer:\n", "  doer:\n    <<: *base\n"))
    config = checked(good, [])
    assert config.policies["doer"].lr == 3e-4 and config.policies["doer"].lora == Lora(rank=8)
    assert config.sources.place(("policies", "doer", "lr")) == "good.yaml, line 2"
    good.write_text(GOOD.replace("  doer:\n", "  doer:\n    <<: 3\n"))
    assert "policies.doer: << merges a mapping, not 3 (good.yaml, line 3)" in complaint(good)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-6", 3e-6),
        ("1E4", 1e4),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("2026-11-01", "2026-11-01"),
        ("1_000", "1_000"),
        ("'7'", "7"),
        ("1:30", "1:30"),
    ],
)
def test_scalars_read_as_people_mean_them(text: str, value: Any) -> None:
    read = yamltree.read(f"key: {text}", Problems(Sources()))["key"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "value", ["1e-4", "7", "true", "null", "", "~", "no", "a: b", "- x", "ä\n{q}", 1e-5, 1e22, 3, [], {}]
)
def test_what_is_written_reads_as_the_same(value: Any) -> None:
    assert yamltree.read(yamltree.write({"key": value}), Problems(Sources())) == {"key": value}


@pytest.mark.parametrize("overrides", VARIANTS)
def test_a_dumped_config_loads_to_an_equal_one(good: Path, tmp_path: Path, overrides: list[str]) -> None:
    config = load(good, overrides)
    stored = tmp_path / "runs" / "x" / "config.yaml"
    stored.parent.mkdir(parents=True)
    stored.write_text(dump(config), encoding="utf-8")
    assert load(stored) == config
    assert dump(load(stored)) == dump(config)


def test_an_own_part_is_found_from_wherever_the_config_is_stored(good: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("elsewhere", "runs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(Path("..") / good, ["env=parts.py:Quiz", "reward=native"])
    stored = tmp_path / "runs" / "config.yaml"
    stored.write_text(dump(config))
    assert load(stored).env.name == f"{tmp_path / 'parts.py'}:Quiz"


def test_a_path_from_here_is_kept_as_it_was_written(good: Path) -> None:
    assert load(good, ["env=parts.py:Quiz", "reward=native"]).env.name == "parts.py:Quiz"


def test_overrides_go_over_the_file_and_later_ones_over_earlier(good: Path) -> None:
    overrides = ["steps=5", "steps=6", "policies.thinker.lr=1e-5", "algorithm.kl=0.1", "roles.reasoner.max_tokens=4"]
    config = load(good, overrides)
    assert (config.steps, config.policies["thinker"].lr, config.algorithm.instance.kl) == (6, 1e-5, 0.1)
    assert config.algorithm.instance.group_by == ("task", "role")
    assert config.sampling_of("reasoner").max_tokens == 4


def test_an_override_of_a_whole_part_replaces_its_options(good: Path) -> None:
    config = load(good, ["algorithm=ppo", "policies.doer.lora=null", "policies.doer.lora.rank=4"])
    assert config.algorithm.name == "ppo"
    assert config.policies["doer"].lora == Lora(rank=4)


def test_any_string_names_a_role(good: Path) -> None:
    good.write_text(GOOD.replace("reasoner:", '"v1.5 β":').replace("chain", '{name: chain, roles: ["v1.5 β", actor]}'))
    config = checked(good, ['roles."v1.5 β".temperature=0.5'])
    assert config.roles["v1.5 β"].temperature == 0.5
    assert 'roles."v1.5 β".max_tokens: got 0,' in complaint(good, 'roles."v1.5 β".max_tokens=0')


@pytest.mark.parametrize("path", [("a",), ("roles", "v1.5", "stop"), ("roles", "ä b")])
def test_a_dotted_key_gives_its_path_back(path: tuple[str, ...]) -> None:
    assert undotted(dotted(path)) == path


def test_the_place_of_a_key_that_was_not_written_is_what_is_around_it(good: Path) -> None:
    sources = load(good, ["sampling.top_k=0"]).sources
    assert sources.place(("sampling", "max_tokens")) == "good.yaml, line 18"
    assert sources.place(("sampling", "top_k")) == "override sampling.top_k=0"
    assert sources.place(("sampling", "stop")) == "good.yaml, line 17"
    assert sources.place(("eval", "every")) == "good.yaml"


def test_where_a_key_was_written_does_not_make_configs_differ(good: Path) -> None:
    assert load(good, ["steps=20"]) == load(good)
    assert replace(load(good), steps=21) != load(good)


@pytest.mark.parametrize("override", [[], ["policies.thinker.model=models/small"]], ids=["file", "override"])
def test_a_model_and_an_adapter_beside_the_config_are_found_from_anywhere(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: list[str]
) -> None:
    good.write_text(GOOD.replace("{lr: 3e-4}", "{model: models/small, adapter: old}"))
    for name in ("models/small", "old", "elsewhere", "demo"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir("elsewhere")
    config = load(tmp_path / good, override)
    assert config.policies["thinker"].model == str(tmp_path / "models" / "small")
    assert config.policies["thinker"].adapter == tmp_path / "old"
    assert config.policies["doer"].model == "demo"  # a name of ours, whatever lies beside the config
    (tmp_path / "stored.yaml").write_text(dump(config))
    monkeypatch.chdir("/")
    assert load(tmp_path / "stored.yaml") == config


def test_a_model_that_is_no_folder_keeps_its_name(good: Path) -> None:
    config = load(good, ["policies.doer.model=org/name", "encoder={name: hidden, model: org/other}"])
    assert config.policies["doer"].model == "org/name" and config.encoder.instance.model == "org/other"


def test_data_beside_the_config_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sums.jsonl").write_text('{"question": "1 + 1", "answer": 2}\n')
    recipe = {
        "policies": {"small": {}},
        "roles": {"solver": "small"},
        "workflow": {"name": "single"},
        "env": {"name": "rows", "train": "sums.jsonl"},
        "reward": "number",
        "algorithm": "grpo",
    }
    (tmp_path / "here" / "sums.yaml").write_text(yaml.safe_dump(recipe))
    config = load(tmp_path / "here" / "sums.yaml")
    (tmp_path / "stored.yaml").write_text(dump(config))
    monkeypatch.chdir(tmp_path)
    again = load(tmp_path / "stored.yaml")
    assert again == config
    assert [task.answer for task in again.env.instance.tasks("train")] == [2]


def test_a_part_states_its_own_conflicts_with_the_rest_of_the_config(good: Path) -> None:
    own = ("env=parts.py:Picky", "reward=native")
    check_conflicts(load(good, [*own, "steps=10"]))
    with pytest.raises(ConfigError, match=r"^steps: Picky has tasks for 10 steps only \(override steps=11\)$"):
        check_conflicts(load(good, [*own, "steps=11"]))
