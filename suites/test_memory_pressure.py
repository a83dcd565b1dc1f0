"""A pool smaller than the working set: the answers are correct, no request stalls, and every block is freed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.contexts.evidence import Contexts
from coldproof.harness.features.non_prefix.workloads import cut_histories, exceeding_context
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.pressure.workloads import (
    aborts_then_full_pool,
    identical_prompts,
    never_fitting,
    partly_evicted,
    prefix_sharers,
    queued_for_blocks,
    working_sets,
)
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.edges import crowds
from coldproof.harness.workload.generators.rare import with_rare

AREA = "memory pressure and eviction"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.STREAMING)
SIZED = (*TOKENS, Capability.BLOCK_SIZE, Capability.POOL_SIZE)


@requirement(
    "PRESS-1",
    "eviction",
    needs=SIZED,
    suits=(CellTrait.SMALL_POOL, CellTrait.EVICTION),
    shows=(Pressure.EVICTED, Requests.HITS),
    upstream=("vllm#24084", "kvcached#362"),
)
@given(data=st.data())
def test_working_set_larger_than_the_pool(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as cold while the pool is far smaller than the working set.

    Why it can break: a block is allocated again while another request still finds it by its old hash (vllm PR#24084,
    kvcached#362). Oracle: cold start; evictions show as prefixes that were computed and later not hit. Vacuous when
    nothing was evicted, or nothing was hit in between.
    """
    generators = (working_sets, prefix_sharers, queued_for_blocks, partly_evicted)
    usual = st.one_of([generator(sut.limits) for generator in generators])
    sut.check(data.draw(with_rare(sut.limits, usual, pressed(sut.limits), every=3), label="workload"))


@requirement(
    "PRESS-1",
    "history cut to what a context shift left",
    needs=(*TOKENS, Capability.CONTEXT_SHIFT),
    suits=(CellTrait.SMALL_POOL, CellTrait.EVICTION),
    shows=(Contexts.OUTGROWN, Contexts.CUT_HISTORY),
)
@given(data=st.data())
def test_history_cut_after_a_context_shift(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a context shift, a client that cuts its history to the newest half sends a prompt that begins with what the
    engine kept. A conforming engine answers it as cold.

    Why it can break: the KV of what is left was computed over the tokens that were discarded, but its tokens and
    positions are those of the new prompt, and the engine takes it for the prompt's prefix. Oracle: cold start. Vacuous
    when no answer exceeded its context, or no prompt began with a later part of an earlier request.
    """
    sut.check(data.draw(cut_histories(sut.limits), label="workload"))


@requirement(
    "PRESS-1",
    "answers longer than the context",
    needs=(*TOKENS, Capability.CONTEXT_SHIFT),
    suits=(CellTrait.SMALL_POOL, CellTrait.EVICTION),
    shows=(Contexts.OUTGROWN, Contexts.AFTER_OUTGROWN),
    upstream=("llama.cpp#16983",),
)
@given(data=st.data())
def test_answers_longer_than_the_context(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where an answer exceeds its context and the engine discards the oldest part of it (context shift), a conforming
    engine answers like a cold start that did the same. Later requests that fit are also answered as cold.

    Why it can break: what is left is the end of a sequence at other positions, and the engine still treats it as the
    beginning (llama.cpp#16983). Oracle: cold start of an engine in the same mode. Vacuous when no answer exceeded its
    context, or no later request shared a prefix with it.
    """
    sut.check(data.draw(exceeding_context(sut.limits), label="workload"))


@requirement(
    "PRESS-2",
    "many identical long prompts",
    needs=(*SIZED, Capability.METRICS),
    suits=(CellTrait.SMALL_POOL, CellTrait.WHOLE_PROMPTS),
    shows=(Pressure.IDENTICAL, Pressure.WAITED),
    upstream=("vllm#11562",),
)
@given(data=st.data())
def test_many_identical_long_prompts(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Many identical long prompts in a small pool all finish without a stall, and run concurrently as far as their
    shared blocks leave room.

    Why it can break: a scheduler that requires as many free blocks as a cold prompt needs does not start them, or runs
    them one at a time (vLLM's V0 engine, field report; vllm PR#11565). Oracle: every request ends; in samples with
    waiting requests, more than a few requests run. Vacuous when no request had to wait.
    """
    usual, rare = identical_prompts(sut.limits), crowds(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, rare, every=3), label="workload"))


@requirement(
    "PRESS-3",
    "prompts that never fit",
    needs=TOKENS,
    suits=(CellTrait.SMALL_POOL, CellTrait.GROUPS_SMALL_POOL),
    shows=(Pressure.REFUSED, Pressure.BESIDE_REFUSED),
    upstream=("vllm#35541", "vllm#39734", "vllm#52520"),
)
@given(data=st.data())
def test_prompt_that_can_never_fit(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine refuses a prompt that can never fit with an error, and continues with the requests behind it.

    Why it can break: the scheduler retries the prompt without end at the head of the queue (vllm#35541, vllm#39734,
    vllm#52520). Oracle: the refusal, and cold start for the others. Vacuous when nothing was refused, or no request was
    behind it.
    """
    sut.check(data.draw(never_fitting(sut.limits), label="workload"))


@requirement(
    "PRESS-4",
    "every block freed",
    needs=(*SIZED, Capability.METRICS, Capability.POOL_USAGE),
    suits=(CellTrait.SMALL_POOL, CellTrait.WHOLE_PROMPTS),
    shows=(Pressure.IDLE_COMPARED, Pressure.FULL_POOL),
    upstream=("vllm#46283", "sglang#35270", "sglang#6888"),
)
@given(data=st.data())
def test_every_block_is_freed(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine frees every block: after heavy load its pool reports no use, and it serves a request that
    needs the whole pool, or several requests that need it together.

    Why it can break: a request that was aborted, refused or preempted keeps its blocks (vllm#46283, sglang#35270).
    Oracle: the engine's gauges after an idle period, and cold start for the last requests. Vacuous when the gauges are
    missing, or nothing needed most of the pool.
    """
    usual, rare = aborts_then_full_pool(sut.limits), pressed(sut.limits, disconnects=True)
    sut.check(data.draw(with_rare(sut.limits, usual, rare), label="workload"))
