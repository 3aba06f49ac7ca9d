#!/usr/bin/env bash
# Makes the virtual environment named by the first argument with the first supported Python on PATH.
# PYTHON names another one. An environment that already works is left alone.
set -euo pipefail

target=$1
incomplete=
if "$target/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
for name in ${PYTHON:-python3.12 python3.11 python3}; do
    "$name" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1 || continue
    if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        exec "$name" -m venv "$target"
    fi
    incomplete=$name
done
if [ -n "$incomplete" ]; then
    echo "gapless: $incomplete cannot make virtual environments; apt-get install python3-venv" >&2
else
    echo "gapless: Python 3.11 or 3.12 is needed, and neither is on PATH; apt-get install python3 python3-venv" >&2
fi
exit 2
