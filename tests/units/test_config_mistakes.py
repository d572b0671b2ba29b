"""A config cannot lie: what is wrong is named, with its place and what would have been right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from coterie.config import Config, ConfigError, Lora, load
from coterie.config.hints import OLD_KEYS, hint_for
from coterie.config.registry import BUILTIN, find, options_of
from tests.configs import GOOD, checked, complaint


def test_a_users_file_that_cannot_be_run_is_told_with_its_line_and_that_of_the_key(good: Path) -> None:
    Path("broken.py").write_text("x = 1\ny = x / 0\n")
    said = complaint(good, "reward=broken.py:mine")
    assert "reward" in said and "broken.py, line 2: ZeroDivisionError: division by zero" in said
    Path("broken.py").write_text("def mine(answer, truth):\n    return 1.0\n")
    assert checked(good, ["reward=broken.py:mine"]).reward.name.endswith("broken.py:mine")  # mended, it is run anew


MISTAKES_IN_THE_FILE = {
    "unknown key": ("steps: 20", "step: 20", "step: unknown key; Config has steps,", "did you mean steps?", "line 16"),
    "unknown option": (
        "  group_by:",
        "  grup_by:",
        "algorithm.grup_by: unknown key; Grpo has",
        "mean group_by?",
        "line 15",
    ),
    "unknown nested key": ("{rank: 8}", "{r: 8}", "policies.doer.lora.r: unknown key; Lora has rank, alpha, targets"),
    "text for a number": (
        "steps: 20",
        "steps: '20'",
        "steps: got the text '20', expected a whole number ≥ 1 and ≤ 1000000",
    ),
    "fraction for a count": (
        "steps: 20",
        "steps: 2.5",
        "steps: got 2.5, expected a whole number ≥ 1 and ≤ 1000000",
    ),
    "bool for a count": (
        "steps: 20",
        "steps: true",
        "steps: got true, expected a whole number ≥ 1 and ≤ 1000000",
    ),
    "no steps": (
        "steps: 20",
        "steps: 0",
        "steps: got 0, expected a whole number ≥ 1 and ≤ 1000000",
        "line 16",
    ),
    "negative rate": ("lr: 3e-4", "lr: -3e-4", "policies.thinker.lr: got -0.0003, expected a number > 0", "line 2"),
    "infinite rate": (
        "lr: 3e-4",
        "lr: 1e999",
        "policies.thinker.lr: got inf, expected a number > 0 and ≤ 1",
    ),
    "no number at all": ("lr: 3e-4", "lr: fast", "policies.thinker.lr: got the text 'fast', expected a number > 0"),
    "null for a mapping": (
        "{lr: 3e-4}",
        "",
        "policies.thinker: got null, expected a mapping; Policy has model",
    ),
    "list for a mapping": ("{rank: 8}", "[8]", "policies.doer.lora: got the list [8], expected a mapping"),
    "text for a list": ("[task, role]", "task", "algorithm.group_by: got the text 'task', expected a list"),
    "a wrong item": (
        "[task, role]",
        "[task, rol]",
        "algorithm.group_by.1: got the text 'rol'",
        "did you mean role?",
        "line 15",
    ),
    "unknown part": (
        "workflow: chain",
        "workflow: chian",
        "workflow.name: no workflow is called 'chian'",
        "mean chain?",
    ),
    "part without a name": (
        "  name: grpo\n",
        "",
        "algorithm: got a mapping, expected a name or a mapping with a name",
    ),
    "missing key": ("reward: number\n", "", "reward: missing; Config needs it (good.yaml)"),
    "missing option": ("  train: sums.jsonl\n", "", "env.train: missing; Rows needs it (good.yaml, line 9)"),
    "missing policy": ("{policy: doer, max", "{max", "roles.actor.policy: missing; Role needs it (good.yaml, line 7)"),
    "key twice": ("reward: number", "steps: 9\nreward: number", "steps: written twice, on lines 12 and 17"),
    "not YAML": ("steps: 20", "steps: [20", "good.yaml: not YAML on line 17"),
    "a strange tag": ("steps: 20", "steps: !!python/name:os 20", "steps: unknown tag tag:yaml.org,2002:python/name:os"),
    "option the reward has not": ("reward: number", "reward: {name: number, case: no}", "number has no options"),
    "a field nobody fills": (
        "workflow: chain",
        "workflow: {name: chain, prompts: {actor: '{reasner}'}}",
        "workflow.prompts.actor: unknown field {reasner}",
        "line 8",
    ),
    "role without policy": (
        "reasoner: thinker",
        "reasoner: thinkr",
        "roles.reasoner.policy: no policy is called 'thinkr'",
        "did you mean thinker?",
        "line 6",
        "policies.thinker: no role plays it",
        "line 2",
    ),
    "misspelt role": (
        "  reasoner:",
        "  reasonr:",
        "roles: Chain has a role 'reasoner' that nobody plays; did you mean reasonr?",
        "roles.reasonr: Chain has no such role; it has reasoner, actor",
        "line 6",
    ),
    "idle policy": ("  doer:", "  idle: {}\n  doer:", "policies.idle: no role plays it", "line 3"),
    "adapter without lora": (
        "{lr: 3e-4}",
        "{adapter: old, lora: null}",
        "policies.thinker.adapter: needs lora, which is null",
    ),
    "a shape beside an adapter": (
        "lora: {rank: 8}",
        "{adapter: old, lora: {rank: 8}}",
        "policies.doer.lora.rank: has no effect: the adapter keeps its own; remove it",
    ),
    "foreign batch size": (
        "steps: 20",
        "data:\n  train_batch_size: 4",
        "data.train_batch_size: unknown key; here it is tasks_per_step",
        "line 17",
    ),
    "foreign rate": (
        "steps: 20",
        "actor_rollout_ref: {actor: {optim: {lr: 1e-6}}}",
        "actor_rollout_ref.actor.optim.lr: unknown key; here it is policies.<name>.lr",
    ),
}


MISTAKES_IN_OVERRIDES = {
    "no value": ("steps", "override steps: an override looks like key=value"),
    "not YAML": ("roles.actor.stop=[a", "roles.actor.stop: '[a' is not YAML"),
    "inside a number": ("steps.count=3", "steps.count: steps is 20, which has no keys inside (override steps.count=3)"),
    "unknown option": (
        "algorithm.clp=3",
        "algorithm.clp: unknown key; Grpo has clip",
        "did you mean clip? (override algo",
    ),
    "unknown word": ("learning.schedule=cosin", "constant, linear or cosine; did you mean cosine?"),
    "old option": ("algorithm.name=ppo", "algorithm.group_by: unknown key; Ppo has", "good.yaml, line 15"),
    "share over one": ("rollout.max_failed=2", "rollout.max_failed: got 2, expected a number ≥ 0 and ≤ 1"),
    "cold": ("sampling.temperature=-1", "sampling.temperature: got -1, expected a number ≥ 0 and ≤ 10"),
    "cold role": (
        "roles.actor.temperature=-1",
        "roles.actor.temperature: got -1, expected a number ≥ 0 and ≤ 10 or null",
    ),
    "top_p over one": ("eval.top_p=1.5", "eval.top_p: got 1.5, expected a number > 0 and ≤ 1"),
    "cut training": ("sampling.top_p=0.9", "sampling.top_p: training needs 1.0", "eval.top_p may truncate"),
    "cut training by rank": ("sampling.top_k=5", "sampling.top_k: training needs 0"),
    "greedy role": (
        "roles.actor.temperature=0",
        "roles.actor.temperature: at 0 all episodes of a task are the same, so actor",
    ),
    "greedy team": (
        "sampling.temperature=0",
        "sampling.temperature: at 0 all episodes of a task are the same, so reasoner",
    ),
    "ends at once": ("sampling.stop=['']", "sampling.stop: got ('',), expected a list of texts that are not empty"),
    "a role ends at once": ("roles.actor.stop=['']", "roles.actor.stop: got ('',), expected a list of texts that"),
    "no device": ("policies.doer.device=gpu", "policies.doer.device: 'gpu' is not a device; use cpu, cuda or cuda:1"),
    "one model on two devices": (
        "policies.doer.device=cuda:1",
        "policies.doer.device: doer and thinker are adapters on the same demo and need the same device",
        "doer is on cuda:1 and thinker on auto",
    ),
    "no room": ("engine.context=32", "sampling.max_tokens: 32 tokens for reasoner leave no room", "line 18"),
    "endless warm-up": ("learning.warmup=20", "learning.warmup: 20 steps of warm-up in a run of steps=20 never reach"),
    "cut greedy eval": ("eval.top_p=0.9", "eval.top_p: has no effect while eval.temperature is 0"),
    "same again": ("eval.episodes_per_task=4", "eval.episodes_per_task: at eval.temperature=0 all 4 episodes"),
    "group of one": ("episodes_per_task=1", "episodes_per_task: is 1, so every group has one member"),
    "no effect": ("algorithm.kl_in=reward", "algorithm.kl_in: has no effect while algorithm.kl is 0"),
    "a folder's name": ("name=a/b", "name: 'a/b' cannot be the name of the run's folder"),
    "no own reward": ("reward=native", "reward: Rows has none of its own"),
    "scores itself": ("env=parts.py:Quiz", "reward: no effect, because Quiz scores itself; write reward: native"),
    "no such file": ("env=part.py:Quiz", "env.name: there is no file part.py"),
    "no such class": ("env=parts.py:Quizz", "env.name: parts.py has no Quizz; it has Quiz", "did you mean Quiz?"),
    "not a class": ("env=parts.py:near", "env.name: parts.py:near is a function, but env needs a class"),
    "not a function": (
        "reward=parts.py:Quiz",
        "reward.name: parts.py:Quiz is the class Quiz, but reward needs a function: write def score(ans",
    ),
    "an instance for a function": ("reward=parts.py:sure_too", "is an instance of Sure, but reward needs a function"),
    "an option by position": (
        "reward={name: 'parts.py:by_position', k: 2}",
        "reward.k: by_position takes k by position, and options are keyword-only",
        "write def by_position(answer, truth, *, k=1, far=2) (override",
    ),
    "a reward that swaps": (
        "reward=parts.py:swapped",
        "reward.name: swapped is called with (answer, truth), and its parameters are (truth, answer); swap them",
    ),
    "limit of an own part": (
        "env={name: 'parts.py:Quiz', level: 4}",
        "env.level: got 4, expected a whole number ≥ 1 and ≤ 3",
    ),
    "an own list's length": ("env={name: 'parts.py:Quiz', words: []}", "env.words: got the list [], expected"),
    "an own complaint": ("env={name: 'parts.py:Quiz', level: 2}", "env.level: two is unlucky (override env="),
    "an own pair": (
        "env={name: 'parts.py:Quiz', pairs: [[1, x]]}",
        "env.pairs.0: got the list [1, 'x'], expected a list of a whole number, a number",
    ),
    "argument of an own class": (
        "env={name: 'parts.py:Plain', size: x}",
        "env.size: got the text 'x', expected a whole",
    ),
    "argument not given": ("env=parts.py:Plain", "env.size: missing; Plain needs it"),
    "option of an own reward": (
        "reward={name: 'parts.py:near', withn: 1}",
        "reward.withn: unknown key; near has within",
    ),
    "a workflow of nobody": (
        "workflow=parts.py:Nobody",
        "workflow.name: Nobody has no roles; workflows have roles, run (override workflow=parts.py:Nobody)",
    ),
    "a role twice": (
        "workflow=parts.py:Echo",
        "workflow.name: Echo.roles is ('reasoner', 'actor', 'actor'); name each role once",
    ),
    "a run that is not awaited": (
        "workflow=parts.py:Hasty",
        "workflow.name: Hasty.run is not a coroutine; write `async",
    ),
    "a score that is not awaited": ("env=parts.py:Lazy", "env.name: Lazy.score is not a coroutine"),
    "a world that is not awaited": ("env=parts.py:Opens", "env.name: Opens.open is a coroutine, which nothing awaits"),
    "no tasks": ("env={name: 'parts.py:Plain', size: 3}", "env.name: Plain has no tasks and no open and no score"),
    "a bug in an own part": ("workflow=parts.py:Torn", "workflow: ", "parts.py, line 44: TypeError: unsupported"),
    "an own algorithm": (
        "algorithm=parts.py:Guess",
        "algorithm.name: Guess is not a subclass of Algorithm; write `class Guess(Algori",
    ),
    "an own credit": ("credit=parts.py:Guess", "credit.name: Guess is not a subclass of Credit"),
    "a reward of one": ("reward=parts.py:sure", "reward.name: sure cannot be called with (answer, truth): too many"),
    "a huge seed": (
        f"seed={2**71}",
        "seed: got 2361183241434822606848, expected a whole number ≥ -9223372036854775808",
    ),
    "no rows": (
        "env.limit=0",
        "env.limit: got 0, expected a whole number ≥ 1 or null (override env.limit=0)",
    ),
    "fewer than none": ("env.limit=-1", "env.limit: got -1, expected a whole number ≥ 1 or null"),
    "no size": ("env={name: nim, size: -3}", "env.size: got -3, expected a whole number ≥ 1"),
    "no test": (
        "env={name: reasoning_gym, dataset: basic_arithmetic, test_size: 0}",
        "env.test_size: got 0, expected a whole number ≥ 1",
    ),
    "not even a character": ("roles.actor.stop=['\x01']", "roles.actor.stop: ", "the character U+0001 is not allowed"),
    "a taken name": ("env=parts.py:Named", "env: Named has an option `name`, but that key chooses the env"),
    "foreign steps": ("trainer.total_epochs=3", "trainer.total_epochs: unknown key; here it is epochs"),
    **{
        f"MARFT's {flag}": (f"{flag}=1", f"{flag}: unknown key; here it is {key}")
        for flag, key in {
            "normalization_mode": "algorithm.normalize",
            "horizon": "workflow.horizon, of marft",
            "episode_length": "tasks_per_step",
            "n_rollout_threads": "tasks_per_step",
            "warmup_steps": "learning.warmup and algorithm.warmup, the latter of ppo's critics",
            "context_window": "engine.context",
            "gradient_cp_steps": "learning.microbatch_tokens",
            "huber_delta": "algorithm.value_huber",
            "save_interval": "checkpoint.every",
            "eval_interval": "eval.every",
            "dataset_path": "env.train",
            "load_path": "policies.<name>.adapter and critics.<name>.adapter",
            "profile_path": "workflow.profile_path, of marft",
        }.items()
    },
    "foreign interval": (
        "algorithm.agent_iteration_interval=3",
        "algorithm.agent_iteration_interval: unknown key; here it is algorithm.rotate",
    ),
    "foreign parts": (
        "rollout.tensor_model_parallel_size=2",
        "rollout.tensor_model_parallel_size: unknown key; here it is cluster.rollout.tensor_parallel",
    ),
    "foreign machines": ("trainer.nnodes=2", "trainer.nnodes: unknown key; several machines are a Ray cluster"),
    "foreign group": ("num_generations=8", "num_generations: unknown key; here it is episodes_per_task"),
    "foreign memory": ("gpu_memory_utilization=0.9", "gpu_memory_utilization: unknown key; there is nothing to set"),
    "rows of one at a time": (
        "engine={name: hf, rows: 8}",
        "engine.rows: has no effect: the engine hf decodes one sequence",
    ),
    "no best of one": ("checkpoint.best=true", "checkpoint.best: has no effect while eval.every is 0"),
    "no worst of one": ("checkpoint.best=false", "checkpoint.best: has no effect while eval.every is 0"),
    "everyone's own length": (
        "roles.reasoner.max_tokens=16",
        "sampling.max_tokens: has no effect: every role has its own (good.yaml, line 18)",
    ),
    "no layer at all": (
        "policies.doer.lora.targets=[]",
        "policies.doer.lora.targets: is empty, so no layer has an adapter",
    ),
    "foreign agents": (
        "n_agents=2",
        "n_agents: unknown key; there is nothing to set: there are as many agents as roles",
    ),
    "foreign server": ("vllm_mode=colocate", "vllm_mode: unknown key; there is nothing to set: engine.name chooses"),
    "foreign share": (
        "algorithm.share_reward_in_agent=true",
        "algorithm.share_reward_in_agent: unknown key; here it is credit.share_reward_in_agent, of graph",
    ),
    "foreign turns": (
        "rollout.multi_turn.use_all_traj=true",
        "unknown key; here it is workflow.use_all_traj, of graph",
    ),
    "foreign workflow": (
        "rllm.workflow.strange=1",
        "rllm.workflow.strange: unknown key; what a team plays is under workflow",
    ),
    "foreign retries": ("rllm.workflow.retry_limit=3", "not played again, see rollout.max_failed"),
    "foreign graph": (
        "dag.workflow_path=x",
        "dag.workflow_path: unknown key; there is nothing to set: a graph is a config",
    ),
    "foreign GPUs": ("trainer.n_gpus_per_node=8", "torchrun starts a process for each GPU, see docs/many-devices.md"),
    "no such policy": (
        "policies.thinkr.lr=1e-4",
        "policies.thinkr: no role plays it; there is doer, thinker; did you mean thinker? (override policies.thinkr.lr",
    ),
    "no such role": (
        "roles.actr.max_tokens=4",
        "roles.actr: no such role; there is reasoner, actor; did you mean actor? (override roles.actr.max_tokens=4)",
    ),
    "no such group": ("algoritm.kl=0.1", "algoritm: unknown key", "mean algorithm? (override algoritm.kl=0.1)"),
    "no such mapping": ("policies.doer.lor.rank=2", "did you mean lora? (override policies.doer.lor.rank=2)"),
    "misplaced rate": ("learning.lr=1e-4", "learning.lr: unknown key; here it is policies.<name>.lr"),
}


def test_the_good_config_is_good(good: Path) -> None:
    config = checked(good, [])
    assert config.name == "good"
    assert config.policies["thinker"].lr == 3e-4
    assert config.policies["doer"].lora == Lora(rank=8)
    assert config.roles["reasoner"].policy == "thinker"
    assert config.workflow.instance.roles == ("reasoner", "actor")


@pytest.mark.parametrize("mistake", MISTAKES_IN_THE_FILE)
def test_a_mistake_in_the_file_is_named_with_its_line(good: Path, mistake: str) -> None:
    old, new, *fragments = MISTAKES_IN_THE_FILE[mistake]
    assert old in GOOD
    good.write_text(GOOD.replace(old, new))
    said = complaint(good)
    assert "good.yaml" in said
    for fragment in fragments:
        assert fragment in said


@pytest.mark.parametrize("mistake", MISTAKES_IN_OVERRIDES)
def test_a_mistake_in_an_override_quotes_the_override(good: Path, mistake: str) -> None:
    override, *fragments = MISTAKES_IN_OVERRIDES[mistake]
    said = complaint(good, override)
    for fragment in fragments:
        assert fragment in said


@pytest.mark.parametrize("override", ["steps=0", "policies.thinkr.lr=1e-4", "roles.actr.max_tokens=4", "algoritm.kl=1"])
def test_a_complaint_about_an_override_does_not_blame_the_file(good: Path, override: str) -> None:
    said = complaint(good, override)
    assert said.endswith(f"(override {override})") and len(said.splitlines()) == 1


def test_all_mistakes_are_told_at_once_one_a_line(good: Path) -> None:
    said = complaint(good, "steps=0", "device=gpu", "algorithm.clp=1", "policies.doer.lora.rank=x")
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "policies.doer.lora.rank",
        "algorithm.clp",
        "steps",
        "device",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: there is no such file"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match=r"is a folder without a run; a config is a YAML file"):
        load(tmp_path)


def test_a_file_that_is_a_list_is_no_config(good: Path) -> None:
    good.write_text("- 1\n")
    assert "a config is a mapping" in complaint(good)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"name: caf\xe9\n", "good.yaml: not UTF-8 on line 19: the byte 0xe9"),
        (b"name: a\x01b\n", "good.yaml: not YAML on line 19: the character U+0001 is not allowed there"),
    ],
)
def test_a_file_of_strange_signs_is_named_with_its_line(good: Path, line: bytes, complaint: str) -> None:
    good.write_bytes(GOOD.encode() + line)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(good)


def test_an_empty_file_names_every_key_it_lacks(good: Path) -> None:
    good.write_text("")
    keys = [line.split(":")[0] for line in complaint(good).splitlines()]
    assert keys == ["policies", "roles", "workflow", "env", "reward", "algorithm"]


def test_a_foreign_name_is_known_by_its_longest_ending() -> None:
    assert hint_for(("actor_rollout_ref", "actor", "optim", "lr")) == "here it is policies.<name>.lr"
    lr = "here it is critics.<name>.lr and algorithm.value_lr, the latter of ppo's value head"
    assert hint_for(("critic", "optim", "lr")) == lr
    assert hint_for(("ppo", "target_kl")) == "here it is algorithm.stop_kl"
    assert hint_for(("rollout", "n")) == "here it is episodes_per_task"
    assert hint_for(("n",)) is None


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("algorithm.peers=[task]", "algorithm.peers: unknown key; `peers` is now `group_by` (override"),
        ("algorithm.gain=relative", "algorithm.gain: unknown key; `gain` is now `confidence_weight` (override"),
        ("algorithm.roles={actor: {peers: [task]}}", "algorithm.roles.actor.peers: unknown key; `peers` is now `group"),
        ("alarm={steps: 3}", "alarm.steps: unknown key; `alarm` is now `collapse` (override"),
    ],
)
def test_an_old_key_is_told_its_new_name(good: Path, override: str, hint: str) -> None:
    assert hint in complaint(good, override)


def test_old_keys_are_no_keys_and_their_new_names_are() -> None:
    parts = [options_of(find("algorithm", name)) for name in BUILTIN["algorithm"]]
    known = {*options_of(Config), *(key for options in parts for key in options)}
    options = {key for kind, names in BUILTIN.items() for name in names for key in options_of(find(kind, name))}
    assert set(OLD_KEYS.values()) <= known | options and not set(OLD_KEYS) & known


@pytest.mark.parametrize(
    ("estimator", "name"),
    [("gae", "ppo"), ("rloo", "rloo"), ("reinforce_plus_plus", "reinforce++"), ("mappo", "mappo"), ("qmix", "qmix")],
)
def test_an_estimator_of_verl_is_an_algorithm_of_ours(estimator: str, name: str, good: Path) -> None:
    path = good.with_name("team.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(GOOD), "algorithm": "grpo"}))
    assert load(path, [f"algorithm.adv_estimator={estimator}"]).algorithm.name == name
    path.write_text(yaml.safe_dump({**yaml.safe_load(GOOD), "algorithm": {"adv_estimator": estimator}}))
    assert load(path).algorithm.name == name


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"adv_estimator": "remax"}, "'remax' has no counterpart here: rloo compares with the other episodes"),
        ({"adv_estimator": "rlo"}, r"'rlo' has no counterpart here; .*did you mean rloo\?"),
        ({"adv_estimator": "gae", "name": "grpo"}, "means the algorithm ppo, but algorithm.name is grpo"),
    ],
)
def test_an_estimator_without_a_counterpart_is_told_the_nearest(
    algorithm: dict[str, str], message: str, good: Path
) -> None:
    path = good.with_name("team.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(GOOD), "algorithm": algorithm}))
    with pytest.raises(ConfigError, match=rf"algorithm.adv_estimator: .*{message}.*line"):
        load(path)
