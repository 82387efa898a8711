#!/usr/bin/env bash
# Two nodes of 16 CPUs and 8 GPUs each. To submit it: qsub configs/schedulers/pbs.sh
#PBS -N train
#PBS -l walltime=2:00:00
#PBS -l select=2:ncpus=16:ngpus=8:mpiprocs=1
#PBS -l place=scatter
#PBS -j oe

cd "$PBS_O_WORKDIR" || exit
hosts=$(uniq "$PBS_NODEFILE" | paste -sd,)
port=$((20000 + ${PBS_JOBID%%[!0-9]*} % 9000))
command=(clusterrun --hosts "$hosts" --master-port "$port" train.py)
trap : TERM INT USR1 USR2 # bash waits for clusterrun, which gets the signal, too
# The other node has PBS's variables only; with three nodes, add a line with -n 2.
pbsdsh -n 1 -- /usr/bin/env --chdir="$PWD" "PATH=$PATH" "${command[@]}" &
code=0
"${command[@]}" || code=$?
wait
exit "$code"
