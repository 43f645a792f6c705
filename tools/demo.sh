#!/usr/bin/env bash
# Three small jobs for the built-in model, streamed as they are generated, and one of them with drafts. Usage: tools/demo.sh BRAID
set -euo pipefail
braid=$1
here=$(cd "$(dirname "$0")" && pwd)
title() { printf '\n\033[1m%s\033[0m\n' "$1"; }

title "1. Find a fact in a page of text"
tail -1 "$here/demo/page.txt"
"$braid" run -f "$here/demo/page.txt" --think off --temp 0 -n 64

title "2. Answer with a function call"
echo "What is the weather in Paris?    (offered: get_weather, find_candle)"
"$braid" run -p "What is the weather in Paris?" --tools "$here/demo/tools.json" --think off --temp 0 -n 96

title "3. Complete a Python function"
"$braid" run --think off --temp 0 -n 96 -p 'Complete the following Python function.

def count_words(text):
    """Return how often each word occurs in text."""
'
title "4. The same with drafts: guessed ahead by a small drafter, verified together by the model"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
question="Call find_candle with city Rome."
echo "$question"
"$braid" run -p "$question" --tools "$here/demo/tools.json" --think off --temp 0 -n 96 --spec-type none \
  >"$logs/plain" 2>"$logs/plain_summary"
"$braid" run -p "$question" --tools "$here/demo/tools.json" --think off --temp 0 -n 96 --spec-always \
  -md "$here/../models/braid-demo-dflash" >"$logs/drafted" 2>"$logs/drafted_summary"
cat "$logs/drafted"
gave() { grep -o 'generated [^;]*' "$1" | head -1; }
echo
echo "without drafts: $(gave "$logs/plain_summary")"
echo "with drafts:    $(gave "$logs/drafted_summary")"
if cmp -s "$logs/plain" "$logs/drafted"; then
  echo "Both answers are the same, byte for byte."
else
  echo "The answers differ, from here on:"
  diff "$logs/plain" "$logs/drafted"
fi
echo "What drafts give on more prompts: $braid bench --spec mtp,dflash -md models/braid-demo-dflash --prompts bench/prompts.jsonl"

printf '\nYour turn: %s run      (chat)      %s run --help\n' "$braid" "$braid"
