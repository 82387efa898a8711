#!/usr/bin/env bash
# Train under Slurm with one task per GPU: srun starts a clusterrun for each worker.
#
#   sbatch --nodes=2 --ntasks-per-node=4 scripts/slurm_one_task_per_gpu.sh train.py --lr 0.1
#   salloc --nodes=2 --ntasks-per-node=4 --exclusive scripts/slurm_one_task_per_gpu.sh train.py
#
# With sbatch --gpus-per-task=1, each task sees only its own GPU. With --gpus-per-node=4 instead, every
# task sees all GPUs of its node and uses the one of its local rank.
# --exec as the first argument makes each task the worker itself, without a supervising agent.
#SBATCH --job-name=clusterrun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
set -euo pipefail

# "64(x2)". By default, srun may give each task only one core.
on_node=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}
cpus=$((on_node / SLURM_NTASKS_PER_NODE))

# exec: signals and the exit code are srun's own.
exec srun --ntasks="$SLURM_NTASKS" --ntasks-per-node="$SLURM_NTASKS_PER_NODE" \
    --cpus-per-task="$((cpus > 0 ? cpus : 1))" clusterrun "$@"
