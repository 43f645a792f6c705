#!/usr/bin/env bash
# Runs the tests of a program that use a GPU, under the limits of other cards, and ends with one line for each card.
# Usage: tools/test_gpu.sh BUILD_DIR PROGRAM [GTEST_FILTER [CARD...]]
#
# CARD: what BRAID_GPU takes, or none; by default none 8.0 8.6 8.9 12.0. Several GPUs (CUDA_VISIBLE_DEVICES) share the cards out; on
# each, 16 processes (PROCESSES) share the tests out. One that takes more than 600 s (SECONDS_EACH) or crashes is a failure. Tests that
# count a GPU's memory run last, by themselves, and only without a filter.
set -uo pipefail
[ $# -ge 2 ] && command -v nvidia-smi >/dev/null || { echo "usage: see the head of $0; it needs a GPU (nvidia-smi)" >&2; exit 2; }
program=$(realpath "$1")/$2
memory=
case ${3:-}$2 in
  engine_test) filter='*Cuda*:*cuda*:*Gpu*-*GpuMemory*' memory='*GpuMemory*' ;;
  ops_test) filter='-*ScalarPath*:Kernels*:KvUnitKernels*' ;; # these compare paths of the CPU
  *) filter=${3:-*} ;;
esac
shift $(($# < 3 ? $# : 3))
cards=("$@")
[ ${#cards[@]} -gt 0 ] || cards=(none 8.0 8.6 8.9 12.0)
export BRAID_TEST_DEVICES=gpu
PROCESSES=${PROCESSES:-16}
SECONDS_EACH=${SECONDS_EACH:-600}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Part INDEX of COUNT of the tests; the log ends with how it ended.
run_part() { # LOG INDEX COUNT FILTER
  GTEST_SHARD_INDEX=$2 GTEST_TOTAL_SHARDS=$3 timeout "$SECONDS_EACH" "$program" --gtest_brief=1 --gtest_filter="$4" >"$1" 2>&1
  echo "ended with $?" >>"$1"
}

# The numbers of tests in lines like "[  PASSED  ] 12 tests.", added up.
count() { cat "$1"/* | sed -nE "s/^.*\[  $2 +\] ([0-9]+) tests?.*/\1/p" | awk '{ n += $1 } END { print n + 0 }'; }

run_card() { # CARD
  local card=$1 log=$logs/$1 start part unfinished=0
  start=$(date +%s)
  mkdir -p "$log"
  export BRAID_GPU=$card
  [ "$card" != none ] || unset BRAID_GPU
  for ((part = 0; part < PROCESSES; ++part)); do run_part "$log/$part" "$part" "$PROCESSES" "$filter" & done
  wait
  [ -z "$memory" ] || run_part "$log/memory" 0 1 "$memory"
  for part in "$log"/*; do
    if ! grep -q '^ended with [01]$' "$part"; then
      unfinished=$((unfinished + 1))
      tail -n 30 "$part"
    elif ! grep -q '^ended with 0$' "$part"; then
      grep -v -e '\[report\]' -e Skipped "$part"
    fi
    grep -F '[report]' "$part" | sed "s/^/$card: /"
  done
  printf '%s, %s: %s passed, %s failed, %s skipped, %s processes not to their end, %s s\n' "$(basename "$program")" "$card" \
    "$(count "$log" PASSED)" "$(count "$log" FAILED)" "$(count "$log" SKIPPED)" "$unfinished" $(($(date +%s) - start)) |
    tee "$logs/$card.line"
}

IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($(nvidia-smi -L | wc -l) - 1)))}"
for ((n = 0; n < ${#gpus[@]}; ++n)); do
  (for ((i = n; i < ${#cards[@]}; i += ${#gpus[@]})); do CUDA_VISIBLE_DEVICES=${gpus[n]} run_card "${cards[i]}"; done) &
done
wait
echo
cat "$logs"/*.line
[ "$(cat "$logs"/*.line | grep -c ' [1-9][0-9]* passed, 0 failed, .* 0 processes not to their end')" -eq ${#cards[@]} ]
