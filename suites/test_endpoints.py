"""The endpoints of a server: every route for generation leads to the same prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.endpoints.evidence import CHANCES_WHERE, Endpoints
from coldproof.harness.features.endpoints.workloads import at_every_endpoint, impossible_priorities
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "endpoints of a server"
ENDPOINTS = (Capability.ENDPOINTS, Capability.CHAT, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS)


@requirement(
    "ENTRY-1",
    "salts and adapters at every endpoint",
    needs=(*ENDPOINTS, Capability.CACHED_TOKENS, Capability.CACHE_SALT),
    suits=("routes",),
    shows=(Endpoints.HITS, Endpoints.TURNS),
    shows_where=CHANCES_WHERE,
    upstream=("vllm#46688", "vllm#20981"),
)
@given(data=st.data())
def test_salts_and_adapters_at_every_endpoint(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A prompt that is sent to two endpoints of a conforming server shares KV exactly when salt, adapter and weights
    are equal, and is answered as cold. An answer of one endpoint can be continued at another.

    Why it can break: each endpoint has a request type of its own, which has to carry the salt and the adapter to the
    engine (vllm#46688: the endpoint for messages had no salt; vllm PR#20981). Oracle: the reference cache, which knows
    no endpoints, and cold start. Vacuous when no request hit what only another endpoint computed, when at one endpoint
    no block of the same prompt was cached by another one under another identity, or when no next turn hit what decode
    wrote for another one.
    """
    workload = at_every_endpoint(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE))
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "ENTRY-1",
    "priorities at every endpoint",
    needs=(*ENDPOINTS, Capability.PRIORITY),
    suits=("routes",),
    shows=(Endpoints.ODD_PRIORITIES,),
)
@given(data=st.data())
def test_priorities_at_every_endpoint(sut: SystemUnderTest, data: st.DataObject) -> None:
    """If one endpoint of a server takes the priority of a request, no other endpoint ignores it: it takes it, too, or
    refuses the request.

    Why it can break: each endpoint has a request type of its own. A priority outside the documented range of 64 bits
    shows it without load: an endpoint that reads the field refuses the request.
    """
    sut.check(data.draw(impossible_priorities(sut.limits), label="workload"))
