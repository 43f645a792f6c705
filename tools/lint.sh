#!/usr/bin/env bash
# clang-tidy over sources, with the checks of .clang-tidy; fails if it says anything. Slow: ten seconds to a minute a file.
# Usage: tools/lint.sh [FILE...]      without files: those that differ from the branch BASE (main), and new ones
# build-lint/ is configured for it, never built: there every source has a command of its own. CUDA sources are not looked at.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-main}
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  since=$(git merge-base "$base" HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$since"; git ls-files -o --exclude-standard; } |
    grep -E '\.(h|cpp)$' | grep -v -e '-inl\.h$' | sort -u)
fi
[ ${#files[@]} -gt 0 ] || { echo "lint: no source differs from $base"; exit 0; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset release -B build-lint -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_UNITY_BUILD=OFF -DBRAID_CUDA=OFF >"$log" 2>&1 ||
  { cat "$log"; exit 1; }
echo "lint: ${#files[@]} files"
printf '%s\n' "${files[@]}" | xargs -P "${JOBS:-$(nproc)}" -n 1 clang-tidy-14 -p build-lint --quiet \
  --extra-arg=-Wno-pragma-once-outside-header 2>"$log" || { grep -E 'error: ' "$log" || true; exit 1; }
