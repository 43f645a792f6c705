#!/usr/bin/env bash
# The loads of bench/server_load.cpp against a server with the built-in model and its default limits;
# docs/design/server.md says what must hold.
# Usage: bench/server_load.sh PATH_OF_BRAID [PATH_OF_SERVER_LOAD] [streams|churn|crowd|leave|flood|schemas|hostile|cost]...
# (all but churn by default)
# churn runs without guesses, with the head's and with the drafter's, and their texts must be the same. SPEC="none auto" chooses,
# KV_MEMORY is the server's --kv-memory (default: 24M), CHURN_OPTIONS are more of its options: CHURN_OPTIONS="-ctk c4 -ctv c4".
set -euo pipefail
braid=$(realpath "$1")
shift
tool=$(dirname "$braid")/server_load
if [ -n "${1:-}" ] && [ -x "$1" ]; then tool=$(realpath "$1") && shift; fi
[ $# -gt 0 ] || set -- streams crowd leave flood schemas hostile cost

ulimit -n "$(ulimit -Hn)"
log=$(mktemp)
pid=
stop() {
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null && wait "$pid" || true; fi
  pid=
}
trap 'stop; rm -f "$log" "$log".*' EXIT

start() {  # options of braid serve
  stop
  BRAID_LOG=${BRAID_LOG:-info} "$braid" serve --port 0 --temp 0 "$@" >/dev/null 2>"$log" &
  pid=$!
  for _ in $(seq 200); do
    port=$(sed -n 's|.* on http://127.0.0.1:\([0-9]*\),.*|\1|p' "$log" | head -1)
    [ -z "$port" ] || return 0
    sleep 0.1
  done
  cat "$log"
  exit 2
}

# 200 streams, KV blocks for a third of them or less. Memory for checkpoints that is soon used up: what is taken and not touched
# yet would look like a leak.
churn() {
  local spec failed=0 drafter
  drafter=$(realpath "$(dirname "$0")/../models/braid-demo-dflash")
  for spec in ${SPEC:-none auto dflash}; do
    local guesses=(--spec-type "$spec" --spec-always)
    if [ "$spec" = dflash ]; then guesses+=(-md "$drafter"); fi
    # shellcheck disable=SC2086
    start --parallel 200 -c 1024 --kv-memory "${KV_MEMORY:-24M}" --state-memory 48M "${guesses[@]}" ${CHURN_OPTIONS:-}
    echo "churn: --spec-type $spec ${CHURN_OPTIONS:-}"
    "$tool" "$port" "$pid" churn 200 "${SECONDS_OF_LOAD:-60}" | tee "$log.out" || failed=1
    sed -n 's/.*hash of their texts //p' "$log.out" >>"$log.hashes"
  done
  if [ "$(sort -u "$log.hashes" | wc -l)" != 1 ]; then
    echo "churn: guesses changed texts that were written alone" && failed=1
  fi
  return $failed
}

result=0
for load in "$@"; do
  case $load in
    streams) start && "$tool" "$port" "$pid" streams 200 "${SECONDS_OF_LOAD:-60}" || result=1 ;;
    churn) churn || result=1 ;;
    crowd) start && "$tool" "$port" "$pid" crowd "${SECONDS_OF_LOAD:-10}" "${ROUNDS:-3}" || result=1 ;;
    leave) start && "$tool" "$port" "$pid" leave "${LEAVERS:-10000}" || result=1 ;;
    flood) start && "$tool" "$port" "$pid" flood "${FLOOD_MB:-600}" || result=1 ;;
    schemas) start && "$tool" "$port" "$pid" schemas "${SECONDS_OF_LOAD:-10}" || result=1 ;;
    hostile) start && "$tool" "$port" "$pid" hostile "${SECONDS_OF_LOAD:-10}" || result=1 ;;
    cost) start --parallel 100 -c 1024 && "$tool" "$port" "$pid" cost 100 "${SECONDS_OF_LOAD:-15}" || result=1 ;;
    *) echo "unknown load $load" && exit 2 ;;
  esac
done
exit $result
