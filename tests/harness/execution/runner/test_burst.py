"""While requests are in flight: a change when it is due and once, looks at the queue, and an end to a stall."""

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
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stoppable(ScriptedEngine):
    """An engine that notes that it was stopped; spawned, or somebody else's."""

    def __init__(self, *, spawned: bool = True) -> None:
        super().__init__()
        self.capabilities[Capability.SPAWNABLE] = Support(spawned, "")
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


class Scene:
    """One burst under watch: a clock to move, an engine to stop, gauges to read."""

    def __init__(
        self, *, requests: int = 1, change: Change | None = None, spawned: bool = True, clock: Clock | None = None
    ) -> None:
        self.clock, self.engine = clock or Clock(), Stoppable(spawned=spawned)
        self.gauges = Metrics(running=1, waiting=3, pool_usage=0.5)
        self.looks = 0
        self.monitor = BurstMonitor(
            Burst(requests=(ask(),) * requests),
            self.engine,
            change=change,
            clock=self.clock,
            metrics=self.metrics,
            stall_seconds=STALL,
        )

    def metrics(self) -> Metrics:
        """Count the look."""
        self.looks += 1
        return self.gauges

    def pass_time(self, seconds: float) -> None:
        """A look up, so much later."""
        self.clock.now += seconds
        self.monitor.between()


def changing(after_tokens: int, make: Callable[[], object]) -> Change:
    """A change after so many tokens."""
    return Change(Meanwhile(change=Reset(), after_tokens=after_tokens), lambda _: make() and None, Clock())


def test_a_change_is_made_once_its_tokens_have_come_and_only_once() -> None:
    """Of the first request; those of others count for nothing."""
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
    """As the request is sent."""
    made: list[str] = []
    Scene(change=changing(0, lambda: made.append("now"))).monitor.between()
    assert made == ["now"]


def test_several_tokens_at_once_do_not_hide_the_moment() -> None:
    """A server may send them in one piece."""
    made: list[str] = []
    scene = Scene(change=changing(3, lambda: made.append("now")))
    scene.monitor.on_token(0, 7)
    scene.monitor.between()
    assert made == ["now"]


@pytest.mark.parametrize("problem", [RequestRefused(400, "no"), EngineDied("gone")])
def test_what_goes_wrong_with_a_change_is_kept(problem: EngineDied) -> None:
    """And not raised in the midst of a burst; nor is it tried again."""
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


def test_the_time_of_a_change_is_not_the_requests_silence() -> None:
    """A slow load holds every request up; nobody has stalled when it is over."""
    clock = Clock()

    def slowly() -> None:
        clock.now += 2 * STALL

    scene = Scene(change=changing(0, slowly), clock=clock)
    scene.monitor.between()
    scene.monitor.between()
    assert scene.monitor.stalled is None
    assert scene.engine.stops == 0


def reload(*, made: bool, began: float = 1.0, ended: float = 2.0) -> Change:
    """Content B in place of A, acknowledged or refused between these moments."""
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
def test_a_request_may_be_of_each_version_that_its_life_touched(
    made: bool, sent: float, finished: float, identities: tuple[Identity, ...]
) -> None:
    """What a refused change left behind is unknown. Who came after a change is of the new load alone."""
    one = outcome(0, range(9), adapter="digest-a", sent=sent, finished=finished)
    widened = reload(made=made).widen(one, "digest-b", 2)
    assert widened.identities == identities
    assert widened.residence == CachePartition("tenant", 2 if identities == (B,) else 1, None)


def test_other_names_and_other_changes_widen_nothing() -> None:
    """A reset changes no identity."""
    base, other = outcome(0, range(9)), outcome(1, range(9), adapter="digest-a", residence=CachePartition("x", 1, None))
    assert [reload(made=True).widen(one, "digest-b", 2) for one in (base, other)] == [base, other]
    reset = changing(0, lambda: None)
    reset.attempt()
    assert reset.widen(base, "digest-b", 2) == base


@pytest.mark.parametrize(("requests", "looks"), [(QUEUE_REQUESTS - 1, 0), (QUEUE_REQUESTS, 3)])
def test_a_crowds_queue_is_looked_at_now_and_then(requests: int, looks: int) -> None:
    """A few requests are not worth a look; and a look costs a token, so there are not more than needed. The first comes
    soon: some engines answer a crowd in less than the time between two."""
    scene = Scene(requests=requests)
    for _ in range(30):
        scene.pass_time(QUEUE_SECONDS / 10 + 1e-9)
    assert scene.looks == len(scene.monitor.queue) == looks
    assert all(look.at < QUEUE_SECONDS / 4 for look in scene.monitor.queue[:1])


def test_a_look_says_what_the_engine_says_at_that_moment() -> None:
    """Unknown stays unknown."""
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
    """Once, with the queue of that moment; a single request can stall as well as a crowd."""
    scene = Scene(spawned=spawned)
    scene.pass_time(STALL)
    assert scene.monitor.stalled is None
    for _ in range(3):
        scene.pass_time(1.0)
    assert scene.monitor.stalled == QueueSample(at=STALL + 1, running=1, waiting=3, pool_usage=0.5)
    assert scene.engine.stops == spawned
    assert scene.looks == 1


def test_any_requests_token_is_progress() -> None:
    """Only silence of all of them is a stall."""
    scene = Scene(requests=2)
    for number in (0, 1, 1, 0):
        scene.pass_time(STALL - 1)
        scene.monitor.on_token(number, 1)
    assert scene.monitor.stalled is None
    scene.pass_time(STALL + 1)
    assert scene.monitor.stalled is not None


def test_a_queue_is_not_looked_at_behind_a_stall() -> None:
    """The engine may be gone."""
    scene = Scene(requests=QUEUE_REQUESTS)
    scene.pass_time(STALL + 1)
    looked = scene.looks
    scene.pass_time(1.0)
    assert scene.looks == looked
