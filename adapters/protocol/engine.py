"""The protocol that every engine adapter implements, and the errors that it raises.

An adapter knows processes and connections; it knows no requirements. It reports only what it observed. A count that the
engine does not report is None, never 0. An action such as a load or a reset returns what the engine confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Message
from coldproof.adapters.protocol.shape import EngineShape


class EngineError(Exception):
    """An error of the engine that stops an action. The message says what happened and what to do."""


class EngineStartError(EngineError):
    """The engine did not become ready. The message has the last lines of its log."""


class EngineDied(EngineError):
    """The engine's process ended, or its connection is lost."""


class EngineSilent(EngineError):
    """No byte arrived within the read timeout while the process still runs."""


class RequestRefused(EngineError):
    """The engine answered with an error status. This is an answer, not a connection error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"the engine answered HTTP {status}: {printable(body, 400)}")
        self.status = status
        self.body = body


class MalformedAnswer(EngineError):
    """The engine reported success, but its answer does not have the form of its interface."""


def printable(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text on one line, with escapes for unprintable characters."""
    start = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    return start + "..." * (len(text) > limit)


class Served(msgspec.Struct, frozen=True):
    """The result of an arrival: the engine's clock when it was sent and finished, and its answer or error."""

    sent: float
    finished: float
    result: Completion | EngineError


class Engine(Protocol):
    """A live engine. Methods block; `complete` may be called from many threads at once.

    All methods raise EngineDied when the engine terminated or its connection is lost, RequestRefused when it refuses,
    also for a capability that it does not have, and MalformedAnswer when its answer cannot be read. They raise no other
    exception, except EngineSilent where stated, and RequestOverdue when the run has no time left for a request.
    `tests/contract` tests these rules.
    """

    @property
    def name(self) -> str:
        """Return the adapter's name."""

    @property
    def version(self) -> str | None:
        """Return the engine's own version string, or None if it reports none."""

    @property
    def base_model(self) -> str:
        """Return the served name of the model without any LoRA adapter."""

    @property
    def shape(self) -> EngineShape:
        """Return block size, pool size and limits as the engine reports them."""

    @property
    def config(self) -> Mapping[str, str]:
        """Return the configuration to print in a report, without secrets."""

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """Return every capability with its evidence."""

    def clock(self) -> float:
        """Return seconds from any origin: wall-clock time, or engine time for an engine that the caller steps."""

    def complete(self, request: CompletionRequest) -> Completion:
        """Send one request and return its answer. Must never retry, because a retry warms the cache.

        Raises EngineSilent when nothing arrives within the adapter's read timeout.
        """

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Send each request at its offset, serve them concurrently, and return the results in order.

        `on_token(i, count)` is called from any thread when tokens of request i arrive; `count` is their number so far.
        For a pooled answer it is called once, with 1.
        `between()` is called repeatedly from the caller's thread while requests are in flight. The caller uses it to
        change adapters, scrape metrics or stop the engine.
        """

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of these messages in the chat template, with the prompt for an answer."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load an adapter under a name or, with `in_place`, replace it. Return after the engine acknowledged it.

        If an engine takes adapters only at its start (ADAPTER_CHOICE without RUNTIME_LORA), this binds the name to the
        adapter with these files. Requests to the name then use that adapter.
        """

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch on an adapter for every request that chooses none (ADAPTER_SWITCH).

        Requests to this name are sent without a choice from now on. Only one name can be switched on at a time.
        `unload_adapter` switches it off.
        """

    def unload_adapter(self, name: str) -> None:
        """Unload the adapter with this name."""

    def reset_cache(self) -> bool:
        """Request an empty prefix cache. Return True only if the engine confirms the reset."""

    def metrics(self) -> Metrics:
        """Scrape the counters and gauges now. Returns `Metrics()` without the capability METRICS."""

    def take_events(self) -> Published:
        """Return the KV events since the last call or the start. Not called while requests run.

        Must not drop or correct events. Returns no batches without the capability KV_EVENTS.
        """

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return the first wrong KV read of each request that read another request's KV, since the last call.

        Empty for an engine without the capability PROVENANCE.
        """

    def alive(self) -> bool:
        """Return whether the engine still answers or, for a spawned engine, whether its process still runs."""

    def log_tail(self) -> str:
        """Return the last lines of the engine's log; empty if the adapter cannot read the log."""

    def stop(self) -> None:
        """Stop a spawned engine and all its processes, or detach from an attached one. Safe to call twice."""


@runtime_checkable
class SavesState(Protocol):
    """An engine that can save its cache under a name and restore it (SAVED_STATE).

    Restored KV must be complete, and it must not serve a request that could not have used it before it was saved. Both
    methods raise EngineDied when the engine terminated and RequestRefused when it refuses. No request may be running.
    """

    def save_state(self, name: str) -> int:
        """Save the whole cache under a name, replacing an earlier save. Return the number of tokens reported saved."""

    def restore_state(self, name: str) -> int:
        """Replace the whole cache by a saved one. Return the number of tokens that the engine reports as restored."""
