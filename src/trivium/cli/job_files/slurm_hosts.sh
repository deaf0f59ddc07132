{{expects}}
# One task is one host, which starts its ranks. When a host is lost, the others continue without it. Each writes its
# exit code into a file, because that of a host which left or was left out says nothing about the job.
CODES=$OUT/exit-codes-of-hosts-$SLURM_JOB_ID
rm -f "$CODES"
srun {{pyxis}}--no-kill --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_ON_NODE" bash -c \
  'trap : TERM USR1; codes=$1; shift; "$@"; code=$?; echo $code >> "$codes"; exit $code' \
  host "$CODES" {{inside}}{{train}}
ended=$?
for code in 0 75 1; do
  grep -qx $code "$CODES" 2> /dev/null && ended=$code && break
done
rm -f "$CODES"
[[ $ended == [2345] ]] || rm -f "$TRIVIUM_EXIT_CODE"
(exit $ended)
