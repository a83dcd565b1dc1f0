"""Read the KV events that a vLLM server publishes on its ZMQ sockets: the stream, and missed batches from the replay.

The subscription starts before the server. The first batches can still be lost, because a subscription takes a moment
to become active. Missed batches are therefore requested from the replay socket. Only batches that the server no longer
has remain a gap.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from typing import Any

from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.protocol.kv_events import EventBatch, EventFormatError, read_batch

# A batch has the events of one step: 1,000 blocks of 256 tokens have about 2 MiB. The socket drops a longer message
# with its connection; what is then missing is requested from the replay socket, or remains a gap.
BATCH_BYTES = 64 * 2**20
MOST_WAITING = 10_000  # batches that the system keeps until they are taken; as many as vLLM keeps for the replay
TAKEN_BYTES = 512 * 2**20  # of one call of `take`: a server that never stops to publish ends it with an error
MESSAGE_BYTES = 1024  # that an empty message counts for
QUIET_MS = 100  # an idle server publishes its last batches within a few of these
REPLAY_MS = 5000
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
SLACK_SECONDS = 0.01  # time stamps are wall-clock times, which the system may adjust; requests use a monotonic clock


class EventSocket:
    """A subscription to one server on this machine."""

    def __init__(self) -> None:
        """Create the addresses and subscribe. Raises ImportError without pyzmq, which vLLM installs."""
        self._zmq: Any = importlib.import_module("zmq")
        self._scratch = ScratchFolder()
        self.folder = self._scratch.path  # short: an address has at most 107 bytes
        self.stream = f"ipc://{self.folder}/stream"
        self.replay = f"ipc://{self.folder}/replay"
        self._context = self._zmq.Context()
        self._subscriber = self._context.socket(self._zmq.SUB)
        self._replayer = self._context.socket(self._zmq.DEALER)
        for one in (self._subscriber, self._replayer):
            one.setsockopt(self._zmq.RCVHWM, MOST_WAITING)
            one.setsockopt(self._zmq.MAXMSGSIZE, BATCH_BYTES)
        self._subscriber.setsockopt(self._zmq.SUBSCRIBE, b"")
        self._subscriber.connect(self.stream)
        self._replayer.connect(self.replay)
        self._next = 0
        self._taken_bytes = 0

    @property
    def flags(self) -> list[str]:
        """Return the flags that make a vLLM server publish on these sockets."""
        config = {"enable_kv_cache_events": True, "publisher": "zmq"}
        return ["--kv-events-config", json.dumps({**config, "endpoint": self.stream, "replay_endpoint": self.replay})]

    def take(self) -> tuple[EventBatch, ...]:
        """Return the new batches. Waits until no more batches arrive; call it only when no request is in flight.

        Raises EventFormatError for a message that is not a batch of events, and for a server that does not stop to
        publish.
        """
        self._taken_bytes = 0
        found: dict[int, tuple[float, bytes]] = {}
        while True:
            arrived = {**self._arrived(QUIET_MS), **self._missed(found)}
            new = {number: payload for number, payload in arrived.items() if number not in found}
            if not new:
                break
            found |= {number: (time.monotonic() - time.time(), payload) for number, payload in new.items()}
        numbers = sorted(number for number in found if number >= self._next)
        self._next = max((number + 1 for number in numbers), default=self._next)
        return tuple(event_batch(number, *found[number]) for number in numbers)

    def _arrived(self, quiet_ms: int) -> dict[int, bytes]:
        """Return the payloads that arrive on the stream until nothing arrives for `quiet_ms`."""
        found = {}
        while self._subscriber.poll(quiet_ms):
            number, payload = self._batch(self._subscriber.recv_multipart())
            found[int.from_bytes(number, "big")] = payload
        return found

    def _batch(self, message: list[bytes]) -> tuple[bytes, bytes]:
        """Return number and payload of a message. Raises EventFormatError for another form, and for too many bytes."""
        if len(message) < 2 or len(message[-2]) != NUMBER_BYTES:
            raise EventFormatError(f"a message on the event socket has {len(message)} parts and no number of a batch")
        self._taken_bytes += len(message[-1]) + MESSAGE_BYTES
        if self._taken_bytes > TAKEN_BYTES:
            raise EventFormatError(f"the server published more than {TAKEN_BYTES // 2**20} MiB of events at once")
        return message[-2], message[-1]

    def _missed(self, found: dict[int, Any]) -> dict[int, bytes]:
        """Return the payloads that the server still has, from the first missing batch on.

        The server reads its replay socket between two batches. An answer therefore also shows that it is not stuck.
        """
        wanted = self._next
        while wanted in found:
            wanted += 1
        self._replayer.send_multipart([b"", wanted.to_bytes(NUMBER_BYTES, "big")])
        missed = {}
        while self._replayer.poll(REPLAY_MS):
            number, payload = self._batch(self._replayer.recv_multipart())
            if number == END:
                break
            missed[int.from_bytes(number, "big")] = payload
        return missed

    def close(self) -> None:
        """Close the sockets and drop batches that were not taken. Safe to call twice."""
        with contextlib.suppress(self._zmq.ZMQError):
            self._context.destroy(linger=0)
        self._scratch.remove()


def event_batch(number: int, offset: float, payload: bytes) -> EventBatch:
    """Return a batch with its time on the clock of the requests."""
    stamp, events = read_batch(payload)
    return EventBatch(number, stamp + offset, events)
