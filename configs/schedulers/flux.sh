#!/usr/bin/env bash
# Two nodes of 16 cores and 8 GPUs each. To submit it: flux batch configs/schedulers/flux.sh
# flux: --job-name=train
# flux: --time-limit=2h
# flux: --nodes=2 --nslots=2
# flux: --cores-per-slot=16 --gpus-per-slot=8

# This script runs on the first node. exec: signals and the exit code are those of flux run.
exec flux run --nodes=2 --ntasks=2 --cores-per-task=16 --gpus-per-task=8 \
    clusterrun --master-addr "$(hostname)" train.py
