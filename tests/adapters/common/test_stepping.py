"""The loop that all stepped engines share: what happens at which step, and how requests end when a burst ends early."""

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
        """Return prefill until the first token, then decode."""
        return Stage.DECODE if self.tokens else Stage.PREFILL


class TinyEngine(SteppedEngine[TinyRequest]):
    """An engine that answers with the numbers of its steps. `fails_at`: the step that raises `loss`."""

    def __init__(self, *, fails_at: int | None = None, loss: EngineError | None = None) -> None:
        self.steps = 0
        self.fails_at, self.loss = fails_at, loss or EngineDied("gone")
        self.inside: list[TinyRequest] = []
        self.stopped = self.held = False
        self.closed: list[int] = []  # how many requests each burst left behind

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Mark the engine as entered, or raise EngineDied if it was stopped."""
        if self.stopped:
            raise EngineDied("stopped")
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def send(self, request: CompletionRequest) -> TinyRequest:
        """Accept the request, or refuse it if it is too long."""
        assert self.held
        if request.max_tokens > 99:
            raise RequestRefused(400, "too long")
        self.inside.append(TinyRequest(request, self.steps))
        return self.inside[-1]

    def step(self) -> None:
        """Give each request a token, or raise `loss`."""
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
        """Remove the request."""
        assert self.held
        self.inside.remove(one)

    def finished(self, one: TinyRequest) -> Completion:
        """Return the completion of a request."""
        return Completion(
            tokens=tuple(one.tokens), finish_reason=one.finish_reason, cached_tokens=None, aborted=one.aborted
        )

    def close_burst(self, left: Sequence[TinyRequest]) -> None:
        """Record how many requests are left, and remove them."""
        self.closed.append(len(left))
        for one in left:
            self.disconnect(one)


def arrival(tokens: int, *, offset_ms: int = 0, abort: Abort | None = None) -> Arrival:
    """Return a request for this many tokens."""
    return Arrival(CompletionRequest(model="m", prompt=(1,), max_tokens=tokens, abort=abort), offset_ms)


def serve(engine: TinyEngine, *arrivals: Arrival, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Serve these requests without reading their token counts."""
    return engine.serve(arrivals, lambda _number, _count: None, between)


def answer(served: Served) -> Completion:
    """Return the completion of a request, and fail if it has none."""
    assert isinstance(served.result, Completion)
    return served.result


def test_an_offset_is_rounded_up_to_a_whole_step() -> None:
    """Offsets count from the beginning of the burst, and results are in the order of the arrivals."""
    engine = TinyEngine()
    engine.steps = 7  # of an earlier burst: offsets count from the beginning of this one
    late, exact, first = serve(engine, arrival(1, offset_ms=STEP_MS + 1), arrival(1, offset_ms=STEP_MS), arrival(2))
    assert [one.sent for one in (late, exact, first)] == [seconds(9), seconds(8), seconds(7)]
    assert [one.finished for one in (late, exact, first)] == [seconds(10), seconds(9), seconds(9)]
    assert [token.id for token in answer(first).tokens] == [8, 9]


def test_requests_that_are_due_in_one_step_are_sent_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their times are equal, so that only the order of the burst says which was sent first."""
    engine, sent = TinyEngine(), list[int]()
    send = engine.send

    def noted(request: CompletionRequest) -> TinyRequest:
        sent.append(request.max_tokens)
        return send(request)

    monkeypatch.setattr(engine, "send", noted)
    serve(engine, arrival(1, offset_ms=5 * STEP_MS), arrival(2, offset_ms=5 * STEP_MS - 1))
    assert sent == [1, 2]


def test_time_advances_before_the_first_request() -> None:
    """Time advances until a late request arrives, and `between` is called after each step."""
    engine, polls = TinyEngine(), list[int]()
    serve(engine, arrival(1, offset_ms=3 * STEP_MS), between=lambda: polls.append(engine.steps))
    assert polls == [1, 2, 3, 4]


def test_each_token_is_reported_once() -> None:
    """Each token is reported once, with the count so far."""
    reported: list[tuple[int, int]] = []
    TinyEngine().serve(
        [arrival(2), arrival(1, offset_ms=STEP_MS)],
        lambda number, count: reported.append((number, count)),
        lambda: None,
    )
    assert reported == [(0, 1), (0, 2), (1, 1)]


def test_a_refused_request_delays_no_other() -> None:
    """A refused request is sent and finished at once, and the other request is answered."""
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
    """The engine drops the request of a disconnected client, and the other request goes on."""
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
    """A client may wait for a preemption, with or without tokens. A request without preemption is answered to its
    end.
    """
    assert abort.is_due(tokens, 50, lambda: stages) is due


def test_without_a_preemption_the_answer_is_complete() -> None:
    """A wait for a preemption does not end at the first token, as other waits do."""
    (served,) = serve(TinyEngine(), arrival(4, abort=Abort(at=Stage.PREEMPTED)))
    assert (len(answer(served).tokens), answer(served).aborted) == (4, None)


def test_an_answer_that_is_over_has_no_client_to_disconnect() -> None:
    """An abort that is due at the last token changes nothing, because the answer is complete."""
    (served,) = serve(TinyEngine(), arrival(2, abort=Abort(after_tokens=2)))
    assert (answer(served).aborted, answer(served).finish_reason) == (None, "length")


@pytest.mark.parametrize("loss", [EngineDied("gone"), EngineSilent("no answer")], ids=["died", "silent"])
def test_a_lost_engine_ends_all_requests_that_are_not_over(loss: EngineError) -> None:
    """Requests that were never sent end as well, and answered requests stay answered."""
    engine = TinyEngine(fails_at=2, loss=loss)
    done, running, waiting = serve(engine, arrival(1), arrival(9), arrival(1, offset_ms=90))
    assert answer(done).finish_reason == "length"
    assert running.result is loss
    assert waiting.result is loss
    assert waiting.sent == waiting.finished == seconds(2)


def test_an_exception_out_of_between_leaves_no_request_behind() -> None:
    """The exception is raised by `serve` itself, and the engine has no request left."""
    engine = TinyEngine()

    def interrupt() -> None:
        if engine.steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(engine, arrival(9), arrival(2), between=interrupt)
    assert (engine.inside, engine.closed) == ([], [1])


def test_an_engine_that_is_stopped_meanwhile_ends_the_burst() -> None:
    """A stopped engine has no burst to close."""
    engine = TinyEngine()

    def stop() -> None:
        engine.stopped = True

    (served,) = serve(engine, arrival(9), between=stop)
    assert isinstance(served.result, EngineDied)
    assert engine.closed == []


def test_an_adapter_without_a_method_is_no_engine() -> None:
    """It would wait for a step that nothing makes."""

    class Half(SteppedEngine[TinyRequest]):
        """An adapter that its author has begun."""

    with pytest.raises(TypeError, match="step"):
        Half()  # type: ignore[abstract]
