#!/bin/bash
# A run on several multi-GPU hosts under SLURM, one process per host, with words as for `agentrl train`:
#     sbatch experiments/launch/slurm.sh FILE.yaml [--key value ...]
# Submit it from the folder that runs/ is in, which all hosts must share, with `agentrl` on the PATH.
#SBATCH --job-name=agentrl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

file=${1:?the YAML file of the run is missing}
shift
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
coordinator=${hosts[0]}:$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a host need different ports

# At preemption, and 300 seconds before the time limit, the processes get SIGTERM: the run saves and ends with code 143.
# SLURM puts only a preempted job into the queue again; after the time limit the job does it itself. The same command
# then goes on. Code 143 of a job that was canceled is not seen here, because canceling ends this script too.
code=0
# Since SLURM 22.05, srun does not take over --cpus-per-task. Only the processes know SLURM_PROCID.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c \
    'exec agentrl train "$@" --hosts.count "$SLURM_NTASKS" --hosts.index "$SLURM_PROCID"' \
    agentrl "$file" --devices 0 "$@" --hosts.coordinator "$coordinator" || code=$?
if [[ $code == 143 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
