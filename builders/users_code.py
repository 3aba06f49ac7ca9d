"""Code that an SLA file names as `module:callable`: loaded and called so that whatever it does ends in one line.

Must not know what the code is for.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from builders.errors import BuildError

SIGNALLED = 128  # exit statuses above it are those of a signal to this command, not of the user's code


@contextlib.contextmanager
def users_code(where: str, advice: str = "") -> Iterator[None]:
    """Turn whatever is raised inside, `sys.exit` included, into a BuildError that begins with `where`."""
    try:
        yield
    except BuildError:
        raise
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > SIGNALLED:
            raise
        raise BuildError(f"{where}: ends the program (sys.exit){advice}") from None
    except Exception as error:
        raise BuildError(f"{where}: {type(error).__name__}: {error}{advice}") from None


def load_callable(text: str, where: str) -> Any:
    """What `module:callable` names. Raises BuildError."""
    module_name, _, name = text.partition(":")
    with users_code(f"{where}: {module_name} cannot be imported", "; give module:callable"):
        found = getattr(importlib.import_module(module_name), name, None)
    if found is None:
        raise BuildError(f"{where}: {module_name} has no {name}; give module:callable")
    if not callable(found):
        raise BuildError(f"{where}: {text} is a {type(found).__name__}; give module:callable")
    return found
