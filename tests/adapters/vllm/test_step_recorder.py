"""The recorder sees what a scheduler does through its own methods, and changes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.protocol.engine_steps import Admission, Chunk
from coldproof.adapters.vllm.inproc.steps import StepRecorder


class Pool:
    """Of 16 blocks, of which 9 are free. Blocks with a hash are cached."""

    def get_num_free_blocks(self) -> int:
        """So many."""
        return 9

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        """Whether it was cached."""
        cached: bool = block.cached
        return cached


class Scheduler:
    """Returns the outputs that it was given, one for each step."""

    block_size = 32

    def __init__(self, *outputs: Any) -> None:
        self.outputs = list(outputs)
        self.requests: dict[str, Any] = {}
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool(), usage=0.4375)

    def schedule(self) -> Any:
        """The next one; then each request has computed its tokens."""
        output = self.outputs.pop(0)
        for name, count in output.num_scheduled_tokens.items():
            one = self.requests.setdefault(name, SimpleNamespace(num_tokens=40, num_computed_tokens=output.hits[name]))
            one.num_computed_tokens += count
        return output

    def get_request_counts(self) -> tuple[int, int]:
        """Running, waiting."""
        return len(self.requests), 3


def output(counts: dict[str, int], *new: str, resumed: tuple[str, ...] = (), **changes: Any) -> Any:
    """What the scheduler returns for a step."""
    cached = SimpleNamespace(resumed_req_ids=set(resumed), req_ids=[name for name in counts if name not in new])
    facts = {"finished_req_ids": set(), "hits": dict.fromkeys(counts, 0), **changes}
    begun = [SimpleNamespace(req_id=name) for name in new]
    return SimpleNamespace(num_scheduled_tokens=counts, scheduled_new_reqs=begun, scheduled_cached_reqs=cached, **facts)


def steps(*outputs: Any) -> list[Any]:
    """The recorded steps of these outputs."""
    scheduler = Scheduler(*outputs)
    recorder = StepRecorder(scheduler, lambda: 1.5)
    returned = [scheduler.schedule() for _ in outputs]
    assert returned == list(outputs)
    return list(recorder.take())


def test_admissions_chunks_and_the_surroundings_are_recorded() -> None:
    """A hit is where the computation begins."""
    (step,) = steps(output({"a": 8, "b": 24}, "a", "b", hits={"a": 32, "b": 0}))
    assert step.admitted == (Admission("a", 32), Admission("b", 0))
    assert step.chunks == (Chunk("a", 32, 40, 40), Chunk("b", 0, 24, 40))
    assert (step.at, step.decoding, step.waiting, step.running, step.free) == (1.5, 0, 3, 2, 9)
    assert step.usage == 0.4375  # what the gauge says


def test_a_prefill_is_followed_to_its_end_and_decoding_is_not_recorded() -> None:
    """Of four steps, three compute the prompt."""
    found = steps(output({"a": 16}, "a"), output({"a": 16}), output({"a": 8}), output({"a": 1}))
    assert [chunk for step in found for chunk in step.chunks] == [
        Chunk("a", 0, 16, 40),
        Chunk("a", 16, 32, 40),
        Chunk("a", 32, 40, 40),
    ]


def test_others_that_decode_are_counted() -> None:
    """Beside a prompt."""
    found = steps(output({"a": 40}, "a"), output({"a": 1, "b": 40}, "b"))
    assert [step.decoding for step in found] == [0, 1]


@pytest.mark.parametrize("again", [{"resumed": ("a",)}, {}])
def test_a_request_that_starts_again_is_resumed(again: dict[str, Any]) -> None:
    """Also with model runner V2, which describes it as a new one."""
    new = () if again else ("a",)
    found = steps(output({"a": 40}, "a"), output({}), output({"a": 1}, *new, **again))
    assert [one.resumed for step in found for one in step.admitted] == [False, True]


def test_a_name_that_was_finished_is_new_again() -> None:
    """A finished request cannot be resumed."""
    found = steps(output({"a": 40}, "a"), output({"a": 40}, "a", finished_req_ids={"a"}))
    assert [one.resumed for step in found for one in step.admitted] == [False, False]


def test_an_aborted_prefill_ends() -> None:
    """The scheduler does not know the request any more."""
    found = steps(output({"a": 16}, "a"), output({}, finished_req_ids={"a"}), output({"b": 1}))
    assert len(found) == 1


def test_evictions_are_counted_and_the_pool_decides_them() -> None:
    """The first block of a prompt ends at most one block behind its start."""
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


def test_what_was_injected_into_the_class_later_is_recorded() -> None:
    """A fault that replaces the method of the class acts under the recorder as without it."""
    scheduler = Scheduler(output({"a": 40}, "a"))
    StepRecorder(scheduler, lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", lambda _this: output({}))
        assert scheduler.schedule().num_scheduled_tokens == {}
