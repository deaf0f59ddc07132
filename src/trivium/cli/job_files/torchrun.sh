#!/bin/bash
# {{title}}
# Written by `trivium launch --print torchrun`. {{how}}

OUT={{out}}
{{addresses}}FAILURES=$OUT/failures-{{name}}${LOCAL_ADDR:+-$LOCAL_ADDR}
RUNNING=$OUT/running-{{name}}${LOCAL_ADDR:+-$LOCAL_ADDR}
rm -f "$FAILURES" "$RUNNING"  # of this script when it was killed; who starts it again wants it tried again
{{expects}}{{attempts}}
