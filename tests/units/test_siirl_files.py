"""Files in the layout of siiRL's documentation work as they are: hooks, environments, launch scripts, fan-outs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from coterie.check import dry_run, findings
from coterie.check.probes import reference_text
from coterie.cli import commands
from coterie.compat.siirl.hooks import Hooks
from coterie.compat.siirl.imports import siirl_file
from coterie.compat.siirl.reward_score import SCORES, default_compute_score
from coterie.config import Config, ConfigError, load
from coterie.config.conflicts import check_conflicts
from coterie.training.build import build
from coterie.training.loop import Run, train
from coterie.types import Episode, Task
from tests.graphs import ASKED, TURNS, Parrot, play
from tests.laws.test_critics import other_tokenizer
from tests.models import tiny_tokenizer

Folder = Callable[[str], Path]

# A repository in siiRL's layout: paths in the graph start at its root, and the graph is three folders below.
PROCESS = """
from string import Template

def pre_process(tokenizer, prompt_id, obs, **kwargs):
    text = Template(kwargs["pre_chat_template"]).substitute(prompt=tokenizer.decode(prompt_id))
    return tokenizer.encode(text)

def post_process(tokenizer, prompt_id, response_id, **kwargs):
    return prompt_id + tokenizer.encode(kwargs["post_chat_template"]) + response_id
"""
ENV = """
import asyncio
from siirl.workers.environment.base import BaseEnvironment
from siirl.utils.reward_score.math import compute_score

class MathEnv(BaseEnvironment):
    def reset(self):
        pass

    async def step(self, actions, ground_truth):
        loop = asyncio.get_event_loop()
        score = await loop.run_in_executor(None, compute_score, actions[-1], ground_truth)
        verdict = " It is right." if score == 1.0 else " It is wrong."
        return [action + verdict for action in actions], score, score == 1.0
"""
OTHERS = """
class Verdicts:
    def step(self, actions, ground_truth):
        return [f"{i}: wrong" for i in range(len(actions))], 0.0, False

class Silent:
    def step(self, actions, ground_truth):
        return None, 0.25, False
"""


def agent(name: str, group: int, dependencies: Sequence[str], **options: Any) -> dict[str, Any]:
    options = {"obs_with_env": True, "process_path": "examples/team/config/process.py"} | options
    options |= {"pre_process_kwargs": {"pre_chat_template": f"<{name}> ${{prompt}} <{name}>: "}}
    options |= {"post_process_kwargs": {"post_chat_template": f" {name}: "}}
    return {
        "node_id": name,
        "node_type": "MODEL_INFERENCE",
        "node_role": "ROLLOUT",
        "agent_group": group,
        "dependencies": list(dependencies),
        "config": {"rollout.n": 2, "rollout.tensor_model_parallel_size": 4},
        "agent_options": options,
    }


def trainer(agents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes after the agents: a reward for the last one, advantages by group, and a train node for each."""
    last, groups = agents[-1]["node_id"], range(len(agents))
    reward = {"node_id": "reward", "node_type": "COMPUTE", "node_role": "REWARD", "agent_group": len(agents) - 1}
    advantage = {"node_id": "advantage", "node_type": "COMPUTE", "node_role": "ADVANTAGE", "dependencies": ["reward"]}
    train = {"node_type": "MODEL_TRAIN", "node_role": "ACTOR", "dependencies": ["advantage"]}
    trains = [{**train, "node_id": f"train_{group}", "agent_group": group} for group in groups]
    return [{**reward, "dependencies": [last]}, advantage, *trains]


ENV_PATH = {"env_path": ["examples/team/config/math_env.py:MathEnv"]}
CHAIN = [agent("reasoner", 0, []), agent("actor", 1, ["reasoner"], **ENV_PATH)]


def repository(tmp_path: Path, agents: Sequence[dict[str, Any]] = CHAIN) -> Path:
    folder = tmp_path / "examples" / "team" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"process.py": PROCESS, "math_env.py": ENV, "others.py": OTHERS}.items():
        (folder / name).write_text(text)
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} + 1?"}], "reward_model": {"ground_truth": str(i + 1)}}
        for i in range(8)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "workflow.yaml").write_text(yaml.safe_dump({"dag_id": "team", "nodes": [*agents, *trainer(agents)]}))
    return folder / "workflow.yaml"


WITH_ENV = "actor_rollout_ref.rollout.agent.rewards_with_env=True"


def loaded(tmp_path: Path, *script: str, agents: Sequence[dict[str, Any]] = CHAIN) -> Config:
    files = [f"data.{split}_files={tmp_path}/train.jsonl" for split in ("train", "val")]
    return load(repository(tmp_path, agents), [*files, "actor_rollout_ref.model.path=demo", *script])


def played(tmp_path: Path, replies: Sequence[str], *script: str, **graph: Any) -> tuple[Episode, Parrot]:
    return play(loaded(tmp_path, WITH_ENV, *script, **graph), replies)


# Hooks


class Encoding(dict[str, Any]):
    """A mapping with `input_ids`, as a tokenizer's BatchEncoding is."""


@pytest.mark.parametrize(
    "returned",
    [
        Encoding(input_ids=[1, 2, 3], attention_mask=[1, 1, 1]),
        Encoding(input_ids=[[1, 2, 3]]),
        {"input_ids": torch.tensor([[1, 2, 3]])},
        torch.tensor([[1, 2, 3]]),
        np.array([1, 2, 3]),
        [torch.tensor([1, 2, 3])],
        (1, 2, 3),
    ],
)
def test_a_hook_may_return_what_tokenizers_return(returned: Any) -> None:
    assert Hooks("r")._ids(returned, "pre_process") == [1, 2, 3]


def test_a_hook_may_end_in_a_chat_template(tmp_path: Path) -> None:
    repository(tmp_path)
    hook = tmp_path / "examples" / "team" / "config" / "chat.py"
    hook.write_text(
        "def pre_process(tokenizer, prompt_id, obs, **kwargs):\n"
        "    talk = [{'role': 'user', 'content': tokenizer.decode(prompt_id)}]\n"
        "    return tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=True)\n"
    )
    hooks = Hooks("r", hook)
    tokenizer = tiny_tokenizer()
    read = hooks.pre(tokenizer, tokenizer.encode("4?"), None)
    assert tokenizer.decode(read) == "<|im_start|>user\n4?<|im_end|>\n<|im_start|>assistant\n"
    for rows in ([[1], [2]], {"ids": [1]}, [["a"]]):
        with pytest.raises(ValueError, match="not a list of token ids"):
            hooks._ids(rows, "pre_process")


# Observations


def test_after_a_step_the_next_prompts_are_made_of_the_observation_though_hooks_ignore_it(tmp_path: Path) -> None:
    """As siiRL does it: the last observation replaces the first agent's prompt, and the second continues from there."""
    only, parrot = played(tmp_path, ["think", "\\boxed{3}", "again", "\\boxed{2}", "never"], f"{TURNS}3")
    assert only.error is None and only.reward == 1.0 and parrot.said == ["never"]
    said = f"{ASKED} reasoner: think actor: \\boxed{{3}} It is wrong."
    assert [prompt for _, prompt in parrot.read] == [
        f"<reasoner> {ASKED} <reasoner>: ",
        f"<actor> {ASKED} reasoner: think <actor>: ",
        f"<reasoner> {said} <reasoner>: ",
        f"<actor> {said} reasoner: again <actor>: ",
    ]


def test_agents_that_are_shown_different_things_each_read_their_own(tmp_path: Path) -> None:
    other = [CHAIN[0], agent("actor", 1, ["reasoner"], env_path=["examples/team/config/others.py:Verdicts"])]
    _, parrot = played(tmp_path, ["think", "3", "again", "2"], f"{TURNS}2", agents=other)
    assert parrot.read[2][1] == "<reasoner> 0: wrong <reasoner>: "
    assert parrot.read[3][1] == "<actor> 0: wrong reasoner: again1: wrong <actor>: "


def test_agents_side_by_side_each_read_every_verdict_on_their_own_conversation(tmp_path: Path) -> None:
    both = [agent("left", 0, []), agent("right", 1, [], **ENV_PATH)]
    _, parrot = played(tmp_path, ["1", "2", "3", "4", "5", "6"], f"{TURNS}3", agents=both)
    wrong = " It is wrong."
    assert parrot.read[4][1] == f"<left> {ASKED} left: 1{wrong} left: 3{wrong} <left>: "
    assert parrot.read[5][1] == f"<right> {ASKED} right: 2{wrong} right: 4{wrong} <right>: "


def test_an_environment_may_reward_without_being_observed(tmp_path: Path) -> None:
    silent = agent("actor", 1, ["reasoner"], obs_with_env=False, env_path=["examples/team/config/math_env.py:MathEnv"])
    blind = [agent("reasoner", 0, [], obs_with_env=False), silent]
    only, parrot = played(tmp_path, ["think", "3", "again", "\\boxed{2}"], f"{TURNS}2", agents=blind)
    assert [turn.reward for turn in only.turns] == [None, 0.0, None, 1.0]
    assert not any("wrong" in prompt for _, prompt in parrot.read)
    with pytest.raises(ConfigError, match=r"nothing asks this environment: obs_with_env is false here, and .*not true"):
        loaded(tmp_path, agents=blind)


# Fan-outs


def test_agents_without_dependencies_do_not_read_each_other(tmp_path: Path) -> None:
    fan = [
        agent("left", 0, []),
        agent("right", 1, []),
        agent("judge", 2, ["left", "right"], env_path=["examples/team/config/others.py:Silent"]),
    ]
    only, parrot = played(tmp_path, ["one", "two", "three", "four", "five", "six"], f"{TURNS}2", agents=fan)
    read = [prompt for _, prompt in parrot.read]
    assert read[:2] == [f"<left> {ASKED} <left>: ", f"<right> {ASKED} <right>: "]
    assert read[2] == f"<judge> {ASKED} left: one right: two <judge>: "
    assert read[3] == f"<left> {ASKED} left: one right: two judge: three <left>: "
    assert [turn.reward for turn in only.turns] == [None, None, 0.25] * 2


def test_two_agents_alone_continue_their_own_conversations(tmp_path: Path) -> None:
    both = [agent("left", 0, []), agent("right", 1, [], env_path=["examples/team/config/others.py:Silent"])]
    _, parrot = played(tmp_path, ["one", "two", "three", "four"], f"{TURNS}2", agents=both)
    assert parrot.read[2][1] == f"<left> {ASKED} left: one <left>: "
    assert parrot.read[3][1] == f"<right> {ASKED} right: two <right>: "


# Imports from siirl


def test_scorers_are_served_only_while_a_file_is_loaded(tmp_path: Path) -> None:
    repository(tmp_path)
    before = {name for name in sys.modules if name.startswith("siirl")}
    module = siirl_file(tmp_path / "examples" / "team" / "config" / "math_env.py")
    assert module.compute_score("so \\boxed{\\frac{1}{2}}", "0.5") == 1.0
    assert {name for name in sys.modules if name.startswith("siirl")} == before
    with pytest.raises(ImportError):
        __import__("siirl.utils.reward_score")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from siirl.utils.reward_score import geo3k", "geo3k is not served here: there are math, .*coterie.rewards"),
        ("from siirl.utils.reward_score.math import grade", "has no grade: it has compute_score, .*coterie.rewards"),
        ("import siirl.utils.reward_score.sandbox_fusion", "prime_code runs programs in Coterie's sandbox"),
        ("from siirl.models.loader import load_tokenizer", "a hook gets its tokenizer as an argument"),
        ("import siirl.scheduler", "of siirl there is only siirl.utils.reward_score here"),
    ],
)
def test_any_other_import_says_what_to_import_instead(line: str, message: str, tmp_path: Path) -> None:
    graph = repository(tmp_path)
    (graph.parent / "math_env.py").write_text(f"{line}\n{ENV}")
    with pytest.raises(ConfigError, match=rf"env_path: .*math_env.py, line 1: .*{message}.*workflow.yaml, line"):
        load(graph, [f"data.train_files={tmp_path}/train.jsonl", WITH_ENV])


ADD = json.dumps({"inputs": ["1\n", "4\n"], "outputs": ["2\n", "5\n"]})
PROGRAM = "print(int(input()) + 1)"


@pytest.mark.parametrize(
    ("module", "answer", "truth", "score"),
    [
        ("math", "4, so \\boxed{4}", "4", 1.0),
        ("math", "it is 4", "4", 0.0),  # without a box it is wrong
        ("math_verify", "it is 4", "4", 1.0),
        ("prime_math", "\\boxed{5}", "4", (False, True, "5")),
        ("math_dapo", "\\boxed{4}", "4", {"score": 1.0, "acc": True, "pred": "4"}),
        ("gsm8k", "so #### 1,200", "1200", 1.0),
        ("gsm8k", "so 1,200", "1200", 0.0),
        ("search_r1_like_qa_em", "<answer>The Beatles</answer>", {"target": ["Beatles", "Wings"]}, 1.0),
    ],
)
def test_scorers_return_what_siirl_s_return(module: str, answer: str, truth: Any, score: Any) -> None:
    assert SCORES[module]["compute_score"](answer, truth) == score


def test_a_scorer_is_found_by_the_name_of_the_data_set() -> None:
    assert default_compute_score("openai/gsm8k", "#### 4", "4") == 1.0
    assert default_compute_score("numina_olympiads", "\\boxed{5}", "4") == 0.0
    with pytest.raises(NotImplementedError, match="no score for the data source 'mine'; there are openai/gsm8k, "):
        default_compute_score("mine", "4", "4")


def test_a_program_is_run_in_the_sandbox_also_after_an_agent_s_name(tmp_path: Path) -> None:
    score = SCORES["prime_code"]["compute_score"]
    assert score(f" coder: ```python\n{PROGRAM}\n``` This is it.", ADD) == (1.0, [])
    assert score(f"```python\n{PROGRAM.replace('1', '2')}\n```", ADD, continuous=True) == (0.0, [])
    graph = repository(tmp_path)
    assert not loaded(tmp_path, WITH_ENV).env.instance.with_reward("native", {}, 1.0).needs_sandbox
    code = graph.parent / "code_env.py"
    code.write_text(ENV.replace("reward_score.math", "reward_score.prime_code"))
    coders = [CHAIN[0], agent("actor", 1, ["reasoner"], env_path=[f"{code}:MathEnv"])]
    assert loaded(tmp_path, WITH_ENV, agents=coders).env.instance.with_reward("native", {}, 1.0).needs_sandbox


# Launch scripts

SCRIPT = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 3,
    "data.max_prompt_length": 64,
    "data.max_response_length": 5,
    "data.filter_overlong_prompts": True,
    "data.truncation": "error",
    "data.shuffle": False,
    "actor_rollout_ref.rollout.prompt_length": 48,
    "actor_rollout_ref.actor.clip_ratio": 0.3,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 3,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.rollout.name": "sglang",
    "actor_rollout_ref.rollout.val_kwargs.n": 4,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "critic.cliprange_value": 0.5,
    "critic.optim.lr": "1e-5",
    "algorithm.kl_ctrl.target_kl": 0.1,
    "trainer.val_before_train": False,
    "trainer.default_local_dir": "ckpts/team",
    "trainer.resume_mode": "auto",
    "trainer.save_freq": -1,
    "trainer.test_freq": 10,
    "trainer.seed": 5,
    "trainer.total_training_steps": 2,
    "dag.workflow_path": "examples/team/config/workflow.yaml",
}


def script(**changes: Any) -> list[str]:
    return [f"{key}={value}" for key, value in {**SCRIPT, **changes}.items()]


def test_a_launch_script_s_parameters_load_and_have_their_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = loaded(tmp_path, *script(), WITH_ENV)
    check_conflicts(config)
    assert (config.shuffle, config.eval.before_training, config.resume) == (False, False, True)
    assert (config.folder, config.seed, config.checkpoint.every) == ("ckpts/team", 5, 10)
    assert config.workflow.instance.prompt_length == 48 and config.engine.context == 48 + 5
    idle = capsys.readouterr().err
    for key in ("actor.clip_ratio", "rollout.val_kwargs.n", "critic.cliprange_value", "data.truncation"):
        assert key in idle
    assert not any(
        key in idle for key in ("shuffle", "rollout.prompt_length", "default_local_dir", "resume_mode", "val_before")
    )


def test_what_is_idle_for_siirl_s_parameters_works_with_the_key_that_it_needs(tmp_path: Path) -> None:
    config = loaded(tmp_path, *script(), WITH_ENV, "algorithm.epochs=2", "eval.temperature=1")
    check_conflicts(config)
    assert config.algorithm.instance.clip == 0.3 and config.eval.episodes_per_task == 4


def test_keys_of_ours_work_on_graphs(tmp_path: Path) -> None:
    keys = (
        "checkpoint.every=3",
        "checkpoint.keep=4",
        "eval.every=2",
        "eval.tasks=3",
        "log.wandb=team",
        "shuffle=false",
    )
    config = loaded(tmp_path, *keys)
    assert (config.checkpoint.every, config.checkpoint.keep, config.eval.every, config.eval.tasks) == (3, 4, 2, 3)
    assert config.log.wandb == "team" and not config.shuffle


def test_a_prompt_is_cut_to_the_prompt_length(tmp_path: Path) -> None:
    only, _ = played(tmp_path, ["a", "\\boxed{2}"], "actor_rollout_ref.rollout.prompt_length=7")
    whole, _ = played(tmp_path, ["a", "\\boxed{2}"])
    assert [turn.prompt_ids for turn in only.turns] == [turn.prompt_ids[:7] for turn in whole.turns]
    assert only.metrics["prompts_truncated"] == 1.0 and "prompts_truncated" not in whole.metrics


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [
        ("data.train_fles=x", "; did you mean data.train_files?"),
        ("actor_rollout_ref.rollout.temprature=1", "; did you mean actor_rollout_ref.rollout.temperature?"),
        ("actor_rollout_ref.rollout.sed=1", ""),  # not rollout.n
        ("trainer.val_only_once=1", ""),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1", "; learning.warmup is the number of steps"),
        ("trainer.resume_mode=resume_path", ", and `coterie train --resume RUN --checkpoint STEP` goes back"),
        ("custom_reward_function.path=x.py", "; reward=FILE.py:NAME names a function of (answer, truth)"),
        ("reward_model.enable=True", "; remove it"),
    ],
)
def test_a_suggestion_is_a_key_that_would_work(wrong: str, suggestion: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, wrong)
    assert suggestion in str(refused.value)
    assert suggestion.startswith("; did") == ("did you mean" in str(refused.value))


# Training and checking


def started(tmp_path: Path, model: Path, *more: str, **graph: Any) -> Run:
    tiny = [f"actor_rollout_ref.model.path={model}", "device=cpu", "eval.tasks=2", "rollout.temperature=1.0"]
    config = loaded(
        tmp_path, *script(**{"actor_rollout_ref.rollout.prompt_length": 200}), WITH_ENV, *tiny, *more, **graph
    )
    return build(config, tmp_path / "run", console=False)


def rows(run: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_tasks_come_in_their_order_and_nothing_is_evaluated_before_the_first_step(
    model_folder: Folder, tmp_path: Path
) -> None:
    run = started(tmp_path, model_folder("llama"))
    assert [task.prompt for task in run.tasks.at_step(0)] == ["0 + 1?", "1 + 1?", "2 + 1?"]
    train(run)
    assert [row["step"] for row in rows(tmp_path / "run") if "eval/reward" in row] == [2]


def test_a_script_that_is_started_again_resumes_its_run_and_no_other(
    model_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = repository(tmp_path)
    files = [f"data.{split}_files={tmp_path}/train.jsonl" for split in ("train", "val")]
    where = {"trainer.default_local_dir": tmp_path / "ckpts", "trainer.total_training_steps": 1}
    tiny = [f"actor_rollout_ref.model.path={model_folder('llama')}", "device=cpu", "eval.tasks=1", WITH_ENV]

    def launched(*more: str, **changes: Any) -> None:
        commands.train(graph, [*files, *tiny, *script(**(where | changes)), *more], None, examples=0)

    launched()
    launched("learning.microbatch_tokens=64", **{"trainer.total_training_steps": 2})
    assert [row["step"] for row in rows(tmp_path / "ckpts") if "reward" in row] == [1, 2]
    assert load(tmp_path / "ckpts" / "config.yaml").learning.microbatch_tokens == 64
    launched("seed=6")
    assert "not the run in" in capsys.readouterr().err and (tmp_path / "ckpts-2").is_dir()
    launched(**{"trainer.resume_mode": "disable"})
    assert [row["step"] for row in rows(tmp_path / "ckpts-3") if "reward" in row] == [1]
    with pytest.raises(ConfigError, match=r"folder: .*ckpts is the run's folder, so --out .* has no effect"):
        commands.train(graph, [*files, *tiny, *script(**where)], tmp_path, examples=0)


def test_check_gives_gold_answers_through_hooks_and_environment(model_folder: Folder, tmp_path: Path) -> None:
    run = started(tmp_path, model_folder("llama"), f"{TURNS}2")
    dry = dry_run(run, 2, 2)
    assert [probe.episode.reward for probe in dry.references] == [1.0, 1.0]
    (turns,) = {len(probe.episode.turns) for probe in dry.references}
    assert turns == 2 and all("\\boxed" in probe.text for probe in dry.references)
    assert {probe.kind: probe.episode.reward for probe in dry.probes if probe.whole} == {
        "another task's answer": 0.0, "an empty reply": 0.0, "malformed text": 0.0,
    }  # fmt: skip
    assert max(dry.by_role(dry.tried)["actor"]) == 1.0  # not the turn's reward and the team's
    assert not [one for one in findings(dry) if one.level == "error" or one.text.startswith("the reference")]


PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-siirl.md").read_text()


def test_the_example_of_the_page_trains_two_steps_as_it_is(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path)
    blocks = re.findall(r"^```(?:yml|python)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert [Path(file).name for file, _ in blocks] == ["workflow.yaml", "process.py", "math_env.py"]
    for file, text in blocks:
        (tmp_path / file).write_text(text)
    command = re.findall(r"^coterie train (.*?)\n```", PAGE.replace("\\\n", " "), re.DOTALL | re.MULTILINE)[1]
    assert "trainer.total_training_steps=2" in command
    graph, *overrides = command.replace("=demo", f"={model_folder('llama')}").replace(".parquet", ".jsonl").split()
    (tmp_path / "test.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    monkeypatch.chdir(tmp_path)
    commands.train(Path(graph), [*overrides, "device=cpu", "eval.tasks=1"], None, examples=0)
    assert [row["step"] for row in rows(tmp_path / "ckpts" / "team") if "reward" in row] == [1, 2]


def test_the_example_of_the_page_on_verl_trains_two_steps(model_folder: Folder, tmp_path: Path) -> None:
    repository(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "coming-from-maverl.md").read_text()
    text = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    models = {
        "HuggingFaceTB/SmolLM2-135M-Instruct": model_folder("llama"),
        "Qwen/Qwen2.5-0.5B-Instruct": tmp_path / "q",
    }
    other_tokenizer(tmp_path / "q")
    for name, folder in models.items():
        text = text.replace(name, str(folder))
    (tmp_path / "team.yaml").write_text(
        text.replace("train.parquet", "train.jsonl").replace("test.parquet", "train.jsonl")
    )
    small = [
        "steps=2",
        "tasks_per_step=2",
        "episodes_per_task=1",
        "sampling.max_tokens=4",
        "eval.tasks=1",
        "device=cpu",
    ]
    commands.train(tmp_path / "team.yaml", small, tmp_path, examples=0)
    assert {key for row in rows(tmp_path / "team") for key in row} >= {
        "critic/team_small/loss", "critic/team_large/loss", "credit/proposer", "large/factor",
    }  # fmt: skip


def test_tests_of_a_program_are_no_gold_answer() -> None:
    assert reference_text(Task("t", "?", ADD)) is None
    assert reference_text(Task("t", "?", "{1, 2}")) == "{1, 2}"
