#!/bin/bash
# {{title}}
# Written by `trivium launch --print slurm`. Add --partition, --account and --time as your cluster requires. The ranks
# inherit the environment and the working directory of sbatch; --image runs them in a container.
#SBATCH --job-name={{name}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node={{tasks}}
{{devices}}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={{name}}-%j.log
# This number of seconds before the time limit, all ranks receive SIGUSR1, save a checkpoint and exit with 75.
#SBATCH --signal=USR1@{{grace}}

# Every rank has two connections to the store on the first host, which needs as many open files.
ulimit -S -n "$(ulimit -H -n)"

OUT={{out}}
EVENTS=$OUT/training/events.jsonl
mkdir -p "$OUT"
# srun returns the highest exit code, which may be that of a rank that it killed. The first rank to fail writes its
# code into this file.
export TRIVIUM_EXIT_CODE=$OUT/exit-code-$SLURM_JOB_ID
rm -f "$TRIVIUM_EXIT_CODE"
before=$(tail -n 1 "$EVENTS" 2> /dev/null)  # the last event before this job
trap : TERM USR1  # the ranks receive these signals too; this script continues

{{start}}
code=$?

# With thousands of ranks, some end later than the first. Slurm kills them and returns their code instead of 75.
last=$(tail -n 1 "$EVENTS" 2> /dev/null)
if [ "$code" -gt 128 ] && [ "$last" != "$before" ] && [[ $last == *'"preempted"'* ]]; then
  code=75
elif [ "$code" -ne 0 ] && [ -s "$TRIVIUM_EXIT_CODE" ]; then
  code=$(cat "$TRIVIUM_EXIT_CODE")
fi
rm -f "$TRIVIUM_EXIT_CODE"

# scancel sends the same signals, and Slurm would requeue a job that it is about to end. After a preemption Slurm may
# have requeued the job itself (PreemptMode=REQUEUE), which increases its number of restarts.
queue_again() {
  trap '' TERM USR1  # what this calls ignores them too: Slurm sends them also while it queues the job again
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
    # Only failures with the same newest checkpoint are counted, so that progress renews the restarts.
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
