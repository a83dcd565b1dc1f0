"""Client disconnects before the first token: after a time, or when the engine reports the request's stage."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

from coldproof.adapters.protocol.requests import Abort, Stage

POLL_SECONDS = 0.002  # between two polls of a request's stage; one poll takes a server about as long


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
