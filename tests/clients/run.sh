#!/usr/bin/env bash
# Runs the SDKs of OpenAI and Anthropic against a braid server with the built-in model. Instead of them:
#   --agents   Codex, Claude Code and OpenCode (a download of 1 GB)
#   --page     the web page in headless Chromium (CHROMIUM: its path; else it is looked for); screenshots go to the folder
#              page-screenshots beside the program
# Usage: tests/clients/run.sh PATH_OF_BRAID [--agents|--page]   Exit code 77: skipped, because node or they cannot be had.
set -euo pipefail

braid=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
folder=${BRAID_CLIENTS_DIR:-${TMPDIR:-/tmp}/braid-clients}

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "skipped: node and npm are needed"
  exit 77
fi
mkdir -p "$folder"
cp "$here/package.json" "$here"/*.mjs "$folder/"
cd "$folder"
packages=() tests=sdk.test.mjs
if [ "${2:-}" = "--agents" ]; then
  packages=(@openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197 opencode-ai@1.18.33)
  tests=agents.test.mjs
elif [ "${2:-}" = "--page" ]; then
  for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    CHROMIUM=${CHROMIUM:-$(command -v "$name" || true)}
  done
  if [ -z "$CHROMIUM" ]; then
    echo "skipped: no Chromium (apt-get install chromium-headless-shell, or CHROMIUM=/path/of/it)"
    exit 77
  fi
  export MODELS="$here/../goldens"  # further models, to be changed to
  export CHROMIUM SCREENSHOTS=${SCREENSHOTS:-$(dirname "$braid")/page-screenshots}
  tests=page.test.mjs
  rm -rf ui && mkdir ui
  cp "$here/../../src/server/ui/"* ui/
  packages=(playwright-core@1.65.1 axe-core@4.14.1
    $(node -p 'Object.entries(JSON.parse(fs.readFileSync("ui/package.json")).devDependencies).map((one) => one.join("@")).join(" ")'))
fi
if ! npm install --no-save --no-audit --no-fund --loglevel=error "${packages[@]}" >install.log 2>&1; then
  echo "skipped: the clients could not be installed"
  cat install.log
  exit 77
fi
if [ "$tests" = page.test.mjs ]; then
  node ui/build.mjs --check
  node --test ui/pure.test.js
fi
BRAID="$braid" exec node --test --test-concurrency=1 "$tests"
