"""Draws variations beside what a generator draws: of its own workloads, and of those that have reached new states.

Without guidance, few are variations, and only of the generator's own workloads: they depend on nothing but the seed.

How a workload is varied follows from one drawn number. Hypothesis needs draws that do not depend on what has run
before, and the workloads to vary are more with every example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Concatenate, ParamSpec

import msgspec
from hypothesis import strategies as st

from coldproof.harness.workload.generators.priorities import with_priorities
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.variations import fits, varied_workload
from coldproof.harness.workload.steps import Workload

Arguments = ParamSpec("Arguments")
Generator = Callable[Concatenate[WorkloadLimits, Arguments], st.SearchStrategy[Workload]]
PLAIN, VARIED, FROM_CORPUS = 0, 1, 2
UNCHANGED = 0.1  # of the workloads from the corpus: on another engine they may reach what they reached before
KINDS = (PLAIN, VARIED, FROM_CORPUS, FROM_CORPUS)
BLIND = 5  # without guidance, one of so many workloads is a variation


def guided(generator: Generator[Arguments]) -> Generator[Arguments]:
    """Return a generator that also draws variations if its limits have guidance, and a few if they ask for these.
    Where the engine has priorities, most of its workloads have some.

    A generator that draws from such a one must be one as well: what it draws next would depend on the corpus.
    """

    @functools.wraps(generator)
    def draws(
        limits: WorkloadLimits, /, *args: Arguments.args, **named: Arguments.kwargs
    ) -> st.SearchStrategy[Workload]:
        plain = generator(msgspec.structs.replace(limits, guidance=None, varied=False), *args, **named)
        plain = with_priorities(plain, limits)
        if limits.guidance is not None:
            return with_variations(plain, limits)
        return sometimes_varied(plain, limits) if limits.varied else plain

    return draws


@st.composite
def with_variations(draw: st.DrawFn, plain: st.SearchStrategy[Workload], limits: WorkloadLimits) -> Workload:
    """Draw a workload, and use it, a variation of it, or a variation of one from the corpus."""
    drawn = draw(plain)
    kind, seed = KINDS[draw(st.integers(0, len(KINDS) - 1))], draw(st.integers(0, 2**32 - 1))
    if kind == PLAIN or limits.guidance is None:
        return drawn
    random = Random(seed)
    known = limits.guidance.choose(random) if kind == FROM_CORPUS else None
    if known is None or not fits(known, limits):
        return varied_workload(drawn, limits, random)
    return known if random.random() < UNCHANGED else varied_workload(known, limits, random)


@st.composite
def sometimes_varied(draw: st.DrawFn, plain: st.SearchStrategy[Workload], limits: WorkloadLimits) -> Workload:
    """Draw a workload, or rarely a variation of it."""
    drawn = draw(plain)
    if not draw(st.sampled_from((*[False] * (BLIND - 1), True))):
        return drawn
    return varied_workload(drawn, limits, Random(draw(st.integers(0, 2**32 - 1))))
