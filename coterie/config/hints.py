"""Hints for unknown keys: names from verl, TRL, rLLM, siiRL and MARFT, and old names of Coterie's own keys.

A name matches the end of a path: `optim.lr` also matches `actor_rollout_ref.actor.optim.lr`. The longest match wins.
"""

from __future__ import annotations

from coterie.config.problems import Path

HERE = {
    # how much data, how long
    "train_batch_size": "tasks_per_step",
    "per_device_train_batch_size": "tasks_per_step",
    "gen_batch_size": "tasks_per_step",
    "rollout_batch_size": "tasks_per_step",
    "rollout.n": "episodes_per_task",
    "num_generations": "episodes_per_task",
    "n_rollout_threads": "rollout.concurrency",
    "n_parallel_agents": "rollout.concurrency",
    "n_parallel_tasks": "rollout.concurrency",
    "val_batch_size": "eval.tasks",
    "val_kwargs.n": "eval.episodes_per_task",
    "val_kwargs.temperature": "eval.temperature",
    "val_kwargs.top_p": "eval.top_p",
    "val_kwargs.top_k": "eval.top_k",
    "total_training_steps": "steps",
    "total_epochs": "steps",
    "num_train_epochs": "steps",
    "max_steps": "steps",
    "num_env_steps": "steps",
    "episode_length": "episodes_per_task",
    "train_files": "env.train",
    "val_files": "env.test",
    # models and optimisers
    "model.path": "policies.<name>.model",
    "model_name_or_path": "policies.<name>.model",
    "base_model": "policies.<name>.model",
    "lora_rank": "policies.<name>.lora.rank",
    "lora_r": "policies.<name>.lora.rank",
    "lora_alpha": "policies.<name>.lora.alpha",
    "lora_target_modules": "policies.<name>.lora.targets",
    "target_modules": "policies.<name>.lora.targets",
    "learning_rate": "policies.<name>.lr",
    "optim.lr": "policies.<name>.lr",
    "lr": "policies.<name>.lr",
    "lr_scheduler_type": "learning.schedule",
    "lr_warmup_steps": "learning.warmup",
    "warmup_steps": "learning.warmup",
    "weight_decay": "learning.weight_decay",
    "max_grad_norm": "learning.clip_norm",
    "grad_clip": "learning.clip_norm",
    "gradient_checkpointing": "learning.checkpointing",
    "enable_gradient_checkpointing": "learning.checkpointing",
    "ppo_max_token_len_per_gpu": "learning.microbatch_tokens",
    "ppo_micro_batch_size": "learning.microbatch_tokens",
    "ppo_micro_batch_size_per_gpu": "learning.microbatch_tokens",
    "gradient_accumulation_steps": "learning.microbatch_tokens",
    # sampling and the engine
    "max_completion_length": "sampling.max_tokens",
    "max_response_length": "sampling.max_tokens",
    "max_new_tokens": "sampling.max_tokens",
    "max_tokens": "sampling.max_tokens and roles.<name>.max_tokens",
    "temperature": "sampling.temperature and roles.<name>.temperature",
    "top_p": "eval.top_p",
    "top_k": "eval.top_k",
    "stop_strings": "sampling.stop",
    "max_prompt_length": "engine.context",
    "max_model_len": "engine.context",
    "vllm_max_model_length": "engine.context",
    "max_num_seqs": "engine.rows",
    "rollout.name": "engine.name",
    # algorithms
    "adv_estimator": "algorithm.name",
    "algorithm_name": "algorithm.name",
    "clip_ratio": "algorithm.clip",
    "clip_ratio_low": "algorithm.clip",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_c": "algorithm.dual_clip",
    "cliprange": "algorithm.clip",
    "clip_param": "algorithm.clip",
    "epsilon": "algorithm.clip",
    "epsilon_high": "algorithm.clip_high",
    "beta": "algorithm.kl",
    "kl_coef": "algorithm.kl",
    "kl_loss_coef": "algorithm.kl",
    "kl_loss_type": "algorithm.kl_estimator",
    "kl_penalty": "algorithm.kl_estimator",
    "use_kl_loss": "algorithm.kl_in",
    "use_kl_in_reward": "algorithm.kl_in",
    "entropy_coeff": "algorithm.entropy",
    "entropy_coef": "algorithm.entropy",
    "loss_agg_mode": "algorithm.reduce",
    "loss_type": "algorithm.reduce",
    "ppo_epochs": "algorithm.epochs",
    "ppo_epoch": "algorithm.epochs",
    "num_iterations": "algorithm.epochs",
    "ppo_mini_batch_size": "algorithm.minibatches",
    "num_mini_batch": "algorithm.minibatches",
    "norm_adv_by_std_in_grpo": "algorithm.scale",
    "scale_rewards": "algorithm.scale",
    "filter_groups.enable": "algorithm.drop_constant",
    "target_kl": "algorithm.stop_kl",
    "kl_threshold": "algorithm.stop_kl",
    "agent_iteration_interval": "algorithm.rotate",
    "train_cycle": "algorithm.rotate",
    # of ppo alone
    "lam": "algorithm.lam_token and algorithm.lam_turn, of ppo",
    "gae_lambda": "algorithm.lam_token and algorithm.lam_turn, of ppo",
    "gamma": "algorithm.gamma_turn and algorithm.gamma_token, the latter of ppo",
    "cliprange_value": "algorithm.value_clip, of ppo",
    "vf_coef": "algorithm.value_weight, of ppo",
    "value_loss_coef": "algorithm.value_weight, of ppo",
    "critic.optim.lr": "critics.<name>.lr and algorithm.value_lr, the latter of ppo's value head",
    "critic_lr": "critics.<name>.lr and algorithm.value_lr, the latter of ppo's value head",
    # a run
    "experiment_name": "name",
    "project_name": "log.wandb",
    "report_to": "log.wandb",
    "logger": "log.wandb",
    "save_freq": "checkpoint.every",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "max_actor_ckpt_to_keep": "checkpoint.keep",
    "test_freq": "eval.every",
    "eval_steps": "eval.every",
    "use_cuda": "device",
    "reward_fn": "reward.name",
    "reward_funcs": "reward.name",
    "custom_reward_function.path": "reward.name",
    "custom_reward_function.name": "reward.name",
    "env_name": "env.name",
    "workflow_class": "workflow.name",
    "workflow_args": "workflow",
    "use_all_traj": "workflow.use_all_traj, of graph",
    "share_reward_in_agent": "credit.share_reward_in_agent, of graph",
}

NOT_HERE = {
    "share_instance": "there is nothing to set: roles share a policy by naming the same one under roles",
    "n_gpus_per_node": "there is nothing to set: torchrun starts a process for each GPU, see docs/many-devices.md",
    "nnodes": "there is nothing to set: torchrun starts the processes, see docs/many-devices.md",
    "tensor_model_parallel_size": "there is nothing to set: a model is on one device, see docs/many-devices.md",
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

# Old name of a key → its name now.
OLD_KEYS = {
    "peers": "group_by",
    "gain": "confidence_weight",
    "gain_alpha": "confidence_alpha",
    "drop_cut": "drop_truncated",
    "alarm": "collapse",
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
