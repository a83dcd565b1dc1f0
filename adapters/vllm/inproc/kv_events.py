"""Records the KV events of the in-process engine in place of its publisher: without sockets, loss or delay.

Each batch is encoded and decoded as for a subscriber, so that the recorded events are the published ones.
"""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
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


ARRIVAL_MS = 5000  # a batch arrives in less than one; later it is lost
NUMBERS = itertools.count()


class PublishedBatches(EventRecorder):
    """Records what a subscriber receives from vLLM's own publisher, with the publisher's numbers.

    For engines that follow one another, whose numbers a subscriber has to tell apart. `place`: what they share.
    """

    def __init__(self, place: Path) -> None:
        super().__init__()
        zmq: Any = importlib.import_module("zmq")
        endpoint = f"inproc://{place}/{next(NUMBERS)}"
        self._publisher: Any = importlib.import_module("vllm.distributed.kv_events").ZmqEventPublisher(0, endpoint)
        self._subscriber = zmq.Context.instance().socket(zmq.SUB)
        self._subscriber.setsockopt(zmq.RCVHWM, 0)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        self._subscriber.connect(endpoint)
        self._missing = 0

    def publish(self, events: Any) -> None:
        """Give one batch to the publisher, which sends it from a thread of its own."""
        self._publisher.publish(events)
        self._missing += 1

    def stamp(self, at: float) -> None:
        """Wait for the batches that are on their way, and give them the time `at`. Raises EventFormatError."""
        while self._missing and self._subscriber.poll(ARRIVAL_MS):
            _, number, payload = self._subscriber.recv_multipart()
            self._new.append((int.from_bytes(number, "big"), payload))
            self._missing -= 1
        self._missing = 0  # what has not arrived is lost: the numbers show a gap
        super().stamp(at)

    def shutdown(self) -> None:
        """Stop the publisher and close both sockets."""
        self._publisher.shutdown()
        self._subscriber.close(linger=0)
