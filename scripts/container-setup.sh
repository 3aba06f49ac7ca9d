#!/usr/bin/env bash
# Installs gapless and its `serve` extra into the Python of Triton's container; further arguments go to pip.
# A torch that is already there stays exactly as it is: the container's own build fits its CUDA libraries.
# PYTHON names the interpreter, TORCH_SPEC and TORCH_INDEX which torch to install where there is none.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
export PIP_BREAK_SYSTEM_PACKAGES=1 # the container is the environment: there is nothing else to protect

requirements=$("$python" - <<'PY'
import importlib.metadata
import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = project["dependencies"] + project["optional-dependencies"]["serve"]
try:
    importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    pass
else:
    wanted = [line for line in wanted if re.match(r"[\w.-]+", line)[0] != "torch"]
print("\n".join(wanted))
PY
)
if grep -q '^torch' <<<"$requirements"; then
    "$python" -m pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$@" "${TORCH_SPEC:-torch==2.13.0}"
fi
mapfile -t requirements <<<"$requirements"
"$python" -m pip install "$@" "${requirements[@]}"
"$python" -m pip install "$@" --no-deps .
