#!/usr/bin/env bash
# Runs the SDKs of OpenAI and Anthropic against a braid server with the built-in model.
# Usage: tests/clients/run.sh PATH_OF_BRAID      Exit code 77: skipped, because node or the SDKs cannot be had.
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
if ! npm install --no-audit --no-fund --loglevel=error >install.log 2>&1; then
  echo "skipped: the SDKs could not be installed"
  cat install.log
  exit 77
fi
BRAID="$braid" exec node --test --test-concurrency=1 sdk.test.mjs
