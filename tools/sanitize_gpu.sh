#!/usr/bin/env bash
# Runs op tests on the GPU under compute-sanitizer: memcheck, then racecheck; ends with one line for each.
# Usage: tools/sanitize_gpu.sh BUILD_DIR [GTEST_FILTER]
#
# For racecheck configure with -DBRAID_SANITIZE_CUDA=ON: in other builds it reports what it does not follow
# (src/ops/cuda/primitives/barriers.cuh). Kernels run some hundred times slower, so a filter is wise. BRAID_GPU=8.6
# before it checks what an RTX 3090 gets.
set -uo pipefail
build=$1
filter=${2:-*}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
for tool in memcheck racecheck; do
  if BRAID_TEST_DEVICES=gpu compute-sanitizer --error-exitcode 9 --print-limit 20 --tool $tool \
      "$build/ops_test" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
    echo "$tool: nothing found; $(grep -m1 'PASSED' "$log")"
  else
    cat "$log"
    echo "$tool: see above"
    code=1
  fi
done
exit $code
