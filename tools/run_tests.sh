#!/usr/bin/env bash
# Runs every test program and ends with one line: N passed, M failed. Usage: tools/run_tests.sh BUILD_DIR [--quick]
# What a test prints on purpose (lines that start with "[report]") is shown; the rest only when it fails.
# --quick: for builds in which all is many times slower (sanitizers, coverage): without the tests that `left_out` names.
set -uo pipefail
build=$1
quick=${2:-}
cd "$build" || exit 1
passed=0
failed=0
log=$(mktemp)

# Tests of a program that would take minutes under sanitizers and reach no code that its others do not reach.
left_out() {
  case $1 in
    *) ;;
  esac
}

for program in $(ls ./*_test 2>/dev/null | sort); do
  name=$(basename "$program")
  filter='*'
  [ -z "$quick" ] || filter="*-$(left_out "$name")"
  start=$(date +%s)
  "$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
  code=$?
  ok=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\?\..*/\1/p' "$log" | tail -1)
  bad=$(sed -n 's/^ *\([0-9]*\) FAILED TESTS\?.*/\1/p' "$log" | tail -1)
  if [ $code -ne 0 ]; then
    cat "$log"
    [ -n "$bad" ] || bad=1
  elif [ -z "$quick" ]; then
    grep -F '[report]' "$log"
  fi
  printf '%-28s %5s passed  %s failed  %3d s\n' "$name" "${ok:-0}" "${bad:-0}" $(($(date +%s) - start))
  passed=$((passed + ${ok:-0}))
  failed=$((failed + ${bad:-0}))
done
rm -f "$log"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
