"""More than the pool holds: working sets that evict, crowds of one prompt, prompts that never fit, storms.

Sizes follow from the pool that the engine states. Where it is unknown or too large to be filled at an affordable price
the workloads keep their form and stay small; the requirement then ends as not exercised, and says what it would need.
"""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import Abort, Capability
from harness.generators.prompts import Grounds
from harness.workload import NONCE_TOKENS, Burst, Idle, Prompt, Request, Segment, Step, Workload

SMALL_SET = 600  # tokens, where the pool cannot be filled anyway
CROWDS = (8, 16, 24)
MOST_DOCUMENTS = 40  # of a working set, as far as the model's length allows: a large pool asks for long ones


def pool_of(grounds: Grounds) -> int:
    """The tokens to size a workload by."""
    return grounds.small_pool or SMALL_SET


@st.composite
def working_sets(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Prompts that come to a multiple of the pool, some sharing a prelude; each asked again after the others."""
    # Each is asked twice; where that costs too much, a set just larger than the pool has to do.
    target = min(pool_of(grounds) * draw(st.sampled_from((2, 1.5, 3))), grounds.most_tokens / 2)
    scale = max(1, int(target / (MOST_DOCUMENTS * 3 * grounds.unit)))
    prelude = Segment("prelude", grounds.unit + draw(st.sampled_from((0, 1, -1))))
    longest = min(grounds.longest // 2, pool_of(grounds) // 2)
    prompts: list[Prompt] = []
    total = 0
    while total < target:
        sizes = [min(n * scale, longest // grounds.unit - 1) for n in (2, 3, 4) if (n + 1) * grounds.unit <= longest]
        blocks = draw(st.sampled_from(sizes or [1]))
        own = Segment(f"document {len(prompts)}", blocks * grounds.unit + draw(st.sampled_from((0, 1, -1))))
        prompts.append(Prompt((prelude, own) if draw(st.booleans()) else (own,)))
        total += sum(s.length for s in prompts[-1].segments)
    steps: list[Step] = []
    # Backwards first: asked in the same order again, each prompt is evicted just before its turn comes.
    for order in (prompts, draw(st.sampled_from((prompts[::-1], prompts)))):
        waiting = [Request(prompt=prompt, max_tokens=draw(st.sampled_from((4, 8)))) for prompt in order]
        while waiting:
            count = draw(st.sampled_from((1, 1, 2, 3)))
            steps.append(Burst(requests=tuple(waiting[:count])))
            waiting = waiting[count:]
    return Workload(tuple(steps))


@st.composite
def partly_evicted(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A long prompt, others that leave room for a part of it, and the same or one that shares its beginning again."""
    units = pool_of(grounds) // grounds.unit
    longest = max(2, min(grounds.longest, grounds.most_tokens // 8) // grounds.unit - 1)
    stem = min(units // 2, longest)
    taken = units - stem + draw(st.sampled_from((stem // 2, stem // 4, 0)))
    count = max(draw(st.sampled_from((1, 2, 3))), -(-taken // longest))
    document = max(1, taken // count) * grounds.unit - NONCE_TOKENS - 4
    others = [Request(prompt=Prompt((Segment(f"document {i}", document),)), max_tokens=4) for i in range(count)]
    bursts = [Burst(requests=(one,)) for one in others] if draw(st.booleans()) else [Burst(requests=tuple(others))]
    whole = Segment("stem", stem * grounds.unit - NONCE_TOKENS + draw(st.sampled_from((0, 1, -1))))
    prompts = (Prompt((whole,)), Prompt((whole,) if draw(st.booleans()) else (whole, Segment("tail", 3))))
    first, then = (Burst(requests=(Request(prompt=prompt, max_tokens=4),)) for prompt in prompts)
    return Workload((first, *bursts, then))


@st.composite
def sharers(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Two requests over one prelude, of whom one goes on for long after the other has ended, while others that wait
    for room are given what has become free; all of it in one burst."""
    pool = pool_of(grounds)
    prelude = Segment("prelude", 2 * grounds.unit)
    lengths = draw(st.sampled_from(((4, 2 * grounds.unit), (8, grounds.unit), (2 * grounds.unit, 4))))
    both = [
        Request(prompt=Prompt((prelude, Segment(f"tail {i}", 5))), max_tokens=tokens)
        for i, tokens in enumerate(lengths)
    ]
    each = max(
        grounds.unit, min(pool // 3, grounds.longest // 2, grounds.most_tokens // 8) // grounds.unit * grounds.unit
    )
    count = min(-(-2 * pool // each), 7)
    others = [
        Request(prompt=Prompt((Segment(f"document {i}", each - NONCE_TOKENS),)), max_tokens=4) for i in range(count)
    ]
    return Workload((Burst(requests=(*both, *others)), Burst(requests=(both[1],))))


@st.composite
def waits_for_room(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A prompt, and the same behind requests that leave no room for it and, as they grow, take the blocks that it would
    have hit."""
    units = pool_of(grounds) // grounds.unit
    count = max(2, -(-units // max(2, grounds.longest // grounds.unit - 1)))
    prompt = max(2, units // count - 1) * grounds.unit - NONCE_TOKENS - draw(st.sampled_from((3, 1)))
    stem = Request(prompt=Prompt((Segment("stem", draw(st.sampled_from((3, 2))) * grounds.unit),)))
    growing = [
        Request(prompt=Prompt((Segment(f"growing {i}", prompt),)), max_tokens=grounds.unit // 2) for i in range(count)
    ]
    return Workload((Burst(requests=(stem,)), Burst(requests=(*growing, stem)), Burst(requests=(stem,))))


@st.composite
def identical_crowds(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Many times the same long prompt at once, cold or warmed by one request; their answers reach into new blocks."""
    blocks = max(2, min(pool_of(grounds) // 2, grounds.longest // 2) // grounds.unit)
    stem = Segment("stem", blocks * grounds.unit - NONCE_TOKENS + draw(st.sampled_from((0, 1, -1))))
    tokens = draw(st.sampled_from((grounds.unit + 8, grounds.unit // 2)))
    request = Request(prompt=Prompt((stem,)), max_tokens=tokens)
    steps: list[Step] = [Burst(requests=(request,))] if draw(st.booleans()) else []
    steps.append(Burst(requests=(request,) * draw(st.sampled_from(CROWDS))))
    return Workload(tuple(steps))


@st.composite
def never_fitting(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A prompt longer than the model or the pool takes, others queued behind it, and one more when all is over."""
    limit = grounds.longest if grounds.small_pool is None else min(grounds.longest, grounds.small_pool)
    longer = limit + draw(st.sampled_from((grounds.unit, 1, limit)))
    too_long = Request(prompt=Prompt((Segment("endless", longer),)), max_tokens=4)
    fitting = [
        Request(prompt=Prompt((Segment("stem", 2 * grounds.unit), Segment(f"tail {i}", 5))), max_tokens=8)
        for i in range(draw(st.sampled_from((2, 4))))
    ]
    place = draw(st.sampled_from((0, 1)))
    crowd = [*fitting[:place], too_long, *fitting[place:]]
    return Workload((Burst(requests=tuple(crowd)), Burst(requests=(fitting[0],))))


@st.composite
def storms(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Crowds, some of whom hang up; then silence, then what needs the whole pool, then silence again."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 2))):
        crowd = []
        for i in range(draw(st.sampled_from((3, 6)))):
            length = draw(st.sampled_from((2, 3, 4))) * grounds.unit
            own = Segment(f"document {draw(st.integers(0, 3))}", min(length, grounds.longest // 2))
            abort = draw(st.sampled_from((None, Abort(after_tokens=2), Abort(after_ms=30))))
            may_abort = Capability.ABORT in grounds.can
            tokens = draw(st.sampled_from((8, grounds.unit + 2)))
            crowd.append(
                Request(
                    prompt=Prompt((own, Segment(f"tail {i}", 5))),
                    max_tokens=tokens,
                    abort=abort if may_abort else None,
                )
            )
        steps.append(Burst(requests=tuple(crowd)))
    steps += [Idle(50), Burst(requests=filling(grounds)), Idle(50)]
    return Workload(tuple(steps))


def filling(grounds: Grounds) -> tuple[Request, ...]:
    """One request that needs the whole pool, or as many of the longest as fit into it side by side."""
    tokens = min(pool_of(grounds), grounds.longest)
    count = min(max(1, pool_of(grounds) // tokens), MOST_DOCUMENTS)
    own = tokens - NONCE_TOKENS - 4
    return tuple(Request(prompt=Prompt((Segment(f"whole {i}", own),)), max_tokens=4) for i in range(count))
