"""The HTTP client of a script, and the start of its server."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.given import COMMAND, STALL_SECONDS


class CannotSay(Exception):
    """The script cannot say whether the bug is there. The message has the reason."""


def opened(url: str, body: object = None, headers: dict[str, str] | None = None, patience: float = 60) -> Any:
    """Send a request, with a body as JSON, and return the open response. Raises OSError."""
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        return urllib.request.urlopen(sent, timeout=patience)
    except urllib.error.HTTPError as refused:
        raise OSError(f"{url}: HTTP {refused.code}: {refused.read()[:300].decode(errors='replace')}") from None


def post(url: str, body: object) -> str:
    """Send a POST request and return the response. Raises OSError."""
    return str(opened(url, body).read().decode())


def get(url: str) -> Any:
    """Return the JSON at a URL."""
    return json.loads(opened(url).read())


def has_ended(url: str) -> bool:
    """Return whether the server there has ended."""
    try:
        return bool(opened(url + "/health", patience=10).status >= 500)
    except OSError:
        return True


def whole(url: str, body: object, headers: dict[str, str] | None = None) -> Any:
    """Return the JSON that a POST request is answered with. Raises OSError."""
    return json.loads(opened(url, body, headers, STALL_SECONDS).read())


def events(url: str, body: object, patience: float, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """Yield the events of a streamed answer. Raises OSError."""
    with opened(url, body, headers, patience) as response:
        for line in response:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield json.loads(line[5:])


def argument() -> str:
    """Return the server's URL, which is the script's argument."""
    if len(sys.argv) != 2:
        raise CannotSay("the argument is the URL of the server")
    return sys.argv[1].rstrip("/")


def cold_server() -> str:
    """Return the URL of a second server, without prefix caching."""
    if not os.environ.get("COLD_SERVER"):
        raise CannotSay("set COLD_SERVER to the address of a second server, without prefix caching")
    return os.environ["COLD_SERVER"].rstrip("/")


class Started:
    """A server that the script starts on a free port; or that runs already, if its URL is the script's argument."""

    def __init__(self, command: str = COMMAND) -> None:
        self.command, self.url = command, ""
        self.process: subprocess.Popen[bytes] | None = None
        if len(sys.argv) == 2:
            self.url = sys.argv[1].rstrip("/")
        else:
            self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if not self.command:
            raise CannotSay("the argument is the URL of the server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["env", *shlex.split(self.command.replace("--port 8000", f"--port {port}"))]
        own = {"python": sys.executable, "SCRIPT": __file__}
        words = [own.get(word, word) for word in words]
        with open("server.log", "a") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        atexit.register(self.stop)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the server is stopped
        self.url = f"http://127.0.0.1:{port}"
        while not self.is_up():
            if self.process.poll() is not None:
                raise CannotSay("the server did not start: see server.log")
            time.sleep(1)

    def stop(self) -> None:
        """Stop the server with all its processes."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def restart(self, before: str) -> None:
        """Start the server again, or let the user do so. `before`: what was different about it up to here."""
        if self.process is None:
            input(f"Up to here the server had {before}. Stop it, start it again without that, and press Enter: ")
            return
        self.stop()
        self.start()

    def is_up(self) -> bool:
        """Return whether the server, and the engine behind it, answers."""
        try:
            return bool(opened(self.url + "/health", patience=10).status == 200)
        except OSError:
            return False
