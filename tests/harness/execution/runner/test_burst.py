"""While requests run: a change happens once and in time, the queue is sampled, and a stall ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.histories import ask, outcome, put

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.execution.runner.burst import QUEUE_REQUESTS, QUEUE_SECONDS, BurstMonitor, Change
from coldproof.harness.history.records import CachePartition, Identity, QueueSample
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Burst, Meanwhile, Reset, Route

STALL = 20.0
A, B = Identity("digest-a", None), Identity("digest-b", None)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stoppable(ScriptedEngine):
    """An engine, spawned or attached, that counts how often it is stopped."""

    def __init__(self, *, spawned: bool = True) -> None:
        super().__init__()
        self.capabilities[Capability.SPAWNABLE] = Support(spawned, "")
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


class Scene:
    """One monitored burst: a clock to move, an engine to stop, and gauges to read."""

    def __init__(
        self, *, requests: int = 1, change: Change | None = None, spawned: bool = True, clock: Clock | None = None
    ) -> None:
        self.clock, self.engine = clock or Clock(), Stoppable(spawned=spawned)
        self.gauges = Metrics(running=1, waiting=3, pool_usage=0.5)
        self.samples = 0
        self.monitor = BurstMonitor(
            Burst(requests=(ask(),) * requests),
            self.engine,
            change=change,
            clock=self.clock,
            metrics=self.metrics,
            stall_seconds=STALL,
        )

    def metrics(self) -> Metrics:
        """Count the sample and return the gauges."""
        self.samples += 1
        return self.gauges

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and poll."""
        self.clock.now += seconds
        self.monitor.between()


def changing(after_tokens: int, make: Callable[[], object]) -> Change:
    """Return a change after this many tokens."""
    return Change(Meanwhile(change=Reset(), after_tokens=after_tokens), lambda _: make() and None, Clock())


def test_a_change_is_made_once_its_tokens_have_come_and_only_once() -> None:
    """Only tokens of the first request count."""
    made: list[str] = []
    scene = Scene(requests=2, change=changing(3, lambda: made.append("now")))
    for number, count in ((0, 1), (0, 2), (1, 9)):
        scene.monitor.on_token(number, count)
        scene.monitor.between()
        assert made == []
    scene.monitor.on_token(0, 3)
    assert made == []  # not in the thread that reads tokens
    for _ in range(3):
        scene.monitor.between()
    assert made == ["now"]


def test_a_change_after_no_token_is_made_at_once() -> None:
    """The change happens as soon as the request is sent."""
    made: list[str] = []
    Scene(change=changing(0, lambda: made.append("now"))).monitor.between()
    assert made == ["now"]


def test_several_tokens_at_once_do_not_hide_the_moment() -> None:
    """A server may send several tokens in one piece."""
    made: list[str] = []
    scene = Scene(change=changing(3, lambda: made.append("now")))
    scene.monitor.on_token(0, 7)
    scene.monitor.between()
    assert made == ["now"]


@pytest.mark.parametrize("problem", [RequestRefused(400, "no"), EngineDied("gone")])
def test_what_goes_wrong_with_a_change_is_kept(problem: EngineDied) -> None:
    """The error is not raised during the burst, and the change is not tried again."""
    tries: list[str] = []

    def make() -> None:
        tries.append("once")
        raise problem

    scene = Scene(change=changing(0, make))
    scene.monitor.between()
    scene.monitor.between()
    change = scene.monitor.change
    assert change is not None
    assert (tries, change.tried, change.made, change.problem) == (["once"], True, False, problem)


def test_the_time_of_a_change_is_no_stall_of_the_requests() -> None:
    """A slow load delays every request, which is not a stall."""
    clock = Clock()

    def slowly() -> None:
        clock.now += 2 * STALL

    scene = Scene(change=changing(0, slowly), clock=clock)
    scene.monitor.between()
    scene.monitor.between()
    assert scene.monitor.stalled is None
    assert scene.engine.stops == 0


def reload(*, made: bool, began: float = 1.0, ended: float = 2.0) -> Change:
    """Return a change from content A to B that was acknowledged or refused between these times."""
    moments = iter((began, ended))

    def make() -> None:
        if not made:
            raise RequestRefused(400, "no")

    wanted = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=0)
    change = Change(wanted, lambda _: make(), lambda: next(moments))
    change.attempt()
    return change


@pytest.mark.parametrize(
    ("made", "sent", "finished", "identities"),
    [
        (True, 0.0, 0.5, (A,)),
        (True, 0.0, 1.5, (A, B)),
        (True, 0.0, 9.0, (A, B)),
        (True, 1.5, 9.0, (A, B)),
        (True, 2.5, 9.0, (B,)),
        (False, 0.0, 0.5, (A,)),
        (False, 0.0, 9.0, (A, B)),
        (False, 2.5, 9.0, (A, B)),
    ],
    ids=["before", "into", "across", "within", "after", "before a refused", "across a refused", "after a refused"],
)
def test_a_request_may_have_each_version_that_it_overlaps(
    made: bool, sent: float, finished: float, identities: tuple[Identity, ...]
) -> None:
    """After a refused change the content is unknown. A request after the change has only the new content."""
    one = outcome(0, range(9), adapter="digest-a", sent=sent, finished=finished)
    widened = reload(made=made).widen(one, "digest-b", 2)
    assert widened.identities == identities
    assert widened.partition == CachePartition("tenant", 2 if identities == (B,) else 1, None)


def test_other_names_and_other_changes_widen_nothing() -> None:
    """A reset changes no identity."""
    base, other = outcome(0, range(9)), outcome(1, range(9), adapter="digest-a", partition=CachePartition("x", 1, None))
    assert [reload(made=True).widen(one, "digest-b", 2) for one in (base, other)] == [base, other]
    reset = changing(0, lambda: None)
    reset.attempt()
    assert reset.widen(base, "digest-b", 2) == base


@pytest.mark.parametrize(("requests", "samples"), [(QUEUE_REQUESTS - 1, 0), (QUEUE_REQUESTS, 3)])
def test_the_queue_of_many_requests_is_sampled(requests: int, samples: int) -> None:
    """Few requests are not sampled, and a sample costs a token, so there are no more than needed.

    The first sample comes soon, because some engines answer many requests in less than the interval.
    """
    scene = Scene(requests=requests)
    for _ in range(30):
        scene.pass_time(QUEUE_SECONDS / 10 + 1e-9)
    assert scene.samples == len(scene.monitor.queue) == samples
    assert all(sample.at < QUEUE_SECONDS / 4 for sample in scene.monitor.queue[:1])


def test_a_sample_has_the_gauges_of_its_time() -> None:
    """Unknown values stay unknown."""
    scene = Scene(requests=QUEUE_REQUESTS)
    scene.pass_time(1.0)
    scene.gauges = Metrics()
    scene.pass_time(1.0)
    assert scene.monitor.queue == [
        QueueSample(at=1.0, running=1, waiting=3, pool_usage=0.5),
        QueueSample(at=2.0, running=None, waiting=None, pool_usage=None),
    ]
    assert [str(look) for look in scene.monitor.queue] == [
        "running 1, waiting 3, pool 50% in use",
        "the engine does not report its queue",
    ]


@pytest.mark.parametrize("spawned", [True, False])
def test_a_stall_ends_a_spawned_engine_and_no_attached_one(spawned: bool) -> None:
    """It happens once, with a sample of the queue, for a single request as for many."""
    scene = Scene(spawned=spawned)
    scene.pass_time(STALL)
    assert scene.monitor.stalled is None
    for _ in range(3):
        scene.pass_time(1.0)
    assert scene.monitor.stalled == QueueSample(at=STALL + 1, running=1, waiting=3, pool_usage=0.5)
    assert scene.engine.stops == spawned
    assert scene.samples == 1


def test_any_requests_token_is_progress() -> None:
    """A stall means that no request gets a token."""
    scene = Scene(requests=2)
    for number in (0, 1, 1, 0):
        scene.pass_time(STALL - 1)
        scene.monitor.on_token(number, 1)
    assert scene.monitor.stalled is None
    scene.pass_time(STALL + 1)
    assert scene.monitor.stalled is not None


def test_a_queue_is_not_sampled_after_a_stall() -> None:
    """The engine may have crashed."""
    scene = Scene(requests=QUEUE_REQUESTS)
    scene.pass_time(STALL + 1)
    sampled = scene.samples
    scene.pass_time(1.0)
    assert scene.samples == sampled
