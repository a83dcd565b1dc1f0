"""Published KV events: the only information that a router or a second cache manager has about an engine's cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.events.evidence import Events
from coldproof.harness.features.lora.workloads import AdapterLifecycle, adapter_lifecycles, coexisting_adapters
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.pressure.workloads import working_sets
from coldproof.harness.features.resets.scoped_workloads import RUNNING
from coldproof.harness.features.resets.workloads import resets, resets_before_idle_gaps
from coldproof.harness.features.salts.evidence import Salts
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.features.tiers.restart_workloads import restarts_between_prompts
from coldproof.harness.judgement.evidence.cache import Control
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.ageing import many_resets
from coldproof.harness.workload.generators.edges import chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.rare import with_rare
from coldproof.harness.workload.generators.reuse import traffic
from coldproof.harness.workload.steps import Route

AREA = "KV events"
PUBLISHED = (Capability.KV_EVENTS, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
EXPLAINED = (Events.STORED, Events.EXPLAINED, Events.RESIDENT)
NAMED = (Capability.CACHE_SALT, Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE)
ROUTES = (Route.IN_PLACE, Route.UNLOAD_LOAD)
ROOMY_CELLS = ("KV events", "KV events of a tier")
EVICTING_CELLS = ("KV events in a small pool", "KV events of a tier")
HASHING_CELLS = ("KV events", "KV events in a small pool")


@requirement(
    "EVENT-1",
    "events explain the hits",
    needs=PUBLISHED,
    suits=ROOMY_CELLS,
    shows=EXPLAINED,
    upstream=("vllm#58119", "vllm#43258", "vllm#44451"),
)
@given(data=st.data())
def test_events_explain_the_hits(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The KV events that a conforming engine publishes, when replayed, describe what is cached and explain the hit
    counts.

    Why it can break: one code path that stores blocks sends events and another does not (vllm#58119, vllm PR#43258), or
    an event has tokens that are not the block's (vllm#44451). Oracle: a consumer that replays the stream. There is no
    gap, no block before its parent, no removal of an absent block, no token that no request had, no hit of a block that
    was not stored, and no miss of a block that was present all the time. Vacuous when nothing was hit.
    """
    rare = (crowds(sut.limits), chunks_at_edges(sut.limits), long_neighbours(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, traffic(sut.limits), *rare, every=3), label="workload"))


@requirement(
    "EVENT-1",
    "events name adapters and salts",
    needs=(*PUBLISHED, *NAMED),
    suits=ROOMY_CELLS,
    shows=EXPLAINED,
    upstream=("llmd-router#1389", "sglang#24568"),
)
@given(data=st.data())
def test_events_identify_their_requests(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's KV events also explain the hits with adapters and salts, and name both.

    Why it can break: routers key blocks by what the events name, and the events leave out salts or adapters
    (llm-d-router #1389, sglang#24568). Oracle: the same consumer; a block's adapter and extra keys must be those of a
    request with its tokens. Vacuous when nothing was hit.
    """
    life_cycles = adapter_lifecycles(sut.limits, AdapterLifecycle(routes=ROUTES, goes_back=True))
    named = st.one_of(salted(sut.limits, with_adapter=True), life_cycles, coexisting_adapters(sut.limits))
    sut.check(data.draw(named, label="workload"))


@requirement(
    "EVENT-1",
    "events report resets",
    needs=(*PUBLISHED, Capability.CACHE_RESET),
    suits=ROOMY_CELLS,
    shows=(*EXPLAINED, Events.CLEARED, Control.AFTER_RESET),
)
@given(data=st.data())
def test_events_report_resets(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's KV events report when a cache reset removed everything.

    Why it can break: a router without that event continues to send prompts to an engine that no longer has their
    blocks. Oracle: an event for each reset that reported success, before the next request ends. Vacuous when no prompt
    was sent again after a reset.
    """
    rare = [many_resets(sut.limits)]
    if sut.limits.small_pool is not None:
        rare.append(pressed(sut.limits, scopes=((), RUNNING)))
    sut.check(data.draw(with_rare(sut.limits, resets(sut.limits), *rare, every=3), label="workload"))


@requirement(
    "EVENT-2",
    "events report evictions",
    needs=PUBLISHED,
    suits=EVICTING_CELLS,
    shows=(*EXPLAINED, Events.REMOVED),
    upstream=("vllm#49125",),
)
@given(data=st.data())
def test_events_report_evictions(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's KV events describe what is cached while blocks are evicted and requests are preempted.

    Why it can break: a block loses its hash in code that publishes no event, or the removal of one copy counts for all
    copies. Oracle: the consumer; what was stored and not removed must fit into the pool. Vacuous when nothing was
    removed.
    """
    work = st.one_of(working_sets(sut.limits), outgrowing_requests(sut.limits, afterwards=True))
    rare = (pressed(sut.limits, disconnects=True), crowds(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, work, *rare, every=3), label="workload"))


@requirement(
    "EVENT-2",
    "events of everything at once",
    needs=PUBLISHED,
    suits=EVICTING_CELLS,
    shows=(*EXPLAINED, Events.REMOVED),
    weight=2,
)
@given(data=st.data())
def test_events_of_everything_at_once(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's KV events describe what is cached with chats, adapters, salts, aborts and resets in one
    workload.

    Why it can break: each mechanism was tested alone. Oracle: the consumer. Vacuous when nothing was removed.
    """
    sut.check(data.draw(mixed(sut.limits), label="workload"))


@requirement(
    "EVENT-3",
    "block hashes can be computed from their events",
    needs=(*PUBLISHED, Capability.CACHE_SALT),
    suits=HASHING_CELLS,
    shows=(Events.RECOMPUTED, Salts.HITS),
    hashes_too=True,
    upstream=("vllm#44103", "ascend#12002"),
)
@given(data=st.data())
def test_block_hashes_follow_from_their_events(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's block hashes can be computed again from the fields of their own events.

    Why it can break: the hash includes what the event leaves out, the event has another block's hash (vllm PR#44103),
    or a preemption lost the hash that the next one continues. A router that computes hashes itself then finds no
    engine, or the wrong one. Oracle: the engine's documented rule over parent, tokens and extra keys. Vacuous when no
    hash could be computed.
    """
    work = [salted(sut.limits, with_adapter=False), traffic(sut.limits)]  # the first example is of the first kind
    if sut.limits.small_pool is not None:
        work.append(outgrowing_requests(sut.limits, afterwards=True, adapters=False))
    sut.check(data.draw(st.one_of(work), label="workload"))


@requirement(
    "EVENT-3",
    "block hashes of adapters can be computed from their events",
    needs=(*PUBLISHED, *NAMED),
    suits=HASHING_CELLS,
    shows=(Events.RECOMPUTED_ADAPTER,),
    hashes_too=True,
)
@given(data=st.data())
def test_adapters_block_hashes_follow_from_their_events(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The block hashes of adapters can also be computed again from the fields of their own events.

    Why it can break: the hash includes more of an adapter than its name. Oracle: the same rule. Vacuous when no hash of
    an adapter's block could be computed.
    """
    sut.check(data.draw(adapter_lifecycles(sut.limits, AdapterLifecycle(routes=ROUTES)), label="workload"))


@requirement(
    "EVENT-4",
    "events of several groups",
    needs=(*PUBLISHED, Capability.SEVERAL_GROUPS),
    suits=("KV events of groups",),
    shows=(Events.STORED, Events.EXPLAINED),
    upstream=("vllm#44451", "vllm#58119", "vllm#44103"),
)
@given(data=st.data())
def test_events_of_several_groups(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's KV events describe what is cached in each of several groups of KV-cache blocks.

    Why it can break: layers that discard blocks publish only some of them, with the tokens of all (vllm#44451,
    vllm#58119). Oracle: the consumer, for each group; what is hit must be present in all groups that keep everything.
    Vacuous when nothing was hit.
    """
    sut.check(data.draw(traffic(sut.limits), label="workload"))


@requirement(
    "EVENT-5",
    "resets are announced without another request",
    needs=(*PUBLISHED, Capability.CACHE_RESET),
    suits=("KV events",),
    shows=(Events.STORED, Events.QUIET_RESETS),
    upstream=("aibrix#2287",),
)
@given(data=st.data())
def test_resets_are_announced_while_the_engine_is_idle(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine publishes an event for each successful cache reset within a second, without waiting for the
    next request. The events up to then, when replayed, describe an empty cache.

    Why it can break: events leave the engine with the output of a step, and an idle engine executes no step. Until the
    next request, a router continues to send it the prompts whose blocks it no longer has (aibrix#2287). Oracle: the
    consumer, at the end of an idle gap after the reset. Vacuous when nothing was stored, or no reset succeeded.
    """
    sut.check(data.draw(resets_before_idle_gaps(sut.limits), label="workload"))


@requirement(
    "EVENT-5",
    "a restart can be seen by a subscriber",
    needs=(*PUBLISHED, Capability.EVENT_RESTARTS),
    suits=("KV events",),
    shows=(Events.STORED, Events.RESTARTS),
    upstream=("llmd-router#2853", "vllm#57789"),
)
@given(data=st.data())
def test_restarts_can_be_seen_by_a_subscriber(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a restart, the first batch that a conforming engine publishes shows a subscriber that the cache is another
    one: its number does not follow those from before, or it begins with a cleared cache.

    Why it can break: routers stay connected and keep the blocks of the engine before (llm-d-router#2853). vLLM numbers
    its batches from zero when it starts; a publisher that goes on counting hides the restart. Oracle: the numbers
    before and after. Vacuous when no events were published on both sides of a restart.
    """
    sut.check(data.draw(restarts_between_prompts(sut.limits), label="workload"))
