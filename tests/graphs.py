"""A graph of siiRL that trains two agents in turn, with the files that it names, and an engine to play it with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from coterie.config import Config, load
from coterie.models.chat import Chat
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.types import Episode, Sample, Sampling, Task
from tests.models import tiny_tokenizer

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
