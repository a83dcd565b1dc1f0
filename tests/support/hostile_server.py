"""A server that breaks its answers on purpose: it plays a script at some routes, and passes on every other request.

A script gets the raw connection, so that it can send what no HTTP library would. Behind it is the stand-in server of
`support.fake_server`, which answers as a good server does.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from support.fake_server import FakeServer, Manners, serving

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
        """The request line without the version, `GET /v1/models` for one."""
        return self.request.split(b"\r\n", 1)[0].rsplit(b" ", 1)[0].decode()

    def send(self, *parts: bytes) -> None:
        """Send bytes, and count those that the client's machine took."""
        for part in parts:
            self.connection.sendall(part)
            self.sent += len(part)

    def send_for_ever(self, parts: Iterable[bytes], pause: float = 0.0) -> None:
        """Send parts until the client leaves or the server ends."""
        for part in itertools.cycle(parts):
            if self.closing.is_set() or (pause and self.closing.wait(pause)):
                return
            self.send(part)

    def wait(self) -> None:
        """Say nothing until the server ends."""
        self.closing.wait()


Script = Callable[[Exchange], None]


@dataclass
class HostileServer:
    """A running server. `scripts`: request line -> script; the line "" is for every request without one of its own."""

    scripts: Mapping[str, Script]
    behind: FakeServer
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def asked(self, line: str) -> list[Exchange]:
        """The requests with this request line."""
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
        """Let the stand-in answer."""
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
    """One whole request, or what came of it before the client left."""
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
def attacking(scripts: Mapping[str, Script], manners: Manners | None = None) -> Iterator[HostileServer]:
    """A hostile server on 127.0.0.1, for as long as the block runs."""
    with serving(manners) as behind, socket.create_server(("127.0.0.1", 0)) as listener:
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
