"""Published messages become events and nothing is repaired: packing, hashes, gaps and the replay socket."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from coldproof.adapters.protocol.kv_events import (
    Cleared,
    EventFormatError,
    HashRule,
    Removed,
    Stored,
    hash_rule,
    read_batch,
)
from coldproof.adapters.server.event_socket import END, EventSocket
from coldproof.adapters.vllm.inproc.kv_events import EventRecorder
from coldproof.adapters.vllm.server import VllmOptions, environment

STORED = {
    "type": "BlockStored",
    "block_hashes": [1, 2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [5, 6, 7, 8],
    "block_size": 2,
    "lora_id": 3,
    "medium": "GPU",
    "lora_name": "tenant",
    "extra_keys": [["tenant", "red"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "something_new": 1,
}


def packed(*events: dict[str, Any], stamp: float = 12.5) -> bytes:
    """Return a batch as vLLM packs it."""
    return msgspec.msgpack.encode([stamp, list(events), 0])


def test_a_batch_is_read() -> None:
    """Hashes may be integers or bytes. A missing field is unknown, and an unknown field is ignored."""
    removed = {"type": "BlockRemoved", "block_hashes": [b"\x01\xff"], "medium": "GPU"}
    stamp, events = read_batch(packed(STORED, removed, {"type": "AllBlocksCleared"}))
    assert stamp == 12.5
    assert events == (
        Stored(
            hashes=("0" * 15 + "1", "f" * 16),
            parent=None,
            tokens=(5, 6, 7, 8),
            block_size=2,
            lora_name="tenant",
            lora_id=3,
            extra_keys=(("tenant", "red"), ()),
            medium="GPU",
            group=0,
            kind="full_attention",
        ),
        Removed(hashes=("01ff",), medium="GPU"),
        Cleared(),
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1}),
        packed({"type": "BlockMoved"}),
        packed({"type": "BlockStored"}),
        packed({**STORED, "block_hashes": ["x"]}),
        packed({**STORED, "block_hashes": 7}),
    ],
)
def test_an_invalid_batch_is_an_error(payload: bytes) -> None:
    """An invalid batch is an error, because a stream with a gap explains nothing."""
    with pytest.raises(EventFormatError):
        read_batch(payload)


def test_the_recorder_numbers_and_stamps_batches() -> None:
    """Times are those of the engine's clock, not of the batch."""
    mail = EventRecorder()
    mail.publish([1.0, [{"type": "AllBlocksCleared"}]])
    mail.publish([2.0, []])
    assert mail.take() == ()
    mail.stamp(0.25)
    mail.publish([3.0, []])
    mail.stamp(0.5)
    assert [(batch.sequence, batch.at, batch.events) for batch in mail.take()] == [
        (0, 0.25, (Cleared(),)),
        (1, 0.25, ()),
        (2, 0.5, ()),
    ]
    assert mail.take() == ()


def test_a_rule_needs_an_algorithm_and_a_seed() -> None:
    """Neither the algorithm nor the seed is guessed."""
    config = {"cache.prefix_caching_hash_algo": "sha256"}
    assert hash_rule(config, "0") == HashRule("sha256", "0")
    assert hash_rule(config, None) is None
    assert hash_rule({}, "0") is None


def test_a_server_with_events_gets_a_seed_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that the user has set is kept, and without events none is added."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert environment(events=True)["PYTHONHASHSEED"] == "0"
    assert "PYTHONHASHSEED" not in environment()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert environment(events=True)["PYTHONHASHSEED"] == "7"
    assert VllmOptions(model="m", log=None).events is False  # type: ignore[arg-type]


class Publisher:
    """vLLM's publisher in small: a stream, and a replay socket served by a thread."""

    def __init__(self, socket: EventSocket) -> None:
        self.zmq: Any = importlib.import_module("zmq")
        self.context = self.zmq.Context()
        self.stream, self.replay = self.context.socket(self.zmq.PUB), self.context.socket(self.zmq.ROUTER)
        self.stream.bind(socket.stream)
        self.replay.bind(socket.replay)
        self.kept: dict[int, bytes] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve_replay)
        self.thread.start()

    def publish(self, number: int, *, kept: bool = True, sent: bool = True) -> None:
        """Publish one batch, which may be lost (`sent`) or missing from the replay (`kept`)."""
        payload = packed({"type": "AllBlocksCleared"}, stamp=float(number))
        if kept:
            self.kept[number] = payload
        if sent:
            self.stream.send_multipart((b"", number.to_bytes(8, "big"), payload))

    def serve_replay(self) -> None:
        """Serve replays as vLLM's `_service_replay` does."""
        while not self.over.is_set():
            if self.replay.poll(20):
                who, _, start = self.replay.recv_multipart()
                for number, payload in sorted(self.kept.items()):
                    if number >= int.from_bytes(start, "big"):
                        self.replay.send_multipart((who, b"", b"", number.to_bytes(8, "big"), payload))
                self.replay.send_multipart((who, b"", b"", END, b""))

    def stop(self) -> None:
        """End the thread before its socket."""
        self.over.set()
        self.thread.join()
        self.context.destroy(linger=0)


@pytest.fixture
def socket() -> Iterator[EventSocket]:
    """Yield a subscription that waits for its server."""
    opened = EventSocket()
    yield opened
    opened.close()
    opened.close()
    assert not opened.folder.exists()


@pytest.fixture
def publisher(socket: EventSocket) -> Iterator[Publisher]:
    """Yield a server that starts after the subscription."""
    started = Publisher(socket)
    yield started
    started.stop()


def numbers(socket: EventSocket) -> list[int]:
    """Return the numbers of the new batches."""
    return [batch.sequence for batch in socket.take()]


def test_missed_batches_of_the_stream_are_replayed(socket: EventSocket, publisher: Publisher) -> None:
    """Lost batches are requested again, and each batch is returned once and in order."""
    assert numbers(socket) == []
    for number, sent in ((0, False), (1, True), (2, False), (3, True)):
        publisher.publish(number, sent=sent)
    assert numbers(socket) == [0, 1, 2, 3]
    assert numbers(socket) == []
    publisher.publish(4)
    assert numbers(socket) == [4]


def test_a_dropped_batch_stays_a_gap(socket: EventSocket, publisher: Publisher) -> None:
    """A batch that the server has dropped remains a gap, and is not waited for again."""
    publisher.publish(0, sent=False)
    publisher.publish(1, kept=False, sent=False)
    publisher.publish(2, sent=False)
    assert numbers(socket) == [0, 2]
    publisher.publish(3, sent=False)
    assert numbers(socket) == [3]


def test_the_flags_name_both_sockets(socket: EventSocket) -> None:
    """vLLM binds ipc addresses."""
    option, config = socket.flags
    assert option == "--kv-events-config"
    said = msgspec.json.decode(config)
    assert said == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": socket.stream,
        "replay_endpoint": socket.replay,
    }
    assert len(socket.replay) < 100
