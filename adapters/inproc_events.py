"""Takes KV events from an engine in this process where it would publish them: no sockets, nothing lost, nothing late.

Each batch goes through the packing that a subscriber would undo, so that what is read is what is published.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from adapters.kv_events import EventBatch, read_batch

FLAGS = ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "null"})]


class Mailbox:
    """In the place of vLLM's publisher. Batches are numbered as they come, as its own does it."""

    def __init__(self) -> None:
        self._new: list[tuple[int, bytes]] = []
        self._count = 0
        self._read: list[EventBatch] = []

    def publish(self, events: Any) -> None:
        """One batch, from the scheduler."""
        self._new.append((self._count, msgspec.msgpack.encode(events)))
        self._count += 1

    def shutdown(self) -> None:
        """Nothing to end."""

    def get_publisher_config(self) -> None:
        """Nobody else can subscribe."""

    def stamp(self, at: float) -> None:
        """Read what has come by now, at this time of the engine's. Raises EventFormatError."""
        new, self._new = self._new, []
        self._read += [EventBatch(number, at, read_batch(payload)[1]) for number, payload in new]

    def take(self) -> tuple[EventBatch, ...]:
        """What has been read since it was last taken."""
        taken, self._read = tuple(self._read), []
        return taken
