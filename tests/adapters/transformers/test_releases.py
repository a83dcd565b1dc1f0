"""Earlier releases of Transformers are stepped pass by pass, like the newest one. Transformers is not needed."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from types import SimpleNamespace as Stand
from typing import Any

import pytest

from coldproof.adapters.transformers import releases
from coldproof.adapters.transformers.releases import (
    attention_kinds,
    block_tokens,
    can_reset,
    configuration_of,
    fatal_error,
    pause_of,
    usage,
)


class Manager:
    """A manager without pauses, whose thread prepares batch after batch. `last`: the pass in which it fails."""

    def __init__(self, last: int = 10**9) -> None:
        self.passes, self.last = 0, last
        self.fatal_error: Exception | None = None
        self._has_new_requests = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_running(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def _create_batch_processor(self) -> Any:
        return Stand(prepare_next_batch=self._prepare)

    def _prepare(self) -> bool:
        self.passes += 1
        return self.passes < self.last

    def _run(self) -> None:
        processor = self._create_batch_processor()
        while processor.prepare_next_batch():
            pass
        self.fatal_error = ValueError("out of blocks")


def steps(manager: Manager, count: int) -> list[int]:
    """Return how many passes were made before each step of a loop that is paused between steps."""
    pauses, lock = pause_of(manager)
    manager.start()
    pause, seen = pauses(), []
    pause.__enter__()
    for _ in range(count):
        seen.append(manager.passes)
        with lock:
            pause.__exit__(None, None, None)
            pause = pauses()
            pause.__enter__()
    return seen


def test_a_loop_without_pauses_makes_one_pass_in_each_step() -> None:
    """The first pause may come at any pass. From then on nothing runs between the steps."""
    seen = steps(Manager(), 20)
    assert [number - seen[0] for number in seen] == list(range(20))


def test_a_loop_that_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits forever would look like an engine that hangs."""
    monkeypatch.setattr(releases, "POLL_SECONDS", 0.01)
    manager = Manager(last=5)
    with pytest.raises(RuntimeError, match="stopped before it could pause"):
        steps(manager, 20)
    assert str(fatal_error(manager)) == "out of blocks"


def test_a_manager_with_pauses_keeps_its_own() -> None:
    """Its own lock and error are used too."""
    status = Stand(_condition=threading.Condition(), fatal_error=None)
    manager = Stand(pause=contextlib.nullcontext, background_thread_status=status)
    assert pause_of(manager) == (contextlib.nullcontext, status._condition)
    assert fatal_error(manager) is None


def test_the_tokens_of_a_block_are_given_under_the_name_that_a_release_knows() -> None:
    """Up to 5.15 the name is block_size. The newer configuration has that field as well but does not use it."""

    @dataclass
    class Old:
        block_size: int = 256

    @dataclass
    class New:
        page_size: int = 256
        block_size: int | None = None

    assert block_tokens(configuration_of(Old, {"page_size": 16})) == 16
    assert block_tokens(configuration_of(New, {"page_size": 16})) == 16
    assert configuration_of(New, {"page_size": 16}).block_size is None


def test_an_older_cache_is_read_by_its_counts() -> None:
    """An older cache has no allocators, counts cached blocks as free, and cannot be emptied."""
    old: Any = Stand(
        num_full_attention_groups=1, num_sliding_attention_groups=0, num_blocks=8, get_num_free_blocks=lambda: 6
    )
    assert (attention_kinds(old), usage(old), can_reset(old)) == (["full_attention"], 0.25, False)
    ledger = Stand(ledger=Stand(cached_blocks=[1]), bytes_per_block=1)
    new: Any = Stand(
        cache_allocators={"full_attention": ledger, "sliding_attention": ledger},
        num_sectors=8,
        bytes_per_sector=1,
        compute_free_capacity=lambda: 0.5,
        reset=lambda: None,
    )
    assert (attention_kinds(new), usage(new), can_reset(new)) == (
        ["full_attention", "sliding_attention"],
        0.25,
        True,
    )


def test_the_error_of_a_manager_without_pauses_may_be_in_its_status() -> None:
    """Release 5.17 has the status of its thread but no pause yet."""
    status = Stand(fatal_error=ValueError("out of blocks"))
    assert str(fatal_error(Stand(background_thread_status=status))) == "out of blocks"
