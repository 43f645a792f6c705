#!/usr/bin/env bash
# The loads of bench/server_load.cpp against a server with the built-in model and its default limits; docs/serving.md has what
# they gave.
# Usage: bench/server_load.sh PATH_OF_BRAID [PATH_OF_SERVER_LOAD] [streams|crowd|leave|flood|schemas|cost]...
# (all of them by default)
set -euo pipefail
braid=$(realpath "$1")
shift
tool=$(dirname "$braid")/server_load
if [ -n "${1:-}" ] && [ -x "$1" ]; then tool=$(realpath "$1") && shift; fi
[ $# -gt 0 ] || set -- streams crowd leave flood schemas cost

ulimit -n "$(ulimit -Hn)"
log=$(mktemp)
pid=
stop() {
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null && wait "$pid" || true; fi
  pid=
}
trap 'stop; rm -f "$log"' EXIT

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

result=0
for load in "$@"; do
  case $load in
    streams) start && "$tool" "$port" "$pid" streams 200 "${SECONDS_OF_LOAD:-60}" || result=1 ;;
    crowd) start && "$tool" "$port" "$pid" crowd "${SECONDS_OF_LOAD:-10}" "${ROUNDS:-3}" || result=1 ;;
    leave) start && "$tool" "$port" "$pid" leave "${LEAVERS:-10000}" || result=1 ;;
    flood) start && "$tool" "$port" "$pid" flood "${FLOOD_MB:-600}" || result=1 ;;
    schemas) start && "$tool" "$port" "$pid" schemas "${SECONDS_OF_LOAD:-10}" || result=1 ;;
    cost) start --parallel 100 -c 1024 && "$tool" "$port" "$pid" cost 100 "${SECONDS_OF_LOAD:-15}" || result=1 ;;
    *) echo "unknown load $load" && exit 2 ;;
  esac
done
exit $result
