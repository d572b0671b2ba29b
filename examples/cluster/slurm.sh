#!/bin/bash
# One run on a SLURM allocation: Ray's head and the driver on the first node, one raylet on every node.
# sbatch examples/cluster/slurm.sh team.yaml; after a preemption the same command with `--resume runs/team`
#SBATCH --job-name=team
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --signal=B:TERM@300
set -euo pipefail
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32)
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$head:6379
config='{"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 2000, "health_check_failure_threshold": 3}'
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --system-config="$config" --block &
sleep 20
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) -x "$head" ray start --address="$address" --block &
sleep 20
coterie train "$@" cluster.address="$address" &
driver=$!
trap 'kill -TERM $driver' TERM # the driver finishes its step and saves
wait $driver || wait $driver
