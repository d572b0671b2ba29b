"""Choices that a graph and several parameters make together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

from coterie.compat.siirl.config_sheet import Given, Sheet
from coterie.compat.siirl.script import Script
from coterie.compat.siirl.settings import TEAM, minibatches
from coterie.compat.siirl.team import Cast
from coterie.config.problems import Path
from coterie.data.files import parse_rows

# siiRL's name of an estimator that compares groups → ours
GROUPED = {"grpo": "grpo", "rloo": "rloo", "gspo": "gspo", "reinforce_plus_plus": "reinforce++"}
ESTIMATORS = ("gae", "gae_marft", *GROUPED)
KL_TYPES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
KL = 0.001  # siiRL's weight where none is given
TASKS = 8  # tasks_per_step where none is given
LOSS, LOSS_WEIGHT, LOSS_TYPE = (f"{TEAM}actor.{key}" for key in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"))
REWARD, REWARD_WEIGHT = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"


def algorithm(cast: Cast, told: Any) -> str:
    """What the script says; else values before advantages are PPO, along the team or for each agent; else GRPO."""
    if told is not None and told not in ESTIMATORS:
        raise ValueError(f"adv_estimator {told!r} has no counterpart here; {', '.join(ESTIMATORS)} have")
    if told in GROUPED:
        return GROUPED[told]
    if told is None and not cast.judges_by_value:
        return "grpo"
    return "ippo" if cast.judges_each or (told == "gae" and len(cast.policies) > 1) else "ppo"


def kl(script: Script) -> Iterator[tuple[Path, Given]]:
    """The distance to the reference: in the loss, in the reward, or nowhere."""
    if _is_on(script, LOSS) and _is_on(script, REWARD):
        raise ValueError("use_kl_loss and use_kl_in_reward are both on; here the distance counts in one of them")
    if _is_on(script, LOSS):
        yield ("algorithm", "kl"), _given(script, LOSS_WEIGHT, KL, LOSS)
        if LOSS_TYPE in script:
            how = script[LOSS_TYPE]
            if how.value not in KL_TYPES:
                raise ValueError(f"kl_loss_type {how.value!r} has no counterpart here; {', '.join(KL_TYPES)} have")
            yield ("algorithm", "kl_estimator"), Given(KL_TYPES[how.value], how.place)
    elif _is_on(script, REWARD):
        yield ("algorithm", "kl"), _given(script, REWARD_WEIGHT, KL, REWARD)
        yield ("algorithm", "kl_in"), Given("reward", script[REWARD].place)


def lora(script: Script, lead: str) -> Given | None:
    """An adapter of some rank; rank 0 trains the whole model; None where nothing is said of it."""
    rank = script.get(f"{lead}model.lora_rank")
    if rank is None or rank.value == 0:
        return None if rank is None else Given(None, rank.place)
    made: dict[str, Any] = {"rank": rank.value}
    if (alpha := script.get(f"{lead}model.lora_alpha")) is not None:
        made["alpha"] = alpha.value
    if (targets := script.get(f"{lead}model.target_modules")) is not None:
        made["targets"] = targets.value
    return Given(made, rank.place)


def sizes(script: Script, sheet: Sheet) -> Iterator[tuple[Path, Given]]:
    """Minibatches, steps and context, which are said otherwise here."""
    tasks = sheet.get("tasks_per_step")
    batch = tasks.value if tasks is not None and _is_count(tasks.value) else TASKS
    mini = script.get(f"{TEAM}actor.ppo_mini_batch_size")
    if mini is not None and _is_count(mini.value) and minibatches(batch, mini.value) > 1:
        yield ("algorithm", "minibatches"), Given(minibatches(batch, mini.value), mini.place)
    epochs, train = script.get("trainer.total_epochs"), sheet.get("env", "train")
    if epochs is not None and train is not None and sheet.get("steps") is None:
        yield (
            ("steps",),
            Given(epochs.value * max(1, sum(1 for _ in parse_rows(File(train.value))) // batch), epochs.place),
        )
    prompt, reply = script.get("data.max_prompt_length"), script.get("data.max_response_length")
    if prompt is not None and reply is not None and sheet.get("engine", "context") is None:
        whole = prompt.value + reply.value if _is_count(prompt.value) and _is_count(reply.value) else prompt.value
        yield ("engine", "context"), Given(whole, prompt.place)


def idle(script: Script, sheet: Sheet) -> Iterator[str]:
    """Parameters that belong to one that is off or not there."""
    goes_with = {
        LOSS_WEIGHT: _is_on(script, LOSS),
        LOSS_TYPE: _is_on(script, LOSS),
        REWARD_WEIGHT: _is_on(script, REWARD),
        "trainer.total_epochs": "trainer.total_training_steps" not in script and sheet.get("env", "train") is not None,
        "data.max_prompt_length": "data.max_response_length" in script and f"{TEAM}rollout.max_model_len" not in script,
    }
    for lead in (TEAM, "critic."):
        rank = script.get(f"{lead}model.lora_rank")
        there = rank is not None and rank.value != 0
        goes_with |= {f"{lead}model.lora_alpha": there, f"{lead}model.target_modules": there}
    yield from (key.removeprefix(TEAM) for key, there in goes_with.items() if key in script and not there)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_on(script: Script, key: str) -> bool:
    return key in script and script[key].value is True


def _given(script: Script, key: str, default: float, otherwise: str) -> Given:
    return script[key] if key in script else Given(default, script[otherwise].place)
