"""Workloads that need more than the pool: working sets that evict, many equal prompts, prompts that never fit, aborts.

Sizes follow from the pool size that the engine reports. If it is unknown or too large to fill within `most_tokens`, the
workloads keep their form and stay small. The requirement then ends as not exercised and says what it needs.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

SMALL_SET = 600  # tokens, where the pool cannot be filled
REPETITIONS = (8, 16, 24)
MOST_DOCUMENTS = 40  # of a working set, as far as the model's length allows: a large pool needs long documents


def pool_tokens(limits: WorkloadLimits) -> int:
    """Return the number of tokens to size a workload by."""
    return limits.small_pool or SMALL_SET


@guided
@st.composite
def working_sets(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts that need a multiple of the pool, some with a shared prefix. Each is sent again after the others."""
    # Each is sent twice. If that costs too much, the set is only a little larger than the pool.
    factor = draw(st.sampled_from(limits.sizes((2, 1.5, 3))))
    target = min(pool_tokens(limits) * factor, limits.most_tokens / 2)
    scale = max(1, int(target / (MOST_DOCUMENTS * 3 * limits.unit)))
    prelude = Segment("prelude", limits.unit + draw(st.sampled_from((0, 1, -1))))
    longest = min(limits.longest // 2, pool_tokens(limits) // 2)
    prompts: list[Prompt] = []
    total = 0
    while total < target:
        sizes = [min(n * scale, longest // limits.unit - 1) for n in (2, 3, 4) if (n + 1) * limits.unit <= longest]
        blocks = draw(st.sampled_from(sizes or [1]))
        own = Segment(f"document {len(prompts)}", blocks * limits.unit + draw(st.sampled_from((0, 1, -1))))
        prompts.append(Prompt((prelude, own) if draw(st.booleans()) else (own,)))
        total += sum(s.length for s in prompts[-1].segments)
    steps: list[Step] = []
    # Reverse order first: in the same order, each prompt is evicted just before it is sent again.
    for order in (prompts, draw(st.sampled_from((prompts[::-1], prompts)))):
        waiting = [Request(prompt=prompt, max_tokens=draw(st.sampled_from(limits.sizes((4, 8))))) for prompt in order]
        while waiting:
            count = draw(st.sampled_from((1, 1, 2, 3)))
            steps.append(Burst(requests=tuple(waiting[:count])))
            waiting = waiting[count:]
    return Workload(tuple(steps))


@guided
@st.composite
def partly_evicted(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a long prompt, others that leave room for a part of it, then it again or one with the same beginning."""
    units = pool_tokens(limits) // limits.unit
    longest = max(2, min(limits.longest, limits.most_tokens // 8) // limits.unit - 1)
    stem = min(units // 2, longest)
    taken = units - stem + draw(st.sampled_from((stem // 2, stem // 4, 0)))
    count = max(draw(st.sampled_from((1, 2, 3))), -(-taken // longest))
    document = max(1, taken // count) * limits.unit - NONCE_TOKENS - 4
    others = [Request(prompt=Prompt((Segment(f"document {i}", document),)), max_tokens=4) for i in range(count)]
    bursts = [Burst(requests=(one,)) for one in others] if draw(st.booleans()) else [Burst(requests=tuple(others))]
    whole = Segment("stem", stem * limits.unit - NONCE_TOKENS + draw(st.sampled_from((0, 1, -1))))
    prompts = (Prompt((whole,)), Prompt((whole,) if draw(st.booleans()) else (whole, Segment("tail", 3))))
    first, last = (Burst(requests=(Request(prompt=prompt, max_tokens=4),)) for prompt in prompts)
    return Workload((first, *bursts, last))


@guided
@st.composite
def prefix_sharers(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a burst of two requests with a shared prefix and others that wait for room.

    One of the two continues long after the other has ended, while the others get the freed blocks.
    """
    pool = pool_tokens(limits)
    prelude = Segment("prelude", 2 * limits.unit)
    long = limits.unit if limits.slow else 2 * limits.unit
    lengths = draw(st.sampled_from(((4, long), (8, limits.unit), (long, 4))))
    tails = [Prompt((prelude, Segment(f"tail {i}", 5))) for i in range(2)]
    sharing = [Request(prompt=prompt, max_tokens=n) for prompt, n in zip(tails, lengths, strict=True)]
    each = max(limits.unit, min(pool // 3, limits.longest // 2, limits.most_tokens // 8) // limits.unit * limits.unit)
    count = min(-(-2 * pool // each), 7)
    documents = [Segment(f"document {i}", each - NONCE_TOKENS) for i in range(count)]
    others = [Request(prompt=Prompt((document,)), max_tokens=4) for document in documents]
    return Workload((Burst(requests=(*sharing, *others)), Burst(requests=(sharing[1],))))


@guided
@st.composite
def queued_for_blocks(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt, then the same prompt queued behind requests that leave no room for it and evict its blocks."""
    units = pool_tokens(limits) // limits.unit
    count = max(2, -(-units // max(2, limits.longest // limits.unit - 1)))
    prompt = max(2, units // count - 1) * limits.unit - NONCE_TOKENS - draw(st.sampled_from((3, 1)))
    stem = Request(prompt=Prompt((Segment("stem", draw(st.sampled_from((3, 2))) * limits.unit),)))
    prompts = [Prompt((Segment(f"growing {i}", prompt),)) for i in range(count)]
    growing = [Request(prompt=own, max_tokens=limits.unit // 2) for own in prompts]
    return Workload((Burst(requests=(stem,)), Burst(requests=(*growing, stem)), Burst(requests=(stem,))))


@guided
@st.composite
def identical_prompts(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw many copies of one long prompt at once, cold or after one request. Their answers need new blocks."""
    blocks = max(2, min(pool_tokens(limits) // 2, limits.longest // 2) // limits.unit)
    stem = Segment("stem", blocks * limits.unit - NONCE_TOKENS + draw(st.sampled_from((0, 1, -1))))
    tokens = draw(st.sampled_from((limits.unit + 8, limits.unit // 2)))
    request = Request(prompt=Prompt((stem,)), max_tokens=tokens)
    steps: list[Step] = [Burst(requests=(request,))] if draw(st.booleans()) else []
    steps.append(Burst(requests=(request,) * draw(st.sampled_from(limits.sizes(REPETITIONS)))))
    return Workload(tuple(steps))


@st.composite
def never_fitting(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that exceeds the model's length or the pool, others queued behind it, and one more afterwards."""
    limit = limits.longest if limits.small_pool is None else min(limits.longest, limits.small_pool)
    longer = limit + draw(st.sampled_from((limits.unit, 1, limit)))
    too_long = Request(prompt=Prompt((Segment("endless", longer),)), max_tokens=4)
    fitting = [
        Request(prompt=Prompt((Segment("stem", 2 * limits.unit), Segment(f"tail {i}", 5))), max_tokens=8)
        for i in range(draw(st.sampled_from(limits.sizes((2, 4)))))
    ]
    place = draw(st.sampled_from((0, 1)))
    batch = [*fitting[:place], too_long, *fitting[place:]]
    return Workload((Burst(requests=tuple(batch)), Burst(requests=(fitting[0],))))


@guided
@st.composite
def aborts_then_full_pool(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw bursts with aborts, perhaps with retries, then requests that need the whole pool, before idle periods."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, limits.most(2, least=1)))):
        batch = []
        for i in range(draw(st.sampled_from(limits.sizes((3, 6))))):
            length = draw(st.sampled_from(limits.sizes((4, 3, 2)))) * limits.unit
            own = Segment(f"document {draw(st.integers(0, 3))}", min(length, limits.longest // 2))
            abort = draw(st.sampled_from((Abort(after_ms=10, at=Stage.PREFILL), Abort(after_tokens=2), None)))
            abort = abort if Capability.ABORT in limits.can else None
            tokens = draw(st.sampled_from(limits.sizes((8, limits.unit + 2))))
            batch.append(Request(prompt=Prompt((own, Segment(f"tail {i}", 5))), max_tokens=tokens, abort=abort))
        steps.append(Burst(requests=tuple(batch)))
        if draw(st.sampled_from((True, False))):
            steps.append(Burst(requests=tuple(msgspec.structs.replace(request, abort=None) for request in batch)))
    steps += [Idle(50), Burst(requests=full_pool_requests(limits)), Idle(50)]
    return Workload(tuple(steps))


def full_pool_requests(limits: WorkloadLimits) -> tuple[Request, ...]:
    """Return one request that needs the whole pool, or as many of the longest ones as fit into it together."""
    tokens = min(pool_tokens(limits), limits.longest)
    count = min(max(1, pool_tokens(limits) // tokens), MOST_DOCUMENTS)
    own = tokens - NONCE_TOKENS - 4
    return tuple(Request(prompt=Prompt((Segment(f"whole {i}", own),)), max_tokens=4) for i in range(count))
