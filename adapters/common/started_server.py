"""What engines share that Coldproof starts as one process with an HTTP server."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import requests

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.concurrent import serve_in_threads
from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.protocol.engine import EngineStartError, Served
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest


class Client(Protocol):
    """The client of the server."""

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Send one generation once and return its answer."""


class ClientWithAdapters(Client, Protocol):
    """The client of a server whose adapters are there from the start."""

    @property
    def adapters(self) -> RegisteredAdapters:
        """Return the adapters that the server has."""


OwnClient = TypeVar("OwnClient", bound=Client)
AnyEngine = TypeVar("AnyEngine")
AdapterClient = TypeVar("AdapterClient", bound=ClientWithAdapters)


class StartedServer(AbsentFeatures, Generic[OwnClient]):
    """A server in a process of its own, behind the client of its engine."""

    client: OwnClient
    process: EngineProcess

    def clock(self) -> float:
        """Return wall-clock seconds from an arbitrary origin."""
        return time.monotonic()

    def complete(self, request: CompletionRequest) -> Completion:
        """Send a request once and return the answer."""
        return self.client.complete(request)

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve requests with a thread and a connection for each."""
        return serve_in_threads(arrivals, self.client.complete, self.clock, on_token, between)

    def metrics(self) -> Metrics:
        """Return no metrics, as most of these servers have none."""
        return Metrics()

    def alive(self) -> bool:
        """Return whether the server's process runs."""
        return self.process.running()

    def stop(self) -> None:
        """Stop the server."""
        self.process.stop()

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        return self.process.tail()


class StartedWithAdapters(StartedServer[AdapterClient]):
    """A server whose adapters are there from the start: loading one gives it a name."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Bind a name to the adapter with these files. Raises RequestRefused if there is none."""
        self.client.adapters.bind(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Unbind a name. Raises RequestRefused for an unknown name."""
        self.client.adapters.unbind(name)


def is_healthy(url: str, route: str = "/health") -> bool | None:
    """Return whether a server says at a route that it generates; None if it does not answer."""
    try:
        return requests.get(f"{url}{route}", timeout=5).status_code == 200
    except requests.RequestException:
        return None


def package_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None without it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def number_of(flag: str, arguments: Sequence[str]) -> int | None:
    """Return the number of a flag, or None without the flag. As in a server, the last one counts."""
    values = [value for word, value in pairwise(arguments) if word == flag]
    return int(values[-1]) if values else None


def started(
    name: str,
    process: EngineProcess,
    on_process: Callable[[EngineProcess], None],
    is_ready: Callable[[], bool],
    seconds: float,
    engine: Callable[[], AnyEngine],
) -> AnyEngine:
    """Wait until the server in a process is ready, and return its engine. What is raised until then stops the process.

    Raises EngineStartError, as `wait_ready`, and what `engine` raises.
    """
    on_process(process)
    try:
        wait_ready(name, process, is_ready, seconds)
        return engine()
    except BaseException:
        process.stop()
        raise


def wait_ready(name: str, process: EngineProcess, is_ready: Callable[[], bool], seconds: float) -> None:
    """Wait until a server is ready. Raises EngineStartError if its process ends first or the seconds have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.running():
        if is_ready():
            process.record_processes()
            return
        time.sleep(0.05)
    late = f"was not ready after {seconds:.0f} s"
    what = late if process.running() else f"terminated with exit code {process.exit_code()} before it was ready"
    raise EngineStartError(f"{name} {what}; the end of its log:\n{process.tail()}")
