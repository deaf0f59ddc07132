# Every rank has two connections to the store on the first host, which needs as many open files.
ulimit -S -n "$(ulimit -H -n)"
EVENTS=$OUT/training/events.jsonl
TRAIN=(
  -m {{module}}
)
mkdir -p "$OUT"
export TRIVIUM_EXIT_CODE=$OUT/exit-code-{{name}}  # torchrun always returns 1, so the first rank to fail writes its code here
# Seconds for saving after a request to end. The torchrun of torch 2.11 ignores the variable and waits 30 seconds.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={{grace}}
asked=  # the exit code after a request to end
child=
end() { asked=${asked:-$1}; [ -n "$child" ] && kill -TERM "$child"; }  # torchrun forwards the signal to its ranks and waits
trap 'end 75' TERM USR1
trap 'end 130' INT  # Ctrl-C, which would otherwise end only this script

events() { cat "$EVENTS" 2> /dev/null; }
host_of() { sed -n 's/.*"host": "\([^"]*\)".*/\1/p'; }
newest() { find "$OUT/training/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2> /dev/null | sort -V | tail -n 1; }
leave() { rm -f "$FAILURES" "$RUNNING"; exit "$1"; }  # after the last attempt, so that the next start has all restarts
note_failure() {
  rm -f "$RUNNING"
  # Only failures with the same newest checkpoint are counted, so that progress renews the restarts.
  at=$(newest); at=${at:-none}; echo "$at" >> "$FAILURES"; failures=$(grep -cxF "$at" "$FAILURES")
  echo "attempt $1; failure $failures at the same checkpoint ($at), {{restarts}} of which are tried again"
  # With 1, not with the code of a killed torchrun, because Kubernetes would replace a pod that ends with another code.
  [ -z "$asked" ] && [ "$failures" -gt {{restarts}} ] && leave 1
}
pause() {
  sleep "$1" &
  wait $!  # a signal ends this wait
  [ -z "$asked" ] && return
  echo "interrupted before it saved again; run the same command again to resume from the last checkpoint"
  leave "$asked"
}
# A pod may be replaced when the first host has ended already, which it would wait for. The stamp is looked for first,
# because a dry run takes seconds.
is_finished() {
  [ -e "$OUT/training/{{stamp}}" ] && {{python}} "${TRAIN[@]}" --dry-run 2> /dev/null | grep -q "{{finished}}"
}
wait_for_first_host() {
  [ "${IS_FIRST:-1}" = 1 ] && return
  waits_until=$((SECONDS + {{host_seconds}}))
  until timeout 5 bash -c ": <> /dev/tcp/$FIRST_ADDR/${PORT:-29400}" 2> /dev/null; do
    [ "$SECONDS" -eq $((waits_until - {{host_seconds}})) ] && echo "waiting for the first host, $FIRST_ADDR"
    if [ "$SECONDS" -ge "$waits_until" ]; then
      echo "the first host, $FIRST_ADDR, did not come within {{host_seconds}} s (training.supervision.host_seconds)"
      leave 1
    fi
    is_finished && leave 0
    pause 1
  done
}

missed=0  # attempts in succession that ended before ranks were started
while true; do
  is_finished && leave 0
  [ -e "$RUNNING" ] && note_failure "was killed together with its script"
  wait_for_first_host  # does not count as an attempt
  rm -f "$TRIVIUM_EXIT_CODE"  # no rank starts before all hosts have reached this line
  touch "$RUNNING"
  logs=$(mktemp -d) || logs=$(mktemp -d -p "$OUT")  # stays empty until torchrun starts the ranks of this host
  began=$SECONDS
  events_before=$(events | wc -l)
  # torchrun must not restart (--max-restarts 0): its agents would connect again to one that has just died.
  {{torchrun}} --nnodes {{nodes}} --nproc-per-node {{per_node}} --max-restarts 0 --log-dir "$logs" \
    {{rendezvous}} \
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    "${TRAIN[@]}" &
  child=$!
  [ -n "$asked" ] && kill -TERM "$child"  # the signal came between two attempts
  wait "$child"
  code=$?
  while kill -0 "$child" 2> /dev/null; do  # a signal ended the wait, not the training
    wait "$child"
    code=$?
  done
  child=
  started=unknown
  [ -n "$logs" ] && { started=$(ls "$logs"); rm -rf "$logs"; }
  [ "$code" -eq 0 ] && leave 0
  news=$(events | tail -n "+$((events_before + 1))")
  if [[ $(tail -n 1 <<< "$news") == *'"preempted"'* ]]; then
    # A pod that was not asked keeps its node: with each pod that ends, the Job controller waits longer to replace any.
    if [ -z "$asked" ] && [ -n "$JOB_COMPLETION_INDEX" ] && [ {{nodes}} -gt 1 ]; then
      echo "preempted, saved; waiting for the host that was asked to end"
      rm -f "$RUNNING"
      pause 1
      continue
    fi
    echo "preempted, saved; run the same again to go on"
    leave "${asked:-75}"
  fi
  if [ -s "$TRIVIUM_EXIT_CODE" ]; then
    echo "not tried again: config, machine, data or checkpoint is wrong"
    leave "$(cat "$TRIVIUM_EXIT_CODE")"
  fi
  if [ {{nodes}} -gt 1 ] && [ -z "$started" ]; then
    if [ $((SECONDS - began)) -ge {{host_seconds}} ]; then
      host=$(events | grep '"rank failed"' | tail -n 1 | host_of)
      echo "not all of {{nodes}} hosts came within {{host_seconds}} s (training.supervision.host_seconds); the last rank" \
        "that failed was on ${host:-an unknown host}"
      leave 1
    fi
    missed=$((missed + 1))
  else
    missed=0
  fi
  failure=$(grep -m 1 '"rank failed"' <<< "$news")
  host=$(host_of <<< "$failure")
  if [ "$missed" -eq 1 ]; then
    # After the loss of a host, another may come to a torchrun that is just ending. A second time in succession counts.
    uncounted="before ranks were started"
  elif [[ $failure == *'"host_lost": true'* && $host != "$(uname -n)" && $host != "$LOCAL_ADDR" ]]; then
    uncounted="after host $host was lost, which counts this failure"
  else
    note_failure "ended with $code"
    pause $((asked ? 0 : failures < 7 ? 1 << (failures - 1) : 60))
    continue
  fi
  rm -f "$RUNNING"
  echo "attempt ended with $code $uncounted; not counted as a failure of this host"
  pause $((asked ? 0 : 1))
done
