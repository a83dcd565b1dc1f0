"""Records the KV events of the in-process engine in place of its publisher: without sockets, loss or delay.

Each batch is encoded and decoded as for a subscriber, so that the recorded events are the published ones.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from coldproof.adapters.protocol.kv_events import EventBatch, read_batch

FLAGS = ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "null"})]


class EventRecorder:
    """Replaces vLLM's publisher. It numbers the batches in the order of publication, as vLLM's publisher does."""

    def __init__(self) -> None:
        self._new: list[tuple[int, bytes]] = []
        self._count = 0
        self._read: list[EventBatch] = []

    def publish(self, events: Any) -> None:
        """Store one batch. The scheduler calls this."""
        self._new.append((self._count, msgspec.msgpack.encode(events)))
        self._count += 1

    def shutdown(self) -> None:
        """Do nothing: there is no socket to close."""

    def get_publisher_config(self) -> None:
        """Return None: there is no address to subscribe to."""

    def stamp(self, at: float) -> None:
        """Decode the new batches and give them the time `at`, in seconds of the engine. Raises EventFormatError."""
        new, self._new = self._new, []
        self._read += [EventBatch(number, at, read_batch(payload)[1]) for number, payload in new]

    def take(self) -> tuple[EventBatch, ...]:
        """Return and remove the decoded batches."""
        taken, self._read = tuple(self._read), []
        return taken
