#!/bin/bash
# {{title}}
# Written by `trivium launch --print torchrun`. {{how}}

# Every rank holds two connections to the store at which all meet, on the first host.
ulimit -S -n "$(ulimit -H -n)"

OUT={{out}}
EVENTS=$OUT/training/events.jsonl
mkdir -p "$OUT"
export TRIVIUM_EXIT_CODE=$OUT/exit-code-{{name}}  # torchrun turns every exit code into 1; here the first says what was wrong
{{addresses}}{{expects}}# Seconds to save in, once asked to end. torch 2.11's torchrun does not read it, and gives 30.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={{grace}}
asked=  # the exit code of what is asked to end
child=
end() { asked=${asked:-$1}; [ -n "$child" ] && kill -TERM "$child"; }  # torchrun passes it on to its ranks, and waits
trap 'end 75' TERM USR1
trap 'end 130' INT  # Ctrl-C, which otherwise would end this script alone

before=$(tail -n 1 "$EVENTS" 2> /dev/null)  # the last word of a former part of the run
for attempt in $(seq 0 {{restarts}}); do
  rm -f "$TRIVIUM_EXIT_CODE"  # no rank of any host starts before all hosts have come here
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
  [ "$code" -eq 0 ] && exit 0
  # The ranks' last word says whether they were preempted.
  last=$(tail -n 1 "$EVENTS" 2> /dev/null)
  if [ "$last" != "$before" ] && [[ $last == *'"preempted"'* ]]; then
    echo "preempted, saved; run the same again to go on"
    exit "${asked:-75}"
  fi
  if [ -s "$TRIVIUM_EXIT_CODE" ]; then
    echo "not tried again: config, machine, data or checkpoint is wrong"
    exit "$(cat "$TRIVIUM_EXIT_CODE")"
  fi
  echo "attempt $attempt ended with $code"
  if [ -z "$asked" ] && [ "$attempt" -lt {{restarts}} ]; then
    sleep $((attempt < 6 ? 1 << attempt : 60)) &
    wait $!  # a signal ends the waiting
  fi
  if [ -n "$asked" ]; then
    echo "asked to end before it saved again; run the same again to go on"
    exit "$asked"
  fi
done
exit "$code"
