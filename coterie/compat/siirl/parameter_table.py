"""The table of siiRL's parameters and the config keys they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from math import ceil
from typing import Any

TEAM = "actor_rollout_ref."
GROUPS = ("data", "actor_rollout_ref", "critic", "trainer", "reward_model", "custom_reward_function", "dag", "profiler")


def _same(value: Any) -> Any:
    return value


def _one_of(names: Mapping[Any, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str | bool) or value not in names:
            raise ValueError(f"{value!r} has no counterpart here; {', '.join(map(str, names))} have")
        return names[value]

    return read


def _one_file(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise ValueError(f"expected one file, got {len(value)}; join them")
    return value[0]


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value  # siiRL writes 1 for 1.0


def _or_never(value: Any) -> Any:
    return 0 if value == -1 else value


def _resume(value: Any) -> bool:
    if value not in ("auto", "disable"):
        rewind = "`coterie train --resume RUN --checkpoint STEP` goes back to a checkpoint"
        raise ValueError(f"{value!r} has no counterpart here; auto and disable have, and {rewind}")
    return bool(value == "auto")


def _or_default(value: Any) -> Any:
    return None if value == -1 else value  # -1 is never in siiRL, but a run here always writes checkpoints


@dataclass(frozen=True)
class Setting:
    """The keys of a parameter; {policy}, {role} and {critic} stand for each one it applies to."""

    to: tuple[str, ...]
    read: Callable[[Any], Any] = _same


def _to(*keys: str, read: Callable[[Any], Any] = _same) -> Setting:
    return Setting(keys, read)


REDUCE = {"token-mean": "token", "seq-mean-token-mean": "turn", "seq-mean-token-sum": "turn_sum"}
SETTINGS: dict[str, Setting] = {
    "data.train_files": _to("env.train", read=_one_file),
    "data.val_files": _to("env.test", read=_one_file),
    "data.prompt_key": _to("env.prompt_key"),
    "data.train_batch_size": _to("tasks_per_step"),
    "data.shuffle": _to("shuffle"),
    "data.max_response_length": _to("sampling.max_tokens"),
    "actor_rollout_ref.model.path": _to("policies.{policy}.model"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": _to("learning.checkpointing"),
    "actor_rollout_ref.actor.optim.lr": _to("policies.{policy}.lr"),
    "actor_rollout_ref.actor.optim.weight_decay": _to("learning.weight_decay"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": _to("learning.warmup", read=_or_never),
    "actor_rollout_ref.actor.optim.warmup_style": _to("learning.schedule"),
    "actor_rollout_ref.actor.grad_clip": _to("learning.clip_norm"),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": _to("learning.microbatch_tokens"),
    "actor_rollout_ref.actor.ppo_epochs": _to("algorithm.epochs"),
    "actor_rollout_ref.actor.clip_ratio": _to("algorithm.clip"),
    "actor_rollout_ref.actor.clip_ratio_low": _to("algorithm.clip"),
    "actor_rollout_ref.actor.clip_ratio_high": _to("algorithm.clip_high"),
    "actor_rollout_ref.actor.clip_ratio_c": _to("algorithm.dual_clip"),
    "actor_rollout_ref.actor.entropy_coeff": _to("algorithm.entropy"),
    "actor_rollout_ref.actor.loss_agg_mode": _to("algorithm.reduce", read=_one_of(REDUCE)),
    "actor_rollout_ref.rollout.n": _to("episodes_per_task"),
    "actor_rollout_ref.rollout.temperature": _to("roles.{role}.temperature"),
    "actor_rollout_ref.rollout.response_length": _to("roles.{role}.max_tokens"),
    "actor_rollout_ref.rollout.top_p": _to("sampling.top_p", read=_as_float),
    "actor_rollout_ref.rollout.top_k": _to("sampling.top_k", read=_or_never),
    "actor_rollout_ref.rollout.max_model_len": _to("engine.context"),
    "actor_rollout_ref.rollout.max_num_seqs": _to("engine.rows"),
    "actor_rollout_ref.rollout.val_kwargs.n": _to("eval.episodes_per_task"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": _to("eval.temperature"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": _to("eval.top_p", read=_as_float),
    "actor_rollout_ref.rollout.val_kwargs.top_k": _to("eval.top_k", read=_or_never),
    "actor_rollout_ref.rollout.agent.rewards_with_env": _to("workflow.rewards_with_env"),
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": _to("workflow.max_assistant_turns"),
    "actor_rollout_ref.rollout.multi_turn.use_all_traj": _to("workflow.use_all_traj"),
    "critic.model.path": _to("critics.{critic}.model"),
    "critic.optim.lr": _to("critics.{critic}.lr"),
    "critic.cliprange_value": _to("algorithm.value_clip"),
    "critic.ppo_epochs": _to("algorithm.value_fits"),
    "algorithm.gamma": _to("algorithm.gamma_token", "algorithm.gamma_turn"),
    "algorithm.lam": _to("algorithm.lam_token", "algorithm.lam_turn"),
    "algorithm.share_reward_in_agent": _to("credit.share_reward_in_agent"),
    "algorithm.norm_adv_by_std_in_grpo": _to("algorithm.scale", read=_one_of({True: "deviation", False: "none"})),
    "trainer.total_training_steps": _to("steps"),
    "trainer.save_freq": _to("checkpoint.every", read=_or_default),
    "trainer.val_before_train": _to("eval.before_training"),
    "trainer.default_local_dir": _to("folder"),
    "trainer.resume_mode": _to("resume", read=_resume),
    "trainer.seed": _to("seed"),
    "trainer.test_freq": _to("eval.every", read=_or_never),
    "trainer.max_actor_ckpt_to_keep": _to("checkpoint.keep"),
    "trainer.experiment_name": _to("name"),
}

LORA = ("lora_rank", "lora_alpha", "target_modules")
ADAPTERS = tuple(f"{lead}model.{key}" for lead in (TEAM, "critic.") for key in LORA)
# Parameters that only have a meaning together with others; learning.py reads them.
COMPOUND = (
    *ADAPTERS,
    "data.max_prompt_length",
    "actor_rollout_ref.rollout.prompt_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type",
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_ctrl.kl_coef",
    "algorithm.filter_groups.enable",
    "trainer.critic_warmup",
    "trainer.total_epochs",
)

# Parameters of the hardware or of siiRL's internals, and switches for what Coterie always does.
WITHOUT_EFFECT = (
    "*micro_batch_size*", "*parallel_size", "*gpu_memory_utilization", "*fsdp_config.*", "*megatron.*", "*offload*",
    "*use_remove_padding", "*use_dynamic_bsz", "*use_fused_kernels", "*use_torch_compile", "*use_shm", "*.strategy",
    "*trust_remote_code", "*enable_chunked_prefill", "*enforce_eager", "*free_cache_engine", "*.dtype", "*load_format",
    "*max_num_batched_tokens", "*hybrid_engine", "*.checkpoint.*", "*.rollout.name", "*.rollout.mode", "*.do_sample",
    "*.multi_turn.enable", "*.agent.agent_name", "*.agent.num_workers", "*.disable_log_stats", "*max_token_len_per_gpu",
    "critic.enable", "critic.ppo_mini_batch_size", "critic.grad_clip", "critic.optim.lr_warmup*",
    "critic.optim.weight_decay", "critic.model.tokenizer_path", "critic.model.enable_gradient_checkpointing",
    "algorithm.workflow_type", "algorithm.algorithm_name", "algorithm.kl_ctrl.type", "algorithm.kl_penalty",
    "data.truncation", "data.filter_overlong_prompt*", "data.return_*", "data.num_loader_workers",
    "data.val_batch_size", "data.reward_fn_key", "data.tokenizer", "data.force_on_the_fly", "data.auto_repeat",
    "trainer.logger", "trainer.project_name", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.device",
    "trainer.balance_batch", "trainer.log_val_generations", "trainer.max_critic_ckpt_to_keep", "dag.*", "profiler.*",
    "reward_model.reward_manager", "reward_model.launch_reward_fn_async", "reward_model.model.*",
    "*.rollout.seed", "*.rollout.calculate_log_probs", "*.engine_kwargs.*", "*.layer_name_map.*", "*.multi_turn.format",
    "*.shuffle", "*.model.model_type", "*.model.external_lib", "critic.rollout_n", "*.load_weight", "*.profile*",
    "*.recompute_old_log_prob", "*.entropy_checkpointing", "*.entropy_from_logits*", "*.multi_stage_wake_up",
    "data.image_key", "data.video_key", "data.dataset_cache_dir", "data.multi_agent", "data.processor.*",
    "data.preprocessing_*", "data.overwrite_cache", "data.serialize_dataset", "data.streaming", "data.buffer_size",
    "algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon", "algorithm.pf_ppo*", "algorithm.weight_factor_in_cpgd",
    "algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches",
    "trainer.default_hdfs_dir", "trainer.ray_wait*", "trainer.validation_data_dir", "trainer.rollout_data_dir",
    "trainer.del_local_ckpt*", "trainer.remove_previous_ckpt*", "trainer.should_*",
)  # fmt: skip
# Without effect while they are off; there is no counterpart to turn on.
SWITCHES = (
    "reward_model.enable", "reward_model.overlong_buffer.*", "algorithm.use_pf_ppo", "*.use_cpgd_loss",
    "*.policy_drift_coeff", "*.tis_imp_ratio_cap", "*.ignore_eos", "*.use_fire_sampling", "*.train_on_prompt",
    "*.mask_history", "*.actor.optim.lr_warmup_steps_ratio",
)  # fmt: skip
# What to do instead.
INSTEAD = {
    "trainer.resume_from_path": "`coterie train --resume RUN --checkpoint STEP` goes back to a checkpoint",
    "trainer.val_only": "`coterie eval CONFIG` evaluates the untrained team, `coterie eval RUN` a trained one",
    "custom_reward_function.path": "reward=FILE.py:NAME names a function of (answer, truth)",
    "custom_reward_function.name": "reward=FILE.py:NAME names a function of (answer, truth)",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "algorithm.adv_estimator names the algorithm, such as gspo",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "learning.warmup is the number of steps",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": "tools are part of a workflow, see docs/adding-a-tool.md",
}


def is_known(key: str) -> bool:
    return key in SETTINGS or key in COMPOUND or is_without_effect(key) or is_switch(key)


def is_without_effect(key: str) -> bool:
    return key not in SETTINGS and key not in COMPOUND and any(fnmatch(key, pattern) for pattern in WITHOUT_EFFECT)


def is_switch(key: str) -> bool:
    return any(fnmatch(key, pattern) for pattern in SWITCHES)


def full_name(key: str, before: tuple[str, ...]) -> str | None:
    """A parameter's full name; `before` are prefixes that may be left out. None if it is unknown."""
    return next((name for name in (key, *(f"{lead}{key}" for lead in before)) if is_known(name)), None)


def minibatches(tasks: int, size: int) -> int:
    """Optimizer steps per pass, from siiRL's number of tasks per optimizer step."""
    return max(1, ceil(tasks / size))
