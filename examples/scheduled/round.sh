#!/bin/sh
# One round over the files that clients have put into incoming/. Usage: round.sh FOLDER F, for at most F Byzantine clients.
# Exit status 3: too few clients can take part; the model stays, and the round's files and report tell why.
set -eu
cd "$1"
now=$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p incoming rounds
mv incoming "rounds/$now"  # what comes from here on belongs to the next round
mkdir incoming
status=0
${BARTIZAN:-bartizan} aggregate "rounds/$now/*.safetensors" --byzantine "$2" --reference model.safetensors \
    --out next.safetensors --report "rounds/$now.json" || status=$?
[ "$status" -ne 0 ] || mv next.safetensors model.safetensors
exit "$status"
