"""Chunks of a prefill that end at every place of a block, crowds of any size, long prompts that differ early and go on.

A step computes a limited number of tokens, and each decoding request takes one of them. So the length of a prompt that
is admitted before another one moves the ends of all chunks of the other one.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits, nearly_equal
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

STEP_MS = 10  # milliseconds of a step of an engine that is stepped in process
USUAL_STEP = 64  # tokens, where a step computes more than a prompt has, or its budget is unknown
SHARERS = (2, 3, 17, 4, 18, 5, 8, 9, 33, 15, 16, 17, 32, 18)
LONG = (3, 5, 9, 17, 18, 33)  # blocks
PARTS = 4  # of the cost limit: a workload here uses at most one of them for its longest prompt


def step_budget(limits: WorkloadLimits) -> int:
    """Return how many tokens one step computes, if that divides prompts; otherwise a usual number."""
    known = limits.step
    return known if known is not None and known < limits.longest // 2 else USUAL_STEP


@guided
@st.composite
def chunks_at_edges(draw: st.DrawFn, limits: WorkloadLimits, *, disconnects: bool = False) -> Workload:
    """Draw prompts with a chunk that ends at, before or behind the end of a block, beside requests that decode.

    It is the last chunk, or few or many tokens follow. Then the same prompts with more tokens, which hit what was
    published.

    `disconnects`: some clients do while their prompt is computed, mostly directly after that chunk.
    """
    steps: list[Step] = []
    for number in range(draw(st.sampled_from((2, 1, 3)))):
        decoding = draw(st.sampled_from((0, 1, 2)))
        blocks = draw(st.sampled_from([n for n in (1, 2, 3, 4) if n * limits.unit <= limits.longest // 2]))
        end = blocks * limits.unit + draw(st.sampled_from((-1, -1, 0, 1)))
        more = draw(st.sampled_from((1, 1, limits.unit, 2, 0, 2 * limits.unit + 1)))
        victim = Segment(f"victim {number}", end + more - NONCE_TOKENS)
        budget = step_budget(limits) - decoding
        leader = leading_length(budget, end)
        abort = None
        if disconnects and Capability.ABORT in limits.can and draw(st.booleans()):
            steps_taken = 1 + (end - 1) // max(1, budget - 1)
            after = draw(st.sampled_from((steps_taken, steps_taken, 1, steps_taken + 1)))
            abort = Abort(after_ms=after * STEP_MS, at=Stage.PREFILL)
        late = 40 if decoding else 0
        own = Segment(f"leader {number}", max(1, leader - NONCE_TOKENS))
        answer = draw(st.sampled_from((1, 2, 8)))
        busy = [
            Request(prompt=Prompt((Segment(f"busy {i}", limits.unit // 2),)), max_tokens=limits.unit)
            for i in range(decoding)
        ]
        first = Request(prompt=Prompt((own,)), max_tokens=limits.unit // 2, offset_ms=late)
        then = Request(prompt=Prompt((victim,)), max_tokens=answer, offset_ms=late, abort=abort)
        steps.append(Burst(requests=(*busy, first, then)))
        again = Prompt((victim, Segment("more", draw(st.sampled_from((limits.unit + 1, 1))))))
        steps.append(Burst(requests=(Request(prompt=again, max_tokens=2),)))
    return Workload((*steps, Idle(20)))


def leading_length(budget: int, end: int) -> int:
    """Return the length of a prompt with which a chunk of the prompt behind it ends at `end`.

    The first chunk gets what the leading prompt leaves of the step's budget. Then the leading request decodes, and each
    chunk has one token less than the budget.
    """
    first = (end - 1) % max(1, budget - 1) + 1  # of the prompt behind
    return max(NONCE_TOKENS + 1, budget - first) if first < budget else budget


@guided
@st.composite
def crowds(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw one prompt for 2 to 33 requests at once, equal or each with its own tail, cold or after one request; then
    one more, which hits what they left.
    """
    blocks = draw(st.sampled_from((1, 2, 1, 3)))
    stem = Segment("stem", blocks * limits.unit + draw(st.sampled_from((5, 1, 0))) - NONCE_TOKENS)
    tail = draw(st.sampled_from((0, 5, limits.unit)))
    tokens = draw(st.sampled_from((4, 1, 2, limits.unit // 2)))
    each = (stem.length if tail else 0) + tail + tokens
    count = draw(st.sampled_from([n for n in SHARERS if n * each <= limits.most_tokens // 2] or SHARERS[:1]))
    apart = draw(st.sampled_from((0, 0, 10)))  # milliseconds: one more in each step
    requests = []
    for number in range(count):
        segments = (stem, Segment(f"tail {number}", tail)) if tail else (stem,)
        longer = draw(st.sampled_from((0, 0, 0, 1))) if count < 10 else number % 3
        requests.append(Request(prompt=Prompt(segments), max_tokens=tokens + longer, offset_ms=apart * number))
    alone = Burst(requests=(Request(prompt=Prompt((stem,)), max_tokens=draw(st.sampled_from((1, 8)))),))
    first = [alone] if draw(st.booleans()) else []
    return Workload((*first, Burst(requests=tuple(requests)), alone, Idle(20)))


@guided
@st.composite
def long_neighbours(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt of up to 33 blocks, then one that differs in one token, in growing parts: each part hits a number
    of blocks and computes those behind them, whose tokens are known after others. Then the first prompt again.
    """
    whole, parts = draw(long_and_parts(limits))
    near = draw(nearly_equal(limits, whole))
    place = near.changed if near.changed is not None else near.swapped or 0
    if draw(st.booleans()):  # as early as it can be
        near, place = msgspec.structs.replace(whole, changed=0), 0
    fitting = [part for part in parts if part > place + 1]
    prompts = [whole, *(msgspec.structs.replace(near, length=part) for part in fitting), near, whole]
    return Workload(tuple(Burst(requests=(alone(segment, draw),)) for segment in prompts))


def alone(segment: Segment, draw: st.DrawFn) -> Request:
    """Return a request with a short answer."""
    return Request(prompt=Prompt((segment, Segment("tail", 5))), max_tokens=draw(st.sampled_from((2, 1, 4))))


@st.composite
def long_and_parts(draw: st.DrawFn, limits: WorkloadLimits) -> tuple[Segment, list[int]]:
    """Draw a long prompt, and the lengths of one to three of its beginnings: whole blocks, mostly powers of two."""
    most = min(limits.longest - 3 * limits.unit, limits.most_tokens // PARTS, limits.pool or limits.longest)
    sizes = [n for n in LONG if (n + 1) * limits.unit <= most] or [2]
    blocks = draw(st.sampled_from(sizes))
    whole = Segment("stem", blocks * limits.unit + draw(st.sampled_from((0, 1, -1))) - NONCE_TOKENS)
    known = [n for n in (1, 2, 4, 8, 16, 32, blocks - 1) if 0 < n < blocks]
    parts = draw(st.lists(st.sampled_from(known[::-1]), min_size=1, max_size=3, unique=True))
    return whole, sorted(n * limits.unit + draw(st.sampled_from((0, 1, 5))) - NONCE_TOKENS for n in parts)


@guided
@st.composite
def any_length(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt of any number of blocks up to 40 that ends anywhere in a block, sent twice or three times."""
    room = min(limits.longest, limits.pool or limits.longest, limits.most_tokens // PARTS) // limits.unit - 2
    blocks = draw(st.integers(1, max(1, min(40, room))))
    edge = draw(st.sampled_from((1, 0, -1, limits.unit // 2)))
    prompt = Prompt((Segment("stem", max(1, blocks * limits.unit + edge - NONCE_TOKENS)),))
    times = draw(st.sampled_from((2, 3)))
    tokens = draw(st.sampled_from((1, 8, 2, limits.unit + 2)))
    return Workload((Burst(requests=(Request(prompt=prompt, max_tokens=tokens),)),) * times)
