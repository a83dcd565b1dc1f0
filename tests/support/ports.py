"""Ports for tests. A port that is found free, closed and used later may have been taken by another process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of 127.0.0.1 that no process listens on and that no other process is given.

    A server can listen on it meanwhile, because both sockets allow to share the address.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]
