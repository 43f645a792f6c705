#!/usr/bin/env bash
# Small jobs for the built-in model, streamed as they are generated. Usage: tools/demo.sh BRAID
set -euo pipefail
braid=$1
here=$(cd "$(dirname "$0")" && pwd)
title() { printf '\n\033[1m%s\033[0m\n' "$1"; }

title "1. Find a fact in a page of text"
tail -1 "$here/demo/page.txt"
"$braid" run -f "$here/demo/page.txt" --think off --temp 0 -n 64 </dev/null

title "2. Answer with a function call"
echo "What is the weather in Paris?    (offered: get_weather, find_candle)"
"$braid" run -p "What is the weather in Paris?" --tools "$here/demo/tools.json" --think off --temp 0 -n 96 </dev/null

title "3. Complete a Python function"
"$braid" run --think off --temp 0 -n 96 -p 'Complete the following Python function.

def count_words(text):
    """Return how often each word occurs in text."""
' </dev/null
title "4. The same with speculation: a small drafter proposes tokens, the model verifies them in one step"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
question="Call find_candle with city Rome."
echo "$question"
ask() { "$braid" run -v -p "$question" --tools "$here/demo/tools.json" --think off --temp 0 -n 96 "$@" </dev/null; }
ask --spec-type none >"$logs/plain" 2>"$logs/plain_summary"
ask --spec-always -md "$here/../models/braid-demo-dflash" >"$logs/drafted" 2>"$logs/drafted_summary"
cat "$logs/drafted"
echo
steps=$(grep -o '[0-9.]* tokens a step' "$logs/drafted_summary" || true)
if cmp -s "$logs/plain" "$logs/drafted"; then
  echo "${steps:-no token was accepted} instead of 1, and the same answer byte for byte. A large model waits for its weights"
  echo "in each step, so fewer steps are faster; this tiny one gains nothing. Your model: $braid bench --spec mtp -m FILE"
else
  echo "The answers differ, from here on:"
  diff "$logs/plain" "$logs/drafted"
fi

printf '\nYour turn: %s run      (chat)      %s run --help\n' "$braid" "$braid"
