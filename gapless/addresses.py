"""HOST:PORT as a user writes it. Must not know who listens there."""

from __future__ import annotations

import socket
from contextlib import closing

from gapless.errors import UsageError


def address(option: str, text: str) -> tuple[str, int]:
    """The IPv4 address and the port. Raises UsageError naming the option."""
    told = f"{option}: {text[:100]!r} is not allowed"
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535):
        raise UsageError(f"{told}; HOST:PORT, as 192.168.0.7:5557")
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]), int(port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{told} ({reason}); the IPv4 address or name of a machine") from None


def address_to_bind(option: str, text: str) -> tuple[str, int]:
    """The same, where this machine can listen now. Raises UsageError naming the option."""
    host, port = address(option, text)
    with closing(socket.socket(socket.AF_INET)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{option}: {text} is not allowed ({error.strerror}); a free one of this machine"
            ) from None
    return host, port
