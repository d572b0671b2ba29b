"""Laws of graphs in siiRL's format: read as they are written, refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from coterie.compat.siirl.credit import GraphCredit
from coterie.compat.siirl.env import GraphTasks
from coterie.config import ConfigError, dump, load
from coterie.config.conflicts import check_conflicts
from tests.graphs import DATA, MARFT, ROWS, folder_with, loaded, without


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


# Each of these is one change to a sound graph, and must name the node, the line and what is wrong.
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
