"""Client disconnects before the first token: after a time, or when the engine reports the request's stage."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import requests

from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.adapters.server.transport import MeteredAdapter

POLL_SECONDS = 0.002  # between two polls of a request's stage; one poll takes a server about as long


class OneConnection(MeteredAdapter):
    """Has its connection shut down by another thread while a request waits on it."""

    def shut_down(self) -> bool:
        """End the connection. Return whether a request waited on it: the server may have ended it at the same time."""
        sock = getattr(self.connections.latest, "sock", None)
        if sock is None or not self.connections.awaited:
            return False
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def sent_unless_due(
    send: Callable[[requests.Session], requests.Response],
    session: requests.Session,
    abort: Abort,
    stage: Callable[[], Stage],
    time_of_request: RequestTime,
) -> requests.Response | Stage:
    """Send a request and return the response as soon as it has headers, or the stage at which the client disconnected.

    Servers that must know whether a request succeeds before they send a status (llama.cpp) send the headers with the
    first token. So a client that waits for headers could never disconnect from their queue.
    """
    adapter = OneConnection(time_of_request)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    with ThreadPoolExecutor(1) as thread:
        begun, sent = time.monotonic(), thread.submit(send, session)
        while not wait([sent], timeout=POLL_SECONDS).done:
            if (time.monotonic() - begun) * 1000 < abort.after_ms:
                continue
            now = stage()
            if abort.at in (None, now) and not sent.done() and adapter.shut_down():
                sent.exception()  # whatever the ended connection raised
                return now
        return sent.result()


def wait_for_disconnect(
    response: requests.Response, abort: Abort | None, stage: Callable[[], Stage], read_timeout: float
) -> Stage | None:
    """Wait until a client without a token disconnects, and return the request's stage at that time.

    Return None if `abort` says nothing about a disconnect without a token, or if a token arrives first.
    `read_timeout`: the longest time, in seconds, to wait for the stage `abort.at`.
    """
    if abort is None or abort.after_tokens or data_arrives(response, abort.after_ms / 1000):
        return None
    until, now = time.monotonic() + read_timeout, stage()
    while abort.at not in (None, now) and time.monotonic() < until:
        if data_arrives(response, POLL_SECONDS):
            return None
        now = stage()
    # The first token may have arrived while a busy server reported its gauges.
    return None if abort.at is not None and data_arrives(response, 0) else now


def data_arrives(response: requests.Response, seconds: float) -> bool:
    """Return whether any byte of the body arrives within a time, without reading it.

    `select` on the socket is not enough: bytes that arrived together with the headers are in http.client's buffer.
    """
    buffer = getattr(response.raw._fp, "fp", None)
    if buffer is None:
        return True  # the whole body has arrived
    connection = buffer.raw._sock
    timeout = connection.gettimeout()
    connection.settimeout(max(seconds, 0.001))
    try:
        buffer.peek(1)
    except TimeoutError:
        buffer.raw._timeout_occurred = False  # otherwise socket.SocketIO refuses all further reads
        return False
    finally:
        connection.settimeout(timeout)
    return True
