#!/bin/bash
# {{title}}
# Written by `trivium launch --print slurm`. Add --partition, --account and --time as your cluster wants them.
#SBATCH --job-name={{name}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node={{per_node}}
{{devices}}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={{name}}-%j.log
# So many seconds before the time limit, every rank is asked to save and end: it then exits with 75.
#SBATCH --signal=USR1@{{grace}}

# Every rank holds two connections to the store at which all meet, on the first host.
ulimit -S -n "$(ulimit -H -n)"

OUT={{out}}
trap : TERM USR1  # the ranks hear them too, and what follows depends on how they end

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$(srun --nodes=1 --ntasks=1 --nodelist="$MASTER_ADDR" {{python}} -c \
  'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export MASTER_ADDR MASTER_PORT

# One task is one rank. Slurm numbers tasks by node (block distribution), so tensor groups stay inside a node.
srun --distribution=block --kill-on-bad-exit=1 bash -c \
  'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
          LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE; exec "$@"' \
  rank {{train}}
code=$?

case $code in
  0) echo "trained to the end" ;;
  75) echo "preempted, saved; queued again"; scontrol requeue "$SLURM_JOB_ID" ;;
  2 | 3 | 4 | 5) echo "not queued again: config, machine, data or checkpoint is wrong" ;;
  *)
    echo failed >> "$OUT/failures-$SLURM_JOB_ID"
    if [ "$(wc -l < "$OUT/failures-$SLURM_JOB_ID")" -le {{restarts}} ]; then
      echo "failed with $code; queued again, to go on from the last checkpoint"
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit "$code"
