#!/usr/bin/env bash
# Runs every fuzz target for a while on its corpus, as many at once as there are cores. Usage: tools/fuzz.sh BUILD_DIR SECONDS
set -euo pipefail
build=$1
seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)

# One target. What it found stays in a folder of /tmp, what it said is shown.
fuzz() {
  local name work
  name=$(basename "$1" _fuzz)
  work=$(mktemp -d)
  mkdir "$work/corpus"
  local dictionary="$root/tests/fuzz/dictionaries/$name.dict" options=()
  [ ! -f "$dictionary" ] || options+=("-dict=$dictionary")
  if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=0 \
    "${options[@]}" -artifact_prefix="$work/" "$work/corpus" "$root/tests/fuzz/corpus/$name" >"$work/log" 2>&1; then
    echo "fuzz $name: $(grep -E '^Done' "$work/log" | tail -1)"
    rm -rf "$work"
  else
    tail -60 "$work/log"
    echo "fuzz $name: FOUND something, input in $work"
    return 1
  fi
}
export -f fuzz
export root seconds

targets=("$build"/*_fuzz)
[ ${#targets[@]} -ge 4 ] || { echo "only ${#targets[@]} fuzz targets were built"; exit 1; }
echo "fuzz: ${#targets[@]} targets, $seconds s each"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
