"""Wait for a server that is busy, and send the request again.

Sending twice would warm the cache. So only two refusals count, which say that nothing was processed: HTTP 429, and HTTP
503 with Retry-After. How often it happened is part of the answer.
"""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Callable
from typing import TypeVar

import requests

from coldproof.adapters.protocol.request_time import RequestOverdue, RequestTime

FIRST_WAIT_SECONDS = 1.0  # without a usable Retry-After; it doubles each time
LEAST_WAIT_SECONDS = 0.1  # a server that says 0 is not asked in a loop
POLL_SECONDS = 0.5

Sent = TypeVar("Sent")


def sent_when_free(
    send: Callable[[], Sent], time: RequestTime, on_wait: Callable[[], None] = lambda: None
) -> tuple[Sent, int]:
    """Send a request until the server takes it. Return what `send` returned, and how often the server was busy.

    `on_wait` is called while waiting. Raises RequestOverdue if the server wants a longer wait than the time that is
    left.
    """
    deadline, busy = time.deadline(), 0
    while True:
        sent = send()
        if not isinstance(sent, requests.Response) or not is_busy(sent):
            return sent, busy
        wait = wait_seconds(sent.headers.get("Retry-After"), busy)
        sent.close()
        busy += 1
        if wait >= deadline.left():
            raise RequestOverdue(
                f"{sent.request.method} {sent.request.path_url} was refused with HTTP {sent.status_code} {busy} times, "
                f"the last time for {wait:.0f} s, and {max(0.0, deadline.left()):.0f} s are left: the server is busy; "
                "give a longer --budget or a server without a rate limit"
            )
        while wait > 0:
            on_wait()
            time.sleep(min(wait, POLL_SECONDS))
            wait -= POLL_SECONDS


def is_busy(response: requests.Response) -> bool:
    """Return whether a server refused a request before it processed any of it."""
    status = response.status_code
    return status == requests.codes.too_many_requests or (
        status == requests.codes.service_unavailable and "Retry-After" in response.headers
    )


def wait_seconds(retry_after: str | None, busy: int) -> float:
    """Return how long to wait, by the header: seconds, or a date. `busy`: how often the server was busy before.

    A header without a meaning, or one that lies in the past, is as good as none.
    """
    usual: float = FIRST_WAIT_SECONDS * 2 ** min(busy, 10)
    if retry_after is None:
        return usual
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return max(LEAST_WAIT_SECONDS, float(text))
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return usual
    zoned = date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
    left: float = (zoned - datetime.datetime.now(datetime.UTC)).total_seconds()
    return left if left > 0 else usual
