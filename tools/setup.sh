#!/usr/bin/env bash
# Installs what braid needs to build, and nothing that is there already. Debian 12 and Ubuntu 24.04.
# Usage: tools/setup.sh [--test] [--dev] [--proxies]
#   --test adds what the tests need, --dev what sanitizers, fuzzers, coverage, lint and format need. --proxies adds those whose files are
#   tests only where they are installed: on a machine with systemd they begin to serve port 80.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config libhwy-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libcli11-dev
  libspdlog-dev libfmt-dev libxxhash-dev libboost-dev libssl-dev libedit-dev)
for option in "$@"; do
  case $option in
    --test) packages+=(libgtest-dev json-schema-test-suite groff-base haproxy) ;;
    --dev) packages+=(clang-14 lld-14 libclang-rt-14-dev clang-format-14 clang-tidy-14 gcovr python3) ;;
    --proxies) packages+=(nginx-light caddy) ;;
    *) echo "tools/setup.sh: unknown option $option" >&2; exit 1 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  # One line per architecture the package is installed for.
  dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "tools/setup.sh: this is not a Debian or Ubuntu system; please install by hand: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "tools/setup.sh: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
