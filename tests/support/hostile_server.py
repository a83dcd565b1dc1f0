"""A server that sends malformed answers: it plays a script on some routes and forwards every other request.

A script gets the raw connection, so that it can send what no HTTP library would send. Other requests go to the
stand-in server of `support.fake_server`, which answers correctly.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from support.fake_server import FakeServer, ServerBehaviour, serving

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"
JSON = OK + b"Content-Type: application/json\r\nConnection: close\r\n\r\n"


@dataclass
class Exchange:
    """One request, and the connection on which it is answered."""

    connection: socket.socket
    request: bytes
    closing: threading.Event  # set when the server ends
    sent: int = 0

    @property
    def line(self) -> str:
        """Return the request line without the version, for example `GET /v1/models`."""
        return self.request.split(b"\r\n", 1)[0].rsplit(b" ", 1)[0].decode()

    def send(self, *parts: bytes) -> None:
        """Send bytes, and count those that the client's machine accepted."""
        for part in parts:
            self.connection.sendall(part)
            self.sent += len(part)

    def send_until_disconnect(self, parts: Iterable[bytes], pause: float = 0.0) -> None:
        """Send parts until the client disconnects or the server ends."""
        for part in itertools.cycle(parts):
            if self.closing.is_set() or (pause and self.closing.wait(pause)):
                return
            self.send(part)

    def wait(self) -> None:
        """Send nothing until the server ends."""
        self.closing.wait()


Script = Callable[[Exchange], None]


@dataclass
class HostileServer:
    """A running server. `scripts` maps a request line to a script; the line "" is for every request without its own
    script.
    """

    scripts: Mapping[str, Script]
    behind: FakeServer
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def received(self, line: str) -> list[Exchange]:
        """Return the exchanges with this request line."""
        return [one for one in self.exchanges if one.line == line]

    def serve(self, connection: socket.socket) -> None:
        """Answer the only request of a connection."""
        with connection, contextlib.suppress(OSError):
            if request := read_request(connection):
                exchange = Exchange(connection, request, self.closing)
                self.exchanges.append(exchange)
                script = self.scripts.get(exchange.line) or self.scripts.get("") or self.pass_on
                script(exchange)

    def pass_on(self, exchange: Exchange) -> None:
        """Forward the request to the stand-in server and send its answer."""
        host, port = self.behind.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as behind:
            head, body = exchange.request.split(b"\r\n\r\n", 1)
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            behind.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
            answer = behind.makefile("rb")
            exchange.send(answer.readline(), b"Connection: close\r\n")
            while piece := answer.read1(65536):
                exchange.send(piece)


def read_request(connection: socket.socket) -> bytes:
    """Return one whole request, or nothing if the client disconnects before its end."""
    read = b""
    while b"\r\n\r\n" not in read:
        piece = connection.recv(65536)
        if not piece:
            return b""
        read += piece
    head, body = read.split(b"\r\n\r\n", 1)
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0:
        piece = connection.recv(missing)
        if not piece:
            return b""
        read, missing = read + piece, missing - len(piece)
    return read


@contextlib.contextmanager
def attacking(scripts: Mapping[str, Script], behaviour: ServerBehaviour | None = None) -> Iterator[HostileServer]:
    """Run a hostile server on 127.0.0.1 for the duration of the block."""
    with serving(behaviour) as behind, socket.create_server(("127.0.0.1", 0)) as listener:
        server = HostileServer(scripts, behind, f"http://127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while not server.closing.is_set():
                    connection, _ = listener.accept()
                    threading.Thread(target=server.serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            thread.join()
