"""Prompts for speculative decoding, each sent so that it hits and so that it does not.

What drafts are made of can be lost without a wrong answer. So each prompt is sent alone twice: under a salt whose cache
has a prefix of it, and under an unused one. The first choice of every draw is the simplest: A, A.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.identities import load_tenant
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits, stems
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

ECHO = 6  # tokens of the beginning at a prompt's end: n-gram drafts continue as the beginning does
LAST_TOKENS = 4  # of an answer that ends at the context limit


@guided
@st.composite
def hits_with_drafts(draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool) -> Workload:
    """Draw prompts with a common prefix and next turns of them: alone with a hit, alone without one, and together."""
    adapter = "tenant" if with_adapter and draw(st.sampled_from((False, True))) else None
    steps: list[Step] = [load_tenant(limits)] if adapter else []  # the drafts are not made for its answers
    prelude = draw(stems(limits))
    first = request(draw, limits, adapter, prompt_of(draw, limits, prelude, "A"))
    measured = [first, first]
    for number in range(draw(st.integers(0, limits.most(3)))):
        match draw(st.sampled_from(("turn", "sibling", "again"))):
            case "turn":
                turn = Segment(f"turn {number}", draw(st.sampled_from((5, limits.unit))))
                measured.append(request(draw, limits, adapter, Prompt((turn,), continues=0)))
            case "sibling":
                measured.append(request(draw, limits, adapter, prompt_of(draw, limits, prelude, f"B {number}")))
            case "again":
                measured.append(first)
    steps += [Burst(requests=(one,)) for one in measured]
    if draw(st.booleans()):
        steps.append(Burst(requests=tuple(draw(st.permutations(measured)))[:4]))
    if adapter and limits.may_mix(BASE_WITH_ADAPTER) and draw(st.booleans()):
        steps.append(Burst(requests=(first, msgspec.structs.replace(first, adapter=None))))
    return Workload((*steps, *without_hits(measured[2:])))


@guided
@st.composite
def hits_left_beside_a_full_context(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that is computed beside one whose answer ends at the context limit, where no drafts fit; then the
    same prompt and a next turn of it alone, with a hit and without one.
    """
    first = request(draw, limits, None, prompt_of(draw, limits, draw(stems(limits)), "A"))
    rest = limits.longest - NONCE_TOKENS - LAST_TOKENS
    full = Request(prompt=Prompt((Segment("long", rest),)), max_tokens=LAST_TOKENS)
    later = msgspec.structs.replace(first, offset_ms=draw(st.sampled_from((0, 0, 10, 20))))
    measured = [first]
    if draw(st.booleans()):
        measured.append(request(draw, limits, None, Prompt((Segment("turn", 5),), continues=1)))
    alone = [Burst(requests=(one,)) for one in measured]
    return Workload((Burst(requests=(full, later)), *alone, *without_hits(measured)))


def prompt_of(draw: st.DrawFn, limits: WorkloadLimits, prelude: Segment, tail: str) -> Prompt:
    """Return a prompt with this beginning, which may come again at its end."""
    segments = [prelude, Segment(tail, draw(st.sampled_from((5, limits.unit // 2, limits.unit + 1))))]
    if draw(st.booleans()):
        segments.append(Segment(prelude.name, min(ECHO, prelude.length)))
    return Prompt(tuple(segments))


def request(draw: st.DrawFn, limits: WorkloadLimits, adapter: str | None, prompt: Prompt) -> Request:
    """Return a request whose answer takes several steps with drafts, ends with a block, or fills one."""
    tokens = draw(
        st.sampled_from(limits.sizes((16, to_the_end_of_a_block(limits, prompt), limits.unit + 2, 9), least=16))
    )
    return Request(prompt=prompt, adapter=adapter, max_tokens=tokens)


def to_the_end_of_a_block(limits: WorkloadLimits, prompt: Prompt) -> int:
    """Return the length of an answer of a few tokens that ends with a block, where the prompt's length is known."""
    if prompt.continues is not None:
        return 16
    rest = -new_prompt_length(prompt) % limits.unit
    return rest if rest > LAST_TOKENS else rest + limits.unit


def without_hits(measured: list[Request]) -> list[Burst]:
    """Return each request alone, once, under a salt of its own: nothing of it is cached."""
    different = {msgspec.json.encode(one): one for one in measured}.values()
    salted = (msgspec.structs.replace(one, salt=f"cold {number}") for number, one in enumerate(different))
    return [Burst(requests=(one,)) for one in salted]
