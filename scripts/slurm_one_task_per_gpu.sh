#!/usr/bin/env bash
# Train under Slurm with one task per GPU: srun starts a clusterrun for each worker.
#
#   sbatch --nodes=2 --ntasks-per-node=4 scripts/slurm_one_task_per_gpu.sh train.py --lr 0.1
#   salloc --nodes=2 --ntasks-per-node=4 --exclusive scripts/slurm_one_task_per_gpu.sh train.py
#
# For GPUs of its own per task, which then sees no other's, give sbatch --gpus-per-task=1 as well;
# with --gpus-per-node=4 instead, every task sees all of its node and takes that of its local rank.
# --exec as first argument makes each task the worker itself, with nobody to look after it.
#SBATCH --job-name=clusterrun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
set -euo pipefail

# "64(x2)": an srun that is not told would give each task as little as one core.
on_node=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}
cpus=$((on_node / SLURM_NTASKS_PER_NODE))

# exec: signals and the exit code are srun's own.
exec srun --ntasks="$SLURM_NTASKS" --ntasks-per-node="$SLURM_NTASKS_PER_NODE" \
    --cpus-per-task="$((cpus > 0 ? cpus : 1))" clusterrun "$@"
