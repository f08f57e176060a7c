#!/bin/bash
# A run on several multi-GPU hosts under SLURM, one process per host: sbatch experiments/launch/slurm.sh FILE.yaml
# The folder runs/ must be in a file system that all hosts share.
#SBATCH --job-name=agentrl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
set -euo pipefail

file=${1:?the YAML file of the run}
coordinator=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):8476

# SIGTERM comes 300 seconds before the time limit and at preemption: the run saves and ends with code 143, and the
# requeued job gives the same command again, which goes on.
srun --kill-on-bad-exit=1 bash -c "exec agentrl train $(printf %q "$file") --devices 0 \
    --hosts.coordinator $coordinator --hosts.count \$SLURM_NTASKS --hosts.index \$SLURM_PROCID"
