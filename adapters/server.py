"""An engine behind HTTP: what the spawned and the attached server have in common.

It only translates; what the server can do was found out by `adapters.probes`, not assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineShape,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Support,
)
from adapters.event_socket import SLACK_SECONDS, EventSocket
from adapters.kv_events import HashRule, Published
from adapters.openai_http import Wire
from adapters.probes import NO_SWITCH, Probed
from adapters.process import EngineProcess
from adapters.provenance import WrongRead
from adapters.serving import serve_in_threads


class Stream(msgspec.Struct, frozen=True):
    """Where a server publishes what its cache holds, and how the hashes in it are made."""

    socket: EventSocket
    rule: HashRule | None


class ServerEngine:
    """An OpenAI-compatible server; spawned if there is a process, attached otherwise."""

    def __init__(
        self,
        *,
        name: str,
        wire: Wire,
        probed: Probed,
        config: Mapping[str, str],
        process: EngineProcess | None = None,
        stream: Stream | None = None,
    ) -> None:
        self.name = name
        self.wire = wire
        self.probed = probed
        self.process = process
        self.stream = stream
        self._config = dict(config)

    @property
    def version(self) -> str | None:
        """What /version says."""
        return self.probed.version

    @property
    def base_model(self) -> str:
        """The first served model that is no adapter."""
        return self.probed.base_model

    @property
    def shape(self) -> EngineShape:
        """As published in the metrics."""
        return self.probed.shape

    @property
    def config(self) -> Mapping[str, str]:
        """How it was started or reached, with what it says of its cache."""
        return {**self._config, **self.probed.cache_config}

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """Probed, with evidence."""
        return self.probed.capabilities

    def clock(self) -> float:
        """The wall's, from an arbitrary origin."""
        return time.monotonic()

    def complete(self, request: CompletionRequest) -> Completion:
        """One generation, sent once."""
        return self.completed(request, None)

    def completed(self, request: CompletionRequest, on_token: Callable[[int], None] | None) -> Completion:
        """The answer, with null counts as what this engine means by them."""
        answer = self.wire.complete(request, on_token)
        if answer.cached_tokens is None and answer.aborted is None and self.probed.null_is_miss:
            return msgspec.structs.replace(answer, cached_tokens=0)
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """A thread and a connection for each request; the caller's thread looks after them meanwhile."""
        return serve_in_threads(arrivals, self.completed, self.clock, on_token, between)

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """POST /tokenize."""
        return self.wire.render(self.base_model, messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """POST /v1/load_lora_adapter."""
        load_adapter(self.wire, name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        """There is no such switch. Raises RequestRefused."""
        raise RequestRefused(501, f"{name}, {path}: {NO_SWITCH}")

    def unload_adapter(self, name: str) -> None:
        """POST /v1/unload_lora_adapter."""
        unload_adapter(self.wire, name)

    def reset_cache(self) -> bool:
        """POST /reset_prefix_cache."""
        return self.wire.reset()[0]

    def metrics(self) -> Metrics:
        """GET /metrics."""
        return self.wire.metrics()

    def take_events(self) -> Published:
        """What came over the sockets, if the server was started with any."""
        if self.stream is None:
            return Published()
        return Published(batches=self.stream.socket.take(), rule=self.stream.rule, slack=SLACK_SECONDS)

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """POST /collective_rpc, to the fingerprint worker only."""
        if not self.capabilities[Capability.PROVENANCE].present:
            return ()
        answer = self.wire.post("/collective_rpc", {"method": "take_wrong_reads"}).json()
        return tuple(msgspec.convert(row, WrongRead) for rows in answer["results"] for row in rows)

    def alive(self) -> bool:
        """The process for a spawned engine; an attached one is asked when it is used."""
        return self.wire.alive()

    def log_tail(self) -> str:
        """The log's end, if the log is ours."""
        return self.process.tail() if self.process else ""

    def stop(self) -> None:
        """End the process, if it is ours."""
        if self.process:
            self.process.stop()
        if self.stream is not None:
            self.stream.socket.close()


def load_adapter(wire: Wire, name: str, path: str, *, in_place: bool) -> None:
    """Load or replace an adapter. Raises RequestRefused with the server's reason."""
    body: dict[str, object] = {"lora_name": name, "lora_path": path}
    if in_place:
        body["load_inplace"] = True
    wire.post(wire.load_path, body)


def unload_adapter(wire: Wire, name: str) -> None:
    """Unload an adapter. Raises RequestRefused with the server's reason."""
    wire.post(wire.unload_path, {"lora_name": name})
