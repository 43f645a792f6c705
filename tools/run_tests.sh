#!/usr/bin/env bash
# Runs test programs and ends with one line: N passed, M failed. Usage: tools/run_tests.sh BUILD_DIR [--quick] [PROGRAM...]
# Without names: all that are built, the longest first. Two run at once on a few cores; one does if there are many, which each program
# pins its threads to, or a GPU, whose memory it measures.
# What a test prints on purpose (lines that start with "[report]") is shown; the rest only when it fails.
# --quick: for builds in which all is many times slower (sanitizers, coverage): as many programs at once as there are cores, the
# longest in parts, without the tests that `left_out` names.
set -uo pipefail
build=$1
shift
quick=
[ "${1:-}" != --quick ] || { quick=1; shift; }
cd "$build" || exit 1
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
cores=$(nproc)

# Tests that cannot be run there, and those that would take minutes of processor time and reach no code that others do not reach.
left_out() {
  case $1 in
    # Large shapes and every format at many sizes: the same kernels run in the tests of small ones.
    ops_test) echo 'Linear.AgreesOnLargeShapes:StoreAttend.GivesTheBytesOfTheTwoOps:*MoeFewTokens*' ;;
    # Whole models, and the reference on all of an engine's tests (its own, Dflash.TheReference*, stay): small ones take the same way on
    # the CPU. Thousands of chats: the other tests of prefixes are alike. Simulations of a budget, and counts of draws: numbers alone.
    # The last takes all file descriptors away, of which the check of virtual tables opens two to see whether memory can be read.
    engine_test)
      echo 'Models/*:*Golden*:*DemoDrafts*:DemoWindow*:*KvFormats*:KvQuality*:Devices/*/ref:DraftBudget.*:Sampler.DrawsFollow*:Prefix.TwoThousandChats*:Prefix.TextsThatComeOnce*:Scheduler.RandomPrograms*:Disk.TooManyOpenFiles*' ;;
    # Numbers alone: every code point, and every period of random texts.
    text_test) echo 'LoopDetector.SaysWhatTryingEveryPeriodSays:Nfc.EveryCodePoint*:Unicode.EveryScalarValue*' ;;
    # The first compare resident memory, of which sanitizers take more. The second wait for answers with a limit of time, and
    # HostileSchemas compiles the like. The others are many rounds of what one round of another test does.
    server_test | threads_test)
      echo 'HttpMemory.Of*:AbuseTest.SchemasThatExplode:RandomForms.*More*:SchemaBudget.MayEnd*:GrammarCache.ManyAgents*:Loops.AnAnswerIsEndedOnly*' ;;
  esac
}

# A program, or a part of it: its line, and "PASSED FAILED" for the sum.
run_one() { # NAME [PART PARTS]
  local name=$1 part=${2:-0} parts=${3:-1} filter='*' log start code ok bad
  [ -z "$quick" ] || filter="*-$(left_out "$name")"
  log=$(mktemp)
  start=$(date +%s)
  [ "$parts" -eq 1 ] || export GTEST_SHARD_INDEX=$part GTEST_TOTAL_SHARDS=$parts
  "./$name" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
  code=$?
  ok=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\?\..*/\1/p' "$log" | tail -1)
  bad=$(sed -n 's/^ *\([0-9]*\) FAILED TESTS\?.*/\1/p' "$log" | tail -1)
  exec 9>>"$counts"
  flock 9  # what two programs say is not mixed
  if [ $code -ne 0 ]; then
    cat "$log"
    [ -n "$bad" ] || bad=1
  elif [ -z "$quick" ]; then
    grep -F '[report]' "$log"
  fi
  [ "$parts" -eq 1 ] || name="$name $((part + 1))/$parts"
  printf '%-28s %5s passed  %s failed  %3d s\n' "$name" "${ok:-0}" "${bad:-0}" $(($(date +%s) - start))
  echo "${ok:-0} ${bad:-0}" >&9
  rm -f "$log"
}
export -f run_one left_out
export quick counts

programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then
  longest=(engine_test ops_test program_test install_test)
  mapfile -t programs < <(ls "${longest[@]/#/./}" ./*_test 2>/dev/null -U | xargs -r -n 1 basename | awk '!seen[$0]++')
fi
at_once=$((cores > 1 && cores <= 8 ? 2 : 1))
! nvidia-smi -L >/dev/null 2>&1 || at_once=1
[ -z "$quick" ] || at_once=$cores
for name in "${programs[@]}"; do
  parts=1
  case $quick$name in 1engine_test | 1threads_test) parts=$((cores < 4 ? cores : 4)) ;; esac
  for ((part = 0; part < parts; ++part)); do echo "$name $part $parts"; done
done | xargs -r -P "$at_once" -L 1 bash -uo pipefail -c 'run_one "$@"' run_one
read -r passed failed < <(awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }' "$counts")
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
