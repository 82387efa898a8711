#!/usr/bin/env bash
# Train under Slurm with one task per node: clusterrun starts a worker for each GPU of its node.
#
#   sbatch --nodes=2 --gpus-per-node=4 scripts/slurm_one_task_per_node.sh train.py --lr 0.1
#   salloc --nodes=2 --gpus-per-node=4 --exclusive scripts/slurm_one_task_per_node.sh train.py
#
# Options on the command line of sbatch override those of the #SBATCH lines.
#SBATCH --job-name=clusterrun
#SBATCH --nodes=2
#SBATCH --exclusive
set -euo pipefail

# "64(x2)". By default, srun may give each task only one core.
cpus=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}

# exec: signals and the exit code are srun's own.
exec srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --cpus-per-task="$cpus" clusterrun "$@"
