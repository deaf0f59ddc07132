#!/bin/bash
# {{title}}
# Written by `trivium launch --print torchrun`. {{how}}

OUT={{out}}
{{addresses}}FAILURES=$OUT/failures-{{name}}${LOCAL_ADDR:+-$LOCAL_ADDR}
RUNNING=$OUT/running-{{name}}${LOCAL_ADDR:+-$LOCAL_ADDR}
rm -f "$FAILURES" "$RUNNING"  # left by a killed script; a new start has all restarts
{{expects}}{{attempts}}
