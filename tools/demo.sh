#!/usr/bin/env bash
# Three small jobs for the built-in model, streamed as they are generated. Usage: tools/demo.sh BRAID
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
printf '\nYour turn: %s run      (chat)      %s run --help\n' "$braid" "$braid"
