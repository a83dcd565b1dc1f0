"""A server that publishes KV events cannot make the client read without end, or keep more than the limit."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coldproof.adapters.protocol.kv_events import EventFormatError
from coldproof.adapters.server import event_socket
from coldproof.adapters.server.event_socket import END, EventSocket

pytest.importorskip("zmq")
Parts = tuple[bytes, ...]


@contextlib.contextmanager
def replaying(answer: Callable[[], Iterator[Parts]]) -> Iterator[EventSocket]:
    """Yield a subscription to a server that answers each request for missed batches with these messages."""
    zmq: Any = importlib.import_module("zmq")
    client, context, over = EventSocket(), zmq.Context(), threading.Event()
    replay = context.socket(zmq.ROUTER)
    replay.bind(client.replay)

    def serve() -> None:
        while not over.is_set():
            if replay.poll(20):
                who, *_ = replay.recv_multipart()
                for parts in answer():
                    if over.is_set():
                        return
                    replay.send_multipart((who, b"", *parts))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield client
    finally:
        over.set()
        thread.join()
        client.close()
        context.destroy(linger=0)


def number(value: int) -> bytes:
    """Return a batch number as it is sent."""
    return value.to_bytes(8, "big")


@pytest.mark.parametrize("payload", [b"", bytes(10_000)], ids=["empty", "large"])
def test_batches_without_an_end_are_an_error(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    """Batches with ever new numbers end in an error at the limit of bytes."""
    monkeypatch.setattr(event_socket, "TAKEN_BYTES", 2**20)
    endless = replaying(lambda: ((number(one), payload) for one in itertools.count()))
    with endless as client, pytest.raises(EventFormatError, match="more than 1 MiB"):
        client.take()


@pytest.mark.parametrize("parts", [(b"",), (b"123", b""), (b"", b"", b"x")], ids=["one part", "a short number", "none"])
def test_a_message_of_another_form_is_an_error(parts: Parts) -> None:
    """A message of an unknown form raises an error; nothing is guessed."""
    with replaying(lambda: iter([parts])) as client, pytest.raises(EventFormatError, match="no number of a batch"):
        client.take()


def test_a_batch_that_is_too_large_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch over the limit is not received and remains a gap."""
    monkeypatch.setattr(event_socket, "BATCH_BYTES", 1024)
    monkeypatch.setattr(event_socket, "REPLAY_MS", 500)
    with replaying(lambda: iter([(number(0), bytes(100_000)), (END, b"")])) as client:
        assert client.take() == ()
