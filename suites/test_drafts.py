"""Speculative decoding: tokens that are drafted cheaply, and verified by the model several at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.drafts.evidence import Drafts
from coldproof.harness.features.drafts.workloads import hits_left_beside_a_full_context, hits_with_drafts
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "speculative decoding"
NEEDS = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.CACHE_SALT,
    Capability.DRAFT_COUNTS,
)


@requirement(
    "SPEC-1",
    "drafts on a hit",
    needs=NEEDS,
    suits=("drafts",),
    shows=(Drafts.HITS, Drafts.ACCEPTED, Drafts.REJECTED, Drafts.PAIRS),
)
@given(data=st.data())
def test_drafts_on_a_hit(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With speculative decoding, a conforming engine answers a prompt that hits as cold, and accepts no fewer drafts
    for it than cold.

    Why it can break: slots of rejected drafts hold KV of tokens that are not in the answer, and must not be published.
    A draft model has KV of its own, in layers that only its drafts depend on. If a hit, a load or a copy leaves them
    out, every draft after a hit is wrong and is rejected: the answer is right, and decoding is as slow as without
    drafts. Oracle: cold start for the answers; for the drafts, the engine's own counters for the same prompt without a
    hit. Vacuous when no draft was accepted, none was rejected, or no prompt was counted both with and without a hit.
    """
    workload = hits_with_drafts(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE))
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "SPEC-1",
    "drafts on blocks that were left beside a full context",
    needs=NEEDS,
    suits=("drafts",),
    shows=(Drafts.BESIDE_LIMIT, Drafts.PAIRS),
)
@given(data=st.data())
def test_drafts_on_a_hit_left_beside_a_full_context(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine accepts no fewer drafts on a hit also if the blocks were computed while another request had
    no room for drafts in its context.

    Why it can break: an engine that drafts nothing in such a step does not run its draft model, so that the blocks of
    the other requests in the step are published without the draft model's KV. Vacuous when no request ran beside one
    that ends at the context limit.
    """
    sut.check(data.draw(hits_left_beside_a_full_context(sut.limits), label="workload"))
