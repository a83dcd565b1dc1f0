"""For each fact about blocks there is a history that shows it, and similar histories that do not."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence, miscounted
from support.histories import ask, burst, history, outcome, put, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.history.records import History, Outcome, QueueSample, ResetRecord
from coldproof.harness.judgement.collect import COUNTERS
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.evidence.cache import Control, Options, Pressure, Reuse
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Reset, Route, Step, Workload

PROMPT = tuple(range(100, 140))  # two whole blocks of 16 and a half
LONG = tuple(range(200, 220))  # an answer that fills a block
OTHER = tuple(range(300, 340))
BRANCH = (*PROMPT[:32], *range(500, 510))  # diverges from PROMPT after its whole blocks
TINY = shape(max_model_tokens=64)
TOO_LONG = range(64)
RUNNING, TIER = (ResetScope.RUNNING,), (ResetScope.SECOND_TIER,)


def hit(number: int, prompt: tuple[int, ...] = PROMPT, cached: int | None = 32, **changes: Any) -> Outcome:
    """Return a request that hit this many tokens."""
    return outcome(number, prompt, cached_tokens=cached, **changes)


def chat(*, failed: bool = False, plain: bool = False) -> History:
    """Return a history of one chat."""
    one = outcome(0, PROMPT, error="HTTP 500" if failed else None)
    return history(one, workload=Workload((burst(ask(("stem", 40), chat=not plain)),)))


def hits_counted(*outcomes: Outcome, counted: float | None = 0.0) -> History:
    """Return a history of these requests, at the end of which the engine's hit counter has this value."""
    return history(*outcomes, steps=(record(0, after=counted),))


def preempted(*preemptions: float | None, hits: tuple[int, ...] = ()) -> History:
    """Return a history with a step for each value of the preemption counter, some of whose requests hit."""
    readings = [Metrics(preemptions=count) for count in (0.0, *preemptions)]
    steps = tuple(record(i, before=readings[i], after=readings[i + 1]) for i in range(len(preemptions)))
    sent = [hit(i, cached=32 if i in hits else 0) for i in range(len(preemptions))]
    return history(*sent, steps=steps)


def pair(*prompts: tuple[int, ...], steps: tuple[int, ...] = (0, 0), **changes: Any) -> History:
    """Return a history of two requests, by default in one burst."""
    return history(*(outcome(i, prompt, step=steps[i], **changes) for i, prompt in enumerate(prompts)))


def queued(waiting: float | None) -> History:
    """Return a history with one sample of the queue."""
    sample = QueueSample(at=0.0, running=1, waiting=waiting, pool_usage=0.5)
    return history(outcome(0, PROMPT), steps=(record(0, queue=(sample,)),))


def refused(number: int = 0, prompt: range = TOO_LONG) -> Outcome:
    """Return a request whose prompt was refused."""
    return outcome(number, prompt, (), error="HTTP 400", refused=True, max_tokens=1)


def pool_use(step: Step, usage: float | None) -> History:
    """Return a history of a step, after which the pool usage is known."""
    return history(workload=Workload((step,)), steps=(record(0, after=Metrics(pool_usage=usage)),))


def reset(
    began: float = 0.6, ended: float = 0.8, *, success: bool = True, scope: tuple[ResetScope, ...] = ()
) -> tuple[ResetRecord, ...]:
    """Return a reset. Outcome N is sent at N and finished at N + 0.5."""
    return (ResetRecord(began=began, ended=ended, success=success, scope=scope),)


def under_load(change: Any, *, began: float) -> History:
    """Return a history with a change during a burst, at this moment of a request's half second."""
    during = Burst(requests=(ask(),), meanwhile=Meanwhile(change=change, after_tokens=1))
    resets = reset(began, began + 0.1) if isinstance(change, Reset) else ()
    return history(outcome(0, PROMPT), workload=Workload((during,)), resets=resets)


def aborted(stage: Stage | None, prompt: tuple[int, ...] = PROMPT) -> Outcome:
    """Return a request whose client disconnected."""
    return outcome(0, prompt, aborted=stage, cached_tokens=None)


def repeated(
    response_options: ResponseOptions, cached: int = 32, before: tuple[int, ...] = PROMPT, **changes: Any
) -> History:
    """Return a history in which a prompt is sent again with these response options."""
    return history(outcome(0, before), hit(1, cached=cached, options=response_options, **changes))


SCORED, SEVERAL = ResponseOptions(prompt_logprobs=True), ResponseOptions(answers=2)
STOP, PATTERN = ResponseOptions(stop=("a",)), ResponseOptions(pattern="[ab]")
TURN = (*PROMPT, *LONG, 7)

SHOWS: dict[Evidence, tuple[History, list[History]]] = {
    Reuse.CHATS: (chat(), [chat(plain=True), chat(failed=True)]),
    Reuse.SHARED_HITS: (
        history(outcome(0, BRANCH), hit(1)),
        [
            history(outcome(0, PROMPT), hit(1)),
            history(outcome(0, PROMPT), hit(1, (*PROMPT, 7, 8))),
            history(outcome(0, BRANCH), hit(1, cached=0)),
            history(outcome(0, BRANCH), hit(1, cached=33)),
            history(outcome(0, BRANCH, salt="red"), hit(1)),
        ],
    ),
    Reuse.DECODE_HITS: (
        history(outcome(0, PROMPT, LONG), hit(1, TURN, 48)),
        [
            history(outcome(0, PROMPT, LONG), hit(1, TURN, 32)),
            history(outcome(0, PROMPT, LONG), hit(1, TURN, 40)),
            history(outcome(0, PROMPT, LONG), hit(1, (*PROMPT, *OTHER), 48)),
        ],
    ),
    Reuse.REPEAT_HITS: (
        history(outcome(0, PROMPT), hit(1)),
        [
            history(hit(0)),
            history(outcome(0, PROMPT), hit(1, cached=0)),
            history(outcome(0, PROMPT), hit(1, (*PROMPT, 7))),
            history(outcome(0, PROMPT), outcome(1, OTHER), hit(2)),
            history(outcome(0, PROMPT, salt="red"), hit(1)),
        ],
    ),
    Reuse.RETURN_HITS: (
        history(outcome(0, PROMPT), outcome(1, OTHER), hit(2)),
        [
            history(outcome(0, PROMPT), hit(1)),
            history(outcome(0, PROMPT), outcome(1, OTHER), hit(2, cached=0)),
            history(outcome(0, OTHER), outcome(1, PROMPT), hit(2)),
            history(outcome(0, PROMPT), outcome(1, OTHER), hit(2, BRANCH)),
        ],
    ),
    Reuse.EXPECTED: (
        history(outcome(0, PROMPT), outcome(1, PROMPT)),
        [
            history(outcome(0, PROMPT), outcome(1, OTHER)),
            history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=2)),
            history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(block_size=None)),
        ],
    ),
    Reuse.COUNTED: (
        hits_counted(hit(0)),
        [hits_counted(hit(0), counted=None), hits_counted(hit(0, cached=0)), hits_counted(hit(0, cached=None))],
    ),
    Pressure.EVICTED: (
        history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=5)),
        [
            history(outcome(0, PROMPT), hit(1), shape=shape(pool_blocks=5)),
            history(outcome(0, PROMPT), outcome(1, OTHER), shape=shape(pool_blocks=5)),
            history(outcome(0, PROMPT), hit(1, cached=None), shape=shape(pool_blocks=5)),
        ],
    ),
    Pressure.PREEMPTIONS: (preempted(2.0), [preempted(0.0), preempted(None), history(steps=())]),
    Pressure.AFTER_PREEMPTION: (
        preempted(1.0, 1.0, hits=(1,)),
        [
            preempted(1.0, 1.0, hits=(0,)),
            preempted(0.0, 1.0, hits=(1,)),
            preempted(1.0, 1.0),
            preempted(0.0, 0.0, hits=(1,)),
            preempted(None, None, hits=(1,)),
        ],
    ),
    Pressure.IDENTICAL: (
        pair(PROMPT, PROMPT),
        [
            pair(PROMPT, OTHER),
            pair(PROMPT, PROMPT, steps=(0, 1)),
            pair(PROMPT[:31], PROMPT[:31]),
            pair(PROMPT, PROMPT, error="HTTP 500"),
            pair(PROMPT, PROMPT, aborted=Stage.DECODE),
        ],
    ),
    Pressure.WAITED: (queued(3), [queued(0), queued(None)]),
    Pressure.REFUSED: (
        history(refused(), shape=TINY),
        [
            history(refused(prompt=range(63)), shape=TINY),
            history(outcome(0, TOO_LONG, (), error="HTTP 500"), shape=TINY),
            history(outcome(0, TOO_LONG), shape=TINY),
        ],
    ),
    Pressure.BESIDE_REFUSED: (
        history(refused(), outcome(1, PROMPT), shape=TINY),
        [
            history(outcome(0, PROMPT), refused(1), shape=TINY),
            history(refused(), shape=TINY),
            history(refused(), outcome(1, PROMPT, error="HTTP 500"), shape=TINY),
            history(outcome(0, PROMPT), outcome(1, PROMPT), shape=TINY),
        ],
    ),
    Pressure.FULL_POOL: (
        history(outcome(0, PROMPT), shape=shape(pool_blocks=4)),
        [
            history(outcome(0, PROMPT), shape=shape(pool_blocks=5)),
            history(outcome(0, PROMPT), shape=shape(pool_blocks=None)),
            history(outcome(0, PROMPT), shape=shape(pool_blocks=4, block_size=None)),
            history(outcome(0, PROMPT, error="HTTP 500"), shape=shape(pool_blocks=4)),
            history(outcome(0, PROMPT, aborted=Stage.DECODE), shape=shape(pool_blocks=4)),
        ],
    ),
    Pressure.IDLE_LOOKS: (pool_use(Idle(1), 0.0), [pool_use(Idle(1), None), pool_use(Reset(), 0.0)]),
    Pressure.IDLE_COMPARED: (pool_use(Idle(1), 0.0), [pool_use(Idle(1), None), pool_use(Reset(), 0.0)]),
    Control.RESETS: (history(resets=reset()), [history(resets=reset(success=False)), history()]),
    Control.RESETS_UNDER_LOAD: (
        under_load(Reset(), began=0.2),
        [
            under_load(Reset(), began=0.6),
            under_load(put("B", route=Route.IN_PLACE), began=0.2),
            history(outcome(0, PROMPT), resets=reset()),
        ],
    ),
    Control.AFTER_RESET: (
        history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset()),
        [
            history(outcome(0, PROMPT), outcome(1, PROMPT)),
            history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset(success=False)),
            history(outcome(0, OTHER), outcome(1, PROMPT), resets=reset()),
            history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset(1.2, 1.3)),
            history(outcome(0, PROMPT, finished=0.9), outcome(1, PROMPT), resets=reset()),
            history(outcome(0, PROMPT), outcome(1, PROMPT, error="HTTP 500"), resets=reset()),
        ],
    ),
    Control.RESETS_OF_RUNNING: (
        history(outcome(0, PROMPT), resets=reset(0.2, 0.3, scope=RUNNING)),
        [
            history(outcome(0, PROMPT), resets=reset(0.2, 0.3)),
            history(outcome(0, PROMPT), resets=reset(0.2, 0.3, scope=TIER)),
            history(outcome(0, PROMPT), resets=reset(0.2, 0.3, scope=RUNNING, success=False)),
            history(outcome(0, PROMPT), resets=reset(0.6, 0.8, scope=RUNNING)),
        ],
    ),
    Control.RESETS_OF_TIER: (
        history(resets=reset(scope=(*RUNNING, *TIER), success=False)),
        [history(resets=reset()), history(resets=reset(scope=RUNNING))],
    ),
    Control.AFTER_TIER_RESET: (
        history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset(scope=TIER)),
        [
            history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset()),
            history(outcome(0, OTHER), outcome(1, PROMPT), resets=reset(scope=TIER)),
            history(outcome(0, PROMPT), outcome(1, PROMPT), resets=reset(1.2, 1.3, scope=TIER)),
        ],
    ),
    Control.ABORTED_QUEUED: (history(aborted(Stage.QUEUED)), [history(aborted(Stage.UNSEEN)), history(aborted(None))]),
    Control.ABORTED_PREFILL: (
        history(aborted(Stage.PREFILL)),
        [history(aborted(Stage.UNSEEN)), history(aborted(Stage.QUEUED))],
    ),
    Control.ABORTED_DECODE: (
        history(aborted(Stage.DECODE)),
        [history(aborted(Stage.UNSEEN)), history(aborted(Stage.PREFILL))],
    ),
    Control.AFTER_ABORT: (
        history(aborted(Stage.UNSEEN), outcome(1, PROMPT)),
        [
            history(aborted(None), outcome(1, PROMPT)),
            history(aborted(Stage.DECODE), outcome(1, OTHER)),
            history(aborted(Stage.DECODE, PROMPT[:12]), outcome(1, PROMPT)),
            history(aborted(Stage.DECODE), outcome(1, PROMPT, salt="red")),
            history(aborted(Stage.DECODE), outcome(1, PROMPT, aborted=Stage.DECODE)),
        ],
    ),
    Options.SCORED_PROMPTS: (
        repeated(SCORED, cached=0),
        [repeated(ResponseOptions(), cached=0), repeated(SCORED, before=OTHER), repeated(SCORED, error="HTTP 500")],
    ),
    Options.SEVERAL: (repeated(SEVERAL), [repeated(SEVERAL, cached=0), repeated(ResponseOptions())]),
    Options.STOPPED: (
        repeated(STOP, finish_reason="stop"),
        [
            repeated(STOP, finish_reason="length"),
            repeated(STOP, cached=0, finish_reason="stop"),
            repeated(ResponseOptions(), finish_reason="stop"),
        ],
    ),
    Options.PATTERNED: (repeated(PATTERN), [repeated(PATTERN, cached=0), repeated(ResponseOptions())]),
}


def test_what_happened_is_counted_and_nothing_similar() -> None:
    """Each counter has the simplest history that it counts, and similar ones that it does not."""
    assert miscounted(((what, *histories) for what, histories in SHOWS.items())) == []


def test_every_fact_has_a_history_here() -> None:
    """The facts of other files have their own tests. Every fact has a value."""
    assert set(SHOWS) == {*Reuse, *Pressure, *Control, *Options}
    one = outcome(0, PROMPT)
    answers = {question(one, one.identities[0]): Answer(one.tokens)}
    assert set(judge_again(history(one), answers, EXACT, exclusive=True).evidence) == set(COUNTERS)


@pytest.mark.parametrize(
    ("what", "seen", "count"),
    [
        (Pressure.EVICTED, history(outcome(0, PROMPT), hit(1, cached=16), shape=shape(pool_blocks=5)), 16),
        (Pressure.PREEMPTIONS, preempted(2.0, 5.0), 5),
        (Pressure.IDENTICAL, pair(PROMPT, PROMPT), 2),
        (Reuse.RETURN_HITS, history(outcome(0, PROMPT), outcome(1, OTHER), hit(2), hit(3), hit(4, OTHER)), 2),
        (Pressure.BESIDE_REFUSED, history(outcome(0, PROMPT, finished=3.0), refused(1), hit(2), shape=TINY), 2),
    ],
)
def test_facts_are_counted_one_by_one(what: Evidence, seen: History, count: float) -> None:
    """Tokens are counted in tokens and requests in requests."""
    assert evidence(seen, {})[what] == count


@pytest.mark.parametrize(("other", "fill"), [(OTHER, True), (PROMPT, False)], ids=["of their own", "shared"])
def test_requests_side_by_side_may_fill_the_pool_together(other: tuple[int, ...], fill: bool) -> None:
    """Each takes three blocks of a pool of eight. If they share blocks, half of the pool is empty."""
    seen = history(outcome(0, PROMPT, step=0), outcome(1, other, step=0), shape=shape(pool_blocks=8))
    assert bool(evidence(seen, {})[Pressure.FULL_POOL]) is fill
