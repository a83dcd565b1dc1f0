"""The same prompts at several endpoints of a server, under salts and adapters that differ, or almost, or not at all."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES, IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.harness.features.salts.workloads import LONG, NEARLY_EQUAL
from coldproof.harness.workload.generators.identities import PLAIN, AdapterAndSalt, load_tenant
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload

QUESTION = Segment("question", 5)


def open_endpoints(limits: WorkloadLimits) -> tuple[Endpoint, ...]:
    """Return the endpoints that the engine has."""
    return tuple(endpoint for endpoint in Endpoint if ENDPOINT_CAPABILITIES[endpoint] in limits.can)


@st.composite
def at_every_endpoint(draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool) -> Workload:
    """Draw a chat that is sent at a first endpoint and then at every other one: under another salt, which must not hit,
    and under the same identity, which must; and at two of them with an adapter. Before that it is sent without a salt,
    as which an endpoint that drops salts takes it. A next turn of its answer may follow at another endpoint, and the
    chat at the first one again, under an identity of the others. Many begin under a salt that any change on its way
    would change.
    """
    steps: list[Step] = []
    identities: list[AdapterAndSalt] = list(draw(st.sampled_from(SALTS)))
    if with_adapter and draw(st.sampled_from((True, True, False))):
        steps.append(load_tenant(limits))
        identities += [("tenant", identities[0][1]), (None, "tenant")]
    first, *then = draw(st.permutations(open_endpoints(limits)[::-1]))  # the least used ones come first
    opened = Prompt((draw(preludes(limits, "prelude")), QUESTION))
    own = draw(st.sampled_from((*identities, DELICATE, DELICATE)))
    others = draw(st.permutations([identity for identity in identities if identity != own]))
    sent = [request(opened, identity, first, limits) for identity in (own, PLAIN)]
    # A request with an adapter shares nothing with those before it, even where its salt is dropped.
    salts, adapters = ([one for one in others if bool(one[0]) is with_one] for with_one in (False, True))
    sent += [request(opened, other, endpoint, limits) for other, endpoint in zip(itertools.cycle(salts), then)]
    sent += [
        request(opened, other, endpoint, limits) for other, endpoint in zip(adapters * 2, then[::-1], strict=False)
    ]
    sent += [request(opened, own, endpoint, limits) for endpoint in then]
    if draw(st.booleans()):
        sent.append(request(Prompt((Segment("turn", 7),), continues=0), own, then[-1], limits))
    if len(then) > 1 and draw(st.booleans()):  # shares with the request of another endpoint
        sent.append(request(opened, others[0], first, limits))
    steps += [Burst(requests=(one,)) for one in sent]
    if limits.may_mix(BASE_WITH_ADAPTER) or not with_adapter:
        steps += draw(together(limits, identities))
    return Workload(tuple(steps))


# Any change of a salt on its way changes this one: of its case, its spaces, its spelling in Unicode or its length.
# An endpoint that makes the change shares nothing with the others. Pairs of salts that only one kind of change confuses
# are drawn too seldom for that, on an engine as slow as a server.
DELICATE: AdapterAndSalt = (None, f" Red Cafe\N{COMBINING ACUTE ACCENT} {LONG[:95]}-1")
SALTS: tuple[tuple[AdapterAndSalt, ...], ...] = tuple(
    ((None, left), (None, right)) for left, right in (*NEARLY_EQUAL[1:], NEARLY_EQUAL[0])
)


@st.composite
def preludes(draw: st.DrawFn, limits: WorkloadLimits, name: str) -> Segment:
    """Draw the system message of a chat: two or three units and about half a unit, so that each hit has its end."""
    units = draw(st.sampled_from(limits.sizes((2, 3))))
    return Segment(name, units * limits.unit + draw(st.sampled_from((limits.unit // 2, 1))))


def request(prompt: Prompt, identity: AdapterAndSalt, endpoint: Endpoint, limits: WorkloadLimits) -> Request:
    """Return a chat at an endpoint. Its answer fills a block, so that the next turn can hit what decode wrote."""
    adapter, salt = identity
    tokens = 8 if limits.slow else limits.unit + 2
    return Request(prompt=prompt, adapter=adapter, salt=salt, chat=True, endpoint=endpoint, max_tokens=tokens)


@st.composite
def together(draw: st.DrawFn, limits: WorkloadLimits, identities: list[AdapterAndSalt]) -> list[Step]:
    """Draw no burst, or one of equal chats at several endpoints at once, each perhaps under another identity."""
    if not draw(st.booleans()):
        return []
    endpoints = draw(st.lists(st.sampled_from(open_endpoints(limits)), min_size=2, max_size=3))
    prompt = Prompt((Segment("crowd", 2 * limits.unit), QUESTION))
    crowd = [request(prompt, draw(st.sampled_from(identities)), endpoint, limits) for endpoint in endpoints]
    return [Burst(requests=tuple(crowd))]


@st.composite
def impossible_priorities(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw chats with a priority that no server can have, at every endpoint, each after the same chat without one.

    An endpoint that knows priorities refuses it. An endpoint that answers has ignored it, as it would ignore any other.
    """
    endpoints = draw(st.permutations(open_endpoints(limits)[::-1]))
    prompt = Prompt((draw(preludes(limits, "prelude")), QUESTION))
    salt = draw(st.sampled_from((None, "red")))
    plain = [
        msgspec.structs.replace(request(prompt, (None, salt), endpoint, limits), max_tokens=4) for endpoint in endpoints
    ]
    odd = [msgspec.structs.replace(one, priority=IMPOSSIBLE_PRIORITY) for one in plain]
    pairs = zip(plain, odd, strict=True)
    return Workload(tuple(Burst(requests=(one,)) for pair in pairs for one in pair))
