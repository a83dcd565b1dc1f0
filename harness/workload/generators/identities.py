"""Requests under an adapter and a salt, and bursts of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Step

AdapterAndSalt = tuple[str | None, str | None]

PLAIN: AdapterAndSalt = (None, None)
TENANT: AdapterAndSalt = ("tenant", None)
SALTED: tuple[AdapterAndSalt, ...] = ((None, "red"), (None, "Red"))


def load_tenant(limits: WorkloadLimits) -> SetAdapter:
    """Return the step that loads the first adapter as `tenant`."""
    return SetAdapter(name="tenant", content=limits.contents[0], path="files-A", route=Route.LOAD)


def request_for(
    limits: WorkloadLimits, segments: tuple[Segment, ...], identity: AdapterAndSalt, *, tail: str = "tail"
) -> Request:
    """Return a request with segments, and more tokens after them: the last block of a prompt is never looked up."""
    adapter, salt = identity
    return Request(prompt=Prompt((*segments, Segment(tail, limits.unit + 1))), adapter=adapter, salt=salt)


@st.composite
def crowds(draw: st.DrawFn, limits: WorkloadLimits, sent: Sequence[Request]) -> list[Step]:
    """Draw bursts of two or three of these requests, of one adapter each where the engine cannot mix them."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, limits.most(2)))):
        crowd = [draw(st.sampled_from(sent)) for _ in range(draw(st.sampled_from((2, 3))))]
        if len({request.adapter for request in crowd}) == 1 or limits.may_mix(BASE_WITH_ADAPTER):
            steps.append(Burst(requests=tuple(crowd)))
    return steps
