"""An engine behind HTTP: the common part of spawned and attached servers.

It only translates calls into HTTP requests. `coldproof.adapters.server.probes` finds out what the server can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from coldproof.adapters.common.absent_features import AbsentFeatures
from coldproof.adapters.common.concurrent import serve_in_threads
from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, Served
from coldproof.adapters.protocol.kv_events import HashRule, Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import ENGINE_ABORT, Arrival, Completion, CompletionRequest, Message
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.server.answers import decoded
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.event_socket import SLACK_SECONDS, EventSocket
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.server.weights import WeightRoutes


class EventStream(msgspec.Struct, frozen=True):
    """The socket on which a server publishes KV events, and the rule of their hashes."""

    socket: EventSocket
    rule: HashRule | None


class CollectiveResults(msgspec.Struct, frozen=True):
    """The result of each worker."""

    results: list[list[WrongRead]]


class ImageCounts(msgspec.Struct, frozen=True):
    """The counters about images of the only worker."""

    results: list[dict[str, int]]


class ServerEngine(WeightRoutes, AbsentFeatures):
    """An OpenAI-compatible server: spawned if it has a process, otherwise attached.

    `config`: how it was started or attached. The server's cache configuration is added.
    """

    def __init__(
        self,
        *,
        name: str,
        client: HttpClient,
        probed: ProbeResult,
        config: Mapping[str, str],
        process: EngineProcess | None = None,
        stream: EventStream | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self.probed = probed
        self.process = process
        self.stream = stream
        self.stopping = False
        self.version: str | None = probed.version
        self.base_model: str = probed.base_model
        self.shape: EngineShape = probed.shape
        self.config: Mapping[str, str] = {**config, **probed.cache_config}
        if self.shape.image is not None or self.shape.row_width is not None:
            client.content_shape = self.shape
        self.capabilities: Mapping[Capability, Support] = probed.capabilities

    def clock(self) -> float:
        """Return wall-clock seconds from an arbitrary origin."""
        return time.monotonic()

    def complete(self, request: CompletionRequest) -> Completion:
        """Send one generation, once, and return its answer."""
        return self.send(request, None)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None] | None) -> Completion:
        """Send one generation and return its answer. A null count becomes 0 if this engine reports misses as null.

        Raises EngineDied for the part of an answer that a server sends when it is stopped: vLLM ends its streams in
        order then, with the finish reason "abort" or, before the first token, with none.
        """
        answer = self.client.complete(request, on_token)
        ended = answer.finish_reason in (None, ENGINE_ABORT) and answer.pooled is None
        if self.stopping and ended and answer.aborted is None:
            raise EngineDied("the server was stopped while it answered")
        if answer.cached_tokens is None and answer.aborted is None and self.probed.null_is_miss:
            return msgspec.structs.replace(answer, cached_tokens=0)
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve requests with a thread and a connection for each."""
        return serve_in_threads(arrivals, self.send, self.clock, on_token, between)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Send POST /tokenize."""
        return self.client.render(self.base_model, messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Send POST /v1/load_lora_adapter."""
        self.client.load_adapter(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Send POST /v1/unload_lora_adapter."""
        self.client.unload_adapter(name)

    def reset_cache(self) -> bool:
        """Send POST /reset_prefix_cache. Return whether the server confirms the reset."""
        return self.client.reset()[0]

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Send POST /reset_prefix_cache with the parameters for this scope. Return whether the server confirms it."""
        return self.client.reset(scope)[0]

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Send POST to the routes of the caches in `scope`, which succeed if they answer."""
        self.client.reset_beside(scope)
        return True

    def restart_side(self, side: Side) -> None:
        """Send POST /sides/SIDE/restart, which the router of a pair that was started here answers."""
        self.client.post(f"/sides/{side}/restart")
        if self.process:
            self.process.record_processes()

    def side(self, side: Side) -> ServerEngine:
        """Return the server behind /sides/SIDE, to which the router of a pair passes on what it gets there."""
        one = HttpClient(f"{self.client.url}/sides/{side}", alive=self.client.alive)
        return ServerEngine(name=self.name, client=one, probed=self.probed, config={}, process=self.process)

    def metrics(self) -> Metrics:
        """Send GET /metrics and return the counters and gauges, with those of the fingerprint worker about images."""
        found = self.client.metrics()
        if self.shape.image is None or not self.capabilities[Capability.PROVENANCE].present:
            return found
        answer = self.client.post("/collective_rpc", {"method": "image_counts"})
        (counts,) = decoded(answer, ImageCounts, "each worker's counts").results
        return msgspec.structs.replace(found, **counts)

    def take_events(self) -> Published:
        """Return the new KV events, if the server was started with an event socket."""
        if self.stream is None:
            return Published()
        return Published(batches=self.stream.socket.take(), rule=self.stream.rule, slack=SLACK_SECONDS)

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return the wrong reads of the fingerprint worker (POST /collective_rpc); empty for other workers."""
        if not self.capabilities[Capability.PROVENANCE].present:
            return ()
        answer = self.client.post("/collective_rpc", {"method": "take_wrong_reads"})
        found = decoded(answer, CollectiveResults, "each worker's wrong reads")
        return tuple(read for reads in found.results for read in reads)

    def alive(self) -> bool:
        """Return whether the process of a spawned engine runs. Always True for an attached server."""
        return self.client.alive()

    def log_tail(self) -> str:
        """Return the last lines of a spawned engine's log; empty for an attached server."""
        return self.process.tail() if self.process else ""

    def stop(self) -> None:
        """Stop the process of a spawned engine, and close the event socket."""
        if self.process:
            self.stopping = True
            self.process.stop()
        if self.stream is not None:
            self.stream.socket.close()
