"""Laws of graphs in siiRL's format: read as they are written, refused by name, played in ids, trained and resumed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml

from coterie.cli import commands
from coterie.compat.siirl.conversations import Conversations, Speaker
from coterie.compat.siirl.credit import GraphCredit
from coterie.compat.siirl.env import GraphEnv, GraphTasks, WorldError
from coterie.compat.siirl.hooks import HookError, Hooks
from coterie.compat.siirl.workflow import Graph, GraphAgent
from coterie.config import Config, ConfigError, dump, load
from coterie.config.conflicts import check_conflicts
from coterie.config.registry import user_module
from coterie.credit.base import Credit
from coterie.episode_files import EpisodeFile
from coterie.models.chat import Chat
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import TooManyFailures
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.loop import Run, train
from coterie.types import Episode, Sample, Sampling, Task, Turn
from tests.browser import reading
from tests.episodes import episode, turn
from tests.models import tiny_tokenizer

Folder = Callable[[str], Path]
RECIPE = Path(__file__).parents[2] / "recipes" / "graph" / "two_agents.yaml"

PROCESS = """
def pre_process(tokenizer, prompt_ids, obs, before="", **kwargs):
    return tokenizer.encode(before, add_special_tokens=False) + prompt_ids + obs

def post_process(tokenizer, prompt_ids, response_ids, after="", **kwargs):
    return prompt_ids + response_ids + tokenizer.encode(after, add_special_tokens=False)
"""
MATH_ENV = """
class MathEnv:
    made = []

    def __init__(self):
        self.told, self.closed = [], False
        MathEnv.made.append(self)

    def reset(self):
        return ["Begin.", None]

    async def step(self, actions, ground_truth):
        self.told.append((actions, ground_truth))
        right = str(ground_truth) in actions[-1]
        return [f"{len(self.told)}: {'right' if right else 'wrong'}"] * 2, float(right), right

    def close(self):
        self.closed = True


class PlainEnv(MathEnv):
    def step(self, actions, ground_truth):
        return "wrong", len(actions), False


class Text(MathEnv):
    def step(self, actions, ground_truth):
        return "wrong"


class Lone(MathEnv):
    def step(self, actions, ground_truth):
        return ["one", "two", "three"], 0.0, False


class Worthless(MathEnv):
    def step(self, actions, ground_truth):
        return None, "much", False


NoClass = 3
"""
MARFT = """\
dag_id: marft
description: two agents
first_config: &first
  rollout.tensor_model_parallel_size: 4
  rollout.n: 2
second_config: &second
  <<: *first
  rollout.temperature: 0.9
nodes:
  - node_id: reasoner
    node_type: MODEL_INFERENCE
    node_role: ROLLOUT
    config: *first
    agent_group: 0
    dependencies: []
    agent_options:
      obs_with_env: true
      process_path: process.py
      pre_process_kwargs: {before: "reason: "}
      post_process_kwargs: {after: " so: "}
  - node_id: actor
    node_type: model_inference
    node_role: rollout
    config: *second
    agent_group: 1
    dependencies:
     - reasoner
    agent_options:
      obs_with_env: true
      process_path: process.py
      pre_process_kwargs: {before: "act: "}
      env_path: [math_env.py:MathEnv]
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, agent_group: 1, dependencies: [actor]}
  - {node_id: old_0, node_type: MODEL_TRAIN, node_role: ACTOR, only_forward_compute: true, dependencies: [reward]}
  - {node_id: value_0, node_type: MODEL_TRAIN, node_role: CRITIC, only_forward_compute: true, dependencies: [old_0]}
  - node_id: value_1
    node_type: MODEL_TRAIN
    node_role: CRITIC
    agent_group: 1
    only_forward_compute: true
    dependencies: [value_0]
    agent_options: {share_instance: 0}
  - {node_id: advantage, node_type: COMPUTE, node_role: ADVANTAGE, agent_group: 1, dependencies: [value_1]}
  - {node_id: critic_0, node_type: MODEL_TRAIN, node_role: CRITIC, dependencies: [advantage]}
  - node_id: actor_0
    node_type: MODEL_TRAIN
    node_role: ACTOR
    agent_group: 0
    dependencies: [critic_0]
    agent_options: {train_cycle: 1}
  - node_id: actor_1
    node_type: MODEL_TRAIN
    node_role: ACTOR
    agent_group: 1
    dependencies: [actor_0]
    agent_options: {train_cycle: 1}
"""
ROWS = [{"question": f"What is {i} + {j}?", "answer": str(i + j)} for i in range(3) for j in range(3)]
DATA = ["data.train_files=rows.jsonl", "data.val_files=rows.jsonl"]


def folder_with(tmp_path: Path, text: str = MARFT) -> Path:
    (tmp_path / "process.py").write_text(PROCESS)
    (tmp_path / "math_env.py").write_text(MATH_ENV)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "graph.yaml").write_text(text)
    return tmp_path / "graph.yaml"


def loaded(tmp_path: Path, text: str = MARFT, *overrides: str) -> Config:
    return load(folder_with(tmp_path, text), [*DATA, *overrides])


def without(text: str, *nodes: str) -> str:
    """A graph without some nodes; who depended on one depends on what it did."""
    data = yaml.safe_load(text)
    for gone in nodes:
        (node,) = [one for one in data["nodes"] if one["node_id"] == gone]
        data["nodes"].remove(node)
        for other in data["nodes"]:
            kept = [name for name in other["dependencies"] if name != gone]
            other["dependencies"] = kept + (node["dependencies"] if gone in other["dependencies"] else [])
    return (
        yaml.safe_dump(data | {"first_config": None, "second_config": None})
        .replace("first_config: null\n", "")
        .replace("second_config: null\n", "")
    )


# Reading


def test_a_graph_is_a_team_in_the_order_of_its_dependencies(tmp_path: Path) -> None:
    backwards = yaml.safe_load(MARFT)
    backwards = {"dag_id": "x", "nodes": backwards["nodes"][::-1]}
    for text in (MARFT, yaml.safe_dump(backwards)):
        config = loaded(tmp_path, text)
        assert list(config.workflow.instance.roles) == ["reasoner", "actor"]
        assert {name: role.policy for name, role in config.roles.items()} == {"reasoner": "reasoner", "actor": "actor"}


def test_what_a_graph_says_is_what_the_config_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = loaded(tmp_path)
    assert config.name == "marft" and config.episodes_per_task == 2
    assert config.roles["actor"].temperature == 0.9 and config.roles["reasoner"].temperature is None
    assert config.algorithm.name == "ppo" and config.algorithm.instance.rotate == 1
    assert {name: critic.roles for name, critic in config.critics.items()} == {"value_0": ("reasoner", "actor")}
    assert config.env.instance.worlds == {"actor": f"{tmp_path.resolve()}/math_env.py:MathEnv"}
    assert config.reward.name == "math" and config.credit.instance == GraphCredit(share_reward_in_agent=True)
    assert config.workflow.instance.rewarded == ("actor",)
    assert "no effect here: rollout.tensor_model_parallel_size" in capsys.readouterr().err


def test_a_config_made_of_a_graph_is_kept_as_one_of_ours(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    (tmp_path / "kept.yaml").write_text(dump(config))
    assert load(tmp_path / "kept.yaml") == config
    check_conflicts(config)


def test_the_script_s_parameters_and_keys_of_ours_go_over_the_graph(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        MARFT,
        "actor_rollout_ref.rollout.agent.rewards_with_env=True",
        "rollout.multi_turn.max_assistant_turns=3",
        "rollout.multi_turn.use_all_traj=true",
        "algorithm.share_reward_in_agent=False",
        "actor_rollout_ref.model.path=some/model",
        "actor_rollout_ref.model.lora_rank=0",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.01",
        "data.train_batch_size=6",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "trainer.total_epochs=4",
        "trainer.n_gpus_per_node=8",
        "policies.actor.lr=1e-3",
        "seed=7",
    )
    flow = config.workflow.instance
    assert (flow.rewards_with_env, flow.max_assistant_turns, flow.use_all_traj) == (True, 3, True)
    assert config.reward.name == "native" and config.env.name == "graph_env"
    assert not config.credit.instance.share_reward_in_agent
    assert all(policy.model == "some/model" and policy.lora is None for policy in config.policies.values())
    assert config.critics["value_0"].model == "some/model" and config.critics["value_0"].lora is None
    assert config.policies["reasoner"].lr == 1e-6 and config.policies["actor"].lr == 1e-3
    assert config.algorithm.instance.kl == 0.01 and config.algorithm.instance.minibatches == 3
    assert config.steps == 4 * (len(ROWS) // 6) and config.seed == 7


def test_global_config_is_referred_to_and_may_hold_what_the_script_would_say(tmp_path: Path) -> None:
    text = MARFT.replace("rollout.n: 2", "rollout.n: !Ref global_config.deep.samples").replace(
        "nodes:\n", "global_config:\n  deep: {samples: 5}\n  data: {train_batch_size: 3}\nnodes:\n", 1
    )
    config = loaded(tmp_path, text)
    assert config.episodes_per_task == 5 and config.tasks_per_step == 3
    assert loaded(tmp_path, text, "data.train_batch_size=4").tasks_per_step == 4


@pytest.mark.parametrize(
    ("gone", "estimator", "name"),
    [
        ([], None, "ppo"),
        (["value_0", "value_1", "critic_0"], None, "grpo"),
        ([], "gae_marft", "ppo"),
        ([], "gae", "ippo"),
        (["value_0", "value_1", "critic_0"], "rloo", "rloo"),
        ([], "grpo", "grpo"),
    ],
)
def test_critics_and_advantages_choose_the_algorithm_unless_the_script_does(
    gone: list[str], estimator: str | None, name: str, tmp_path: Path
) -> None:
    told = [f"algorithm.adv_estimator={estimator}"] if estimator else []
    config = loaded(tmp_path, without(MARFT, *gone), *told)
    assert config.algorithm.name == name
    assert bool(config.critics) == (name in ("ppo", "ippo"))
    check_conflicts(config)


def test_an_advantage_for_each_agent_is_a_chain_for_each(tmp_path: Path) -> None:
    own = "  - {node_id: advantage_0, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [value_1]}\n"
    assert loaded(tmp_path, MARFT + own).algorithm.name == "ippo"


def test_the_only_critic_of_a_graph_is_everybody_s(tmp_path: Path) -> None:
    config = loaded(tmp_path, without(MARFT, "value_1"))
    assert {name: critic.roles for name, critic in config.critics.items()} == {"value_0": ("reasoner", "actor")}
    check_conflicts(config)


def test_an_agent_that_no_node_trains_is_frozen(tmp_path: Path) -> None:
    config = loaded(tmp_path, without(MARFT, "actor_0"))
    assert {name: policy.frozen for name, policy in config.policies.items()} == {"reasoner": True, "actor": False}
    assert config.algorithm.instance.rotate is None  # it is always the other one's turn


def test_what_is_said_for_all_and_concerns_nobody_is_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_of_them = ["actor_rollout_ref.actor.optim.lr=1e-6", "data.max_response_length=64"]
    config = loaded(tmp_path, without(MARFT, "actor_0"), *all_of_them, "actor_rollout_ref.rollout.response_length=32")
    check_conflicts(config)
    assert config.policies["actor"].lr == 1e-6 and config.sampling_of("actor").max_tokens == 32
    said = capsys.readouterr().err
    assert "data.max_response_length: every" in said and "the learning rate of reasoner, which no node" in said


def test_agents_that_share_an_instance_are_one_policy(tmp_path: Path) -> None:
    text = without(MARFT, "actor_1").replace("node_id: actor\n", "node_id: actor\n", 1)
    data = yaml.safe_load(text)
    for node in data["nodes"]:
        if node["node_id"] == "actor":
            node["agent_options"]["share_instance"] = 0
    config = loaded(tmp_path, yaml.safe_dump(data))
    assert list(config.policies) == ["reasoner"]
    assert {role.policy for role in config.roles.values()} == {"reasoner"}


def test_dynamic_sampling_leaves_out_groups_that_earned_the_same(tmp_path: Path) -> None:
    text = without(MARFT, "value_0", "value_1", "critic_0")
    node = {"node_id": "filter", "node_type": "COMPUTE", "node_role": "DYNAMIC_SAMPLING", "dependencies": ["reward"]}
    data = yaml.safe_load(text)
    assert not loaded(tmp_path, text).algorithm.instance.drop_constant
    assert loaded(tmp_path, yaml.safe_dump(data | {"nodes": [*data["nodes"], node]})).algorithm.instance.drop_constant


def test_rows_as_siirl_prepares_them_are_tasks(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    row = {"data_source": "d", "prompt": talk, "reward_model": {"style": "rule", "ground_truth": "2"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "train.parquet")
    (task,) = GraphTasks(tmp_path / "train.parquet").tasks("train")
    assert (task.prompt, task.answer, task.meta["messages"]) == ("1 + 1?", "2", talk)
    assert task.meta["data_source"] == "d"


# Refusing: each of these is one change to a sound graph, and must name the node, the line and what is wrong

BROKEN: dict[str, tuple[str, str, str]] = {
    "cycle": (
        "    dependencies: []\n",
        "    dependencies: [actor]\n",
        r"nodes.reasoner.dependencies: cycle: reasoner → actor → reasoner.*graph.yaml, line 15",
    ),
    "missing node": (
        "     - reasoner\n",
        "     - reasonr\n",
        r"nodes.actor.dependencies: missing node: nothing is called 'reasonr'; did you mean reasoner\?.*line 26",
    ),
    "gap in groups": (
        "    agent_group: 1\n    dependencies:\n     - reasoner",
        "    agent_group: 3\n    dependencies:\n     - reasoner",
        r"nodes.actor.agent_group: gap in groups: they are 0, 1, 3, and 2 is missing.*line 25",
    ),
    "unknown key": (
        "    agent_options: {train_cycle: 1}\n  - node_id: actor_1",
        "    agent_options: {train_cycles: 1}\n  - node_id: actor_1",
        r"nodes.actor_0.agent_options.train_cycles: unknown key; .*did you mean train_cycle\?.*line 50",
    ),
    "unknown node_type": (
        "    node_type: model_inference",
        "    node_type: MODEL_INFERENC",
        r"nodes.actor.node_type: got the text 'MODEL_INFERENC', .*did you mean MODEL_INFERENCE\?.*line 22",
    ),
    "unknown node_role": (
        "    node_role: rollout",
        "    node_role: speaker",
        r"nodes.actor.node_role: got the text 'SPEAKER', expected .*ROLLOUT.*line 23",
    ),
    "duplicate id": (
        "  - node_id: actor\n",
        "  - node_id: reasoner\n",
        r"nodes.1.node_id: duplicate id: reasoner is already a node \(.*line 10\).*line 21",
    ),
    "reference to nothing": (
        "rollout.n: 2",
        "rollout.n: !Ref global_config.n",
        r"nodes.0.config.*: !Ref global_config.n refers to nothing.*line 5",
    ),
    "bad env_path": (
        "math_env.py:MathEnv",
        "math_env.py:MathsEnv",
        r"nodes.actor.agent_options.env_path: bad env_path: .*has no MathsEnv; did you mean MathEnv\?.*line 32",
    ),
    "no such file": (
        "      process_path: process.py\n      pre_process_kwargs: {before: \"act",
        "      process_path: proces.py\n      pre_process_kwargs: {before: \"act",
        r"nodes.actor.agent_options.process_path: there is no file proces.py.*line 30",
    ),
    "wrong type": (
        "    agent_group: 1\n    dependencies:\n     - reasoner",
        "    agent_group: one\n    dependencies:\n     - reasoner",
        r"nodes.actor.agent_group: got the text 'one', expected a whole number ≥ 0.*line 25",
    ),
    "a critic that nobody trains": (
        "  - {node_id: critic_0, node_type: MODEL_TRAIN, node_role: CRITIC, dependencies",
        "  - {node_id: critic_0, node_type: MODEL_TRAIN, node_role: CRITIC, only_forward_compute: true, dependencies",
        r"nodes.value_0: is a critic that no node trains.*line 35",
    ),
    "shared with nobody": (
        "share_instance: 0",
        "share_instance: 2",
        r"nodes.value_1.agent_options.share_instance: group 2 has no CRITIC of its own.*line 42",
    ),
    "half a cycle": (
        "    agent_options: {train_cycle: 1}\n  - node_id: actor_1",
        "    agent_options: {}\n  - node_id: actor_1",
        r"nodes.actor_1.agent_options.train_cycle: must be the same for all agents that train: actor_0 None.*line 56",
    ),
    "unknown parameter": (
        "rollout.temperature",
        "rollout.temprature",
        r"nodes.actor.config.\"rollout.temprature\": unknown key.*did you mean .*rollout.temperature\?.*line 8",
    ),
    "an anchor in itself": (
        "first_config: &first\n",
        "first_config: &first\n  again: *first\n",
        r"first_config.again: an anchor is used inside itself.*line 4",
    ),
    "unknown top key": ("description:", "descripton:", r"descripton: unknown key; a graph has dag_id.*line 2"),
    "an option in the wrong place": (
        "    agent_options: {share_instance: 0}",
        "    agent_options: {share_instance: 0, obs_with_env: true}",
        r"nodes.value_1.agent_options.obs_with_env: has no effect on a node with the role CRITIC.*line 42",
    ),
    "foreign code": (
        "  - {node_id: reward,",
        "  - {node_id: reward, executable_ref: my.code,",
        r"nodes.reward.executable_ref: my.code cannot run here.*line 33",
    ),
    "a hook with other arguments": (
        "      post_process_kwargs: {after: \" so: \"}",
        "      post_process_kwargs: {prompt_ids: x}",
        r"nodes.reasoner.agent_options.process_path: post_process cannot be called with .*line 18",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_graph_is_refused_by_name_with_its_node_and_line(name: str, tmp_path: Path) -> None:
    sound, broken, message = BROKEN[name]
    assert MARFT.count(sound) == 1, "the change is one change"
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, MARFT.replace(sound, broken))
    assert re.search(message, str(refused.value)), refused.value


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("import math\n\n\nmath.no", "line 4: AttributeError: module 'math' has no attribute 'no'"),
        ("def f():\n    return 1 / 0\nf()", "line 2: ZeroDivisionError: division by zero"),
        ("x = [\ny = 3", "line [12]: SyntaxError"),
        ("import no_such_package", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise KeyError('x')", "line 1: KeyError: 'x'"),
    ],
)
@pytest.mark.parametrize(("file", "key"), [("process.py", "process_path"), ("math_env.py", "env_path")])
def test_a_users_file_that_cannot_be_run_is_told_with_its_line(
    broken: str, message: str, file: str, key: str, tmp_path: Path
) -> None:
    graph = folder_with(tmp_path)
    (tmp_path / file).write_text(broken)
    with pytest.raises(ConfigError, match=rf"agent_options.{key}: .*{file}, {message}.*graph.yaml, line"):
        load(graph, DATA)


def test_a_graph_without_data_says_how_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.train: missing; data.train_files=FILE"):
        load(folder_with(tmp_path))


def test_parameters_that_mean_nothing_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.train_fles: unknown key.*did you mean data.train_files\?"):
        loaded(tmp_path, MARFT, "data.train_fles=x")
    with pytest.raises(ConfigError, match=r"custom_reward_function.path: unknown key; reward=FILE.py:NAME names"):
        loaded(tmp_path, MARFT, "custom_reward_function.path=x.py")
    with pytest.raises(ConfigError, match=r"algorithm: adv_estimator 'x' has no counterpart here; gae.*override"):
        loaded(tmp_path, MARFT, "algorithm.adv_estimator=x")
    with pytest.raises(ConfigError, match=r"episodes_per_task has one value for all nodes.*line 5.*line 9"):
        loaded(tmp_path, MARFT.replace("  rollout.temperature: 0.9", "  rollout.temperature: 0.9\n  rollout.n: 3"))


def test_what_one_node_says_of_its_adapter_holds_for_its_policy_alone(tmp_path: Path) -> None:
    own = MARFT.replace("  rollout.temperature: 0.9\n", "  rollout.temperature: 0.9\n  model.lora_rank: 2\n")
    config = loaded(tmp_path, own, "actor_rollout_ref.model.lora_rank=8", "critic.model.lora_rank=0")
    ranks = {name: policy.lora and policy.lora.rank for name, policy in config.policies.items()}
    assert ranks == {"reasoner": 8, "actor": 2}
    assert config.critics["value_0"].lora is None


def test_rewards_of_an_environment_need_one(tmp_path: Path) -> None:
    text = MARFT.replace("      env_path: [math_env.py:MathEnv]\n", "")
    with pytest.raises(ConfigError, match="rewards_with_env asks the environments, but no node has an env_path"):
        loaded(tmp_path, text, "rollout.agent.rewards_with_env=true")


# Playing


class Parrot:
    """An engine that says what it was told to say, and keeps what it read."""

    def __init__(self, said: Sequence[str]) -> None:
        self.tokenizer = tiny_tokenizer()
        self.said = list(said)
        self.read: list[tuple[str, str]] = []

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        self.read.append((policy, self.tokenizer.decode(list(prompt_ids))))
        ids = tuple(self.tokenizer.encode(self.said.pop(0), add_special_tokens=False))
        return Sample(ids, (-1.0,) * len(ids), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...


def played(tmp_path: Path, said: Sequence[str], *overrides: str, text: str = MARFT) -> tuple[Episode, Parrot]:
    """One episode of the graph on 1 + 1, with an engine that says this."""
    return play(loaded(tmp_path, text, "rollout.agent.rewards_with_env=true", *overrides), said)


def play(config: Config, said: Sequence[str]) -> tuple[Episode, Parrot]:
    parrot = Parrot(said)
    chats = {name: Chat(parrot.tokenizer) for name in config.policies}
    env = config.env.instance.with_grader(config.env.instance.native(1.0))
    players = {role: Player(own.policies[0], Sampling()) for role, own in config.roles.items()}
    collector = Collector(config.workflow.instance, env, parrot, chats, 1, 10.0, None)
    (only,) = collector.collect([Task("t", "1 + 1?", "2")], 1, players, 0)
    return only, parrot


TURNS = "rollout.multi_turn.max_assistant_turns="
ASKED = "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"


def test_agents_read_and_leave_what_their_hooks_say_token_by_token(tmp_path: Path) -> None:
    only, parrot = played(tmp_path, ["one and one", "3", "again", "2"], f"{TURNS}2")
    assert only.error is None
    so_far = f"{ASKED}one and one so: "
    assert parrot.read[0] == ("reasoner", f"reason: {ASKED}Begin.")
    assert parrot.read[1] == ("actor", f"act: {so_far}")  # reset showed it nothing
    # The observation is the next prompt; this hook adds `obs`, the same once more.
    assert parrot.read[2] == ("reasoner", "reason: 1: wrong1: wrong")
    assert parrot.read[3] == ("actor", "act: 1: wrongagain so: 1: wrong")
    ids = [turn.response_ids for turn in only.turns]
    read = only.turns[1].prompt_ids
    assert any(read[i : i + len(ids[0])] == ids[0] for i in range(len(read)))  # the very ids that were sampled


def test_the_environment_is_told_what_all_did_and_says_when_it_is_over(tmp_path: Path) -> None:
    only, parrot = played(tmp_path, ["one and one", "3", "again", "2", "never", "said"], f"{TURNS}3")
    assert len(only.turns) == 4 and len(parrot.said) == 2
    made = user_module((tmp_path / "math_env.py").resolve()).MathEnv.made
    (told,) = [env.told for env in made if env.told]
    assert [truth for _, truth in told] == ["2", "2"]
    assert told[0][0] == [f"{ASKED}one and one so: ", f"{ASKED}one and one so: 3"]
    assert all(env.closed for env in made)
    assert only.reward == 1.0 and only.metrics["accuracy"] == 1.0


def test_only_the_last_turn_of_each_agent_is_learned_from_unless_all_are_asked_for(tmp_path: Path) -> None:
    said = ["one and one", "3", "again", "2"]
    only, _ = played(tmp_path, said, f"{TURNS}2")
    assert [turn.trainable for turn in only.turns] == [False, False, True, True]
    assert earned(GraphCredit(), only) == [0.0, 0.0, 1.0, 1.0]
    whole, _ = played(tmp_path, said, f"{TURNS}2", "rollout.multi_turn.use_all_traj=true")
    assert all(turn.trainable for turn in whole.turns)
    assert [turn.reward for turn in whole.turns] == [None, 0.0, None, 1.0]
    assert earned(GraphCredit(), whole) == [0.0, 0.0, 1.0, 1.0]


def test_a_plain_step_is_as_good_as_an_async_one(tmp_path: Path) -> None:
    only, parrot = played(tmp_path, ["a", "b", "c", "d"], f"{TURNS}2", text=MARFT.replace("py:MathEnv", "py:PlainEnv"))
    assert only.error is None and only.reward == 2.0
    assert parrot.read[3][1].endswith("wrong")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Text", r"actor: the environment .*:Text returned 'wrong', not \(obs, reward, done\)"),
        ("Lone", r"actor: the environment .*:Lone showed 3 observations to 2 agents"),
        ("Worthless", r"actor: the environment .*:Worthless gave the reward 'much'"),
    ],
)
def test_an_environment_that_answers_otherwise_is_named(env: str, message: str, tmp_path: Path) -> None:
    only, _ = played(tmp_path, ["a", "b"], text=MARFT.replace("py:MathEnv", f"py:{env}"))
    assert only.error_kind == WorldError.__name__ and re.search(message, only.error or "")


@pytest.mark.parametrize("hook", ["pre_process", "post_process"])
def test_a_hook_that_returns_text_is_named_with_its_node_and_line(hook: str, tmp_path: Path) -> None:
    text = MARFT.replace(
        'process.py\n      pre_process_kwargs: {before: "act', 'text.py\n      pre_process_kwargs: {before: "act'
    )
    after = "    return tokenizer.decode(prompt_ids)\n"
    (tmp_path / "text.py").write_text(
        f"def pre_process(tokenizer, prompt_ids, obs, **kwargs):\n    return prompt_ids\n"
        f"def {hook}(tokenizer, prompt_ids, more, **kwargs):\n{after}"
    )
    only, _ = played(tmp_path, ["a", "b"], text=text)
    assert only.error_kind == HookError.__name__
    assert re.search(
        rf"actor: {hook} of .*text.py returned text, not a list of token ids \(.*line 30\)", only.error or ""
    )


def test_an_agent_without_hooks_reads_the_prompt_and_the_first_observation_and_then_what_it_was_shown(
    tmp_path: Path,
) -> None:
    data = yaml.safe_load(MARFT)
    for node in data["nodes"][:2]:
        for key in ("process_path", "pre_process_kwargs", "post_process_kwargs"):
            node["agent_options"].pop(key, None)
    only, parrot = played(tmp_path, ["a", "3", "b", "2"], f"{TURNS}2", text=yaml.safe_dump(data))
    assert only.error is None
    prompts = [f"{ASKED}Begin.", f"{ASKED}Begin.a", "1: wrong", "1: wrongb"]
    assert [prompt for _, prompt in parrot.read] == prompts


def test_ids_of_another_tokenizer_are_written_anew() -> None:
    """The second agent's tokenizer knows another word for everything."""

    class RecordingAgent:
        def __init__(self, shift: int) -> None:
            self.chat = Chat(tiny_tokenizer())
            if shift:
                self.chat.tokenizer.add_tokens(["one and one"])
            self.read: list[int] = []

        async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
            self.read = list(ids)
            return turn("x", ids, (5,))

    first, second = RecordingAgent(0), RecordingAgent(1)
    speakers = [Speaker("a", first, Hooks("a"), (), False), Speaker("b", second, Hooks("b"), ("a",), False)]
    talk = Conversations(speakers, Task("t", "one and one", None))
    asyncio.run(talk.speak(0, 0))
    asyncio.run(talk.speak(1, 0))
    asked, encode = "<|im_start|>user\none and one<|im_end|>\n<|im_start|>assistant\n", second.chat.tokenizer.encode
    assert second.read == encode(asked, add_special_tokens=False) + encode(
        first.chat.tokenizer.decode([5]), add_special_tokens=False
    )
    assert second.read[:-1] != first.read


# Rewards


def earned(credit: Credit, one: Episode, once: bool = True) -> list[float]:
    credit.assign([one], {}, once)
    return [turn.credit or 0.0 for turn in one.turns]


@pytest.mark.parametrize("once", [True, False])
def test_a_shared_reward_stands_at_every_agent_s_own_last_turn(once: bool) -> None:
    turns = [turn(role) for role in ("plan", "think", "act")]
    turns[2].reward = 0.5
    assert earned(GraphCredit(), episode(turns), once) == [0.5, 0.5, 0.5]
    assert earned(GraphCredit(share_reward_in_agent=False), episode(turns), once) == [0.0, 0.0, 0.5]


def test_an_agent_after_the_one_that_is_rewarded_shares_its_reward() -> None:
    turns = [turn(role) for role in ("think", "act")]
    turns[0].reward = 0.5
    assert earned(GraphCredit(), episode(turns)) == [0.5, 0.5]


def test_a_graded_reply_is_that_of_the_agent_with_the_reward_node() -> None:
    flow = Graph((GraphAgent("think"), GraphAgent("act")), rewarded=("act",))
    turns = [
        replace(turn(role), text=text) for role, text in [("think", "a"), ("act", "b"), ("think", "c"), ("act", "d")]
    ]
    assert flow._answers(turns) == {"act": "d"}
    assert replace(flow, use_all_traj=True)._answers(turns) == {"act": ["b", "d"]}


def test_a_lone_answer_is_put_before_a_fresh_environment(tmp_path: Path) -> None:
    folder_with(tmp_path)
    env = GraphEnv(tmp_path / "rows.jsonl", worlds={"actor": f"{tmp_path}/math_env.py:MathEnv"})
    env = env.with_grader(env.native(1.0))
    for answer, reward in (("It is 2.", 1.0), ("It is 3.", 0.0)):
        alone = Episode("t/0", Task("t", "1 + 1?", "2"), 0, [turn("solver")], answer=answer)
        asyncio.run(env.score(alone))
        assert alone.reward == reward


# Training


def started(tmp_path: Path, model: Path, run: str, *overrides: str, text: str = MARFT) -> Run:
    config = loaded(
        tmp_path,
        text,
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "rollout.agent.rewards_with_env=true",
        "rollout.multi_turn.max_assistant_turns=2",
        "data.train_batch_size=2",
        "data.max_response_length=5",
        "trainer.save_freq=1",
        "eval.tasks=2",
        "device=cpu",
        *overrides,
    )
    return build(config, tmp_path / run, console=False)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {
        f"{policy}/{name}": parameter.detach().clone()
        for policy, learner in run.learners.items()
        for name, parameter in learner.parameters().items()
    }


def sampled(folder: Path) -> list[Any]:
    """Every id of every turn, in the order of play."""
    rows = [row for path in sorted((folder / "episodes").glob("*.jsonl.gz")) for row in EpisodeFile(path).rows()]
    return [[(t["role"], t["prompt_ids"], t["response_ids"], t["trainable"]) for t in row["turns"]] for row in rows]


def test_two_agents_train_in_turn_and_a_resumed_run_is_the_same_run(model_folder: Folder, tmp_path: Path) -> None:
    model = model_folder("llama")
    straight = started(tmp_path, model, "straight", "steps=4")
    fresh = weights(straight)
    train(straight)

    half = started(tmp_path, model, "halves", "steps=2")
    train(half)
    again = build(replace(load(tmp_path / "halves" / "config.yaml"), steps=4), tmp_path / "halves", console=False)
    checkpoint.resume(again)
    assert again.step == 2
    train(again)

    assert sampled(tmp_path / "halves") == sampled(tmp_path / "straight")
    end, resumed = weights(straight), weights(again)
    assert all(torch.equal(end[name], resumed[name]) for name in end)
    assert {policy: learner.version for policy, learner in again.learners.items()} == {"reasoner": 2, "actor": 2}
    assert all(any(not torch.equal(fresh[n], end[n]) for n in fresh if n.startswith(p)) for p in ("reasoner", "actor"))
    rows = [json.loads(line) for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    trained = [{key.split("/")[0] for key in row if key.endswith("/fits")} for row in rows]
    assert trained[:4] == [{"reasoner"}, {"actor"}, {"reasoner"}, {"actor"}]
    with reading() as reader:
        assert reader is None or reader.read(straight.folder, groups=False) == []


def test_a_graph_without_critics_trains_by_groups(model_folder: Folder, tmp_path: Path) -> None:
    text = without(MARFT, "value_0", "value_1", "critic_0")
    run = started(tmp_path, model_folder("qwen2"), "run", "steps=2", text=text)
    train(run)
    assert run.step == 2 and run.critic is None


def test_a_hook_that_returns_text_ends_a_run_with_its_name(model_folder: Folder, tmp_path: Path) -> None:
    folder_with(tmp_path)
    run = started(tmp_path, model_folder("llama"), "run", "steps=1")
    agents = run.config.workflow.instance.agents
    (tmp_path / "text.py").write_text("def pre_process(tokenizer, prompt_ids, obs, **kwargs):\n    return 'text'\n")
    broken = replace(agents[0], process_path=tmp_path / "text.py", post_process_kwargs={})
    run.collector = replace(run.collector, workflow=replace(run.config.workflow.instance, agents=(broken, agents[1])))
    with pytest.raises(TooManyFailures, match=r"reasoner: pre_process of .* returned text, not a list of token ids"):
        train(run)


def test_the_command_trains_the_recipe(model_folder: Folder, tmp_path: Path) -> None:
    folder_with(tmp_path)
    changes = [
        f"data.train_files={tmp_path}/rows.jsonl",
        f"data.val_files={tmp_path}/rows.jsonl",
        f"actor_rollout_ref.model.path={model_folder('llama')}",
        "data.train_batch_size=2",
        "data.max_response_length=4",
        "steps=1",
        "eval.tasks=2",
        "device=cpu",
    ]
    commands.train(RECIPE, changes, tmp_path, examples=0)
    assert (tmp_path / "two_agents" / "checkpoints" / "000001").is_dir()
