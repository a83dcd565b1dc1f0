"""Prompts sent again: at once, and after others, with or without a shared prefix."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits, answer_lengths, stems
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

LONG_ANSWER = 8
LONG_TURN = 20  # of a conversation that almost fills the context already
LEAST_LONG = 8  # units of a long prompt for a slow model
MOST_UNITS = 64  # of a prompt that is sent again; GROUP-1 has the longest prompts
MOST_BOUNDARIES = 6  # ends of blocks at which prompts end
MANY_SHARERS = 17  # requests at once that share a prefix
LONG_EVERY = 7  # for each workload with the longest prompt, so many have a shorter one


@guided
@st.composite
def repeats(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw A, A, or A four times: some engines fail only at the third. Rarely, A is the longest prompt or half."""
    long = not limits.slow and draw(st.sampled_from((*[False] * LONG_EVERY, True)))
    longest = longest_stem(limits)
    stem = Segment("stem", draw(st.sampled_from((longest, longest // 2)))) if long else draw(stems(limits))
    times = 2 if long else draw(st.sampled_from(limits.sizes((2, 2, 4))))
    return Workload(tuple(single_request(draw, limits, Prompt((stem,))) for _ in range(times)))


def longest_stem(limits: WorkloadLimits) -> int:
    """Return the length of a prompt that leaves room for an answer in model and pool, within the cost limit."""
    most = min(limits.longest, limits.pool or limits.longest, limits.most_tokens // 2, MOST_UNITS * limits.unit)
    return most // limits.unit * limits.unit - 2 * limits.unit - NONCE_TOKENS


@guided
@st.composite
def returns(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw A, A, B, A, where A and B differ after a shared prefix or from the start; then more of them in any order."""
    prelude = draw(stems(limits))
    lengths = limits.sizes((limits.unit, 5, 2 * limits.unit + 1))
    tails = [Segment(f"tail {i}", draw(st.sampled_from(lengths))) for i in range(3)]
    unrelated = [Prompt((Segment(f"own {i}", prelude.length), tail)) for i, tail in enumerate(tails)]
    related = [Prompt((prelude, tail)) for tail in tails]
    prompts = draw(st.sampled_from((related, unrelated, [*related[:2], unrelated[2]])))
    steps: list[Step] = [single_request(draw, limits, prompts[i]) for i in (0, 0, 1, 0)]
    for _ in range(draw(st.integers(0, limits.most(4)))):
        steps.append(single_request(draw, limits, draw(st.sampled_from(prompts))))
    return Workload(tuple(steps))


@guided
@st.composite
def boundaries(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw the beginnings of one text, which end around the ends of blocks, with tails of their own or none.

    Each hit starts from what stands at another block's end, and from there a chunk begins at another place.
    """
    most = max(2, min(MOST_BOUNDARIES, longest_stem(limits) // limits.unit))
    offsets = (-1, 0, 1, limits.unit // 2)
    steps: list[Step] = []
    for number in range(draw(st.integers(3, 3 + limits.most(6)))):
        together = []
        for place in range(draw(st.sampled_from((1, 1, 2)))):
            end = draw(st.integers(1, most)) * limits.unit + draw(st.sampled_from(offsets)) - NONCE_TOKENS
            tail = draw(st.sampled_from((0, 0, 1, limits.unit)))
            own = (Segment(f"tail {number}.{place}", tail),) if tail else ()
            prompt = Prompt((Segment("text", max(1, end)), *own))
            together.append(Request(prompt=prompt, max_tokens=draw(answer_lengths(limits))))
        steps.append(Burst(requests=tuple(together)))
    return Workload(tuple(steps))


@guided
@st.composite
def traffic(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw repeats, returns and bursts, for the checks of counts."""
    first, second = draw(repeats(limits)), draw(returns(limits))
    steps: list[Step] = [*first.steps, *second.steps]
    for _ in range(draw(st.integers(0, limits.most(2)))):
        stem = draw(stems(limits))
        tails = draw(st.lists(st.sampled_from(("red", "green", "blue")), min_size=2, max_size=3))
        if MANY_SHARERS * (stem.length + limits.unit) <= limits.most_tokens // 3 and draw(st.booleans()):
            tails = [f"tail {number}" for number in range(MANY_SHARERS)]
        batch = [Request(prompt=Prompt((stem, Segment(tail, limits.unit // 2)))) for tail in tails]
        steps.append(Burst(requests=tuple(batch)))
    return Workload(tuple(steps))


def single_request(draw: st.DrawFn, limits: WorkloadLimits, prompt: Prompt) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(Request(prompt=prompt, max_tokens=draw(answer_lengths(limits))),))


@st.composite
def long_returns(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw A, A, B, A with prompts almost as long as the model's context, which share a few blocks.

    A slow model gets a part of its context.
    """
    prelude = Segment("prelude", draw(st.sampled_from((1, 2))) * limits.unit + 9)
    whole = min(limits.longest, max(LEAST_LONG * limits.unit, int(limits.longest * limits.scale)))
    rest = whole - prelude.length - NONCE_TOKENS - LONG_ANSWER - draw(st.sampled_from((1, limits.unit)))
    prompts = [Prompt((prelude, Segment(name, rest))) for name in ("document A", "document B")]
    return Workload(tuple(Burst(requests=(Request(prompt=prompts[i], max_tokens=LONG_ANSWER),)) for i in (0, 0, 1, 0)))


@guided
@st.composite
def long_conversations(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw conversations that share a prelude of half the model's context or more: their first turns, of which the last
    is sent twice, then next turns and repeats of any. A slow model gets a part of its context.
    """
    whole = min(limits.longest, max(LEAST_LONG * limits.unit, int(limits.longest * limits.scale)))
    rest = whole - NONCE_TOKENS - 2 * LONG_ANSWER - LONG_TURN - draw(st.sampled_from((1, limits.unit)))
    prelude = Segment("prelude", rest * draw(st.sampled_from((4, 3))) // 6 + draw(st.sampled_from((9, 0))))
    count = 3
    first = [Prompt((prelude, Segment(f"tail {i}", rest - prelude.length))) for i in range(count)]
    turn = Segment("turn", draw(st.sampled_from((5, LONG_TURN))))
    later = st.one_of(
        st.builds(lambda i: Prompt((turn,), continues=i), st.integers(0, count - 1)), st.sampled_from(first)
    )
    prompts = [*first, first[-1], *draw(st.lists(later, min_size=1, max_size=limits.most(3, least=1)))]
    return Workload(tuple(Burst(requests=(Request(prompt=prompt, max_tokens=LONG_ANSWER),)) for prompt in prompts))
