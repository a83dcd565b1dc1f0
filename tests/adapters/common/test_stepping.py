"""The loop that all stepped engines share: what falls on which step, and how requests end where a burst ends early."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from coldproof.adapters.common.stepping import STEP_MS, SteppedEngine, SteppedRequest, seconds
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.requests import Abort, Arrival, Completion, CompletionRequest, Stage, Token


class TinyRequest(SteppedRequest):
    """A request that gets a token at each step."""

    def stage(self) -> Stage:
        """In prefill until its first token."""
        return Stage.DECODE if self.tokens else Stage.PREFILL


class TinyEngine(SteppedEngine[TinyRequest]):
    """Answers with the numbers of its steps. `fails_at`: the step that raises `loss`."""

    def __init__(self, *, fails_at: int | None = None, loss: EngineError | None = None) -> None:
        self.steps = 0
        self.fails_at, self.loss = fails_at, loss or EngineDied("gone")
        self.inside: list[TinyRequest] = []
        self.stopped = self.held = False
        self.closed: list[int] = []  # how many requests each burst left behind

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Note that it is held."""
        if self.stopped:
            raise EngineDied("stopped")
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def send(self, request: CompletionRequest) -> TinyRequest:
        """Take it, unless it is too long."""
        assert self.held
        if request.max_tokens > 99:
            raise RequestRefused(400, "too long")
        self.inside.append(TinyRequest(request, self.steps))
        return self.inside[-1]

    def step(self) -> None:
        """A token for everybody."""
        assert self.held
        if self.steps == self.fails_at:
            raise self.loss
        self.steps += 1
        for one in list(self.inside):
            one.tokens.append(Token(id=self.steps, at=seconds(self.steps - one.step)))
            if one.count == one.request.max_tokens:
                one.ended, one.finish_reason = self.steps, "length"
                self.inside.remove(one)

    def disconnect(self, one: TinyRequest) -> None:
        """Forget it."""
        assert self.held
        self.inside.remove(one)

    def finished(self, one: TinyRequest) -> Completion:
        """Its tokens."""
        return Completion(
            tokens=tuple(one.tokens), finish_reason=one.finish_reason, cached_tokens=None, aborted=one.aborted
        )

    def close_burst(self, left: Sequence[TinyRequest]) -> None:
        """Forget them."""
        self.closed.append(len(left))
        for one in left:
            self.disconnect(one)


def arrival(tokens: int, *, offset_ms: int = 0, abort: Abort | None = None) -> Arrival:
    """A request for so many tokens."""
    return Arrival(CompletionRequest(model="m", prompt=(1,), max_tokens=tokens, abort=abort), offset_ms)


def serve(engine: TinyEngine, *arrivals: Arrival, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Serve without listening to tokens."""
    return engine.serve(arrivals, lambda _number, _count: None, between)


def answer(served: Served) -> Completion:
    """The answer of a request that has one."""
    assert isinstance(served.result, Completion)
    return served.result


def test_an_offset_is_rounded_up_to_a_whole_step() -> None:
    """In the order of the arrivals, whatever order they are sent in."""
    engine = TinyEngine()
    engine.steps = 7  # of an earlier burst: offsets count from the beginning of this one
    late, exact, first = serve(engine, arrival(1, offset_ms=STEP_MS + 1), arrival(1, offset_ms=STEP_MS), arrival(2))
    assert [one.sent for one in (late, exact, first)] == [seconds(9), seconds(8), seconds(7)]
    assert [one.finished for one in (late, exact, first)] == [seconds(10), seconds(9), seconds(9)]
    assert [token.id for token in answer(first).tokens] == [8, 9]


def test_time_goes_on_while_nobody_is_there_yet() -> None:
    """A request that comes late is waited for; `between` comes after each step."""
    engine, looks = TinyEngine(), list[int]()
    serve(engine, arrival(1, offset_ms=3 * STEP_MS), between=lambda: looks.append(engine.steps))
    assert looks == [1, 2, 3, 4]


def test_each_token_is_reported_once() -> None:
    """With the count so far."""
    told: list[tuple[int, int]] = []
    TinyEngine().serve(
        [arrival(2), arrival(1, offset_ms=STEP_MS)],
        lambda number, count: told.append((number, count)),
        lambda: None,
    )
    assert told == [(0, 1), (0, 2), (1, 1)]


def test_a_refused_request_holds_nobody_up() -> None:
    """It was sent and over at once."""
    refused, other = serve(TinyEngine(), arrival(100), arrival(1))
    assert isinstance(refused.result, RequestRefused)
    assert refused.sent == refused.finished == 0.0
    assert answer(other).finish_reason == "length"


@pytest.mark.parametrize(
    ("abort", "tokens", "stage"),
    [
        (Abort(after_tokens=2), 2, Stage.DECODE),
        (Abort(after_ms=0), 0, Stage.PREFILL),  # before the first step
        (Abort(after_ms=5 * STEP_MS, at=Stage.PREFILL), 1, Stage.DECODE),  # a token came before that
    ],
    ids=["after-tokens", "at-once", "never-there"],
)
def test_a_client_disconnects_when_it_is_due(abort: Abort, tokens: int, stage: Stage) -> None:
    """The engine has the request no longer, and another one goes on."""
    engine = TinyEngine()
    one, other = serve(engine, arrival(9, abort=abort), arrival(9))
    assert (len(answer(one).tokens), answer(one).aborted, answer(one).finish_reason) == (tokens, stage, None)
    assert one.finished == seconds(tokens)
    assert len(answer(other).tokens) == 9


@pytest.mark.parametrize(
    ("abort", "tokens", "stages", "due"),
    [
        (Abort(at=Stage.PREEMPTED), 0, Stage.PREEMPTED, True),
        (Abort(at=Stage.PREEMPTED), 5, Stage.PREEMPTED, True),
        (Abort(at=Stage.PREEMPTED), 5, Stage.DECODE, False),
        (Abort(at=Stage.PREEMPTED), 0, Stage.QUEUED, False),
        (Abort(at=Stage.PREEMPTED, after_tokens=3), 2, Stage.PREEMPTED, False),
        (Abort(at=Stage.PREEMPTED, after_tokens=3), 3, Stage.PREEMPTED, True),
        (Abort(at=Stage.QUEUED), 0, Stage.PREEMPTED, False),
    ],
)
def test_a_client_may_wait_for_a_preemption(abort: Abort, tokens: int, stages: Stage, due: bool) -> None:
    """With or without tokens; a request that is not preempted is answered to its end."""
    assert abort.is_due(tokens, 50, lambda: stages) is due


def test_without_a_preemption_the_answer_is_complete() -> None:
    """Other waits end at the first token."""
    (served,) = serve(TinyEngine(), arrival(4, abort=Abort(at=Stage.PREEMPTED)))
    assert (len(answer(served).tokens), answer(served).aborted) == (4, None)


def test_an_answer_that_is_over_has_no_client_to_disconnect() -> None:
    """Its last token is the one that the client would have left at."""
    (served,) = serve(TinyEngine(), arrival(2, abort=Abort(after_tokens=2)))
    assert (answer(served).aborted, answer(served).finish_reason) == (None, "length")


@pytest.mark.parametrize("loss", [EngineDied("gone"), EngineSilent("no answer")], ids=["died", "silent"])
def test_a_lost_engine_ends_all_requests_that_are_not_over(loss: EngineError) -> None:
    """Those that were never sent, too; what was answered before stays answered."""
    engine = TinyEngine(fails_at=2, loss=loss)
    done, running, waiting = serve(engine, arrival(1), arrival(9), arrival(1, offset_ms=90))
    assert answer(done).finish_reason == "length"
    assert running.result is loss
    assert waiting.result is loss
    assert waiting.sent == waiting.finished == seconds(2)


def test_an_exception_out_of_between_leaves_no_request_behind() -> None:
    """It comes out of `serve` itself."""
    engine = TinyEngine()

    def interrupt() -> None:
        if engine.steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(engine, arrival(9), arrival(2), between=interrupt)
    assert (engine.inside, engine.closed) == ([], [1])


def test_an_engine_that_is_stopped_meanwhile_ends_the_burst() -> None:
    """Nothing is left to be closed."""
    engine = TinyEngine()

    def stop() -> None:
        engine.stopped = True

    (served,) = serve(engine, arrival(9), between=stop)
    assert isinstance(served.result, EngineDied)
    assert engine.closed == []
