#!/usr/bin/env bash
# What the container starts: `gapless serve` with the arguments given, or, when the first argument is a program
# (`tritonserver --model-repository=…`, `bash`, `gapless doctor`), that program.
set -euo pipefail

if [ $# -gt 0 ] && [ "${1#-}" = "$1" ] && command -v -- "$1" >/dev/null; then
    exec "$@"
fi
# On all addresses: a port that docker publishes does not reach 127.0.0.1 inside. A later --host wins.
exec gapless serve --host 0.0.0.0 "$@"
