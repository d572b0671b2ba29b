"""rLLM's training scripts: its arguments, names, tables and parameters are taken as they are."""

from __future__ import annotations

import asyncio
import io
import json
import re
import runpy
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coterie import AgentTrainer
from coterie import rllm as names
from coterie.compat.rllm.agent_loop import AgentLoop
from coterie.config import ConfigError, dump, load
from coterie.config.registry import find, options_of
from coterie.data.tables import rows_of
from coterie.envs.base import attach_reward
from coterie.envs.code import CodeResult
from coterie.envs.dataset_env import Gsm8k
from coterie.rewards.code.grader import Verdict
from coterie.rewards.grader import make_grader
from coterie.types import Outcome, Task, Turn
from coterie.workflows.deepcoder import GradedPrograms, Program
from coterie.workflows.math_tool import MathTool
from coterie.workflows.search import Search
from tests.agents import Doubter, Guess
from tests.rllm_workflow import Hints, SolverJudge
from tests.scripted import Scripted

Folder = Callable[[str], Path]
ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "level": n} for n in range(4)]
PAGE = Path(__file__).parents[2] / "docs" / "coming-from-rllm.md"
TEAMS = ("deepcoder", "swe", "math_tool", "search", "deep_research")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer writes its rows into `runs` of the working folder."""
    monkeypatch.chdir(tmp_path)


def half_if_short(task_info: dict[str, Any], action: str) -> names.RewardOutput:
    """A reward function in rLLM's form."""
    return names.RewardOutput(reward=0.5 if len(action) < task_info["level"] else 0.0, is_correct=False)


def found(query: str) -> dict[str, Any]:
    return {"documents": [{"title": "Lima", "content": f"{query}: Lima."}, "Quito is a city."]}


async def ran(code: str) -> str:
    return f"seven\n{len(code)}"


# Arguments


@pytest.mark.parametrize("team", TEAMS)
def test_all_five_teams_have_one_name_for_their_iterations(team: str) -> None:
    assert "max_refinement_iterations" in options_of(find("workflow", team))
    assert not {"max_rounds", "max_iterations"} & set(options_of(find("workflow", team)))


def math_config() -> dict[str, Any]:
    team = {role: "all" for role in ("analyzer", "executor", "verifier")}
    return {"policies": {"all": {"model": "demo"}}, "roles": team, "algorithm": "grpo", "credit": "own"}


def test_a_trainer_takes_rllm_s_arguments(tmp_path: Path) -> None:
    arguments = {"reward_function": half_if_short, "python_tool": ran, "max_refinement_iterations": 3}
    trainer = AgentTrainer(
        workflow_class=MathTool, workflow_args=arguments, config=math_config(), train_dataset=ROWS, out=tmp_path
    )
    config = trainer.config
    workflow = config.workflow.instance
    assert workflow.max_refinement_iterations == 3 and workflow.python_tool.__name__ == "ran"
    assert config.reward.name == "row_function" and config.reward.options["function"] == f"{__file__}:half_if_short"
    assert config.eval.tasks == 0  # there are no held-out rows
    grade = make_grader(config.reward.name, config.reward.options, 20.0)
    tasks = config.env.instance.tasks("train")
    assert [asyncio.run(grade("12", task.answer, task)) for task in tasks] == [0.0, 0.0, 0.0, 0.5]
    with_rows = AgentTrainer(
        workflow_class=MathTool, config=math_config(), train_dataset=ROWS, val_dataset=ROWS, reward="math", out=tmp_path
    )
    assert with_rows.config.eval.tasks == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workflow": "single", "workflow_class": MathTool}, "workflow_class: workflow is given, too"),
        ({"agent_class": MathTool}, "env_class: missing; an agent and an environment are given together"),
        ({"train_dataset": {"train": ROWS}}, "train_dataset: a mapping with train; pass one split"),
        ({"train_dataset": 5}, "train_dataset: got 5, expected a file, a list of rows, or a table"),
        ({"train_dataset": [{"question": object()}]}, "train_dataset, row 1: question: a object cannot be stored"),
    ],
)
def test_arguments_that_do_not_fit_are_told_by_name(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        AgentTrainer(config=math_config(), out=tmp_path, **arguments)


# Tables


class Columns:
    """Like `datasets.Dataset`: `to_dict` gives columns, iterating gives rows."""

    column_names, features = ["question", "answer"], {"question": "string", "answer": "string"}

    def to_dict(self) -> dict[str, list[Any]]:
        return {"question": ["1 + 1?"], "answer": ["2"]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([{"question": "1 + 1?", "answer": "2"}])


@dataclass
class Registered:
    """Like rLLM's Dataset."""

    data: list[dict[str, Any]] = field(default_factory=lambda: [{"question": "1 + 1?", "answer": "2"}])

    def get_data(self) -> list[dict[str, Any]]:
        return self.data


@pytest.mark.parametrize("table", [Columns(), Registered()])
def test_tables_of_other_libraries_are_rows(table: Any) -> None:
    assert rows_of(table, "train_dataset") == [{"question": "1 + 1?", "answer": "2"}]


def test_a_table_of_pandas_is_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"question": ["1 + 1?", "2?"], "level": [1, 2], "answer": ["2", None], "size": [0.5, float("nan")]}
    )
    first, second = rows_of(frame, "train_dataset")
    assert json.loads(json.dumps(first)) == {"question": "1 + 1?", "level": 1, "answer": "2", "size": 0.5}
    assert second["answer"] is None and second["size"] is None


def test_a_table_of_pyarrow_is_rows() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    assert rows_of(pyarrow.table({"question": ["1 + 1?"], "n": [1]}), "x") == [{"question": "1 + 1?", "n": 1}]


# Tools


def test_a_team_searches_with_a_function_that_is_handed_to_it() -> None:
    replies = {"query_optimizer": ["capital"], "retriever": ["Lima"], "extractor": ["<answer>Lima</answer>"]}
    team = Scripted(replies)
    search = Search(search_tool=found, max_refinement_iterations=1)
    asyncio.run(search.run(Task("t", "Capital of Peru?", "Lima"), team, None))  # type: ignore[arg-type]
    read = team.retriever.prompts[0][0]["content"]
    assert "Lima\ncapital: Lima." in read and "Quito is a city." in read


def test_a_team_runs_programs_with_a_function_that_is_handed_to_it(tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text(json.dumps({"question": "20 + 22?", "answer": "#### 42"}))
    env = attach_reward(Gsm8k(train=tmp_path / "sums.jsonl"), "math", {}, 20)
    replies = {"analyzer": ["Add."], "executor": ["```python\n1+1\n```"], "verifier": ["Verdict: correct"]}
    team = Scripted(replies)
    outcome = asyncio.run(MathTool(python_tool=ran).run(env.tasks("train")[0], team, None))  # type: ignore[arg-type]
    assert outcome.answer == r"\boxed{4}" and "It printed:\nseven" in team.verifier.prompts[0][0]["content"]


# An agent with an environment


def test_an_agent_talks_to_its_environment(tmp_path: Path) -> None:
    config = names.AgentTrainer(
        agent_class=Doubter, env_class=Guess, agent_args={"greeting": "Hi."}, env_args={"reward": 2.0},
        config=["steps=1"], train_dataset=[{"question": "?", "ground_truth": "4"}],
    ).config  # fmt: skip
    loop, task = config.workflow.instance, config.env.instance.tasks("train")[0]
    assert isinstance(loop, AgentLoop) and config.reward.name == "native"
    team = Scripted({"agent": ["3", " 4 ", "5"]})
    outcome: Outcome = asyncio.run(loop.run(task, team, None))  # type: ignore[arg-type]
    assert outcome.reward == 2.0 and outcome.metrics == {"steps": 2.0, "done": 1.0} and outcome.answer == " 4 "
    assert [m["content"] for m in team.agent.prompts[1]] == ["Hi.", "Guess.", "3", "Again."]


# The scripts


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def math_script(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> AgentTrainer:
    """A training script in rLLM's form, with its imports changed."""
    hydra, DatasetRegistry = names.hydra, names.DatasetRegistry

    @hydra.main(config_path="pkg://rllm.trainer.config", config_name="agent_ppo_trainer", version_base=None)
    def main(config: Any) -> AgentTrainer:
        return names.AgentTrainer(
            workflow_class=names.MultiAgentMathToolWorkflow,
            workflow_args={"reward_function": names.math_reward_fn, "max_refinement_iterations": 3},
            config=config,
            train_dataset=DatasetRegistry.load_dataset("sums", "train"),
            val_dataset=DatasetRegistry.load_dataset("sums", "val"),
        )

    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    return main()  # type: ignore[no-any-return]


def test_a_script_runs_with_the_parameters_of_its_launcher(
    here: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem": f"{n} + 1?", "ground_truth": str(n + 1)} for n in range(4)]
    for split in ("train", "test"):
        names.DatasetRegistry.register_dataset("sums", rows, split)
    given = [
        f"actor_rollout_ref.model.path={model_folder('llama')}",
        "data.train_batch_size=4", "data.max_prompt_length=300", "data.max_response_length=4",
        "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.optim.lr=2e-6", "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.model.lora_alpha=8", "actor_rollout_ref.actor.fsdp_config.param_offload=True",
        "algorithm.adv_estimator=grpo", "trainer.total_epochs=2", "trainer.test_freq=10", "trainer.n_gpus_per_node=8",
        "+trainer.agent_names=['analyzer','executor','verifier']", "device=cpu", "eval.tasks=1",
    ]  # fmt: skip
    trainer = math_script(given, monkeypatch)
    config = trainer.config
    assert list(config.policies) == list(config.roles) == ["analyzer", "executor", "verifier"]
    assert all(policy.lr == 2e-6 and policy.lora.rank == 4 for policy in config.policies.values() if policy.lora)
    assert (config.tasks_per_step, config.episodes_per_task, config.epochs, config.engine.context) == (4, 2, 2, 304)
    assert config.env.options["question"] == "problem" and config.env.options["answer"] == "ground_truth"
    assert config.reward.name == "math" and config.workflow.instance.max_refinement_iterations == 3
    assert "fsdp_config.param_offload" in capsys.readouterr().err
    trained = trainer.train(console=False)
    assert "reward" in trained.metrics and load(trained.folder / "config.yaml").epochs == 2
    assert [int(file.name.split(".")[0]) for file in sorted((trained.folder / "episodes").glob("*"))] == [1, 2]


def test_an_agent_that_the_workflow_does_not_have_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="no role 'verifer'; it has analyzer, executor, verifier; did you mean verif"):
        names.AgentTrainer(
            names.MultiAgentMathToolWorkflow,
            config=["+trainer.agent_names=['analyzer','executor','verifer']"],
            train_dataset=ROWS,
        )


def test_parameters_of_critics_and_of_an_evaluation_that_there_is_not_have_no_effect(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = names.AgentTrainer(
        names.MultiAgentMathToolWorkflow,
        config={"trainer": {"test_freq": 10}, "critic.optim.lr": 1e-5, "trainer.total_epochs": 1}
        | {"trainer.default_local_dir": "elsewhere/run", "algorithm.adv_estimator": "rloo"},
        train_dataset=ROWS,
    )
    assert trainer.run_folder == Path("elsewhere/run") and trainer.config.algorithm.name == "rloo"
    config = trainer.config
    assert (config.eval.every, config.critics, config.epochs) == (0, {}, 1)
    assert "without effect here: critic.optim.lr, trainer.test_freq" in capsys.readouterr().err


def test_the_scripts_of_all_five_teams_make_a_config(here: Path) -> None:
    registry = names.DatasetRegistry
    registry.register_dataset("questions", [{"question": "Capital of Peru?", "answer": "Lima"}], "train")
    issue = {"issue": "add subtracts", "repository": str(here), "tests": "python -m unittest"}
    registry.register_dataset("R2E_Gym_Subset", [issue], "train")
    code = {"question": "Add.", "ground_truth": [{"input": "1", "output": "2", "type": "stdin_stdout"}]}
    registry.register_dataset("deepcoder", [code], "train")
    scripts: list[tuple[Any, dict[str, Any], str, str]] = [
        (names.MultiAgentDeepCoderWorkflow, {"reward_function": names.code_reward_fn}, "deepcoder", "deepcoder"),
        (names.MultiAgentSWEWorkflow, {}, "R2E_Gym_Subset", "swe"),
        (names.MultiAgentMathToolWorkflow, {"reward_function": names.math_reward_fn}, "questions", "rows"),
        (
            names.MultiAgentSearchWorkflow,
            {"reward_function": names.search_reward_fn, "search_tool": names.LocalRetrievalTool()},
            "questions",
            "rows",
        ),
        (names.MultiAgentDeepResearchWorkflow, {"tools": {}, "max_subqueries": 5}, "questions", "rows"),
    ]
    for team, arguments, dataset, env in scripts:
        trainer = names.AgentTrainer(team, arguments, config=["steps=2"], train_dataset=registry.load_dataset(dataset))
        assert trainer.config.env.name == env and trainer.config.steps == 2 and trainer.config.eval.tasks == 0
        assert {role.policy for role in trainer.config.roles.values()} == {"shared"}


def test_a_dataset_that_is_not_there_is_told_with_the_command_that_prepares_it(here: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no train split of deepscaler_math; `coterie data prepare deepscaler` writes it"
    ):
        names.DatasetRegistry.load_dataset("deepscaler_math", "train")
    assert not names.DatasetRegistry.dataset_exists("hotpotqa", "train")


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("data.train_batchsize=4", "data.train_batchsize: unknown key"),
        ("algorithm.adv_estimator=remax", "adv_estimator 'remax' has no counterpart here: rloo"),
        ("trainer.resume_mode=auto", "resume: a trainer starts a new run; `coterie train --resume FOLDER` resumes one"),
        ("stepz=4", "stepz: unknown key; Config has .*did you mean steps"),
    ],
)
def test_a_parameter_that_has_no_counterpart_is_told(here: Path, parameter: str, message: str) -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}]
    with pytest.raises(ConfigError, match=message):
        names.AgentTrainer(names.MultiAgentMathToolWorkflow, config=[parameter], train_dataset=rows)


def test_a_retrieval_server_of_rllm_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = names.LocalRetrievalTool("http://127.0.0.1:9/")
    requests: list[dict[str, Any]] = []

    def urlopen(request: Any, timeout: float) -> io.BytesIO:
        requests.append(json.loads(request.data) | {"address": request.full_url})
        document = {"id": "7", "contents": '"Lima"\nLima is the capital of Peru.'}
        return io.BytesIO(json.dumps({"results": [{"document": document, "score": 0.9}]}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    search = Search(**tool.options)
    (hit,) = asyncio.run(search.retriever.search("Peru", 2))
    assert (hit.document.title, hit.score) == ("Lima", 0.9)
    assert (requests[0]["query"], requests[0]["top_k"]) == ("Peru", 2)
    assert requests[0]["address"] == "http://127.0.0.1:9/retrieve"


def test_programs_are_rewarded_by_a_function_that_is_handed_to_the_team(tmp_path: Path) -> None:
    code = {"question": "Add.", "ground_truth": [{"input": "1", "output": "2", "type": "stdin_stdout"}]}
    team = names.AgentTrainer(
        names.MultiAgentDeepCoderWorkflow, {"reward_function": half_if_short}, config=["env.name=deepcoder"],
        train_dataset=[code],
    )  # fmt: skip
    assert team.config.workflow.instance.program_reward == "reward"
    programs = [Turn("generator", "p", 0, 0, (), (), (), 1.0, text, "end") for text in ("wrong", "right")]
    analysis = Turn("test_runner", "p", 0, 0, (), (), (), 1.0, "", "end")
    tested = [Program(turn, CodeResult(Verdict(0, 1, ()), 0.0)) for turn in programs]

    async def grade(answer: Any) -> float:
        return float(answer == "right")

    asyncio.run(GradedPrograms(tested, [(analysis, tested[0])])(grade))
    assert [turn.reward for turn in (*programs, analysis)] == [0.0, 1.0, 1.0]


def test_a_workflow_written_for_rllm_is_played_and_its_steps_are_rewarded(here: Path) -> None:
    trainer = names.AgentTrainer(
        SolverJudge,
        {"reward_function": names.math_reward_fn, "hints": Hints(), "solvers": 2},
        config=["steps=1"],
        train_dataset=[{"question": "1 + 1?", "ground_truth": "2"}],
    )
    config = trainer.config
    assert list(config.roles) == ["solver", "judge"] and config.credit.name == "own"
    (here / "again.yaml").write_text(dump(config))
    again = load(here / "again.yaml")
    assert again == config
    team = Scripted({"solver": ["It is 2.", "3"], "judge": ["2"]})
    outcome = asyncio.run(again.workflow.instance.run(again.env.instance.tasks("train")[0], team, None))
    assert [turn.reward for turn in team.said()] == [1.0, 0.0, 1.0]
    assert (outcome.answer, outcome.reward, outcome.metrics) == ("2", 1.0, {"solvers": 2.0})
    assert "1 + 1? Be brief." in team.solver.prompts[0][0]["content"]


def test_the_script_of_the_page_runs(here: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Folder) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (here / "train_math_tool.py").write_text(script)
    (command,) = re.findall(r"^python train_math_tool.py (.*?)\n```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = [{"question": f"{n} + 1?", "ground_truth": str(n + 1)} for n in range(4)]
    names.DatasetRegistry.register_dataset("deepscaler_math", rows, "train")
    names.DatasetRegistry.register_dataset("aime2024", rows[:1], "test")
    model = f"actor_rollout_ref.model.path={model_folder('llama')}"
    words = command.replace("\\\n", " ").replace("actor_rollout_ref.model.path=demo", model).split()
    monkeypatch.setattr(sys, "argv", ["train_math_tool.py", *words, "device=cpu", "data.max_response_length=4"])
    runpy.run_path("train_math_tool.py", run_name="__main__")
    steps = [json.loads(line)["step"] for line in (here / "runs" / "rllm" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 2]  # two steps and an evaluation
