#!/usr/bin/env bash
# Runs the SDKs of OpenAI and Anthropic against a braid server with the built-in model; with --agents Codex, Claude Code
# and OpenCode instead (a download of 1 GB).
# Usage: tests/clients/run.sh PATH_OF_BRAID [--agents]      Exit code 77: skipped, because node or they cannot be had.
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
fi
if ! npm install --no-save --no-audit --no-fund --loglevel=error "${packages[@]}" >install.log 2>&1; then
  echo "skipped: the clients could not be installed"
  cat install.log
  exit 77
fi
BRAID="$braid" exec node --test --test-concurrency=1 "$tests"
