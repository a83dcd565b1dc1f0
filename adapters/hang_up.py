"""When a client hangs up that has no token yet: after a time, or once the engine says that its request is that far."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

from adapters.base import Abort, Stage

POLL_SECONDS = 0.002  # between two looks at where a request is, each of which takes a server about as long


def hangs_up(
    response: requests.Response, abort: Abort | None, stage: Callable[[], Stage], patience: float
) -> Stage | None:
    """Wait as long as a client does that hangs up without a token: where the request is then. None for one that does
    not, and where a token came before.

    `patience`: seconds at most for the engine to say that it is where the client waits for it to be.
    """
    if abort is None or abort.after_tokens or arrives(response, abort.after_ms / 1000):
        return None
    until, now = time.monotonic() + patience, stage()
    while abort.at not in (None, now) and time.monotonic() < until:
        if arrives(response, POLL_SECONDS):
            return None
        now = stage()
    # By the time that a busy server has told its gauges the first token may be there.
    return None if abort.at is not None and arrives(response, 0) else now


def arrives(response: requests.Response, seconds: float) -> bool:
    """Whether anything of the body comes within a time. Nothing is taken.

    What came together with the headers lies in http.client's buffer, where `select` on the socket would not see it.
    """
    buffer = getattr(response.raw._fp, "fp", None)
    if buffer is None:
        return True  # all of it is here
    wire = buffer.raw._sock
    patience = wire.gettimeout()
    wire.settimeout(max(seconds, 0.001))
    try:
        buffer.peek(1)
    except TimeoutError:
        buffer.raw._timeout_occurred = False  # or socket.SocketIO would refuse to be read ever again
        return False
    finally:
        wire.settimeout(patience)
    return True
