"""Prompts sent again: at once, and after others that share a prelude with them or nothing."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.generators.prompts import Grounds, answers_lengths, stems
from harness.workload import NONCE_TOKENS, Burst, Prompt, Request, Segment, Step, Workload

LONG_ANSWER = 8
MOST_UNITS = 64  # of a prompt that is sent again; the longest of all are GROUP-1's
LONG_EVERY = 7  # shorter workloads for each with a prompt as long as fits


@st.composite
def repeats(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A, A; perhaps four times (some engines only go wrong at the third). Rarely as long as the model takes."""
    long = draw(st.sampled_from((*[False] * LONG_EVERY, True)))
    stem = Segment("stem", longest_stem(grounds)) if long else draw(stems(grounds))
    times = 2 if long else draw(st.sampled_from((2, 2, 4)))
    return Workload(tuple(once(draw, grounds, Prompt((stem,))) for _ in range(times)))


def longest_stem(grounds: Grounds) -> int:
    """Tokens of a prompt that leaves room for an answer, in the model and in the pool, and costs no more than others
    of its kind may come to."""
    most = min(grounds.longest, grounds.pool or grounds.longest, grounds.most_tokens // 2, MOST_UNITS * grounds.unit)
    return most // grounds.unit * grounds.unit - 2 * grounds.unit - NONCE_TOKENS


@st.composite
def returns(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A, A, B, A, where B and A part after a prelude or from the start; more of both, in any order."""
    prelude = draw(stems(grounds))
    tails = [Segment(f"tail {i}", draw(st.sampled_from((grounds.unit, 5, 2 * grounds.unit + 1)))) for i in range(3)]
    apart = [Prompt((Segment(f"own {i}", prelude.length), tail)) for i, tail in enumerate(tails)]
    together = [Prompt((prelude, tail)) for tail in tails]
    prompts = draw(st.sampled_from((together, apart, [*together[:2], apart[2]])))
    steps: list[Step] = [once(draw, grounds, prompts[i]) for i in (0, 0, 1, 0)]
    for _ in range(draw(st.integers(0, 4))):
        steps.append(once(draw, grounds, draw(st.sampled_from(prompts))))
    return Workload(tuple(steps))


@st.composite
def traffic(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Both, with bursts in between: for the counts."""
    first, then = draw(repeats(grounds)), draw(returns(grounds))
    steps: list[Step] = [*first.steps, *then.steps]
    for _ in range(draw(st.integers(0, 2))):
        stem = draw(stems(grounds))
        tails = draw(st.lists(st.sampled_from(("red", "green", "blue")), min_size=2, max_size=3))
        crowd = [Request(prompt=Prompt((stem, Segment(tail, grounds.unit // 2)))) for tail in tails]
        steps.append(Burst(requests=tuple(crowd)))
    return Workload(tuple(steps))


def once(draw: st.DrawFn, grounds: Grounds, prompt: Prompt) -> Burst:
    """One request alone."""
    return Burst(requests=(Request(prompt=prompt, max_tokens=draw(answers_lengths(grounds))),))


@st.composite
def long_returns(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A, A, B, A with prompts almost as long as the model takes, which share a prelude of some blocks and no more."""
    prelude = Segment("prelude", draw(st.sampled_from((1, 2))) * grounds.unit + 9)
    rest = grounds.longest - prelude.length - NONCE_TOKENS - LONG_ANSWER - draw(st.sampled_from((1, grounds.unit)))
    prompts = [Prompt((prelude, Segment(name, rest))) for name in ("document A", "document B")]
    return Workload(tuple(Burst(requests=(Request(prompt=prompts[i], max_tokens=LONG_ANSWER),)) for i in (0, 0, 1, 0)))
