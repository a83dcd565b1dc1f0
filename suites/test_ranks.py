"""Engines on several ranks: a change is made on all of them, and they answer as one engine on one rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import reloads
from coldproof.harness.features.pressure.workloads import identical_prompts
from coldproof.harness.features.ranks.evidence import Ranks
from coldproof.harness.features.ranks.workloads import on_drawn_ranks, on_every_rank
from coldproof.harness.features.resets.workloads import resets
from coldproof.harness.features.weights.evidence import Pauses, Weights
from coldproof.harness.features.weights.workloads import paused, quiet_updates
from coldproof.harness.judgement.evidence.cache import Control, Pressure, Reuse
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.reuse import returns, traffic

AREA = "several ranks"
RANKS = (Capability.SEVERAL_RANKS, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
OWN_CACHES = {Capability.RANK_CHOICE: Ranks.HITS}


@requirement(
    "DIST-1",
    "adapters on every rank",
    needs=(*RANKS, Capability.STREAMING, Capability.ADAPTER_CHOICE, Capability.RUNTIME_LORA),
    suits=("ranks",),
    shows=(Ranks.ASKED, Adapters.WARM_HITS, Adapters.UNLOAD_LOADS, Adapters.STALE_CHANCES, Adapters.DISCRIMINATING),
    shows_where={Capability.LORA_IN_PLACE: Adapters.IN_PLACE_RELOADS},
)
@given(data=st.data())
def test_adapters_on_every_rank(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a load, an in-place reload, or unload + load that reports success, every rank of a conforming engine
    answers as the new adapter cold.

    Why it can break: each rank has adapter weights and a cache of its own, the request to load is sent to each of them,
    and the reply of one of them is the reply of all. Oracle: cold start of an engine on one rank. After each change the
    same prompts are sent to every rank that requests can choose. Vacuous when no change was followed by an answer of
    every rank, or the contents give equal answers.
    """
    sut.check(data.draw(on_every_rank(sut.limits, reloads(sut.limits)), label="workload"))


@requirement(
    "DIST-1",
    "resets on every rank",
    needs=(*RANKS, Capability.STREAMING, Capability.CACHE_RESET),
    suits=("ranks",),
    shows=(Ranks.ASKED, Control.RESETS, Control.AFTER_RESET, Requests.HITS),
    shows_where=OWN_CACHES,
)
@given(data=st.data())
def test_resets_on_every_rank(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a cache reset that reports success, nothing of what was cached before can be hit on any rank. If one rank
    cannot reset its cache, the reset reports failure.

    Why it can break: a reset empties the cache of the rank that got the call, and the others keep theirs. Oracle: the
    reference cache of each rank, whose upper bound is zero after the reset, and cold start. Vacuous when no reset
    succeeded, or not every rank was asked for what it had cached.
    """
    sut.check(data.draw(on_every_rank(sut.limits, resets(sut.limits)), label="workload"))


@requirement(
    "DIST-1",
    "pauses on every rank",
    needs=(*RANKS, Capability.STREAMING, Capability.PAUSE_WAIT, Capability.PAUSE_KEEP, Capability.PAUSE_ABORT),
    suits=("ranks",),
    shows=(Ranks.ASKED, Pauses.QUEUED_IN_PAUSE),
)
@given(data=st.data())
def test_pauses_on_every_rank(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A pause stops every rank of a conforming engine, does with the requests of each rank what its mode says, and
    clears the cache of each rank if it was asked to. A resume starts every rank again.

    Why it can break: one rank is paused and another one continues, keeps its cache, or never resumes. Oracle: cold
    start, the times of tokens during a pause, and the reference cache of each rank. Vacuous when no request waited
    during a pause, or not every rank was asked after one.
    """
    sut.check(data.draw(on_every_rank(sut.limits, paused(sut.limits, updates=False)), label="workload"))


@requirement(
    "DIST-1",
    "new weights on every rank",
    needs=(*RANKS, Capability.WEIGHT_UPDATES),
    suits=("ranks",),
    shows=(Ranks.ASKED, Weights.UPDATES, Weights.AFTER_UPDATE, Adapters.DISCRIMINATING),
)
@given(data=st.data())
def test_new_weights_on_every_rank(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an update of the weights that reports success and the invalidation that the engine documents, every rank
    answers as the new weights cold.

    Why it can break: one rank, or one part of a model that is spread over ranks, keeps its old weights or the KV that
    it computed with them. Oracle: cold start of an engine on one rank with the new weights. Vacuous when not every rank
    was asked after an update, or the versions give equal answers.
    """
    sut.check_updates(data.draw(on_every_rank(sut.limits, quiet_updates(sut.limits)), label="workload"))


@requirement(
    "DIST-2",
    "several ranks answer as one",
    needs=(*RANKS, Capability.STREAMING, Capability.BLOCK_SIZE, Capability.POOL_SIZE),
    suits=("ranks", "pipeline stages"),
    shows=(Requests.HITS, Reuse.EXPECTED, Reuse.DECODE_HITS, Reuse.SHARED_HITS, Pressure.IDENTICAL),
    shows_where={Capability.RANK_CHOICE: Ranks.OTHER_RANK},
)
@given(data=st.data())
def test_several_ranks_answer_as_one(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine on several ranks gives the cold answers of an engine on one rank, and hits what the rank that
    serves a request has computed before: at least what is expected of one rank, and nothing of another rank's cache.
    Many identical long prompts at once are all answered.

    Why it can break: ranks that share a layer may disagree about which blocks are cached, or read another block than
    the one that was written; stages of a pipeline wait for one another (a field report: the engine hung with prefix
    caching and many identical long prompts). Oracle: cold start of an engine on one rank, and the reference cache of
    each rank. Vacuous when nothing was hit or no hit was expected.
    """
    limits = sut.limits
    shared = (trees(limits, chat=False), conversations(limits, chat=False))
    usual = st.one_of(*shared, returns(limits), traffic(limits), identical_prompts(limits))
    sut.check(data.draw(on_drawn_ranks(limits, usual), label="workload"))
