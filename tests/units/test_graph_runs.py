"""Graphs of siiRL that are played and trained: hooks, environments, rewards, exact resume."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from coterie.cli import commands
from coterie.compat.siirl.conversations import Conversations, Speaker
from coterie.compat.siirl.credit import GraphCredit
from coterie.compat.siirl.env import GraphEnv, WorldError
from coterie.compat.siirl.hooks import HookError, Hooks
from coterie.compat.siirl.workflow import Graph, GraphAgent
from coterie.config import load
from coterie.config.registry import user_module
from coterie.credit.base import Credit
from coterie.episode_files import EpisodeFile
from coterie.models.chat import Chat
from coterie.rollout.metrics import TooManyFailures
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.loop import Run, train
from coterie.types import Episode, Task, Turn
from tests.browser import reading
from tests.episodes import episode, turn
from tests.graphs import ASKED, MARFT, TURNS, folder_with, loaded, played, without
from tests.models import tiny_tokenizer

Folder = Callable[[str], Path]
RECIPE = Path(__file__).parents[2] / "recipes" / "graph" / "two_agents.yaml"


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
