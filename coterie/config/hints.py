"""Hints for unknown keys: names from verl, TRL, rLLM, siiRL and MARFT, and old names of Coterie's own keys.

A name matches the end of a path: `optim.lr` also matches `actor_rollout_ref.actor.optim.lr`. The longest match wins.
Similar names ("did you mean …?") come from `errors.did_you_mean`; `reader.unknown` uses both.
"""

from __future__ import annotations

from coterie.config.problems import Path

# Our key → its names elsewhere.
ELSEWHERE = {
    # how much data, how long
    "tasks_per_step": "train_batch_size per_device_train_batch_size gen_batch_size rollout_batch_size",
    "episodes_per_task": "rollout.n num_generations",
    "tasks_per_step, which is MARFT's n_rollout_threads × episode_length": "episode_length n_rollout_threads",
    "rollout.concurrency": "n_parallel_agents n_parallel_tasks",
    "eval.tasks": "val_batch_size eval_episodes",
    "eval.episodes_per_task": "val_kwargs.n",
    "eval.temperature": "val_kwargs.temperature",
    "eval.top_p": "val_kwargs.top_p top_p",
    "eval.top_k": "val_kwargs.top_k top_k",
    "steps": "total_training_steps max_steps num_env_steps",
    "epochs": "total_epochs num_train_epochs",
    "env.train": "train_files dataset_path",
    "env.test": "val_files",
    # models and optimisers
    "policies.<name>.model": "model.path model_name_or_path base_model",
    "policies.<name>.lora.rank": "lora_rank lora_r",
    "policies.<name>.lora.alpha": "lora_alpha",
    "policies.<name>.lora.targets": "lora_target_modules target_modules",
    "policies.<name>.lr": "learning_rate optim.lr lr",
    "learning.schedule": "lr_scheduler_type",
    "learning.warmup": "lr_warmup_steps",
    "learning.warmup and algorithm.warmup, the latter of ppo's critics, as in MARFT": "warmup_steps",
    "learning.weight_decay": "weight_decay",
    "learning.clip_norm": "max_grad_norm grad_clip",
    "learning.checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "learning.microbatch_tokens": "ppo_max_token_len_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu "
    "gradient_accumulation_steps gradient_cp_steps",
    # sampling and the engine
    "sampling.max_tokens": "max_completion_length max_response_length max_new_tokens",
    "sampling.max_tokens and roles.<name>.max_tokens": "max_tokens",
    "sampling.temperature and roles.<name>.temperature": "temperature",
    "sampling.stop": "stop_strings",
    "engine.context": "max_prompt_length max_model_len vllm_max_model_length context_window",
    "engine.rows": "max_num_seqs",
    "engine.name": "rollout.name",
    "cluster.rollout.tensor_parallel, on a Ray cluster": "tensor_model_parallel_size",
    # algorithms
    "algorithm.name": "adv_estimator algorithm_name",
    "algorithm.clip": "clip_ratio clip_ratio_low cliprange clip_param epsilon",
    "algorithm.clip_high": "clip_ratio_high epsilon_high",
    "algorithm.dual_clip": "clip_ratio_c",
    "algorithm.kl": "beta kl_coef kl_loss_coef use_kl_loss",
    "algorithm.kl_estimator": "kl_loss_type kl_penalty",
    "algorithm.kl_in": "use_kl_in_reward",
    "algorithm.entropy": "entropy_coeff entropy_coef",
    "algorithm.reduce": "loss_agg_mode loss_type",
    "algorithm.epochs": "ppo_epochs ppo_epoch num_iterations",
    "algorithm.minibatches": "ppo_mini_batch_size num_mini_batch",
    "algorithm.scale": "norm_adv_by_std_in_grpo scale_rewards",
    "algorithm.drop_constant": "filter_groups.enable",
    "algorithm.stop_kl": "target_kl kl_threshold",
    "algorithm.rotate": "agent_iteration_interval train_cycle",
    # of ppo alone
    "algorithm.lam_token and algorithm.lam_turn, of ppo": "lam gae_lambda",
    "algorithm.gamma_turn and algorithm.gamma_token, the latter of ppo": "gamma",
    "algorithm.value_clip, of ppo": "cliprange_value use_clipped_value_loss",
    "algorithm.value_huber, of ppo": "huber_delta use_huber_loss",
    "algorithm.normalize, with level: turn": "normalization_mode",
    "algorithm.value_weight, of ppo": "vf_coef value_loss_coef",
    "algorithm.warmup, of ppo": "critic_warmup",
    "critics.<name>.lr and algorithm.value_lr, the latter of ppo's value head": "critic.optim.lr critic_lr",
    # a run
    "name": "experiment_name",
    "log.wandb": "project_name report_to logger",
    "checkpoint.every": "save_freq save_steps save_interval",
    "checkpoint.keep": "save_total_limit max_actor_ckpt_to_keep",
    "eval.every": "test_freq eval_steps eval_interval",
    "eval.before_training": "val_before_train",
    "folder": "default_local_dir output_dir",
    "resume": "resume_mode resume_from_checkpoint",
    "shuffle": "data.shuffle shuffle_dataset",
    "device": "use_cuda",
    "reward.name": "reward_fn reward_funcs custom_reward_function.path custom_reward_function.name",
    "env.name": "env_name",
    "workflow.name": "workflow_class",
    "workflow": "workflow_args",
    "workflow.horizon, of marft": "horizon",
    "workflow.profile_path, of marft; `coterie import marft PROFILE.json` writes a recipe": "profile_path",
    "policies.<name>.adapter and critics.<name>.adapter": "load_path lora_adapter_path",
    "workflow.use_all_traj, of graph": "use_all_traj",
    "credit.share_reward_in_agent, of graph": "share_reward_in_agent",
}
HERE = {name: key for key, names in ELSEWHERE.items() for name in names.split()}

NOT_HERE = {
    "share_instance": "there is nothing to set: roles share a policy by naming the same one under roles",
    "n_gpus_per_node": "there is nothing to set: torchrun starts a process for each GPU, see docs/many-devices.md",
    "nnodes": "several machines are a Ray cluster, see cluster and docs/cluster.md",
    "gpu_memory_utilization": "there is nothing to set: the engine uses the learner's own weights, "
    "and engine.rows and engine.context size its cache",
    "use_vllm": "there is nothing to set: engine.name chooses what samples",
    "vllm_mode": "there is nothing to set: engine.name chooses what samples, in the processes that learn",
    "n_agents": "there is nothing to set: there are as many agents as roles",
    "num_agents": "there is nothing to set: there are as many agents as roles",
    "use_workflow": "there is nothing to set: a team always plays a workflow, see workflow.name",
    "retry_limit": "there is nothing to set: a failed episode is counted and not played again, see rollout.max_failed",
    "ref.path": "there is nothing to set: the reference is the base with its adapter off",
}

# Settings of verl's workers.
WORKERS = (
    "param_offload optimizer_offload grad_offload use_remove_padding use_dynamic_bsz use_fused_kernels balance_batch "
    "enforce_eager free_cache_engine enable_chunked_prefill log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu"
)
NOT_HERE |= dict.fromkeys(
    WORKERS.split(),
    "there is nothing to set: turns are packed, learning.microbatch_tokens bounds the memory, and nothing is offloaded",
)

# Old name of a key → its name now.
OLD_KEYS = {
    "peers": "group_by",
    "gain": "confidence_weight",
    "gain_alpha": "confidence_alpha",
    "drop_cut": "drop_truncated",
    "alarm": "collapse",
    "max_iterations": "max_refinement_iterations",
    "max_parts": "max_subqueries",
}

# Groups in which no single name is known; the hint is for all keys in them.
GROUPS = {
    "rllm.workflow": "what a team plays is under workflow here, and how under rollout",
    "dag": "there is nothing to set: a graph is a config, as in `coterie train graph.yaml`",
}


def hint_for(path: Path) -> str | None:
    """What another system's key, or an old one, is called here; or why there is no such key."""
    if old := next((name for name in path if name in OLD_KEYS), None):
        return f"`{old}` is now `{OLD_KEYS[old]}`"
    for start in range(len(path)):
        name = ".".join(path[start:])
        if name in HERE:
            return f"here it is {HERE[name]}"
        if name in NOT_HERE:
            return NOT_HERE[name]
    groups = [".".join(path[:end]) for end in range(1, len(path))]
    return next((GROUPS[group] for group in groups if group in GROUPS), None)
