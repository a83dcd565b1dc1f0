"""Workloads in which several requests load at once what the pool has lost, or lose it again while they do."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.requests import Abort
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.features.tiers.workloads import emptied, pool_filler
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS


@guided
@st.composite
def aborted_loads(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a client disconnect in the first steps of a request whose prompt the pool has lost and must load.

    A concurrent request waits for all its blocks. Then the same prompt follows, and an idle period.
    """
    length = draw(st.sampled_from((3, 2))) * limits.unit
    steps: list[Step] = []
    for i in range(draw(st.sampled_from((1, 2)))):
        ask = Request(prompt=Prompt((Segment(f"victim {i}", length),)))
        abort = Abort(after_ms=draw(st.sampled_from((10, 20, 30))))
        filler = pool_filler(limits, f"taker {i}").requests[0]
        taker = msgspec.structs.replace(filler, offset_ms=draw(st.sampled_from((20, 10))))
        steps.append(Burst(requests=(ask,)))
        steps.append(emptied(draw, limits))
        steps.append(Burst(requests=(msgspec.structs.replace(ask, abort=abort), taker)))
        steps += [Burst(requests=(ask,)), Idle(20)]
    return Workload(tuple(steps))


@guided
@st.composite
def preempted_after_loads(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that the pool loses, and the same again, or longer, after one with which it fills the pool.

    The other prompt has a whole number of blocks. Its first token needs one more, which is taken from the later request
    directly after its load, or while what is new of it is stored. It is admitted again when the other one ends, soon or
    later. What failed to load is not computed again by then.
    """
    pool, longest = pool_tokens(limits) // limits.unit, limits.longest // limits.unit - 1
    blocks, more = draw(st.sampled_from(((5, 0), (3, 2), (4, 0), (3, 0), (2, 3), (5, 2))))
    tail = draw(st.sampled_from((5, 6, 4)))  # the cell's connector chooses by the length which loads fail
    stem = Segment("victim", (blocks - 1) * limits.unit + tail)
    first = Request(prompt=Prompt((stem,)), max_tokens=8)
    again = Request(prompt=Prompt((stem, Segment("more", more * limits.unit)) if more else (stem,)), max_tokens=8)
    length = min(max(1, pool - blocks - more), longest) * limits.unit - NONCE_TOKENS
    other = Request(prompt=Prompt((Segment("taker", length),)), max_tokens=draw(st.sampled_from((8, 2))))
    both = draw(st.sampled_from(((other, again), (again, other))))  # the latter where loads are asynchronous
    before = (Burst(requests=(first,)), emptied(draw, limits))
    return Workload((*before, Burst(requests=both), Burst(requests=(again,)), Idle(20)))


@st.composite
def loads_by_share(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt of a share of the pool, what empties the pool, and the prompt again; perhaps with a short one.

    The shares are a quarter, half, a little more and the whole pool. More than half fits once, but not twice.
    """
    pool, longest = pool_tokens(limits) // limits.unit, limits.longest // limits.unit - 1
    blocks = min(draw(st.sampled_from((pool // 2 + 1, pool // 2 + 2, pool, pool // 2, pool // 4))), longest)
    tails = st.sampled_from((4, 5, 6))  # the cell's connector chooses by the length which loads fail
    lengths = [(n - 1) * limits.unit + draw(tails) for n in (blocks, *draw(st.sampled_from(((), (2,)))))]
    ask = Burst(requests=tuple(Request(prompt=Prompt((Segment(f"share {i}", n),))) for i, n in enumerate(lengths)))
    return Workload((ask, emptied(draw, limits), ask, ask, Idle(20)))


@guided
@st.composite
def returning_crowd(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts that the pool loses, and all of them again at once, as they were or longer; then prompts whose loads
    fill the pool to its last block.

    The loads of the first ones leave a part of the pool. What each prompt needs beside its load, for its rest, a token
    or drafts, has to wait until another one has ended.
    """
    count = draw(st.sampled_from((2, 3, 2, 4)))
    share = pool_tokens(limits) // limits.unit // count
    # Blocks that a load leaves of a share, tokens of the prompt behind whole blocks, and blocks by which it is longer.
    fewer, tail, more = draw(
        st.sampled_from(((2, 1, 3 * count), (1, limits.unit - 1, 0), (1, limits.unit - 2, 0), (1, 1, share), (3, 2, 4)))
    )
    first = crowd(draw, limits, [max(1, share - fewer)] * count, tail=tail, more=more)
    left = pool_tokens(limits) // limits.unit - share * (count - 1)
    full = crowd(draw, limits, [*[share] * (count - 1), left], name="full")
    return Workload((*first, *(full if not limits.slow else ()), Idle(20)))


def crowd(
    draw: st.DrawFn, limits: WorkloadLimits, blocks: list[int], *, name: str = "crowd", tail: int = 0, more: int = 0
) -> list[Step]:
    """Return prompts of so many blocks and `tail` tokens, what empties the pool, and all prompts again at once, each
    longer by at most `more` blocks.
    """
    unit, longest = limits.unit, limits.longest // limits.unit - 1
    lengths = [min(one, longest) for one in blocks]
    stems = [Segment(f"{name} {i}", n * unit - NONCE_TOKENS + tail) for i, n in enumerate(lengths)]
    steps: list[Step] = [Burst(requests=(Request(prompt=Prompt((stem,)), max_tokens=1),)) for stem in stems]
    rest = min(more, max(0, min(pool_tokens(limits) // unit, longest) - lengths[0] - 1))
    again = [Prompt((stem, Segment("rest", rest * unit)) if rest else (stem,)) for stem in stems]
    together = Burst(requests=tuple(Request(prompt=one, max_tokens=8) for one in again))
    return [*steps, emptied(draw, limits), together, steps[0]]


@guided
@st.composite
def loaded_together(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that the pool loses, then several requests of one step that load it: equal, longer, or a part of
    it, perhaps beside another that is loaded as well. Then it is sent again.
    """
    unit = limits.unit
    blocks = draw(st.sampled_from((4, 2, 3)))
    tail = draw(st.sampled_from((4, 5, 6, 0, 1)))  # the cell's connector chooses by the length which loads fail
    stem, other = (Segment(name, blocks * unit + tail - NONCE_TOKENS) for name in ("stem", "other"))
    ask, beside = (Burst(requests=(Request(prompt=Prompt((own,)), max_tokens=4),)) for own in (stem, other))
    requests = []
    for number in range(draw(st.sampled_from((2, 2, 3, 4)))):
        match draw(st.sampled_from(("equal", "equal", "longer", "part", "other"))):
            case "longer":
                prompt = Prompt((stem, Segment(f"tail {number}", draw(st.sampled_from((5, unit))))))
            case "part":
                prompt = Prompt((Segment("stem", stem.length - unit), Segment(f"tail {number}", 5)))
            case "other":
                prompt = Prompt((other,))
            case _:
                prompt = Prompt((stem,))
        tokens, late = draw(st.sampled_from((4, 1, unit))), draw(st.sampled_from((0, 0, 0, 10)))
        requests.append(Request(prompt=prompt, max_tokens=tokens, offset_ms=late))
    return Workload((ask, beside, emptied(draw, limits), Burst(requests=tuple(requests)), ask, beside, Idle(20)))


@guided
@st.composite
def loaded_behind_hits(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, a stem of each alone, and the prompts again behind requests that hold a part of the pool.

    The stems were used last, so that their blocks are evicted after what follows them. Of the first stem that is still
    there, the blocks are hit, and they are what the pool gives away next: the load of the rest must not take them.
    """
    unit, longest = limits.unit, min(pool_tokens(limits), limits.longest) // limits.unit - 1
    whole, parts = [], []
    for number in range(draw(st.sampled_from(limits.sizes((4, 3, 2))))):
        blocks = max(1, min(draw(st.sampled_from((3, 2, longest // 2))), longest - 3))
        stem = Segment(f"stem {number}", blocks * unit - NONCE_TOKENS + draw(st.sampled_from((1, 0, unit - 1))))
        rest = Segment(f"rest {number}", draw(st.sampled_from((1, 2))) * unit)
        whole.append(Request(prompt=Prompt((stem, rest)), max_tokens=2))
        parts.append(Request(prompt=Prompt((stem,)), max_tokens=2))
    # Tokens. Where the layers have several groups, each of them has blocks for them in the same pool.
    held = draw(st.integers(longest // 2, min(3 * longest, pool_tokens(limits) // unit))) * unit
    sizes = [min(longest * unit, held - start) for start in range(0, held, longest * unit)]
    holders = [Request(prompt=Prompt((Segment(f"holder {i}", n),)), max_tokens=unit) for i, n in enumerate(sizes)]
    steps = [Burst(requests=(one,)) for one in (*whole, *parts)]
    return Workload((*steps, Burst(requests=(*holders, *whole)), *steps[: len(whole)], Idle(20)))
