"""The examples of the pages run as they stand."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.main import get_command

from coterie.analysis.comparison import load as load_comparison
from coterie.api import AgentTrainer, Trained
from coterie.bench.app import app as bench
from coterie.cli.app import app
from coterie.cli.data import app as data
from coterie.cli.verifier import app as verifier
from coterie.config import Config
from coterie.config.conflicts import check_conflicts
from coterie.config.registry import BUILTIN, find
from coterie.config.schema import schema
from coterie.envs.base import attach_reward
from coterie.rewards import make_grader
from coterie.rewards.reward_function import load
from coterie.rollout.collector import Collector
from coterie.types import Env, Episode, Task, Turn, Workflow
from coterie.workflows.multi_turn import MultiTurn
from tests.episodes import credited
from tests.runs import naming_config, written
from tests.scripted import Scripted

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, name: str, folder: Path) -> Any:
    """What a page's Python block defines, saved as a user would save it."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    file = folder / f"{name.lower()}.py"
    file.write_text(code)
    return load(f"{file}:{name}")


def test_the_workflow_of_the_page_plays(tmp_path: Path) -> None:
    env = example("adding-an-environment.md", "Guessing", tmp_path)(size=1)
    relay = example("adding-a-workflow.md", "Relay", tmp_path)()
    assert isinstance(relay, Workflow)
    team = Scripted({"writer": ["40", "42"], "strict": ["too low"], "kind": ["x" * 300]})
    assert asyncio.run(relay.run(env.tasks("train")[0], team, None)) == "42"
    assert team.writer.prompts[1][: len(team.writer.prompts[0])] == team.writer.prompts[0]
    assert "too low" in team.writer.prompts[1][-1]["content"]


def test_the_environment_of_the_page_is_played_and_scored(tmp_path: Path) -> None:
    env = example("adding-an-environment.md", "Guessing", tmp_path)(size=3)
    assert isinstance(env, Env)
    task = attach_reward(env, "native", {}, 1.0).tasks("test")[0]
    for said, worth in ((["0", f" {task.answer}\n"], 1.0), (["101", "none"], 0.0)):
        team = Scripted({"player": said})
        outcome = asyncio.run(MultiTurn(max_steps=2).run(task, team, env.open(task)))
        episode = Episode("e", task, 0, turns=team.said())
        collector = Collector(MultiTurn(), env, None, {}, 1, 60.0, None)  # type: ignore[arg-type]
        asyncio.run(collector.score(episode, outcome))
        assert episode.reward == outcome.metrics["finished"] == worth
        assert episode.metrics["turns"] == 2
        assert team.player.prompts[1][-1]["content"] == ("Higher." if worth else "Lower.")


def test_the_python_of_the_page_of_workflows_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "workflows.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "fields.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    asked: list[Config] = []

    def train(self: AgentTrainer) -> Trained:
        asked.append(self.config)
        (tmp_path / "metrics.jsonl").write_text('{"step": 2, "eval/reward": 1.0}\n')
        return Trained(tmp_path)

    monkeypatch.setattr(AgentTrainer, "train", train)
    runpy.run_path("fields.py", run_name="__main__")
    (config,) = asked
    task = config.env.instance.tasks("test")[0]
    check_conflicts(config)
    call = '<tool_call>{"name": "area", "arguments": {"width": 9, "height": 3}}</tool_call>'
    team = Scripted({"worker": [call, "It is 27."], "speaker": ["27"]})
    answer = asyncio.run(config.workflow.instance.run(task, team, None))
    assert "27.0" in team.worker.prompts[1][-1]["content"] and "It is 27." in team.speaker.prompts[0][0]["content"]
    assert config.reward.instance(answer, task.answer) == 1.0 and config.reward.instance("26", task.answer) == 0.0


def test_the_rewards_of_the_page_score(tmp_path: Path) -> None:
    example("adding-a-reward.md", "close", tmp_path)
    tasks = [Task("a", "the red house", "4", {"within": 2}), Task("b", "a red car", "4")]

    async def both(name: str, answers: list[str]) -> list[float]:
        ask = make_grader(f"{tmp_path}/close.py:{name}", {}, 30.0)
        return await asyncio.gather(*(ask(a, "4", task) for a, task in zip(answers, tasks, strict=True)))

    assert asyncio.run(both("close", ["6", "6"])) == [1.0, 0.0]
    assert asyncio.run(both("close", ["It is 6.", "no idea"])) == [1.0, 0.0]
    assert asyncio.run(both("served", ["red house", "red"])) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_the_algorithm_of_the_page_compares_each_turn_with_the_others(tmp_path: Path) -> None:
    rloo = example("adding-an-algorithm.md", "Rloo", tmp_path)()
    task = Task("t", "?", "!")
    episodes = [Episode(f"t/{i}", task, i, [a_turn()], reward=reward) for i, reward in enumerate([1.0, 0.0, 0.0])]
    alone = Episode("u/0", Task("u", "?", "!"), 0, [a_turn()], reward=1.0)
    credited(rloo, [*episodes, alone])
    advantages = [episode.turns[0].advantages.tolist() for episode in (*episodes, alone)]
    assert advantages == [pytest.approx([wanted] * 2) for wanted in (1.0, -0.5, -0.5, 0.0)]


def test_the_algorithm_of_the_page_counts_its_groups_and_knows_an_empty_step_and_a_kl_in_the_reward(
    tmp_path: Path,
) -> None:
    make = example("adding-an-algorithm.md", "Rloo", tmp_path)
    pairs = [Episode(f"{t}/{i}", Task(t, "?", "!"), i, [a_turn()], reward=float(i)) for t in "xyz" for i in range(2)]
    assert credited(make(), pairs)["groups"] == 3.0
    assert credited(make(), [])["groups"] == 0.0
    for episode in pairs:
        episode.turns[0].ref_logprobs = torch.tensor([-0.1, -0.2]) - episode.reward
    credited(make(kl=0.25, kl_in="reward"), pairs)  # the better one is two nats further from the reference
    assert [float(e.turns[0].advantages[0]) for e in pairs] == pytest.approx([-0.5, 0.5] * 3)


def a_turn() -> Turn:
    return Turn("solver", "small", 0, 0, (1, 2), (3, 4), (-0.1, -0.2), 1.0, "hi", "end")


def test_the_page_of_algorithms_says_what_the_algorithms_say() -> None:
    written = (DOCS / "algorithms.md").read_text()
    spec = importlib.util.spec_from_file_location("make_algorithms", DOCS / "make_algorithms.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert written == maker.page(), "run: python docs/make_algorithms.py"


@pytest.mark.parametrize("name", BUILTIN["algorithm"])
def test_an_entry_says_in_three_lines_what_it_is_when_to_use_it_and_what_it_costs(name: str) -> None:
    what, when, cost = inspect.cleandoc(find("algorithm", name).__doc__).splitlines()
    assert when.startswith(("For ", "Where ", "To ", "The plain choice "))
    assert cost.startswith("Costs ") and "arXiv" in cost and cost.endswith(")") and "arXiv" not in what + when


AROUND = (DOCS / "algorithms.md").read_text().partition("# Around the algorithms")[2].split("\n## ")[1:]
EXAMPLES = [(text.partition("\n")[0], re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)) for text in AROUND]


def test_every_setting_around_the_algorithms_has_an_example() -> None:
    wanted = ["critics", "encoder", "opponents", "collapse", "rotate", "rotate_turns", "algorithm.roles"]
    assert [name for name, _ in EXAMPLES] == wanted


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_examples_of_the_page_of_algorithms_are_configs(name: str, example: list[str], tmp_path: Path) -> None:
    roles = ["reasoner", "actor"]
    tree = naming_config(Path("demo"), steps=100, policies={role: {"model": "demo"} for role in roles})
    tree |= {"roles": {role: role for role in roles}, "env": tree["env"] | {"letters": dict.fromkeys(roles, "a")}}
    tree["workflow"] |= {"order": roles, "rounds": 2}
    config = written(tree | yaml.safe_load(*example), tmp_path)
    check_conflicts(config)


def test_the_tool_of_the_page_is_called_and_its_mistakes_are_told(tmp_path: Path) -> None:
    shopping = example("adding-a-tool.md", "shopping", tmp_path)(turns=3)
    assert isinstance(shopping, Workflow)
    calls = [
        f'<tool_call>{{"name": "price", "arguments": {{"item": "{item}"}}}}</tool_call>' for item in ("gold", "milk")
    ]
    team = Scripted({"buyer": [*calls, "2 euros"]})
    assert asyncio.run(shopping.run(Task("t", "What is milk?", "2"), team, None)) == "2 euros"
    assert "what to look up" in team.buyer.prompts[0][0]["content"]
    assert team.buyer.prompts[1][-1]["content"] == "Error: no such item; there are bread, milk"
    assert team.buyer.prompts[2][-1]["content"] == "2"


def test_the_data_set_of_the_page_holds_tasks_out(tmp_path: Path) -> None:
    env = attach_reward(example("adding-a-dataset.md", "doubles", tmp_path)(size=5), "number", {}, 10.0)
    train, test = env.tasks("train"), env.tasks("test")
    assert len(train) == len(test) == 5 and not {task.prompt for task in train} & {task.prompt for task in test}
    right = Episode("e", test[1], 0, answer="It is 10.")
    asyncio.run(env.score(right))
    assert test[1].prompt == "What is 5 + 5?" and right.reward == 1.0


def test_the_credit_of_the_page_shares_the_reward(tmp_path: Path) -> None:
    even = example("adding-a-credit.md", "Even", tmp_path)(price=0.25)
    turns = [a_turn(), a_turn(), replace(a_turn(), role="judge")]
    metrics = even.assign([Episode("e", Task("t", "?", "!"), 0, turns, reward=4.0)], {}, team_chain=False)
    assert [turn.credit for turn in turns] == [0.5, 0.5, 1.5]
    assert metrics == {"credit/solver": 1.0, "credit/judge": 1.5}


PAGES = {path.name: path.read_text() for path in DOCS.glob("*.md")}
HOOKS = [
    (page, *found)
    for page, text in PAGES.items()
    for found in re.findall(r"<!-- hooks: (\S+) -->\n+((?:\|.*\n)+)", text)
]


@pytest.mark.parametrize(("page", "place", "table"), HOOKS, ids=[place for _, place, _ in HOOKS])
def test_the_hooks_of_a_page_have_the_parameters_of_the_code(page: str, place: str, table: str) -> None:
    module, _, name = place.partition(":")
    holder = importlib.import_module(module)
    holder = getattr(holder, name) if name else holder
    told = re.findall(r"^\| `(\w+)(?:\((.*?)\))?`", table.split("---|\n", 1)[1], re.MULTILINE)
    assert told and {hook: shown for hook, shown in told} == {hook: parameters(holder, hook) for hook, _ in told}
    missing = [own for own in public(holder) if f"`{own}" not in PAGES[page]] if name else []
    assert missing == [], f"{page} has nothing on {', '.join(missing)} of {name}"


def parameters(holder: Any, hook: str) -> str:
    """As a page writes them; none of what is not called."""
    member = inspect.getattr_static(holder, hook, None)
    if not inspect.isfunction(member):
        assert member is not None or hook in holder.__annotations__, f"there is no {hook}"
        return ""
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    taken = [f"{stars.get(p.kind, '')}{p.name}" for p in inspect.signature(member).parameters.values()]
    return ", ".join(name for name in taken if name != "self")


def public(holder: type) -> list[str]:
    """What a class itself lets others call or override."""
    members = {name: member for name, member in vars(holder).items() if not name.startswith("_")}
    return [name for name, member in members.items() if inspect.isfunction(member) or isinstance(member, property)]


def test_the_comparison_of_the_page_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGES["comparing.md"], re.DOTALL | re.MULTILINE)
    (tmp_path / "compare.yaml").write_text(block)
    for recipe in ("team.yaml", "single.yaml"):
        (tmp_path / recipe).touch()
    assert [*load_comparison(tmp_path / "compare.yaml").arms] == ["T", "S4", "S1", "S3", "TV", "UT"]


BLOCKS = [
    (page, number, block)
    for page, text in PAGES.items()
    if page not in ("algorithms.md", "comparing.md")  # whose blocks have their own tests
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_the_yaml_of_a_page_is_a_part_of_a_config(page: str, number: int, block: str, tmp_path: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE):
        for file in re.findall(r"(\w+\.py):", block):
            (tmp_path / file).write_text(code)
    tree: dict[str, Any] = {
        "workflow": "single",
        "env": {"name": "rows", "train": "a.jsonl"},
        "reward": "number",
        "algorithm": "grpo",
    }
    tree |= yaml.safe_load(block)
    if "roles" not in tree and "policies" in tree:
        tree |= {
            "workflow": {"name": "chain", "roles": [*tree["policies"]]},
            "roles": {name: name for name in tree["policies"]},
        }
    if "roles" not in tree:
        part = tree["workflow"] if isinstance(tree["workflow"], dict) else {"name": tree["workflow"]}
        options = {key: value for key, value in part.items() if key != "name"}
        instance = find("workflow", part["name"], tmp_path)(**options)
        tree["roles"] = dict.fromkeys(instance.roles, "all")
    players = [role if isinstance(role, str) else role["policy"] for role in tree["roles"].values()]
    tree.setdefault("policies", {name: {"model": "demo"} for name in players})
    check_conflicts(written(tree, tmp_path), training="human: true" not in block)


COMMANDS = [
    (page, command)
    for page, text in (PAGES | {"README.md": (DOCS.parent / "README.md").read_text()}).items()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if not language
    for command in re.findall(r"^(?:coterie|.* -m coterie) (.+?)(?: +#.*)?$", block.replace("\\\n", " "), re.MULTILINE)
]


def test_every_command_of_the_pages_is_one() -> None:
    """Parsed with its options as the command line does; what it then would do is left out."""
    assert len(COMMANDS) > 25
    apps = {"bench": bench, "data": data, "verifier": verifier}
    for page, line in COMMANDS:
        first, *rest = shlex.split(line)
        group, words = (apps[first], rest) if first in apps else (app, [first, *rest])
        commands: Any = get_command(group)
        assert words[0] in commands.commands, f"{page}: coterie {line}"
        commands.commands[words[0]].make_context(words[0], words[1:])


def test_the_pages_are_one_site_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed; the extra `docs` brings it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command,
        cwd=DOCS.parent,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").is_file()


def test_a_list_has_an_empty_line_before_it() -> None:
    """Else the site would show it as a part of the paragraph."""
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert re.findall(r"^(?![-|\d ]).+\n(?:- |1\. ).*", prose, re.MULTILINE) == [], page


TROUBLES = (DOCS / "troubleshooting.md").read_text()


def test_every_message_of_the_page_of_troubles_is_in_the_code() -> None:
    quoted = re.findall(r'`"([^"`]+)"`', TROUBLES)
    texts = [text for path in (DOCS.parent / "coterie").rglob("*.py") for text in texts_of(path)]
    assert len(quoted) > 15
    assert [message for message in quoted if not any(message in text for text in texts)] == []


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a file, with … for what an f-string fills in; of a message, all that is put together of literals."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_key_of_the_page_of_troubles_is_one() -> None:
    named = re.findall(r"`([a-z_]+\.[a-z_.<>]+)(?:: [\w.]+)?`", TROUBLES)
    keys = [key for key in named if not key.endswith(".yaml") and key.split(".")[0] in config_keys()]
    assert len(keys) > 25
    assert [key for key in keys if key.split(".")[-1] not in config_keys()] == []


@cache
def config_keys() -> set[str]:
    """Every name of a property in the schema of a config."""
    found: set[str] = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(schema())
    return found


def test_every_metric_of_the_page_of_troubles_is_described() -> None:
    described = set(re.findall(r"^\| (.*?) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    names = {name for cell in described for name in re.findall(r"`([^`]+)`", cell)}
    named = re.findall(r"`((?:<policy>|groups|credit|truncated|tokens|absent|seconds|value|eval)/[\w<>]+)`", TROUBLES)
    written = {re.sub(r"^(seconds)/\w+$", r"\1/<phase>", name) for name in named}
    assert len(written) > 15
    assert {name for name in written if name.removeprefix("eval/") not in names} == set()


def test_every_python_name_of_the_pages_is_there() -> None:
    names = {name for text in PAGES.values() for name in re.findall(r"`(coterie(?:\.\w+)+)`", text)}
    assert len(names) > 5
    assert sorted(name for name in names if not is_importable(name)) == []


def is_importable(name: str) -> bool:
    """Whether it is a module of ours, or something in one."""
    place, _, attribute = name.rpartition(".")
    if importlib.util.find_spec(place) is None:
        return False
    return hasattr(importlib.import_module(place), attribute) or importlib.util.find_spec(name) is not None
