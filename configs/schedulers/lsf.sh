#!/usr/bin/env bash
# Two nodes of 16 slots and 8 GPUs each. To submit it: bsub < configs/schedulers/lsf.sh
#BSUB -J train
#BSUB -W 2:00
#BSUB -n 32 -R "span[ptile=16]"
#BSUB -gpu "num=8"
#BSUB -o train.%J.out

hosts=$(uniq "$LSB_DJOB_HOSTFILE" | paste -sd,)
command=(clusterrun --hosts "$hosts" --master-port "$((20000 + LSB_JOBID % 9000))" train.py)
trap : TERM INT USR1 USR2 # bash waits for clusterrun, which gets the signal, too
blaunch -z "$(tr , " " <<< "${hosts#*,}")" "${command[@]}" & # all nodes but this one
code=0
"${command[@]}" || code=$?
wait
exit "$code"
