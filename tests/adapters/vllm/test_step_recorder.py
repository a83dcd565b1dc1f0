"""The recorder observes a scheduler through its own methods and changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.protocol.engine_steps import Admission, Chunk
from coldproof.adapters.vllm.inproc.steps import StepRecorder


class Pool:
    """A pool of 16 blocks, 9 of them free. Blocks with a hash are cached."""

    def get_num_free_blocks(self) -> int:
        """Return the number of free blocks."""
        return 9

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        """Return whether the block was cached."""
        cached: bool = block.cached
        return cached


class Scheduler:
    """A scheduler that returns given outputs, one for each step."""

    block_size = 32

    def __init__(self, *outputs: Any) -> None:
        self.outputs = list(outputs)
        self.requests: dict[str, Any] = {}
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool(), usage=0.4375)

    def schedule(self) -> Any:
        """Return the next output, after which each request has computed its tokens."""
        output = self.outputs.pop(0)
        for name, count in output.num_scheduled_tokens.items():
            one = self.requests.setdefault(name, SimpleNamespace(num_tokens=40, num_computed_tokens=output.hits[name]))
            one.num_computed_tokens += count
        return output

    def get_request_counts(self) -> tuple[int, int]:
        """Return the numbers of running and waiting requests."""
        return len(self.requests), 3


def output(counts: dict[str, int], *new: str, resumed: tuple[str, ...] = (), **changes: Any) -> Any:
    """Return the scheduler's output of a step."""
    cached = SimpleNamespace(resumed_req_ids=set(resumed), req_ids=[name for name in counts if name not in new])
    facts = {"finished_req_ids": set(), "hits": dict.fromkeys(counts, 0), **changes}
    begun = [SimpleNamespace(req_id=name) for name in new]
    return SimpleNamespace(num_scheduled_tokens=counts, scheduled_new_reqs=begun, scheduled_cached_reqs=cached, **facts)


def steps(*outputs: Any) -> list[Any]:
    """Return the recorded steps of these outputs."""
    scheduler = Scheduler(*outputs)
    recorder = StepRecorder(scheduler, lambda: 1.5)
    returned = [scheduler.schedule() for _ in outputs]
    assert returned == list(outputs)
    return list(recorder.take())


def test_admissions_chunks_and_the_surroundings_are_recorded() -> None:
    """A hit ends where the computation begins."""
    (step,) = steps(output({"a": 8, "b": 24}, "a", "b", hits={"a": 32, "b": 0}))
    assert step.admitted == (Admission("a", 32), Admission("b", 0))
    assert step.chunks == (Chunk("a", 32, 40, 40), Chunk("b", 0, 24, 40))
    assert (step.at, step.decoding, step.waiting, step.running, step.free) == (1.5, 0, 3, 2, 9)
    assert step.usage == 0.4375  # what the gauge says


def test_a_prefill_is_followed_to_its_end_and_decoding_is_not_recorded() -> None:
    """Three of four steps compute the prompt."""
    found = steps(output({"a": 16}, "a"), output({"a": 16}), output({"a": 8}), output({"a": 1}))
    assert [chunk for step in found for chunk in step.chunks] == [
        Chunk("a", 0, 16, 40),
        Chunk("a", 16, 32, 40),
        Chunk("a", 32, 40, 40),
    ]


def test_others_that_decode_are_counted() -> None:
    """Decoding requests are counted next to a prompt."""
    found = steps(output({"a": 40}, "a"), output({"a": 1, "b": 40}, "b"))
    assert [step.decoding for step in found] == [0, 1]


@pytest.mark.parametrize("again", [{"resumed": ("a",)}, {}])
def test_a_request_that_starts_again_is_resumed(again: dict[str, Any]) -> None:
    """Model runner V2 describes a resumed request as a new one."""
    new = () if again else ("a",)
    found = steps(output({"a": 40}, "a"), output({}), output({"a": 1}, *new, **again))
    assert [one.resumed for step in found for one in step.admitted] == [False, True]


def test_a_finished_name_is_new_again() -> None:
    """A finished request cannot be resumed."""
    found = steps(output({"a": 40}, "a"), output({"a": 40}, "a", finished_req_ids={"a"}))
    assert [one.resumed for step in found for one in step.admitted] == [False, False]


def test_an_aborted_prefill_ends() -> None:
    """The scheduler no longer has the request."""
    found = steps(output({"a": 16}, "a"), output({}, finished_req_ids={"a"}), output({"b": 1}))
    assert len(found) == 1


def test_evictions_are_counted_and_the_pool_decides_them() -> None:
    """A block that ends at most one block after the start is the first one of a prompt."""
    scheduler = Scheduler(output({"a": 1}), output({"a": 1}))
    recorder = StepRecorder(scheduler, lambda: 0.0)
    pool: Any = scheduler.kv_cache_manager.block_pool
    blocks = [(True, 32), (True, 64), (False, None), (True, None)]
    kept = [SimpleNamespace(cached=cached, block_hash_num_tokens=end) for cached, end in blocks]
    assert [pool._maybe_evict_cached_block(block) for block in kept] == [True, True, False, True]
    scheduler.schedule()
    scheduler.schedule()
    (step,) = recorder.take()
    assert (step.evicted, step.evicted_first) == (3, 1)
    assert recorder.take() == ()


def test_a_later_fault_in_the_class_is_recorded() -> None:
    """A fault that replaces the method of the class acts with the recorder as without it."""
    scheduler = Scheduler(output({"a": 40}, "a"))
    StepRecorder(scheduler, lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", lambda _this: output({}))
        assert scheduler.schedule().num_scheduled_tokens == {}
