"""Adapters whose content changes under one name: the KV of the earlier content must never be used for the new one.

The order is by cost, not by number: requirements that engines often break are not adjacent. So the fresh engine that
confirms one counterexample starts while the next requirement runs.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    adapter_switches,
    coexisting_adapters,
    reload_routes,
)
from coldproof.harness.features.non_prefix.workloads import rearranged
from coldproof.harness.features.salts.crossed_workloads import crossed
from coldproof.harness.judgement.evidence.lossy import Lossy
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.ageing import (
    loads_beside_others,
    loads_without_requests,
    many_loads,
    many_names,
)
from coldproof.harness.workload.generators.rare import with_rare
from coldproof.harness.workload.steps import Route

AREA = "LoRA adapter changes"
CHOSEN = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.ADAPTER_CHOICE)
ADAPTERS = (*CHOSEN, Capability.STREAMING, Capability.CACHED_TOKENS)
RELOADS = (*ADAPTERS, Capability.RUNTIME_LORA)
IN_PLACE = (*RELOADS, Capability.LORA_IN_PLACE)
IN_PLACE_WHERE_SUPPORTED = {Capability.LORA_IN_PLACE: Adapters.IN_PLACE_RELOADS}
RARE_LOADS = (many_loads, loads_without_requests, loads_beside_others)
RISK = (Adapters.WARM_HITS, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING)


@requirement(
    "LORA-1",
    "in-place reload, other path",
    needs=IN_PLACE,
    suits=(CellTrait.ADAPTERS, CellTrait.BLOCK_KEYS),
    shows=(Adapters.IN_PLACE_RELOADS, *RISK),
    upstream=("vllm#42125", "vllm#30931"),
)
@given(data=st.data())
def test_in_place_reload_from_another_path(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an in-place reload under the same name from another path, a conforming engine answers as the new adapter
    cold.

    Why it can break: the block hash contains the adapter's name and not its content (vllm#42125). Oracle: cold start.
    Vacuous when the warm-up never hit, no block of the old content was cached for a later prompt, or the two contents
    give equal answers.
    """
    usual, routes = adapter_lifecycles(sut.limits, AdapterLifecycle(routes=(Route.IN_PLACE,))), (Route.IN_PLACE,)
    rare = [generator(sut.limits, routes) for generator in RARE_LOADS]
    sut.check(data.draw(with_rare(sut.limits, usual, *rare), label="workload"))


@requirement(
    "LORA-3",
    "in-place reload, same path, changed files",
    needs=IN_PLACE,
    suits=(CellTrait.ADAPTERS,),
    shows=(Adapters.IN_PLACE_RELOADS, Adapters.SAME_PATH_RELOADS, *RISK),
    upstream=("vllm#42125", "vllm#48352"),
)
@given(data=st.data())
def test_in_place_reload_of_changed_files(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an in-place reload from the same path whose files changed, a conforming engine answers as the new adapter
    cold.

    Why it can break: a key of name and path looks like a version but is not one, and trainers write every checkpoint to
    the same folder. Oracle: cold start. Vacuous in the same cases as LORA-1, or when no path was used again with other
    files.
    """
    lifecycle = AdapterLifecycle(routes=(Route.IN_PLACE,), same_path=True)
    sut.check(data.draw(adapter_lifecycles(sut.limits, lifecycle), label="workload"))


@requirement(
    "LORA-2",
    "unload + load, other path",
    needs=RELOADS,
    suits=(CellTrait.ADAPTERS,),
    shows=(Adapters.UNLOAD_LOADS, *RISK),
    upstream=("vllm#42125", "vllm#30931"),
)
@given(data=st.data())
def test_unload_and_load_from_another_path(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After unload + load under the same name, a conforming engine answers as the new adapter cold.

    Why it can break: unloading removes the name from the front end and leaves the blocks in the pool (vllm#42125).
    Oracle: cold start. Vacuous in the same cases as LORA-1.
    """
    routes = (Route.UNLOAD_LOAD,)
    rare = [generator(sut.limits, routes) for generator in RARE_LOADS]
    usual = adapter_lifecycles(sut.limits, AdapterLifecycle(routes=routes))
    sut.check(data.draw(with_rare(sut.limits, usual, *rare), label="workload"))


@requirement(
    "LORA-3",
    "unload + load, same path, changed files",
    needs=RELOADS,
    suits=(CellTrait.ADAPTERS,),
    shows=(Adapters.UNLOAD_LOADS, Adapters.SAME_PATH_RELOADS, *RISK),
)
@given(data=st.data())
def test_unload_and_load_of_changed_files(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After unload + load from the same path whose files changed, a conforming engine answers as the new adapter
    cold."""
    lifecycle = AdapterLifecycle(routes=(Route.UNLOAD_LOAD,), same_path=True)
    sut.check(data.draw(adapter_lifecycles(sut.limits, lifecycle), label="workload"))


@requirement(
    "LORA-4",
    "adapters and base model isolated",
    needs=CHOSEN,
    suits=(CellTrait.ADAPTERS, CellTrait.ADAPTER_CHOICE),
    shows=(Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    upstream=("vllm#3263", "vllm#8240", "vllm#30931", "llama.cpp#26207"),
)
@given(data=st.data())
def test_no_sharing_between_adapters_or_with_the_base_model(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine never shares KV between two adapters, or between an adapter and the base model, whatever
    their names, ranks and load order.

    Why it can break: the adapter has been dropped from the cache key several times (vllm PR#3263, PR#8240, #30931).
    Oracle: cold start. Vacuous when no block of another identity was cached for a prompt, or the identities give equal
    answers.
    """
    rare = (crossed(sut.limits, adapters=True), crossed(sut.limits, adapters=True), many_names(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, coexisting_adapters(sut.limits), *rare), label="workload"))


@requirement(
    "LORA-4",
    "isolated with non-prefix KV reuse",
    needs=(*CHOSEN, Capability.MOVED_PIECES),
    suits=(CellTrait.ADAPTERS, CellTrait.ADAPTER_CHOICE),
    shows=(Lossy.MOVED, Adapters.DISCRIMINATING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_non_prefix_reuse_is_isolated_by_adapter(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine also never shares KV between adapters where it reuses parts of a prompt at other positions
    (non-prefix KV reuse).

    Why it can break: the engine finds a part by its tokens, in a sequence that another adapter computed
    (llama.cpp#26207). Oracle: the prompt tokens that are in parts of what was computed for the request's identity; and
    the answers that other identities would have given, because this mode may give an answer that equals no cold answer.
    Vacuous when no part was reused at another position, or the identities give equal answers.
    """
    sut.check(data.draw(rearranged(sut.limits, adapters=True), label="workload"))


@requirement(
    "LORA-5",
    "return to an earlier adapter: A, B, A",
    needs=RELOADS,
    suits=(CellTrait.ADAPTERS, CellTrait.NARROW_CHUNKS),
    shows=(Adapters.RETURNS, Adapters.UNLOAD_LOADS, *RISK),
    shows_where=IN_PLACE_WHERE_SUPPORTED,
    overlapped_too=False,
    upstream=("vllm#42125",),
)
@given(data=st.data())
def test_return_to_an_earlier_adapter(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a return to an earlier adapter (A, B, A), a conforming engine answers as A cold, with or without hits.

    Why it can break: blocks of A and of B are in the pool together, and their keys must differ permanently. Oracle:
    cold start. Vacuous when no earlier content was loaded again.
    """
    routes = reload_routes(sut.limits)
    usual = adapter_lifecycles(sut.limits, AdapterLifecycle(routes=routes, goes_back=True, most_names=1))
    rare = [generator(sut.limits, routes) for generator in RARE_LOADS]
    sut.check(data.draw(with_rare(sut.limits, usual, *rare), label="workload"))


@requirement(
    "LORA-5",
    "return to an earlier adapter after a change under traffic",
    needs=RELOADS,
    suits=(CellTrait.ADAPTERS, CellTrait.NARROW_CHUNKS),
    shows=(Adapters.RETURNS, Adapters.OVERLAPPED, Adapters.AFTER_OVERLAP),
    overlapped_too=False,
)
@given(data=st.data())
def test_return_to_an_earlier_adapter_after_a_change_under_traffic(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine also answers as A cold after A, B, A when requests were running while B replaced A.

    Why it can break: those requests continue to write blocks under A's key, with B's weights, and the blocks stay in
    the pool until A returns. Oracle: cold start. LORA-6 judges the requests that the change itself overlapped; they are
    not judged here. Vacuous when, after the return of A, no prompt continued an answer that the change overlapped.
    """
    lifecycle = AdapterLifecycle(
        routes=reload_routes(sut.limits)[:1], goes_back=True, under_traffic=True, most_names=1, base_traffic=False
    )
    sut.check(data.draw(adapter_lifecycles(sut.limits, lifecycle), label="workload"))


@requirement(
    "LORA-7",
    "more adapters than slots",
    needs=(*RELOADS, Capability.ADAPTER_SLOTS),
    suits=(CellTrait.ADAPTERS,),
    shows=(Adapters.BEYOND_SLOTS, Requests.HITS, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    upstream=("vllm#38606",),
)
@given(data=st.data())
def test_churn_beyond_the_adapter_slots(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as the current adapter cold also while more adapters are in use than it has adapter
    slots.

    Why it can break: an adapter that was evicted from its slot is loaded again on another code path, and its blocks
    outlive it. Oracle: cold start. Vacuous when all names fitted into the slots.
    """
    rare = (many_names(sut.limits), many_loads(sut.limits, reload_routes(sut.limits)))
    sut.check(data.draw(with_rare(sut.limits, adapter_churn(sut.limits), *rare), label="workload"))


@requirement(
    "LORA-6",
    "reload under traffic",
    needs=RELOADS,
    suits=(CellTrait.ADAPTERS, CellTrait.WAITING),
    shows=(Adapters.OVERLAPPED,),
    shows_where=IN_PLACE_WHERE_SUPPORTED,
    upstream=("vllm#48352",),
)
@given(data=st.data())
def test_reload_while_requests_run(sut: SystemUnderTest, data: st.DataObject) -> None:
    """When an adapter is reloaded while requests run, a conforming engine gives each answer entirely with one version,
    never with a mixture. Every request that is sent after the reload returned gets the new version's answer.

    Why it can break: the reload swaps weights between two steps of a running request. Oracle: cold start with the old
    or the new content for the requests that the reload overlapped, with the new one for later requests. Vacuous when no
    reload overlapped a request.
    """
    lifecycle = AdapterLifecycle(
        routes=reload_routes(sut.limits)[:1], under_traffic=True, most_names=1, base_traffic=False
    )
    sut.check(data.draw(adapter_lifecycles(sut.limits, lifecycle), label="workload"))


@requirement(
    "LORA-8",
    "adapter switched on for every request",
    needs=(*ADAPTERS, Capability.ADAPTER_SWITCH),
    suits=(CellTrait.ADAPTERS,),
    shows=(Adapters.SWITCHES, Requests.HITS, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_an_adapter_switched_on_for_every_request(sut: SystemUnderTest, data: st.DataObject) -> None:
    """When an adapter is switched on for every request, replaced or switched off, a conforming engine answers as the
    adapter that is on now cold. It answers a request that chooses its own adapter as that adapter cold.

    Why it can break: the cache key contains what a request names, and these requests name no adapter (llama.cpp#26207).
    Oracle: cold start. Vacuous when nothing was switched, nothing was hit, or no prefix of another identity was cached.
    """
    sut.check(data.draw(adapter_switches(sut.limits), label="workload"))
