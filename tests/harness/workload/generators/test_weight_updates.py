"""Workloads about weights have what they are drawn for, by the routes, modes and policy of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from support.drawn_workloads import LIMITS, any_at_all, few_examples, found, requests_of, without

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightPolicy, WeightRoute
from coldproof.harness.features.weights.workloads import (
    Invalidation,
    invalidations,
    paused,
    quiet_updates,
    updates_in_flight,
    updates_with_adapters,
)
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Change,
    Meanwhile,
    Pause,
    Prompt,
    Request,
    Reset,
    Resume,
    Segment,
    Sleep,
    Step,
    UpdateWeights,
    Wake,
    Workload,
    weight_updates,
)
from coldproof.harness.workload.transform import one_request_per_burst, without_steps
from coldproof.harness.workload.validity import is_valid

ROOMY = LIMITS["roomy"]


def with_policy(policy: WeightPolicy) -> WorkloadLimits:
    """Return the limits of an engine with another policy."""
    return msgspec.structs.replace(ROOMY, policy=policy)


def moments(workload: Workload) -> list[Meanwhile]:
    """Return the changes during bursts."""
    return [s.meanwhile for s in workload.steps if isinstance(s, Burst) and s.meanwhile is not None]


@few_examples
@given(quiet_updates(ROOMY))
def test_quiet_updates_happen_while_nothing_runs(workload: Workload) -> None:
    """There are at least two, each to other weights than before, and a request follows each."""
    versions = [update.version for update in weight_updates(workload)]
    assert len(versions) >= 2
    assert all(a != b for a, b in zip([START_WEIGHTS, *versions], versions, strict=False))
    assert not moments(workload)
    assert isinstance(workload.steps[-1], Burst)


@pytest.mark.parametrize("tier", [False, True])
def test_a_reset_after_an_update_covers_a_second_tier_that_can_be_reset(*, tier: bool) -> None:
    """The reset of the prefix cache alone leaves the KV of the old weights there, and says so."""
    scope = (ResetScope.SECOND_TIER,) if tier else ()
    can = {Capability.RESET_SECOND_TIER} if tier else set()
    limits = msgspec.structs.replace(ROOMY, can=ROOMY.can - {Capability.RESET_SECOND_TIER} | can)
    for workloads in (quiet_updates(limits), updates_in_flight(limits)):
        drawn = found(workloads, lambda w: any(isinstance(step, Reset) for step in w.steps))
        assert {step.scope for step in drawn.steps if isinstance(step, Reset)} == {scope}


@pytest.mark.parametrize("by", [Reset, Pause, Sleep])
def test_each_invalidation_is_drawn(by: type) -> None:
    """Another salt and a return to the first weights are drawn as well."""
    assert found(quiet_updates(ROOMY), lambda w: any(isinstance(step, by) for step in w.steps))
    assert found(quiet_updates(ROOMY), lambda w: any(r.salt for r in requests_of(w)))
    assert found(quiet_updates(ROOMY), lambda w: [u.version for u in weight_updates(w)][1:2] == [START_WEIGHTS])


def test_each_route_is_drawn_with_each_invalidation() -> None:
    """Two routes of an update can leave different KV behind, and an invalidation can miss one of them."""
    missing = {(route, by) for route in WeightRoute for by in set(Invalidation) - {Invalidation.NOTHING}}

    @any_at_all
    @given(quiet_updates(ROOMY))
    def draw(workload: Workload) -> None:
        missing.difference_update(pairs(workload))

    draw()
    assert not missing


def pairs(workload: Workload) -> Iterator[tuple[WeightRoute, Invalidation]]:
    """Yield the route of each update with what makes the engine forget old KV."""
    steps = [s for s in workload.steps if not isinstance(s, Burst) or s.requests[0].salt is not None]
    for at, step in enumerate(steps):
        if not isinstance(step, UpdateWeights):
            continue
        before, after = steps[at - 1] if at else None, steps[at + 1] if at + 1 < len(steps) else None
        match before, after:
            case Wake(part=SleepPart.WEIGHTS), _:
                yield step.route, Invalidation.DEEP_SLEEP
            case Wake(part=SleepPart.ALL), _:
                yield step.route, Invalidation.SLEEP
            case Pause(), _:
                yield step.route, Invalidation.PAUSE
            case _, Reset():
                yield step.route, Invalidation.RESET
            case _, Pause():
                yield step.route, Invalidation.PAUSE_AFTER
            case _, Sleep():
                yield step.route, Invalidation.SLEEP_AFTER
            case _, Burst():
                yield step.route, Invalidation.SALT


def test_the_policy_decides_what_follows_an_update() -> None:
    """The capabilities of the engine decide it as well."""
    assert invalidations(with_policy(WeightPolicy.INVALIDATES)) == [Invalidation.NOTHING]
    assert invalidations(with_policy(WeightPolicy.IN_SALT)) == [Invalidation.SALT]
    assert set(invalidations(ROOMY)) == set(Invalidation) - {Invalidation.NOTHING}
    pauses = (Capability.PAUSE_KEEP, Capability.PAUSE_ABORT, Capability.PAUSE_WAIT)
    bare = without(ROOMY, *pauses, Capability.SLEEP, Capability.SLEEP_DISCARDS)
    assert invalidations(without(bare, Capability.CACHE_SALT)) == [Invalidation.RESET]


@few_examples
@given(quiet_updates(with_policy(WeightPolicy.INVALIDATES)))
def test_nothing_else_follows_where_the_update_invalidates(workload: Workload) -> None:
    """Only requests follow."""
    assert {type(step) for step in workload.steps} == {Burst, UpdateWeights}


@pytest.mark.parametrize("mode", PauseMode)
def test_each_mode_of_a_pause_is_drawn(mode: PauseMode) -> None:
    """The pause comes with a clear and an update, and a request arrives during it."""

    def wanted(workload: Workload) -> bool:
        return any(
            m.change == Pause(mode=mode, clear=True)
            and any(isinstance(change, UpdateWeights) for change in m.then)
            and m.then[-1] == Resume()
            and m.gap_ms > 0
            for m in moments(workload)
        ) and any(r.offset_ms for r in requests_of(workload))

    assert found(paused(ROOMY, updates=True), wanted)


@pytest.mark.parametrize("updates", [False, True])
def test_requests_are_sent_to_a_paused_engine(updates: bool) -> None:
    """They do not depend on a guess at when the pause begins, which a slow machine would miss."""

    def wanted(workload: Workload) -> bool:
        return any(
            isinstance(before, Pause) and isinstance(step, Burst) and Resume() in step.changes
            for before, step in itertools.pairwise(workload.steps)
        )

    assert found(paused(ROOMY, updates=updates), wanted)


@pytest.mark.parametrize(
    ("after_tokens", "changes", "valid"),
    [(0, [Resume()], True), (1, [Resume()], False), (0, [Reset()], False), (0, [Reset(), Resume()], True)],
)
def test_a_burst_to_a_paused_engine_has_to_resume_it_at_once(
    after_tokens: int, changes: list[Change], valid: bool
) -> None:
    """Its requests would wait forever otherwise: a token that never comes, or nobody who resumes."""
    during = Meanwhile(change=changes[0], after_tokens=after_tokens, then=tuple(changes[1:]))
    burst = Burst(requests=(Request(prompt=Prompt((Segment("stem", 40),)), max_tokens=8),), meanwhile=during)
    assert is_valid(Workload((Pause(mode=PauseMode.KEEP, clear=True), burst))) is valid


@few_examples
@given(paused(ROOMY, updates=False))
def test_pauses_may_come_without_updates(workload: Workload) -> None:
    """This is for an engine of which only one version of the weights is known."""
    assert moments(workload)
    assert not weight_updates(workload)


@few_examples
@given(updates_in_flight(ROOMY))
def test_next_turns_follow_requests_in_flight(workload: Workload) -> None:
    """There are two after each burst: under the new weights and after a further update."""
    turns = [r for r in requests_of(workload) if r.prompt.continues is not None]
    assert len(turns) == 2 * len(moments(workload))
    assert all(any(isinstance(c, UpdateWeights) for c in m.changes) for m in moments(workload))


ONLY_SAME_PATH = without(ROOMY, Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_IN_PLACE, Capability.WEIGHTS_TRANSFER)


@few_examples
@given(updates_with_adapters(ONLY_SAME_PATH))
def test_only_routes_of_the_engine_are_drawn(workload: Workload) -> None:
    """Adapters and the base model get the same requests before and after each update."""
    assert {u.route for u in weight_updates(workload)} == {WeightRoute.SAME_PATH}
    rounds = len(weight_updates(workload)) + 1
    assert len(requests_of(workload)) == rounds * len({r.adapter for r in requests_of(workload)})


@few_examples
@given(updates_in_flight(ROOMY))
def test_transformed_workloads_stay_valid(workload: Workload) -> None:
    """This holds for one request at a time, and without pauses or resets."""
    assert is_valid(one_request_per_burst(workload))
    assert is_valid(without_steps(workload, Reset))
    calm = without_steps(workload, Pause, Resume)
    assert is_valid(calm)
    assert not any(isinstance(c, Pause | Resume) for m in moments(calm) for c in m.changes)


UPDATE = UpdateWeights(version="A")


@pytest.mark.parametrize(
    ("steps", "valid"),
    [
        ((Pause(mode=PauseMode.KEEP, clear=True), Resume()), True),
        ((Pause(mode=PauseMode.KEEP, clear=True),), False),
        ((Resume(),), False),
        ((Sleep(1), Wake()), True),
        ((Sleep(1), Resume()), False),
        ((Sleep(1), Sleep(1), Wake()), False),
        ((Sleep(1), Wake(SleepPart.WEIGHTS), Wake(SleepPart.KV)), True),
        ((Sleep(1), Wake(SleepPart.WEIGHTS)), False),
        ((Sleep(1), Wake(SleepPart.KV), Wake(SleepPart.KV)), False),
        ((Sleep(2), Wake()), False),
        ((Sleep(2), Wake(), UPDATE), True),
        ((Sleep(2), Wake(SleepPart.WEIGHTS), UPDATE, Wake(SleepPart.KV)), True),
        ((Sleep(2), UPDATE, Wake()), False),
        ((Sleep(2), Wake(SleepPart.KV), UPDATE, Wake(SleepPart.WEIGHTS)), False),
    ],
)
def test_a_pause_must_end_before_the_next_requests(steps: tuple[Step, ...], valid: bool) -> None:
    """Requests would otherwise wait forever, and only what was stopped can resume. Weights that a sleep discarded
    are loaded first, into memory that is awake.
    """
    burst = found(quiet_updates(ROOMY), lambda _: True).steps[0]
    assert is_valid(Workload((*steps, burst))) is valid
