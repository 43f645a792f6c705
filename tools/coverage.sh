#!/usr/bin/env bash
# What the unit tests reach: runs those of a coverage build, prints the share of lines and branches for each room of src/, and
# writes BUILD_DIR/coverage/index.html, with every line. Usage: tools/coverage.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
find "$build" -name '*.gcda' -delete
tools/run_tests.sh "$build" --quick
mkdir -p "$build/coverage"
gcovr --root . --object-directory "$build" --filter 'src/' --exclude '.*_test\.(cpp|h)$' --exclude-throw-branches -j "$(nproc)" \
  --json-summary "$build/coverage/summary.json" --html-details "$build/coverage/index.html" >"$build/coverage/gcovr.log" 2>&1 ||
  { tail -20 "$build/coverage/gcovr.log"; exit 1; }
python3 - "$build/coverage/summary.json" <<'PYTHON'
import collections, json, os, sys

rooms = collections.defaultdict(collections.Counter)
for file in json.load(open(sys.argv[1]))["files"]:
    for room in (os.path.dirname(file["filename"]).removeprefix("src/") or "src", "all"):
        rooms[room].update({key: file[key] for key in ("line_total", "line_covered", "branch_total", "branch_covered")})

def share(counts, what):
    return f"{100 * counts[what + '_covered'] / max(1, counts[what + '_total']):5.1f} %"

print(f"{'room':24} {'lines':>7} {'reached':>8} {'branches':>9} {'reached':>8}")
for room in sorted(rooms, key=lambda name: (name == "all", name)):
    counts = rooms[room]
    print(f"{room:24} {counts['line_total']:7} {share(counts, 'line'):>8} {counts['branch_total']:9} {share(counts, 'branch'):>8}")
PYTHON
echo "every line: $build/coverage/index.html"
