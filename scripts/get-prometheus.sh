#!/usr/bin/env bash
# Puts prometheus and promtool, which tests of alerts run, into the folder named by the first argument.
# Those on PATH are linked. Else they are taken out of Debian's package, which is not installed: no service starts.
set -euo pipefail

mkdir -p "$1"
target=$(cd "$1" && pwd)
programs=(prometheus promtool)
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    for name in "${programs[@]}"; do
        found=$(command -v "$name")
        [ "$found" -ef "$target/$name" ] || ln -sf "$found" "$target/$name" # the folder itself may be on PATH
    done
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "gapless: prometheus and promtool are not on PATH, and there is no apt-get; install them" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fetch=(apt-get -qq -o APT::Sandbox::User= download prometheus)
if ! "${fetch[@]}" 2>/dev/null; then
    apt-get -qq update
    "${fetch[@]}"
fi
dpkg-deb --extract prometheus_*.deb .
for name in "${programs[@]}"; do
    install -m 755 "usr/bin/$name" "$target/$name"
done
