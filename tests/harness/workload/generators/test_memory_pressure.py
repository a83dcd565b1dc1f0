"""Workloads about memory pressure reach their states: they exceed the pool, outgrow it, never fit, or are aborted in
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from support.drawn_workloads import LIMITS, ROOMY, TIGHT, few_examples, found, lengths, requests_of, without

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Stage
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.workloads import (
    REPETITIONS,
    aborts_then_full_pool,
    identical_prompts,
    never_fitting,
    working_sets,
)
from coldproof.harness.features.resets.workloads import aborts
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Workload
from coldproof.harness.workload.tokens import new_prompt_length

SMALL = [LIMITS[name] for name in ("tight", "pool that just may be filled", "blocks of one", "many models' lengths")]


def blocks(tokens: int, on: WorkloadLimits) -> int:
    """Return the number of whole blocks for so many tokens."""
    return math.ceil(tokens / on.block)


@pytest.mark.parametrize("on", SMALL)
def test_a_working_set_is_larger_than_the_pool_and_sent_twice(on: WorkloadLimits) -> None:
    """All of the set comes before any of it is repeated, so the first prompts are evicted by then. The cost stays in
    the limits.
    """

    @few_examples
    @given(working_sets(on))
    def check(workload: Workload) -> None:
        prompts = [request.prompt for request in requests_of(workload)]
        once, again = prompts[: len(prompts) // 2], prompts[len(prompts) // 2 :]
        assert len(set(once)) == len(once)
        assert again in (once, once[::-1])
        assert on.pool is not None
        assert sum(map(new_prompt_length, once)) > on.pool
        assert sum(lengths(workload)) < 1.25 * on.most_tokens
        assert len(once) <= 200

    check()


def test_a_working_set_keeps_its_form_where_the_pool_cannot_be_filled() -> None:
    """It stays affordable, and the requirement then ends as not exercised."""
    workload = found(working_sets(ROOMY), lambda _: True)
    assert sum(lengths(workload)) < ROOMY.most_tokens


@pytest.mark.parametrize("on", SMALL[:3])  # where the model is much shorter than the pool no crowd of ours fills it
def test_identical_prompts_fit_only_if_they_share_blocks(on: WorkloadLimits) -> None:
    """One long prompt is sent at least eight times at once, perhaps after once alone. Each answer needs its own
    blocks.
    """

    @few_examples
    @given(identical_prompts(on))
    def check(workload: Workload) -> None:
        *warm, crowd = workload.steps
        assert isinstance(crowd, Burst)
        assert len(crowd.requests) in REPETITIONS
        assert len(set(requests_of(workload))) == 1
        assert len(warm) <= 1
        one = new_prompt_length(crowd.requests[0].prompt)
        assert one >= 2 * on.block - 1
        assert on.pool is not None
        assert len(crowd.requests) * blocks(one + crowd.requests[0].max_tokens, on) > on.pool // on.block

    check()


def test_some_identical_prompts_run_concurrently_but_not_all() -> None:
    """Otherwise neither concurrency nor a queue could be seen."""

    def room(workload: Workload) -> int:
        request = requests_of(workload)[-1]
        length = new_prompt_length(request.prompt)
        shared = length // TIGHT.block
        return (TIGHT.pool // TIGHT.block - shared) // (blocks(length + request.max_tokens, TIGHT) - shared)  # type: ignore[operator]

    found(identical_prompts(TIGHT), lambda w: 4 <= room(w) < len(requests_of(w)) - 1)


@pytest.mark.parametrize("on", LIMITS.values(), ids=LIMITS)
def test_one_prompt_can_never_fit_and_others_stand_behind_it(on: WorkloadLimits) -> None:
    """It is longer than the model allows, or than the whole pool if that is smaller. One that fits follows it."""

    @few_examples
    @given(never_fitting(on))
    def check(workload: Workload) -> None:
        crowd, after = workload.steps
        assert isinstance(crowd, Burst)
        assert isinstance(after, Burst)
        limit = on.longest if on.small_pool is None else min(on.longest, on.small_pool)
        endless = [i for i, r in enumerate(crowd.requests) if new_prompt_length(r.prompt) + 1 > limit]
        assert len(endless) == 1
        assert endless[0] < len(crowd.requests) - 1
        assert all(length <= limit for i, length in enumerate(lengths(workload)) if i not in endless)
        assert after.requests[0] in crowd.requests

    check()


@pytest.mark.parametrize("place", [0, 1])
def test_what_never_fits_stands_at_the_head_or_behind_another(place: int) -> None:
    """The prompt is the first or second of the queue."""
    found(never_fitting(TIGHT), lambda w: new_prompt_length(requests_of(w)[place].prompt) > TIGHT.longest)


@pytest.mark.parametrize("on", SMALL)
def test_after_many_aborts_one_request_needs_the_whole_pool(on: WorkloadLimits) -> None:
    """If the model's length allows less, it needs as much as that. It comes between two gaps."""

    @few_examples
    @given(aborts_then_full_pool(on))
    def check(workload: Workload) -> None:
        *storm, silence, whole, again = workload.steps
        assert all(isinstance(step, Burst) and len(step.requests) > 1 for step in storm)
        assert isinstance(silence, Idle)
        assert isinstance(again, Idle)
        assert isinstance(whole, Burst)
        assert on.pool is not None
        most = min(on.pool, on.longest)
        assert {new_prompt_length(r.prompt) + r.max_tokens for r in whole.requests} == {most}
        assert len({r.prompt for r in whole.requests}) == len(whole.requests) == min(40, on.pool // most)

    check()


def aborts_after(*, tokens: bool) -> Callable[[Workload], bool]:
    """Return whether a client aborts after tokens, or else before any token."""
    return lambda w: any(r.abort is not None and bool(r.abort.after_tokens) is tokens for r in requests_of(w))


@pytest.mark.parametrize("tokens", [True, False])
def test_some_of_many_clients_abort(tokens: bool) -> None:
    """This needs the capability to abort; otherwise none does."""
    found(aborts_then_full_pool(TIGHT), aborts_after(tokens=tokens))

    @few_examples
    @given(aborts_then_full_pool(without(TIGHT, Capability.ABORT)))
    def check(workload: Workload) -> None:
        assert all(request.abort is None for request in requests_of(workload))

    check()


@pytest.mark.parametrize("on", SMALL)
@pytest.mark.parametrize("afterwards", [True, False])
def test_outgrowing_requests_fit_when_they_begin_and_not_when_they_end(on: WorkloadLimits, afterwards: bool) -> None:
    """Each request fits by itself until its end, in the model and in the pool."""

    @few_examples
    @given(outgrowing_requests(on, afterwards=afterwards))
    def check(workload: Workload) -> None:
        crowd, *after = (step for step in workload.steps if isinstance(step, Burst))
        assert isinstance(workload.steps[-1], Idle)
        assert on.pool is not None
        pool = on.pool // on.block
        prompts = [new_prompt_length(r.prompt) for r in crowd.requests]
        ends = lengths(Workload((crowd,)))
        assert len(prompts) >= 2
        assert sum(blocks(length, on) for length in prompts) <= pool
        assert sum(blocks(length, on) for length in ends) > pool
        assert max(lengths(workload)) <= on.longest
        assert max(blocks(length, on) for length in ends) <= pool
        assert len(after) == (len(prompts) if afterwards else 0)

    check()


@pytest.mark.parametrize("again", [True, False], ids=["again", "a turn"])
def test_outgrowing_prompts_are_repeated_or_continued_afterwards(again: bool) -> None:
    """Blocks of a preempted request may be hit, and so may the blocks that replaced them."""

    def wanted(workload: Workload) -> bool:
        first, *after = (step for step in workload.steps if isinstance(step, Burst))
        asks = [r.prompt for step in after for r in step.requests]
        same = [p for p in asks if p in {r.prompt for r in first.requests}]
        return bool(same if again else [p for p in asks if p.continues is not None])

    found(outgrowing_requests(TIGHT, afterwards=True), wanted)


def test_some_outgrowing_requests_are_later_and_more_urgent() -> None:
    """Priorities are used only if the engine has them: others refuse or ignore the field."""
    found(
        outgrowing_requests(TIGHT, afterwards=False),
        lambda w: any(r.priority < 0 and r.offset_ms > 0 for r in requests_of(w)),
    )

    @few_examples
    @given(outgrowing_requests(without(TIGHT, Capability.PRIORITY), afterwards=True))
    def check(workload: Workload) -> None:
        assert all(request.priority == 0 for request in requests_of(workload))

    check()


def victims(workload: Workload) -> list[tuple[Burst, Request]]:
    """Return the burst and the request of each client that aborts."""
    bursts = [step for step in workload.steps if isinstance(step, Burst)]
    return [(burst, request) for burst in bursts for request in burst.requests if request.abort is not None]


@pytest.mark.parametrize("on", [TIGHT, ROOMY, *SMALL])
def test_an_aborted_prompt_is_sent_again_at_once_and_afterwards(on: WorkloadLimits) -> None:
    """The same prompt comes in the same burst, later and without an abort, and then alone with more tokens."""

    @few_examples
    @given(aborts(on))
    def check(workload: Workload) -> None:
        assert victims(workload)
        for burst, victim in victims(workload):
            (beside,) = [r for r in burst.requests if r.prompt == victim.prompt and r.abort is None]
            assert beside.offset_ms > victim.offset_ms
            after = workload.steps[workload.steps.index(burst) + 1]
            assert isinstance(after, Burst)
            (again,) = after.requests
            assert again.prompt.segments[:-1] == victim.prompt.segments
            assert victim.abort is not None
            assert victim.abort.after_tokens < victim.max_tokens

    check()


def decodes(burst: Burst, victim: Request) -> bool:
    """Return whether the client aborts during decode."""
    return victim.abort is not None and victim.abort.after_tokens > 0


def prefills(burst: Burst, victim: Request) -> bool:
    """Return whether the client aborts before any token, with no other prompt and with a prompt of most of the pool."""
    long = new_prompt_length(victim.prompt) > (TIGHT.pool or 0) / 2
    return victim.abort is not None and victim.abort.at is Stage.PREFILL and len(burst.requests) == 2 and long


def queues(burst: Burst, victim: Request) -> bool:
    """Return whether the client aborts before any token, behind others that need more than the pool."""
    crowd = [r for r in burst.requests if r.prompt != victim.prompt]
    assert not crowd or (victim.abort is not None and victim.abort.at is Stage.QUEUED)
    needed = sum(blocks(new_prompt_length(r.prompt), TIGHT) for r in (*crowd, victim))
    return bool(crowd) and victim.offset_ms > 0 and needed > (TIGHT.pool or 0) / TIGHT.block


@pytest.mark.parametrize("stage", [decodes, prefills, queues])
def test_clients_abort_at_each_stage(stage: Callable[[Burst, Request], bool]) -> None:
    """A workload can aim at these stages, but not force them."""
    found(aborts(TIGHT), lambda w: any(stage(*pair) for pair in victims(w)))


@pytest.mark.parametrize(("places", "crowd"), [(4, 4), (2, 3), (256, 3), (None, 3)])
def test_a_queued_client_waits_behind_all_that_may_run(places: int | None, crowd: int) -> None:
    """With four places, three other requests leave one free, so the victim might not wait."""

    def waits(workload: Workload) -> bool:
        return any(len(burst.requests) == crowd + 2 for burst, _ in victims(workload))

    found(aborts(msgspec.structs.replace(TIGHT, requests=places)), waits)


def test_three_stages_in_one_workload_do_not_meet_in_the_cache() -> None:
    """Each victim has its own prompt."""

    def wanted(workload: Workload) -> bool:
        return len(victims(workload)) == 3

    prompts: list[Prompt] = [victim.prompt for _, victim in victims(found(aborts(TIGHT), wanted))]
    assert len({prompt.segments[0].name for prompt in prompts}) == 3
