#!/usr/bin/env bash
# Does what the README says in a system that has nothing but `make`: debootstrap makes one in a folder, gets a clone of the last
# commit, and runs each target there. Prints how long each took, and the processor time of all it started. Needs root and debootstrap.
# Usage: tools/bare_root.sh FOLDER SUITE [TARGET...]      targets: demo test, if none is given
#   SUITE       bookworm, noble (of Ubuntu: COMPONENTS=main,universe)
#   MIRROR      (environment) where packages come from, if not from where debootstrap takes them
# The folder stays for another run: its system is kept, the clone is made anew.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,7s/^# //p' "$0"; exit 2; }
# The mounts below are this process's own, so that they end with it however it ends: a folder that still had /dev in it could not be
# removed without harm.
[ -n "${OWN_MOUNTS:-}" ] || exec env OWN_MOUNTS=1 unshare --mount "$0" "$@"
root=$1 suite=$2
shift 2
[ $# -gt 0 ] || set -- demo test
here=$(cd "$(dirname "$0")/.." && pwd)

if [ ! -x "$root/usr/bin/make" ]; then
  debootstrap --variant=minbase --include=make,ca-certificates --components="${COMPONENTS:-main}" "$suite" "$root" ${MIRROR:+"$MIRROR"} >/dev/null
fi
root=$(realpath "$root")
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
rm -rf "$root/src/braid"
git clone --quiet --depth 1 "file://$here" "$root/src/braid"

mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
for target in "$@"; do
  TIMEFORMAT="make $target: %0R s; processor time %0U s and %0S s of the system"
  time env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" make -C /src/braid "$target"
done
