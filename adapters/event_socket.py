"""Reads what a vLLM server publishes on its ZMQ sockets: the stream, and what was missed of it from the replay socket.

Subscribing starts before the server does, and still the first batches may be lost: a subscription takes a moment to
arrive. So whatever is missing is asked for again, and only what the server does not have any more stays a gap.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from adapters.kv_events import EventBatch, read_batch

QUIET_MS = 100  # after its answers an idle server has published what there was within a few of these
REPLAY_MS = 5000
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
SLACK_SECONDS = 0.01  # stamps are of the wall clock, which is set right now and then; requests go by a monotonic one


class EventSocket:
    """A subscription to one server on this machine."""

    def __init__(self) -> None:
        """Make the addresses. Raises ImportError without pyzmq, which comes with vLLM."""
        self._zmq: Any = importlib.import_module("zmq")
        self.folder = Path(tempfile.mkdtemp(prefix="kv-events-"))  # short: an address has at most 107 bytes
        self.stream = f"ipc://{self.folder}/stream"
        self.replay = f"ipc://{self.folder}/replay"
        self._context = self._zmq.Context()
        self._subscriber = self._context.socket(self._zmq.SUB)
        self._subscriber.setsockopt(self._zmq.RCVHWM, 0)
        self._subscriber.setsockopt(self._zmq.SUBSCRIBE, b"")
        self._subscriber.connect(self.stream)
        self._asker = self._context.socket(self._zmq.DEALER)
        self._asker.setsockopt(self._zmq.RCVHWM, 0)
        self._asker.connect(self.replay)
        self._next = 0

    @property
    def flags(self) -> list[str]:
        """What makes a vLLM server publish here."""
        config = {"enable_kv_cache_events": True, "publisher": "zmq"}
        return ["--kv-events-config", json.dumps({**config, "endpoint": self.stream, "replay_endpoint": self.replay})]

    def take(self) -> tuple[EventBatch, ...]:
        """What is new. To be called when no request is in flight: it waits until nothing comes any more.

        Raises EventFormatError for what is no batch of events.
        """
        found: dict[int, tuple[float, bytes]] = {}
        while True:
            arrived = {**self._arrived(QUIET_MS), **self._missed(found)}
            new = {number: payload for number, payload in arrived.items() if number not in found}
            if not new:
                break
            found |= {number: (time.monotonic() - time.time(), payload) for number, payload in new.items()}
        fresh = sorted(number for number in found if number >= self._next)
        self._next = max((number + 1 for number in fresh), default=self._next)
        return tuple(batch(number, *found[number]) for number in fresh)

    def _arrived(self, patience_ms: int) -> dict[int, bytes]:
        """What the stream has brought, until it is quiet for so long."""
        found = {}
        while self._subscriber.poll(patience_ms):
            _, number, payload = self._subscriber.recv_multipart()
            found[int.from_bytes(number, "big")] = payload
        return found

    def _missed(self, found: dict[int, Any]) -> dict[int, bytes]:
        """What the server still has from the first batch on that has not come. It reads its replay socket in between
        two batches, so that an answer also means that it is not stuck."""
        wanted = self._next
        while wanted in found:
            wanted += 1
        self._asker.send_multipart([b"", wanted.to_bytes(NUMBER_BYTES, "big")])
        missed = {}
        while self._asker.poll(REPLAY_MS):
            *_, number, payload = self._asker.recv_multipart()
            if number == END:
                break
            missed[int.from_bytes(number, "big")] = payload
        return missed

    def close(self) -> None:
        """Forget what has not been taken. Safe to call twice."""
        with contextlib.suppress(self._zmq.ZMQError):
            self._context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


def batch(number: int, offset: float, payload: bytes) -> EventBatch:
    """A batch as it came, on the clock that requests go by."""
    stamp, events = read_batch(payload)
    return EventBatch(number, stamp + offset, events)
