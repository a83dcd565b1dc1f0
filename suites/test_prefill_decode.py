"""Engines of which one computes prompts and another one decodes: both together answer as one engine."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import reloads
from coldproof.harness.features.pressure.workloads import identical_prompts
from coldproof.harness.features.resets.workloads import resets
from coldproof.harness.features.salts.evidence import Salts
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.features.sides.evidence import Sides
from coldproof.harness.features.sides.failure_workloads import failing_sides, failing_tiers, late_hand_overs
from coldproof.harness.features.sides.first_workloads import (
    adapters_one_side_first,
    resets_one_side_first,
    weights_one_side_first,
)
from coldproof.harness.features.weights.evidence import Weights
from coldproof.harness.features.weights.workloads import quiet_updates
from coldproof.harness.judgement.evidence.cache import Control, Pressure, Reuse
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.reuse import returns, traffic
from coldproof.harness.workload.steps import Workload
from coldproof.harness.workload.transform import with_reset_scope

AREA = "prefill and decode apart"
APART = (Capability.PREFILL_APART, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
PAIR_CELLS = ("prefill apart",)


def everywhere(sut: SystemUnderTest) -> Callable[[Workload], Workload]:
    """Return a function after which a workload's resets cover the second tier of both engines, if they share one."""
    scope = (ResetScope.SECOND_TIER,) if sut.can(Capability.RESET_SECOND_TIER) else ()
    return functools.partial(with_reset_scope, scope=scope)


@requirement(
    "PD-1",
    "prefill and decode apart answer as one",
    needs=(*APART, Capability.STREAMING, Capability.BLOCK_SIZE, Capability.POOL_SIZE),
    suits=("prefill apart", "prefill apart in small pools"),
    shows=(Requests.HITS, Reuse.EXPECTED, Sides.FETCHED, Sides.PARTLY_FETCHED, Pressure.IDENTICAL),
)
@given(data=st.data())
def test_prefill_and_decode_apart_answer_as_one(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming pair of engines gives the cold answers of one engine, also where the decoder has the first blocks of
    a prompt in its own cache and fetches only the rest. The prefiller hits what it has computed before.

    Why it can break: the fetched blocks begin where the decoder's own end, so an error in that place puts KV behind the
    wrong tokens; blocks are read before they are computed, or after they were given to another request. Oracle: cold
    start of one engine, and the reference cache of the prefiller, which has the prompts and not the answers. Vacuous
    when nothing was fetched, or no prompt was fetched in part.
    """
    limits = sut.limits
    shared = (trees(limits, chat=False), conversations(limits, chat=False))
    usual = st.one_of(*shared, returns(limits), traffic(limits), identical_prompts(limits))
    sut.check(data.draw(usual, label="workload"))


@requirement(
    "PD-2",
    "adapters with prefill and decode apart",
    needs=(*APART, Capability.STREAMING, Capability.ADAPTER_CHOICE, Capability.RUNTIME_LORA),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Adapters.WARM_HITS, Adapters.UNLOAD_LOADS, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    shows_where={Capability.LORA_IN_PLACE: Adapters.IN_PLACE_RELOADS},
    overlapped_too=False,
)
@given(data=st.data())
def test_adapters_with_prefill_and_decode_apart(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a load, an in-place reload, or unload + load on both engines, the pair answers as the new adapter cold.

    Why it can break: the decoder takes blocks of the old adapter from its own cache, or the KV that it fetches was
    computed with the old one. Oracle: cold start of one engine. Vacuous when nothing was fetched, no request could have
    hit the old content, or the contents give equal answers.
    """
    sut.check(data.draw(reloads(sut.limits), label="workload"))


@requirement(
    "PD-2",
    "salts with prefill and decode apart",
    needs=(*APART, Capability.CACHE_SALT),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Salts.HITS, Adapters.STALE_CHANCES),
    overlapped_too=False,
)
@given(data=st.data())
def test_salts_with_prefill_and_decode_apart(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Requests with different salts share no blocks on the prefiller, and requests with equal salts do. The decoder
    fetches all blocks of a prompt that it has computed under another salt only. The pair gives cold answers.

    Why it can break: the request that one side gets lacks the salt. Oracle: the reference cache of each side, and cold
    start. Vacuous when no salted request hit, nothing was fetched, or no
    request could have hit the blocks of another salt.
    """
    workload = salted(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), several=False)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "PD-2",
    "resets with prefill and decode apart",
    needs=(*APART, Capability.STREAMING, Capability.CACHE_RESET),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Control.RESETS, Control.AFTER_RESET, Requests.HITS),
    overlapped_too=False,
)
@given(data=st.data())
def test_resets_with_prefill_and_decode_apart(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a reset of both engines that reports success, neither hits what was cached before, and the answers are
    cold ones. A reset while KV waits to be fetched fails, or loses nothing that a request still needs.

    Why it can break: the prefiller gives blocks away that the decoder has not read yet; the reset reaches one side.
    Oracle: the reference cache of each side, whose upper bound is zero after the reset, and cold start. Vacuous when no
    reset succeeded or nothing was fetched.
    """
    sut.check(data.draw(resets(sut.limits).map(everywhere(sut)), label="workload"))


@requirement(
    "PD-2",
    "weights with prefill and decode apart",
    needs=(*APART, Capability.WEIGHT_UPDATES),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Weights.AFTER_UPDATE, Adapters.DISCRIMINATING),
    overlapped_too=False,
)
@given(data=st.data())
def test_weights_with_prefill_and_decode_apart(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an update of the weights of both engines and the invalidation that they document, the pair answers as the
    new weights cold.

    Why it can break: the invalidation reaches one side, or KV of the old weights is still waiting to be fetched.
    Oracle: a cold engine with these weights. Vacuous when nothing was fetched, no request could have hit a block of
    other weights, or both weights answer alike.
    """
    sut.check_updates(data.draw(quiet_updates(sut.limits).map(everywhere(sut)), label="workload"))


@requirement(
    "PD-2",
    "adapters that reach one side first",
    needs=(*APART, Capability.STREAMING, Capability.ADAPTER_CHOICE, Capability.RUNTIME_LORA, Capability.ONE_SIDE_FIRST),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Sides.HALF_CHANGED, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    shows_where={Capability.LORA_IN_PLACE: Adapters.IN_PLACE_RELOADS},
    overlapped_too=False,
)
@given(data=st.data())
def test_adapters_that_reach_one_side_first(sut: SystemUnderTest, data: st.DataObject) -> None:
    """An adapter is replaced on one engine, requests are sent, and it is replaced on the other engine: after that, the
    pair answers as the new content cold. What is sent between both has no right answer.

    Why it can break: what the pair computes between both halves is of one content on the prefiller and of another on
    the decoder, and both keep it under the key of their own. Oracle: cold start of one engine. Vacuous when nothing was
    sent between both halves, no request could have hit the old content, or the contents give equal answers.
    """
    sut.check(data.draw(adapters_one_side_first(sut.limits), label="workload"))


@requirement(
    "PD-2",
    "weights and resets that reach one side first",
    needs=(*APART, Capability.STREAMING, Capability.WEIGHT_UPDATES, Capability.CACHE_RESET, Capability.ONE_SIDE_FIRST),
    suits=PAIR_CELLS,
    shows=(Sides.FETCHED, Sides.HALF_CHANGED, Weights.AFTER_UPDATE, Adapters.DISCRIMINATING, Control.AFTER_RESET),
    overlapped_too=False,
)
@given(data=st.data())
def test_weights_and_resets_that_reach_one_side_first(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The weights are updated on one engine, requests are sent, the weights are updated on the other engine, and both
    caches are reset: after that, the pair answers as the new weights cold. What is sent between both updates has no
    right answer. The caches may be reset one after the other at any time.

    Why it can break: what was computed between both halves survives the reset, or is still waiting to be fetched.
    Oracle: cold engines with these weights. Vacuous when nothing was sent between both halves, no request could have
    hit a block of other weights, or both weights answer alike.
    """
    workload = st.one_of(weights_one_side_first(sut.limits), resets_one_side_first(sut.limits))
    sut.check_updates(data.draw(workload.map(everywhere(sut)), label="workload"))


@requirement(
    "PD-3",
    "prompts that the decoder gets late",
    needs=(*APART, Capability.STREAMING, Capability.SIDE_FAILURES, Capability.POOL_SIZE),
    suits=("failing pair",),
    shows=(Sides.FETCHED, Sides.LATE),
    upstream=("vllm#21570",),
)
@given(data=st.data())
def test_prompts_that_the_decoder_gets_late(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A prompt whose KV the prefiller has given back before the decoder fetches it is answered as cold, or with an
    error. So is the same prompt afterwards.

    Why it can break: the decoder reads blocks by their numbers. After the prefiller has given them back, they hold the
    KV of other requests. The decoder keeps what it has read in its own cache, as blocks of this prompt. Oracle: cold
    start of one engine. Vacuous when nothing was fetched, or no late prompt was answered.
    """
    sut.check(data.draw(late_hand_overs(sut.limits), label="workload"))


@requirement(
    "PD-3",
    "a side that ends and is started again",
    needs=(*APART, Capability.STREAMING, Capability.SIDE_FAILURES),
    suits=("failing pair",),
    shows=(Sides.FETCHED, Sides.SIDE_RESTARTS, Sides.AFTER_SIDE_RESTART, Pressure.IDLE_COMPARED),
)
@given(data=st.data())
def test_a_side_that_ends_and_is_started_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """While a side is down, a request gets its cold answer or an error. After it answers again, every request gets its
    cold answer, and no block is held for requests that have ended.

    Why it can break: the decoder waits for ever for KV of an engine that is gone, or reads from the new one what was
    promised by the old one; the prefiller keeps blocks for a decoder that never comes. Oracle: cold start of one
    engine, the reference cache of the prefiller, and the gauges of both. Vacuous when no side was killed, no prompt was
    sent again afterwards, or the gauges were not read.
    """
    sut.check(data.draw(failing_sides(sut.limits), label="workload"))


@requirement(
    "PD-3",
    "a shared tier whose server ends and is started again",
    needs=(*APART, Capability.STREAMING, Capability.TIER_FAILURES),
    suits=("failing pair",),
    shows=(
        *(Sides.FETCHED, Sides.TIER_RESTARTS, Sides.AFTER_SIDE_RESTART, Sides.LOADED_FROM_RESTARTED),
        Pressure.IDLE_COMPARED,
    ),
    upstream=("LMCache#4642", "LMCache#4069"),
)
@given(data=st.data())
def test_a_shared_tier_whose_server_ends_and_is_started_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """While the server of a tier that both engines share is down, a request gets its cold answer or an error. After it
    answers again, every request gets its cold answer, no block is held for requests that have ended, and what one
    engine stores the other one loads again.

    Why it can break: the new server knows neither the engines nor what the old one promised them, and an engine waits
    for an answer that nobody will give (LMCache#4642, LMCache#4069). Oracle: cold start of one engine, the reference
    cache of the prefiller, and the gauges of both. Vacuous when no server was killed, no prompt was sent again
    afterwards, nothing was loaded afterwards, or the gauges were not read.
    """
    sut.check(data.draw(failing_tiers(sut.limits), label="workload"))
