"""MARFT's profiles become teams: who is graded, when rounds end, what a recipe starts from."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.compat.marft.profiles import Profile
from coterie.compat.marft.workflow import Marft
from coterie.config import ConfigError, load
from coterie.config.conflicts import check_conflicts
from coterie.learners.critics import Critics
from coterie.learners.value_head import FILE, MlpValueHead
from coterie.models.store import write_tensors
from coterie.training.build import build
from coterie.training.loop import Run, train
from coterie.types import Task
from tests.runs import naming_config, started, trained
from tests.scripted import Scripted

Folder = Callable[[str], Path]
TASK = Task("t", "What is 2 + 2?", "4")
# The layouts of MARFT's files: markers of a chat template in the prompts, doubled braces, a device.
TEAMS = {
    "dual": [("reasoner", False), ("actor", True)],
    "trio": [("reasoner", False), ("actor", True), ("verifier", False)],
    "quartet": [("decomposer", False), ("planner", False), ("executor", True), ("verifier", False)],
    "octet": [(f"helper_{number}", False) for number in range(7)] + [("aggregator", True)],
}


def profile(folder: Path, team: str) -> Path:
    """A profile file as MARFT writes them."""
    agents: list[dict[str, Any]] = []
    for role, answers in TEAMS[team]:
        text = f"<|im_start|>system: You are the **{role}**. Answer in \\boxed{{{{}}}}.<|im_end|>\n"
        agents.append({"role": role, "prompt": text, "with_answer": answers, "device": "cuda:1"})
    file = folder / f"math_{team}.json"
    file.write_text(json.dumps(agents))
    return file


def imported(file: Path, folder: Path, *options: str) -> Path:
    out = folder / "recipe.yaml"
    ran = CliRunner().invoke(app, ["import", "marft", str(file), "--out", str(out), *options])
    assert ran.exit_code == 0, ran.output
    return out


def play(team: Marft, replies: dict[str, list[str]]) -> tuple[Any, Scripted]:
    scripted = Scripted(replies)
    return asyncio.run(team.run(TASK, scripted, None)), scripted  # type: ignore[arg-type]


@pytest.mark.parametrize("team", TEAMS)
def test_a_profile_becomes_a_recipe_of_its_agents(team: str, tmp_path: Path) -> None:
    data = tmp_path / "train.json"
    data.write_text(json.dumps([{"problem": "1 + 1?", "final_answer": "2"}]))
    config = load(imported(profile(tmp_path, team), tmp_path, "--data", str(data), "--horizon", "2"))
    roles = [role for role, _ in TEAMS[team]]
    assert list(config.roles) == list(config.workflow.instance.roles) == list(config.policies) == roles
    assert config.workflow.instance.horizon == 2 and config.algorithm.options["level"] == "turn"
    assert config.env.instance.tasks("train")[0].answer == "2"
    by_path = load(tmp_path / "recipe.yaml", [f"workflow={{name: marft, profile_path: {profile(tmp_path, team)}}}"])
    replies = {role: [role] for role in roles}
    (inline, team_inline), (from_file, team_file) = (
        play(one.workflow.instance, replies) for one in (config_with(config, 1), by_path)
    )
    assert inline.answer == from_file.answer == next(role for role, answers in TEAMS[team] if answers)
    system, user = team_file[roles[-1]].prompts[0]
    assert (
        system["content"] == f"You are the **{roles[-1]}**. Answer in \\boxed{{}}."
    )  # the model's template has markers
    assert (
        f"{roles[0]}: {roles[0]}" in user["content"] and team_inline[roles[-1]].prompts == team_file[roles[-1]].prompts
    )


def config_with(config: Any, horizon: int) -> Any:
    return load_again(config, f"workflow.horizon={horizon}")


def load_again(config: Any, change: str) -> Any:
    return load(config.sources.file, [change])


TRIO = tuple(Profile(role, "", answers) for role, answers in TEAMS["trio"])


def test_a_judge_at_the_end_is_not_graded_and_ends_the_rounds() -> None:
    replies = {
        "reasoner": ["a", "b", "c"],
        "actor": ["3", "4", "5"],
        "verifier": ["Verdict: wrong", "Verdict: correct"],
    }
    outcome, team = play(Marft(TRIO, horizon=3), replies)
    assert outcome.answer == "4" and outcome.metrics == {"rounds": 2.0, "accepted": 1.0}
    assert "verifier: Verdict: wrong" in team.reasoner.prompts[1][0]["content"]


def test_the_horizon_bounds_the_rounds() -> None:
    replies = {"reasoner": ["a", "b"], "actor": ["3", "4"], "verifier": ["Verdict: wrong"] * 2}
    outcome, _ = play(Marft(TRIO, horizon=2), replies)
    assert outcome.answer == "4" and outcome.metrics == {"rounds": 2.0, "accepted": 0.0}


def test_of_several_answers_each_is_graded() -> None:
    both = (Profile("first", ""), Profile("second", ""))
    assert play(Marft(both), {"first": ["3"], "second": ["4"]})[0].answer == {"first": "3", "second": "4"}


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([{"role": "a", "prompt": "x", "with_answer": False}], "no agent has with_answer: true"),
        ([{"role": "a", "prompt": "x", "with_answer": True}] * 2, "two agents have the role 'a'"),
        ([{"role": "a", "with_answer": True}], "agent 1: prompt must be a text, not null"),
        ([{"role": "a", "prompt": "x", "with_answer": "yes"}], 'agent 1: with_answer must be true or false, not "yes"'),
        ([{"role": "a", "prompt": "x", "with_answer": True, "lr": 1}], "agent 1: unknown key lr"),
        (
            [{"role": "a", "promt": "x", "with_answer": True}],
            "unknown key promt; an agent has role, prompt, with_answer; did you mean prompt?",
        ),
        ({}, "a profile is a list of agents"),
    ],
)
def test_a_profile_that_is_none_is_told_with_its_agent(agents: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(agents))
    ran = CliRunner().invoke(app, ["import", "marft", str(tmp_path / "bad.json"), "--out", str(tmp_path / "x.yaml")])
    assert ran.exit_code == 2 and "bad.json" in ran.output and message in ran.output.replace("\n", " ")


def test_data_that_is_not_there_is_named_and_no_recipe_is_written(tmp_path: Path) -> None:
    words = ["import", "marft", str(profile(tmp_path, next(iter(TEAMS)))), "--out", str(tmp_path / "x.yaml")]
    ran = CliRunner().invoke(app, [*words, "--data", "none.json"])
    assert (ran.exit_code, ran.stderr) == (2, "--data none.json: there is no such file\n")
    assert not (tmp_path / "x.yaml").exists()


def test_an_imported_team_trains_from_adapters_and_a_critic_s_head(model_folder: Folder, tmp_path: Path) -> None:
    model, load_path = model_folder("llama"), tmp_path / "saved"
    first = trained(naming_config(model, steps=1, roles={"left": "left", "right": "right"}), tmp_path / "first")
    for policy, role in (("left", "reasoner"), ("right", "actor")):
        first.learners[policy].save(load_path / role)
    head = MlpValueHead(first.learners["left"].base.hidden_size)
    torch.nn.init.ones_(head.mlp3.weight)
    write_tensors(
        {name.replace("mlp", "v_head_mlp"): t for name, t in head.state_dict().items()}, load_path / "value_head.pth"
    )
    data = tmp_path / "train.json"
    data.write_text(json.dumps([{"problem": f"{n} + 1?", "final_answer": str(n + 1)} for n in range(4)]))
    options = ["--model", str(model), "--data", str(data), "--load-path", str(load_path)]
    changes = ["steps=1", "tasks_per_step=2", "sampling.max_tokens=4", "algorithm.epochs=1", "algorithm.minibatches=1"]
    config = load(imported(profile(tmp_path, "dual"), tmp_path, *options), [*changes, "device=cpu"])
    run = build(config, tmp_path / "run", console=False)
    for policy, role in (("left", "reasoner"), ("right", "actor")):
        saved, loaded = first.learners[policy].parameters(), run.learners[role].parameters()
        assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    critic = critics(run).critics["team"].learner
    assert critic.value_head is not None and torch.equal(critic.value_head.mlp1.weight, head.mlp1.weight)  # type: ignore[union-attr,arg-type]
    trunk = {name: weight.clone() for name, weight in critic.base.model.named_parameters()}
    train(run)
    assert not torch.equal(critic.value_head.mlp3.weight, head.mlp3.weight)  # type: ignore[union-attr,arg-type]
    assert all(torch.equal(trunk[name], weight) for name, weight in critic.base.model.named_parameters())


def critics(run: Run) -> Critics:
    assert isinstance(run.critic, Critics)
    return run.critic


def test_a_critic_starts_from_the_adapter_and_the_head_of_another_run(model_folder: Folder, tmp_path: Path) -> None:
    lora = {"model": str(model_folder("llama")), "lora": {"rank": 2}, "lr": 1e-2}
    tree = naming_config(model_folder("llama"), steps=1, algorithm={"name": "ppo"}, critics={"team": lora})
    before = critics(trained(tree, tmp_path / "first")).critics["team"].learner
    saved = tmp_path / "first" / "checkpoints" / "000001" / "critic" / "team"
    assert (saved / FILE).is_file()
    tree["critics"] = {"team": lora | {"adapter": str(saved)}}
    after = critics(started(tree, tmp_path / "second")).critics["team"].learner
    assert before.value_head is not None and after.value_head is not None
    assert (
        torch.equal(after.value_head.weight, before.value_head.weight) and after.value_head.weight.count_nonzero() > 0
    )  # type: ignore[arg-type,union-attr]
    assert all(torch.equal(after.parameters()[name], weight) for name, weight in before.parameters().items())
    tree["critics"] = {"team": lora | {"adapter": str(saved), "head": "mlp"}}
    with pytest.raises(
        ConfigError, match=r"critics.team.adapter: .*value_head.safetensors: holds bias .* another `head`"
    ):
        started(tree, tmp_path / "third")
    tree["critics"] = {"team": lora | {"adapter": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"has neither a PEFT adapter .* nor a value head"):
        started(tree, tmp_path / "fourth")


def test_the_profile_of_the_page_is_a_team(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from-marft.md").read_text()
    (text,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "math_trio.json").write_text(text)
    config = load(imported(tmp_path / "math_trio.json", tmp_path))
    assert list(config.roles) == ["reasoner", "actor", "verifier"] and config.workflow.instance.has_judge
    check_conflicts(config)
