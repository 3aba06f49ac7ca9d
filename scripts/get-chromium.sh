#!/usr/bin/env bash
# Puts chromium, in which tests open the report of a load test, into the folder named by the first argument.
# One on PATH is linked. Else Debian's package is installed, with the font of the plots; that takes root.
set -euo pipefail

mkdir -p "$1"
target=$(cd "$1" && pwd)
if ! command -v chromium >/dev/null; then
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "gapless: chromium is not on PATH; install it: apt-get install chromium fonts-dejavu-core, as root" >&2
        exit 2
    fi
    install=(apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core)
    export DEBIAN_FRONTEND=noninteractive
    if ! "${install[@]}" >/dev/null 2>&1; then
        apt-get -qq update
        "${install[@]}" >/dev/null
    fi
fi
found=$(command -v chromium)
[ "$found" -ef "$target/chromium" ] || ln -sf "$found" "$target/chromium" # the folder itself may be on PATH
