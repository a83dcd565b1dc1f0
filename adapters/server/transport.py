"""The connections to a server: what one response may bring is bounded in bytes and in time, and nothing is followed.

A server may be broken or hostile. Bytes and time are counted where they arrive, at the socket, so that headers, chunk
sizes, lines, bodies and streams are all bounded by one rule.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.engine import MalformedAnswer, printable
from coldproof.adapters.protocol.request_time import Deadline, RequestOverdue, RequestTime

MIB = 2**20
# The longest honest answers are pooled: 1,000 vectors of 4,096 numbers in decimal have about 50 MiB. A stream has
# about 1 KiB for a token with scores.
ANSWER_BYTES = 64 * MIB
PAGE_BYTES = 16 * MIB  # of an answer to a GET: the metrics of a busy vLLM server have less than 1 MiB
ERROR_BYTES = MIB  # of an answer with an error status, of which 400 characters are shown
CONNECT_SECONDS = 10.0
SHOWN_URL = 200  # characters
# What the client libraries raise for a connection that fails or an answer that is no HTTP: they leave some errors of
# parsing as they are.
BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError, ValueError, OverflowError)


class Meter:
    """Counts the bytes of one response, of which it may have `most`. `what`: the request, as `GET /v1/models`."""

    def __init__(self, what: str, deadline: Deadline, most: int) -> None:
        self.what, self.deadline, self.most = what, deadline, most
        self.received = 0

    def check_time(self) -> float:
        """Return the seconds that are left. Raises RequestOverdue if there are none."""
        left = self.deadline.left()
        if left <= 0:
            raise self.overdue()
        return left

    def overdue(self) -> RequestOverdue:
        """Return the error of an answer that did not end in time."""
        if not self.deadline.seconds:
            return RequestOverdue(f"{self.what} was not sent: the run has no time left; give a longer --budget")
        did = f"sent {self.received} bytes without an end" if self.received else "sent nothing"
        return RequestOverdue(
            f"{self.what} got no complete answer within {self.deadline.seconds:.0f} s: the server {did}; a slow server "
            "needs a longer --budget"
        )

    def add(self, count: int) -> None:
        """Count bytes. Raises MalformedAnswer if there are too many."""
        self.received += count
        if self.received > self.most:
            raise MalformedAnswer(f"{self.what} was answered with more than {self.most / MIB:.0f} MiB")


class MeteredReader(io.RawIOBase):
    """Reads a response from its socket, until its meter ends it."""

    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        super().__init__()
        self._sock, self._meter = sock, meter
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open until the response is closed

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived, or wait for it: as long as the socket's timeout, and never beyond the deadline."""
        usual, left = self._sock.gettimeout(), self._meter.check_time()
        self._sock.settimeout(left if usual is None else min(usual, left))
        try:
            count = self._sock.recv_into(buffer)
        except TimeoutError:
            self._meter.check_time()
            raise
        finally:
            self._sock.settimeout(usual)
        self._meter.add(count)
        return count

    def close(self) -> None:
        """Release the socket."""
        self._file.close()
        super().close()


class MeteredResponse(http.client.HTTPResponse):
    """A response that is read through a meter, from its first byte on."""

    def __init__(self, sock: socket.socket, *args: Any, meter: Meter, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp.close()
        self.fp = io.BufferedReader(MeteredReader(sock, meter))


class MeteredConnections:
    """What the connections of one session share: which is the latest, and the meter of the current request.

    `awaited`: whether a request was sent and its answer awaited. Before, the server does not know of the request.
    It refers to no adapter and no pool. urllib3 closes the idle connections of a pool when the pool is collected, and
    refers to them until then: a connection that refers to its pool keeps both, and a socket, for ever.
    """

    def __init__(self) -> None:
        self.latest: Any = None
        self.meter: Meter | None = None
        self.awaited = False

    def open(self, kind: Any, *args: Any, **options: Any) -> Any:
        """Return a new connection of this kind, whose responses are metered."""
        self.latest = kind(*args, **options)
        self.latest.response_class = self.response
        return self.latest

    def response(self, sock: socket.socket, *args: Any, **named: Any) -> MeteredResponse:
        """Return the response on a socket, with the meter of the current request."""
        self.awaited = True
        if self.meter is None:
            raise RuntimeError("no request was sent")
        return MeteredResponse(sock, *args, meter=self.meter, **named)


class MeteredAdapter(HTTPAdapter):
    """Sends the requests of one thread, one after the other. Follows no redirect and reads no compressed answer."""

    def __init__(self, time: RequestTime | None = None) -> None:
        self.time = time or RequestTime()
        self.connections = MeteredConnections()
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return the pool for a request. The responses on its connections are metered."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        pool.ConnectionCls = functools.partial(self.connections.open, type(pool).ConnectionCls)
        return pool

    def send(  # type: ignore[override]
        self, request: requests.PreparedRequest, *, timeout: Any = None, **options: Any
    ) -> requests.Response:
        """Send a request and return the response with its headers. Raises RequestOverdue and MalformedAnswer."""
        deadline = self.time.deadline()
        most = PAGE_BYTES if request.method == "GET" else ANSWER_BYTES
        meter = self.connections.meter = Meter(f"{request.method} {redacted(request.path_url)}", deadline, most)
        connect, silence = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        left = meter.check_time()
        limits = (left if connect is None else min(connect, left), left if silence is None else min(silence, left))
        try:
            response = super().send(request, timeout=limits, **options)
        except requests.Timeout as problem:
            if deadline.left() <= 0:
                raise meter.overdue() from problem
            raise
        try:
            check_headers(response, meter)
        except MalformedAnswer:
            response.close()
            raise
        return response


def check_headers(response: requests.Response, meter: Meter) -> None:
    """Raise MalformedAnswer for a response that is not going to be read."""
    status = f"{meter.what} was answered with HTTP {response.status_code}"
    if 300 <= response.status_code < 400:
        target = printable(redacted(response.headers.get("Location") or "nowhere"), SHOWN_URL)
        raise MalformedAnswer(f"{status}: the server redirects to {target}; redirects are not followed, give that URL")
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise MalformedAnswer(f"{status} and a compressed body ({printable(coding, 40)}), which was not requested")
    if response.status_code >= 400:
        meter.most = min(meter.most, meter.received + ERROR_BYTES)
    response.encoding = "utf-8"  # to guess the encoding of a large body takes longer than to read it


def metered_session(time: RequestTime) -> requests.Session:
    """Return a session whose responses are metered."""
    session = requests.Session()
    adapter = MeteredAdapter(time)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    session.headers["Accept-Encoding"] = "identity"  # a compressed answer may be a thousand times as long as its bytes
    return session


def cannot_connect(problem: Exception) -> bool:
    """Return whether no connection was made."""
    cause = problem.args[0] if problem.args else None
    reason = getattr(cause, "reason", None)  # of urllib3's MaxRetryError
    return isinstance(problem, requests.ConnectTimeout) or isinstance(reason, urllib3.exceptions.NewConnectionError)
