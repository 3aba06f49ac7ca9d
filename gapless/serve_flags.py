"""The launch flags beside a repository's models, as far as the launcher does not decide them itself."""

from __future__ import annotations

from pathlib import Path

from config_gen.triton.repository import FLAGS
from config_gen.triton.serve_args import FlagError
from config_gen.triton.serve_args import read as flags_in
from gapless.errors import UsageError

# What the launcher says in any case, and for a plain tritonserver stands in the file.
LAUNCHERS = ("--model-control-mode", "--load-model")
OWN = {  # what only the launcher may say -> how to tell it
    "--model-repository": "--model-repository",
    "--http-address": "--host",
    "--grpc-address": "--host",
    "--metrics-address": "--host",
    "--http-port": "--http-port",
    "--grpc-port": "--grpc-port",
    "--metrics-port": "--metrics-port",
    "--exit-timeout-secs": "--drain-timeout",
}


def read(repository: Path) -> list[str]:
    """Flags for tritonserver; none where no file is. Raises UsageError."""
    path = repository / FLAGS
    try:
        found = flags_in(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except FlagError as error:
        raise UsageError(f"{path}:{error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text; one flag a line, as --name=value") from None
    for flag in found:
        name = flag.partition("=")[0]
        if name in OWN:
            raise UsageError(f"{path}: {name} is not allowed here; give it as gapless serve {OWN[name]}")
    return [flag for flag in found if flag.partition("=")[0] not in LAUNCHERS]
