#!/usr/bin/env bash
# Runs op tests on GPUs under compute-sanitizer, each in a process of its own, and ends with one line for each tool.
# Usage: tools/sanitize_gpu.sh BUILD_DIR [GTEST_FILTER [TOOL...]]
#
# TOOL: memcheck racecheck by default; initcheck, synccheck. Kernels run some hundred times slower: 16 processes for each GPU of
# CUDA_VISIBLE_DEVICES, or PROCESSES in all, share the tests out until 3,600 s (SECONDS_ALL) are over; what has not come to its end is
# named. For racecheck configure with -DBRAID_SANITIZE_CUDA=ON: in other builds it reports what it does not follow
# (src/ops/cuda/barriers.cuh). BRAID_GPU=8.6 before it checks what an RTX 3090 gets.
set -uo pipefail
[ $# -ge 1 ] && command -v nvidia-smi >/dev/null || { echo "usage: see the head of $0; it needs a GPU (nvidia-smi)" >&2; exit 2; }
export PROGRAM="$1/ops_test" BRAID_TEST_DEVICES=gpu
filter=${2:-*}
shift $(($# < 2 ? $# : 2))
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
GPUS=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($(nvidia-smi -L | wc -l) - 1)))}
LOGS=$(mktemp -d)
END=$(($(date +%s) + ${SECONDS_ALL:-3600}))
export GPUS LOGS END
trap 'rm -rf "$LOGS"' EXIT

# One test: its line in LOGS/TOOL is "clean", "FAULTS", "no-gpu" (nothing of it runs there) or "unfinished", and its name.
check() { # NUMBER TOOL TEST
  local left=$((END - $(date +%s))) log=$LOGS/log.$1 result=unfinished gpus
  IFS=, read -ra gpus <<<"$GPUS"
  if [ "$left" -gt 0 ]; then
    CUDA_VISIBLE_DEVICES=${gpus[$1 % ${#gpus[@]}]} timeout "$left" compute-sanitizer --error-exitcode 9 --print-limit 20 --tool "$2" \
      "$PROGRAM" --gtest_brief=1 --gtest_filter="$3" >"$log" 2>&1
    case $? in
      0) result=clean ;;
      124) ;;
      *) if grep -q 'before first instrumented API call' "$log"; then result=no-gpu; else result=FAULTS; fi ;;
    esac
    [ $result != FAULTS ] || { echo "$2 $3"; cat "$log"; }
  fi
  echo "$result $3" >>"$LOGS/$2"
}
export -f check

tests=$("$PROGRAM" --gtest_list_tests --gtest_filter="$filter" | sed 's/ *#.*//' | awk '/^[^ ].*\.$/ { suite = $1 } /^  / { print suite $1 }')
for tool in "${tools[@]}"; do
  awk -v tool="$tool" '{ print NR, tool, $1 }' <<<"$tests"
done | xargs -r -P "${PROCESSES:-$((16 * $(tr ',' '\n' <<<"$GPUS" | wc -l)))}" -L 1 bash -c 'check "$@"' check
code=0
for tool in "${tools[@]}"; do
  grep -E '^(FAULTS|unfinished)' "$LOGS/$tool"
  awk -v tool="$tool" '{ n[$1]++ } END { printf "%s: %d tests clean, %d with faults, %d unfinished, %d touch no GPU\n",
    tool, n["clean"], n["FAULTS"], n["unfinished"], n["no-gpu"] }' "$LOGS/$tool"
  ! grep -qE '^(FAULTS|unfinished)' "$LOGS/$tool" || code=1
done
exit $code
