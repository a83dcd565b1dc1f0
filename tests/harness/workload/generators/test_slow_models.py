"""With a slow model the workloads of every family are smaller, and still cross block boundaries."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import given, settings
from support.drawn_workloads import LIMITS, few_examples, found, limits, requests_of
from support.workload_families import USUAL as FAMILIES
from support.workload_families import computed

from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.resets.workloads import aborts
from coldproof.harness.workload.generators.chats import conversations
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.generators.reuse import returns
from coldproof.harness.workload.steps import Burst, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

SLOW_MODEL, FAST = LIMITS["a slow model"], msgspec.structs.replace(LIMITS["a slow model"], scale=1.0)
typical = settings(few_examples, max_examples=40)


def costs(family: str, on: WorkloadLimits) -> float:
    """Return the average cost of a workload of a family: a decoded token costs as much as several of a prompt."""
    seen: list[float] = []

    @typical
    @given(FAMILIES[family](on))
    def draw(workload: Workload) -> None:
        seen.append(computed(workload) + 7 * sum(request.max_tokens for request in requests_of(workload)))

    draw()
    return statistics.mean(seen)


@pytest.mark.nightly
def test_a_slow_model_gets_smaller_workloads() -> None:
    """On average they cost less than two thirds, and none costs more. Some have little to leave out: one prompt that is
    refused, or adapters for more than all slots.
    """
    parts = {family: costs(family, SLOW_MODEL) / costs(family, FAST) for family in FAMILIES}
    assert statistics.mean(parts.values()) < 0.67
    assert {family: part for family, part in parts.items() if part > 1.15} == {}


def test_aborted_prompts_are_shorter_where_no_pool_must_be_exceeded() -> None:
    """A slow model took a minute to compute the prompts for one abort. In a small pool the burst has to exceed the
    pool.
    """
    roomy = msgspec.structs.replace(SLOW_MODEL, pool=100_000, longest=2048)
    fast = msgspec.structs.replace(roomy, scale=1.0)

    def longest(on: WorkloadLimits) -> int:
        sizes: list[int] = []

        @typical
        @given(aborts(on))
        def draw(workload: Workload) -> None:
            sizes.append(max(new_prompt_length(request.prompt) for request in requests_of(workload)))

        draw()
        return max(sizes)

    assert longest(roomy) < longest(fast) / 2


def test_a_fast_engine_draws_from_all_choices() -> None:
    """They stay in order and repeated, so that a seed gives the workloads that it gave before."""
    assert FAST.sizes((8, 8, 1, 34)) == (8, 8, 1, 34)
    assert FAST.most(4) == 4
    assert not FAST.slow


@pytest.mark.parametrize(
    ("scale", "sizes", "most"), [(0.01, (2,), 0), (0.3, (2,), 1), (0.5, (2, 3), 2), (0.7, (2, 3, 5), 2)]
)
def test_sizes_and_numbers_follow_the_scale(scale: float, sizes: tuple[int, ...], most: int) -> None:
    """The smallest size always stays, and at least the requested number."""
    on = limits(scale=scale)
    assert on.sizes((2, 3, 5, 8)) == sizes
    assert on.sizes((8, 4, 100), least=4)[-1:] in ((4,), (8,))[: 1 + (scale > 0.07)] or 8 in on.sizes((8, 4, 100))
    assert on.most(4) == most
    assert on.most(4, least=2) == max(2, most)


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_short_prompts_still_end_around_a_block_boundary(edge: int) -> None:
    """The ends are one token before it, at it, and one after it."""
    seen: set[int] = set()

    @typical
    @given(stems(SLOW_MODEL))
    def draw(stem: object) -> None:
        seen.add(getattr(stem, "length", 0) + NONCE_TOKENS)

    draw()
    assert 2 * 32 + edge in seen
    assert max(seen) <= 3 * 32


@typical
@given(conversations(SLOW_MODEL, chat=False))
def test_a_short_answer_fills_the_block_in_which_its_prompt_ends(workload: Workload) -> None:
    """The next turn can then hit what decode wrote. The last token of an answer has no KV."""
    first = requests_of(workload)[0]
    start = new_prompt_length(first.prompt)
    written = start + first.max_tokens - 1
    assert written // 32 > start // 32
    assert any(request.prompt.continues is not None for request in requests_of(workload))


@typical
@given(outgrowing_requests(SLOW_MODEL, afterwards=True))
def test_short_answers_still_outgrow_the_pool(workload: Workload) -> None:
    """Together the requests of the burst end with more blocks than there are."""
    burst = next(step for step in workload.steps if isinstance(step, Burst))
    blocks = sum(-(-(new_prompt_length(r.prompt) + r.max_tokens) // 32) for r in burst.requests)
    assert blocks > 768 // 32


def test_the_prompts_of_a_return_still_share_a_prefix_or_nothing() -> None:
    """Both are drawn with the fewest requests."""
    for shares in (True, False):

        def wanted(workload: Workload, shares: bool = shares) -> bool:
            first, _, between, *_ = (request.prompt.segments[0] for request in requests_of(workload))
            return (first == between) is shares

        assert len(requests_of(found(returns(SLOW_MODEL), wanted))) == 4
