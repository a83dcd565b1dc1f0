"""A pool smaller than what is asked of it: right answers, no stall, nothing lost for good."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.pieces import outgrown
from harness.generators.pressure import (
    identical_crowds,
    never_fitting,
    partly_evicted,
    sharers,
    storms,
    waits_for_room,
    working_sets,
)
from harness.lab import Lab
from harness.requirement import requirement

TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.STREAMING)
SIZED = (*TOKENS, Capability.BLOCK_SIZE, Capability.POOL_SIZE)


@requirement(
    "PRESS-1",
    "eviction",
    needs=SIZED,
    shows=(Evidence.EVICTED, Evidence.HITS),
    upstream=("vllm#24084", "kvcached#362"),
)
@given(data=st.data())
def test_working_set_larger_than_the_pool(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine answers as cold while the pool is far smaller than the working set.

    Why it can break: a block is handed out again while somebody still finds it under its old hash (vllm PR#24084,
    kvcached#362). Oracle: cold start; evictions show as prefixes that had been computed and were gone. Vacuous when
    nothing was evicted, or nothing was hit in between.
    """
    on = lab.grounds
    workloads = st.one_of(working_sets(on), sharers(on), waits_for_room(on), partly_evicted(on))
    lab.check(data.draw(workloads, label="workload"))


@requirement(
    "PRESS-1",
    "answers that outgrow their context",
    needs=(*TOKENS, Capability.CONTEXT_SHIFT),
    shows=(Evidence.OUTGROWN, Evidence.AFTER_OUTGROWN),
    upstream=("llama.cpp#16983",),
)
@given(data=st.data())
def test_answers_that_outgrow_their_context(lab: Lab, data: st.DataObject) -> None:
    """It does where an answer outgrows its context, of which the oldest part then goes: as a cold start that outgrew it
    likewise; and so do requests that come after and fit.

    Why it can break: what is left is the end of a sequence under other positions, and is still taken for its beginning
    (llama.cpp#16983). Oracle: cold start of an engine in the same mode. Vacuous when nothing outgrew its context, or
    nobody came after who shares a prefix with it.
    """
    lab.check(data.draw(outgrown(lab.grounds), label="workload"))


@requirement(
    "PRESS-2",
    "many identical long prompts",
    needs=(*SIZED, Capability.METRICS),
    shows=(Evidence.IDENTICAL, Evidence.WAITED),
    upstream=("vllm#11562",),
)
@given(data=st.data())
def test_many_identical_long_prompts(lab: Lab, data: st.DataObject) -> None:
    """Many identical long prompts in a tight pool all finish, with no stall after the first, and run side by side as
    far as their shared blocks leave room.

    Why it can break: a scheduler that asks for as many free blocks as a cold prompt needs starves, or runs them one at
    a time (vLLM's V0 engine, field report; vllm PR#11565). Oracle: every request ends; at looks with requests waiting
    more than a few run. Vacuous when nothing had to wait.
    """
    lab.check(data.draw(identical_crowds(lab.grounds), label="workload"))


@requirement(
    "PRESS-3",
    "prompts that never fit",
    needs=TOKENS,
    shows=(Evidence.REFUSED, Evidence.BESIDE_REFUSED),
    upstream=("vllm#35541", "vllm#39734", "vllm#52520"),
)
@given(data=st.data())
def test_prompt_that_can_never_fit(lab: Lab, data: st.DataObject) -> None:
    """A prompt that can never fit is refused by a conforming engine with an error, and the queue behind it moves.

    Why it can break: it is retried for ever at the head of the queue (vllm#35541, vllm#39734, vllm#52520). Oracle: the
    refusal, and cold start for the others. Vacuous when nothing was refused, or nobody stood behind it.
    """
    lab.check(data.draw(never_fitting(lab.grounds), label="workload"))


@requirement(
    "PRESS-4",
    "every block given back",
    needs=(*SIZED, Capability.METRICS, Capability.POOL_USAGE),
    shows=(Evidence.IDLE_LOOKS, Evidence.FULL_POOL),
    upstream=("vllm#46283", "sglang#35270", "sglang#6888"),
)
@given(data=st.data())
def test_every_block_comes_back(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine gives every block back: after the storm the pool reports idle, and a request that needs the
    whole pool (or several that do so together) is served.

    Why it can break: a request that was aborted, refused or preempted keeps its blocks (vllm#46283, sglang#35270).
    Oracle: the engine's gauges after an idle gap, and cold start for the last requests. Vacuous when the gauges are
    missing, or nothing needed most of the pool.
    """
    lab.check(data.draw(storms(lab.grounds), label="workload"))
