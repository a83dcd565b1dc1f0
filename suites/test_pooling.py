"""Pooled answers: embeddings and classifications, which are computed from the hidden states of a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.pooling.evidence import Pooling
from coldproof.harness.features.pooling.workloads import pooled_neighbours, pooled_traffic
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "pooled answers"
KNOWN = (Capability.TOKEN_PROMPTS, Capability.CACHE_SALT)


@requirement(
    "POOL-1",
    "vectors of a prompt on a hit",
    needs=(Capability.POOLING, *KNOWN),
    suits=("pooling",),
    shows=(Pooling.HITS, Pooling.NEAR, Adapters.STALE_CHANCES),
    shows_where={
        Capability.SPAWNABLE: Pooling.CHUNKS,
        Capability.SCORES: Pooling.SCORED_HITS,
        Capability.COSINES: Pooling.SCORED_HITS,
    },
    upstream=("ascend#5725", "vllm#23436", "vllm#47696"),
)
@given(data=st.data())
def test_vectors_on_a_hit(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine gives a prompt the same embedding, classification or score on a hit as cold, however the rest
    of the prompt is divided into chunks and whatever else runs, and isolates the cache by salt, adapter and tokens as
    for generated answers.

    Why it can break: the vector is computed from the state of the last token, which depends on all KV that a hit
    supplies (ascend#5725: the cosine to the cold embedding was 0.58). In a step that ends inside the prompt there is no
    last token yet. Requests for vectors have routes and types of their own, which may lose a salt (vllm#47696). Oracle:
    cold start, compared by value; the reference cache for the counts. Vacuous when no vector was computed on a hit, no
    prompt differed in little from a cached one, or no block of another identity could have been hit.
    """
    workloads = st.one_of(
        pooled_neighbours(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE)),
        pooled_traffic(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE)),
    )
    sut.check(data.draw(workloads, label="workload"))


@requirement(
    "POOL-1",
    "a vector of each token of a cached prompt",
    needs=(Capability.TOKEN_EMBEDDINGS, *KNOWN),
    suits=("pooling",),
    shows=(Pooling.TOKENS,),
    upstream=("vllm#28194",),
)
@given(data=st.data())
def test_vectors_of_each_token(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where a request asks for a vector of each token, a conforming engine returns all of them, also if blocks of the
    prompt are cached: as many as the prompt has tokens, equal to the cold ones.

    Why it can break: cached blocks hold keys and values, and no hidden states. An engine that hits returns vectors of
    the other tokens only (vllm#28194: 8 of 56). Oracle: cold start, compared by value. Vacuous when no block of such a
    prompt was cached.
    """
    workloads = st.one_of(
        pooled_neighbours(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), each_token=True),
        pooled_traffic(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), each_token=True),
    )
    sut.check(data.draw(workloads, label="workload"))
