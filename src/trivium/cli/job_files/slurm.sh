#!/bin/bash
# {{title}}
# Written by `trivium launch --print slurm`. Add --partition, --account and --time as your cluster wants them. The ranks
# have the environment and the folder in which you call sbatch; for a container give srun its options.
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
EVENTS=$OUT/training/events.jsonl
mkdir -p "$OUT"
# srun tells the highest of all exit codes, which is of ranks that it killed; here the first says what was wrong.
export TRIVIUM_EXIT_CODE=$OUT/exit-code-$SLURM_JOB_ID
rm -f "$TRIVIUM_EXIT_CODE"
before=$(tail -n 1 "$EVENTS" 2> /dev/null)  # the last word of a former part of the run
trap : TERM USR1  # the ranks hear them too, and what follows depends on how they end

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$(srun --nodes=1 --ntasks=1 --nodelist="$MASTER_ADDR" {{python}} -c \
  'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export MASTER_ADDR MASTER_PORT
{{expects}}
# One task is one rank. Slurm numbers tasks by node (block distribution), so tensor groups stay inside a node. Where the
# first host gave no port, it has failed, and that is no fault of the config, as the ranks would say.
[ -n "$MASTER_PORT" ] && srun --distribution=block --kill-on-bad-exit=1 bash -c \
  'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
          LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE; exec "$@"' \
  rank {{train}}
code=$?

# Of thousands of ranks some end a moment after the first. Slurm ends these, and tells that instead of the others' 75.
last=$(tail -n 1 "$EVENTS" 2> /dev/null)
if [ "$code" -gt 128 ] && [ "$last" != "$before" ] && [[ $last == *'"preempted"'* ]]; then
  code=75
elif [ "$code" -ne 0 ] && [ -s "$TRIVIUM_EXIT_CODE" ]; then
  code=$(cat "$TRIVIUM_EXIT_CODE")
fi
rm -f "$TRIVIUM_EXIT_CODE"

# scancel asks the ranks to end, too, and Slurm would queue a job again that it is about to end. After a preemption Slurm
# may have queued the job again by itself (PreemptMode=REQUEUE): then it has counted one more restart.
queue_again() {
  job=$(scontrol show job "$SLURM_JOB_ID")
  restarts=$(sed -n 's/.*Restarts=\([0-9]*\).*/\1/p' <<< "$job" | head -n 1)
  if [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ] || grep -qE 'JobState=(PENDING|REQUEUED)' <<< "$job"; then
    echo "$1; Slurm has queued it again"
  elif grep -qE 'JobState=(RUNNING|PREEMPTED)|Reason=(TimeLimit|Preempted)' <<< "$job"; then
    if scontrol requeue "$SLURM_JOB_ID"; then
      echo "$1; queued again"
    else
      echo "$1; Slurm refused to queue it again: submit the same file to go on"
    fi
  else
    echo "$1; cancelled, and so not queued again"
  fi
}

case $code in
  0) echo "trained to the end" ;;
  75) queue_again "preempted, saved" ;;
  2 | 3 | 4 | 5) echo "not queued again: config, machine, data or checkpoint is wrong" ;;
  *)
    # Failures count against a job only while it gets no further: those with the same newest checkpoint.
    newest=$(find "$OUT/training/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2> /dev/null | sort -V | tail -n 1)
    echo "${newest:-none}" >> "$OUT/failures-$SLURM_JOB_ID"
    host=$(grep '"rank failed"' "$EVENTS" 2> /dev/null | tail -n 1 | sed -n 's/.*"host": "\([^"]*\)".*/\1/p')
    [ -n "$host" ] && echo "the last rank that failed was on $host; to leave that node out, while the job waits:" \
      "scontrol update JobId=$SLURM_JOB_ID ExcNodeList=$host"
    failures=$(grep -cxF "${newest:-none}" "$OUT/failures-$SLURM_JOB_ID")
    if [ "$failures" -le {{restarts}} ]; then
      queue_again "failed with $code; it can go on from the last checkpoint"
    else
      echo "failed with $code, $failures times at the same checkpoint (${newest:-none}); not queued again"
    fi
    ;;
esac
exit "$code"
