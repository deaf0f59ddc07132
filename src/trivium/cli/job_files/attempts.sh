# Every rank holds two connections to the store at which all meet, on the first host.
ulimit -S -n "$(ulimit -H -n)"
EVENTS=$OUT/training/events.jsonl
mkdir -p "$OUT"
export TRIVIUM_EXIT_CODE=$OUT/exit-code-{{name}}  # torchrun turns every exit code into 1; here the first says what was wrong
# Seconds to save in, once asked to end. torch 2.11's torchrun does not read it, and gives 30.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={{grace}}
asked=  # the exit code of what is asked to end
child=
end() { asked=${asked:-$1}; [ -n "$child" ] && kill -TERM "$child"; }  # torchrun passes it on to its ranks, and waits
trap 'end 75' TERM USR1
trap 'end 130' INT  # Ctrl-C, which otherwise would end this script alone

last_event() { tail -n 1 "$EVENTS" 2> /dev/null; }
newest() { find "$OUT/training/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2> /dev/null | sort -V | tail -n 1; }
leave() { rm -f "$FAILURES" "$RUNNING"; exit "$1"; }  # no attempt follows: the next start has all its restarts again
note_failure() { at=$(newest); at=${at:-none}; echo "$at" >> "$FAILURES"; failures=$(grep -cxF "$at" "$FAILURES"); }
pause() {
  sleep "$1" &
  wait $!  # a signal ends the waiting
  [ -z "$asked" ] && return
  echo "asked to end before it saved again; run the same again to go on"
  leave "$asked"
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
    pause 1
  done
}

before=$(last_event)  # the last word of a former part of the run
[ -e "$RUNNING" ] && note_failure  # an attempt was killed together with this script
while true; do
  wait_for_first_host  # which is no attempt
  rm -f "$TRIVIUM_EXIT_CODE"  # no rank of any host starts before all hosts have come here
  touch "$RUNNING"
  began=$SECONDS
  event=$(last_event)
  # Not restarted by torchrun (--max-restarts 0): its agents would meet again with one that died a moment ago.
  {{torchrun}} --nnodes {{nodes}} --nproc-per-node {{per_node}} --max-restarts 0 \
    {{rendezvous}} \
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    -m {{module}} &
  child=$!
  wait "$child"
  code=$?
  while kill -0 "$child" 2> /dev/null; do  # a signal ended the waiting, not the training
    wait "$child"
    code=$?
  done
  child=
  rm -f "$RUNNING"
  [ "$code" -eq 0 ] && leave 0
  last=$(last_event)  # says whether the ranks were preempted
  if [ "$last" != "$before" ] && [[ $last == *'"preempted"'* ]]; then
    echo "preempted, saved; run the same again to go on"
    leave "${asked:-75}"
  fi
  if [ -s "$TRIVIUM_EXIT_CODE" ]; then
    echo "not tried again: config, machine, data or checkpoint is wrong"
    leave "$(cat "$TRIVIUM_EXIT_CODE")"
  fi
  if [ {{nodes}} -gt 1 ] && [ $((SECONDS - began)) -ge {{host_seconds}} ] && [ "$last" = "$event" ]; then
    host=$(grep '"rank failed"' "$EVENTS" 2> /dev/null | tail -n 1 | sed -n 's/.*"host": "\([^"]*\)".*/\1/p')
    echo "not all of {{nodes}} hosts came within {{host_seconds}} s (training.supervision.host_seconds); the last rank" \
      "that failed was on ${host:-an unknown host}"
    leave 1
  fi
  # Failures count only while the job gets no further: those with the same newest checkpoint.
  note_failure
  echo "attempt ended with $code; failure $failures at the same checkpoint ($at), {{restarts}} of which are tried again"
  [ -z "$asked" ] && [ "$failures" -gt {{restarts}} ] && leave "$code"
  pause $((asked ? 0 : failures < 7 ? 1 << (failures - 1) : 60))
done
