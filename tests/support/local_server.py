"""A stand-in for a server on a free local port."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer(ThreadingHTTPServer):
    """A server whose threads end with it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # a client may open a connection for each request

    def handle_error(self, *_: object) -> None:
        """Ignore the error: a client that disconnects is part of a test."""


@contextlib.contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with this handler for the duration of the block, and yield the URL."""
    with LocalServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
