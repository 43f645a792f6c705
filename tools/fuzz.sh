#!/usr/bin/env bash
# Runs every fuzz target for a while on its corpus. Usage: tools/fuzz.sh BUILD_DIR SECONDS
set -euo pipefail
build=$1
seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
ran=0
for target in "$build"/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target" _fuzz)
  work=$(mktemp -d)
  echo "fuzz $name: $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=0 \
    -artifact_prefix="$work/" "$work" "$root/tests/fuzz/corpus/$name" >"$work/log" 2>&1 || {
    tail -60 "$work/log"
    echo "fuzz $name: FOUND something, input in $work"
    exit 1
  }
  grep -E '^Done|^#[0-9]+.*DONE' "$work/log" | tail -1
  rm -rf "$work"
  ran=$((ran + 1))
done
[ "$ran" -ge 4 ] || { echo "only $ran fuzz targets were built"; exit 1; }
