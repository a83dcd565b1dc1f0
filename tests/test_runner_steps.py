"""Resets, gaps, chats, refusals, aborts and stalls as the runner writes them down; counters count from its beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.base import (
    Abort,
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineSilent,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Stage,
    Support,
    Surface,
)
from harness.history import History
from harness.runner import Run
from harness.scripted import ScriptedEngine
from harness.workload import Burst, Idle, Meanwhile, Reset, Route, Step, Workload, nonce_tokens
from tests.histories import SideBySide, ask, burst, contents, play, put


class Resets(ScriptedEngine):
    """Says what it is told to say of a reset."""

    def __init__(self, said: bool | EngineError) -> None:
        super().__init__()
        self.said = said

    def reset_cache(self) -> bool:
        """Do it if it is said to be done."""
        if isinstance(self.said, EngineError):
            raise self.said
        return super().reset_cache() if self.said else False


@pytest.mark.parametrize(
    ("said", "success", "cached"),
    [(True, True, 0), (False, False, 40), (RequestRefused(404, "no such route"), False, 40)],
)
def test_a_reset_is_recorded_with_what_the_engine_says_of_it(
    said: bool | EngineError, success: bool, cached: int, tmp_path: Path
) -> None:
    """A refusal is an answer and no error of the step; what was there is hit or not."""
    history = play(Resets(said), tmp_path, burst(ask()), Reset(), burst(ask()))
    (reset,) = history.resets
    first, second = history.outcomes
    assert reset.success is success
    assert first.finished <= reset.began <= reset.ended <= second.sent
    assert [step.error for step in history.steps] == [None, None, None]
    assert second.cached_tokens == cached


def test_an_engine_that_dies_of_a_reset_is_lost(tmp_path: Path) -> None:
    """No reset is recorded, and nothing more is run."""
    history = play(Resets(EngineDied("gone")), tmp_path, burst(ask()), Reset(), burst(ask()))
    assert (history.resets, history.engine_lost) == ((), "gone")
    assert [step.error for step in history.steps] == [None, "gone"]


class Paused(SideBySide):
    """Its first request waits at the third token until the cache was reset."""

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Wait in the midst."""

        def told(count: int) -> None:
            on_token(count)
            for _ in range(1000 if count == 3 else 0):
                if self.was_reset.wait(0.005):
                    return

        return super().answer(request, told)

    def __init__(self) -> None:
        import threading

        super().__init__()
        self.was_reset = threading.Event()

    def reset_cache(self) -> bool:
        """Without the engine's lock: it is busy answering."""
        self.was_reset.set()
        return False


def test_a_reset_under_load_falls_into_the_life_of_a_request(tmp_path: Path) -> None:
    """And widens no identity: it is no adapter change."""
    busy = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=2))
    history = play(Paused(), tmp_path, busy)
    (reset,), (one,) = history.resets, history.outcomes
    assert one.sent < reset.began <= reset.ended < one.finished
    assert not one.overlapped
    assert history.steps[0].error is None


class Slow(ScriptedEngine):
    """Lets go of what it held only when it has been looked at so many times."""

    def __init__(self, looks: int, gauge: str) -> None:
        super().__init__()
        self.looks, self.gauge = looks, gauge

    def metrics(self) -> Metrics:
        """Held, until then."""
        self.looks -= 1
        return msgspec.structs.replace(super().metrics(), **{self.gauge: 0.25 if self.looks >= 0 else 0.0})


def settled(engine: ScriptedEngine, folder: Path, *steps: Step) -> History:
    """Run without waiting between looks."""
    return Run(engine, Workload(steps), "n", contents(folder), folder / "run", settle_seconds=0.0).history()


@pytest.mark.parametrize("gauge", ["running", "waiting", "pool_usage"])
@pytest.mark.parametrize(("looks", "held"), [(0, 0.0), (9, 0.0), (999, 0.25)], ids=["at once", "soon", "never"])
def test_a_gap_lasts_until_the_engine_holds_nothing(gauge: str, looks: int, held: float, tmp_path: Path) -> None:
    """Or has had ample time to say so; the last look is the step's."""
    history = settled(Slow(looks, gauge), tmp_path, burst(ask()), Idle(0))
    assert getattr(history.steps[-1].after, gauge) == held


def test_a_gap_is_a_gap(tmp_path: Path) -> None:
    """At least as long as asked."""
    history = settled(ScriptedEngine(), tmp_path, Idle(30))
    assert history.steps[0].finished - history.steps[0].started >= 0.03


def test_counters_count_from_the_runs_beginning_and_gauges_do_not(tmp_path: Path) -> None:
    """An engine's earlier life is no part of this history."""
    engine = ScriptedEngine()
    play(engine, tmp_path / "earlier", burst(ask()), burst(ask()))
    assert engine.hit == 40
    engine.leaked = 7
    history = play(engine, tmp_path / "now", burst(ask(("other", 40))), burst(ask(("other", 40))), put("A"))
    readings = [(step.before.hit_tokens, step.after.hit_tokens) for step in history.steps]
    assert readings == [(0, 0), (0, 40), (40, 40)]
    assert [step.after.queried_tokens for step in history.steps] == [44, 88, 88]
    assert {step.after.pool_usage for step in history.steps} == {0.07}


def test_what_an_engine_does_not_count_stays_unknown(tmp_path: Path) -> None:
    """Unknown minus unknown is not zero."""

    class Silent(ScriptedEngine):
        def metrics(self) -> Metrics:
            return Metrics(running=0)

    history = play(Silent(), tmp_path, burst(ask()))
    assert history.steps[0].after == Metrics(running=0)


class Heard(ScriptedEngine):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[CompletionRequest] = []

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Note and answer."""
        self.asked.append(request)
        return super().answer(request, on_token)


def test_a_chat_goes_as_messages_with_the_ids_that_they_render_to(tmp_path: Path) -> None:
    """The engine's own rendering, asked for beforehand."""
    engine = Heard()
    chat = ask(("prelude", 20), ("question", 5), chat=True)
    (one,) = play(engine, tmp_path, burst(chat)).outcomes
    (said,) = engine.asked
    assert said.messages is not None
    assert [m.role for m in said.messages] == ["system", "user"]
    assert said.messages[0].content.encode().startswith(bytes(nonce_tokens("n")))
    assert one.prompt == said.prompt == one.rendered == engine.render(said.messages)


def test_the_next_turn_of_a_chat_replays_the_answers_text(tmp_path: Path) -> None:
    """With the roles in turn; a plain request says nothing of messages."""
    engine = Heard()
    turn = ask(("turn", 5), continues=0, chat=True)
    first, _, _ = play(
        engine, tmp_path, burst(ask(("prelude", 20), ("q", 5), chat=True)), burst(turn), burst(ask())
    ).outcomes
    opened, then, plain = (said.messages for said in engine.asked)
    assert opened is not None
    assert then is not None
    assert then[:3] == (*opened, Message("assistant", first.text))
    assert (then[3].role, plain) == ("user", None)


def test_a_template_that_refuses_is_an_error_of_the_step(tmp_path: Path) -> None:
    """No request was sent; the run goes on."""

    class Untemplated(ScriptedEngine):
        def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
            raise RequestRefused(400, "no chat template")

    history = play(Untemplated(), tmp_path, burst(ask(("prelude", 9), chat=True)), burst(ask()))
    assert [bool(step.error) for step in history.steps] == [True, False]
    assert [o.request for o in history.outcomes] == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": -5},
        {"surface": Surface(prompt_logprobs=True)},
        {"abort": Abort(after_tokens=2)},
        {"salt": "red"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_request_asks_for_reaches_the_engine(changes: dict[str, Any], tmp_path: Path) -> None:
    """As it stands in the workload; a salt is made the run's own."""
    engine = Heard()
    play(engine, tmp_path, burst(ask(**changes)))
    (said,) = engine.asked
    wanted = {"cache_salt": "red-n"} if "salt" in changes else changes
    assert {name: getattr(said, name) for name in wanted} == wanted


def test_offsets_reach_the_engine(tmp_path: Path) -> None:
    """In milliseconds from the burst's beginning, in the order of the requests."""
    offsets: list[int] = []

    class Timed(ScriptedEngine):
        def serve(
            self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
        ) -> list[Served]:
            offsets.extend(arrival.offset_ms for arrival in arrivals)
            return super().serve(arrivals, on_token, between)

    history = play(Timed(), tmp_path, burst(ask(("late", 9), offset_ms=50), ask(("early", 9))))
    assert offsets == [50, 0]
    assert [len(o.prompt) for o in history.outcomes] == [13, 13]
    assert history.outcomes[0].finished > history.outcomes[1].finished


def test_an_aborted_request_is_no_error_and_no_answer(tmp_path: Path) -> None:
    """Its tokens so far and its stage are kept, a count that was never told is none."""
    (one,) = play(ScriptedEngine(), tmp_path, burst(ask(abort=Abort(after_tokens=2)))).outcomes
    assert (len(one.tokens), one.aborted, one.cached_tokens) == (2, Stage.DECODE, None)
    assert (one.error, one.answered, one.refused, one.silent) == (None, False, False, False)


def test_what_came_beside_the_tokens_is_kept(tmp_path: Path) -> None:
    """Scores, the text, and the prompt as the engine tells it."""
    (one,) = play(ScriptedEngine(), tmp_path, burst(ask(surface=Surface(prompt_logprobs=True)))).outcomes
    assert one.prompt_logprobs is not None
    assert len(one.prompt_logprobs) == len(one.prompt)
    assert (one.text, one.rendered) == ("".join(map(chr, one.token_ids)), one.prompt)
    assert one.surface == Surface(prompt_logprobs=True)


class Failing(ScriptedEngine):
    """Answers request after request with these problems, where there is one."""

    def __init__(self, *problems: EngineError | None) -> None:
        super().__init__()
        self.problems = list(problems)

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """The next problem or an answer."""
        problem = self.problems.pop(0)
        if problem is not None:
            raise problem
        return super().answer(request, on_token)


@pytest.mark.parametrize(
    ("problem", "refused", "lost"),
    [
        (RequestRefused(400, "too long"), True, False),
        (RequestRefused(413, "too long"), True, False),
        (RequestRefused(500, "internal"), False, False),
        (EngineDied("gone"), False, True),
    ],
)
def test_a_refusal_is_told_from_a_failure(problem: EngineError, refused: bool, lost: bool, tmp_path: Path) -> None:
    """Only the engine's no to this one request is one; an internal error is not, and others go on."""
    history = play(Failing(None, problem, None), tmp_path, burst(ask(), ask(("b", 9)), ask(("c", 9))))
    assert [(bool(o.error), o.refused) for o in history.outcomes] == [(False, False), (True, refused), (False, False)]
    assert (history.engine_lost is not None) is lost


class Stalling(SideBySide):
    """Never answers until it is stopped; attached, it wakes up by itself after a while."""

    def __init__(self, *, spawned: bool) -> None:
        import threading

        super().__init__()
        self.capabilities[Capability.SPAWNABLE] = Support(spawned, "")
        self.spawned, self.stopped = spawned, threading.Event()

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Wait for the end."""
        if not self.stopped.wait(0.3):
            return super().answer(request, on_token)
        raise EngineDied("the engine's process has ended")

    def metrics(self) -> Metrics:
        """A queue that does not move."""
        return Metrics(running=0, waiting=2, pool_usage=1.0)

    def stop(self) -> None:
        """As the runner does to a spawned engine."""
        self.stopped.set()


@pytest.mark.parametrize("spawned", [True, False])
def test_a_stall_is_silence_with_the_queue_of_that_moment(spawned: bool, tmp_path: Path) -> None:
    """A spawned engine is ended for it, so that its requests end too; either way the run is over."""
    workload = Workload((burst(ask(), ask(("b", 9))), burst(ask())))
    run = Run(Stalling(spawned=spawned), workload, "n", contents(tmp_path), tmp_path / "run", stall_seconds=0.1)
    history = run.history()
    assert history.stalled is not None
    assert (history.stalled.running, history.stalled.waiting) == (0, 2)
    assert history.engine_lost is not None
    assert history.engine_lost.startswith("nothing moved for 0 s with requests in flight (running 0, waiting 2")
    assert [(o.error, o.silent) for o in history.outcomes] == [(history.engine_lost if spawned else None, spawned)] * 2
    assert len(history.steps) == 1


def test_a_patient_engines_silence_is_told_as_it_said_it(tmp_path: Path) -> None:
    """Without a stall the wire's own words are the reason."""
    history = play(Failing(EngineSilent("no byte for 180 s")), tmp_path, burst(ask()))
    assert history.outcomes[0].error == history.engine_lost == "no byte for 180 s"
    assert (history.stalled, history.outcomes[0].silent) == (None, True)


def test_such_a_history_survives_json(tmp_path: Path) -> None:
    """Whoever judges it later has only the file."""
    steps: list[Step] = [
        put("A"),
        burst(ask(adapter="tenant"), ask(abort=Abort(after_tokens=1)), ask(surface=Surface(prompt_logprobs=True))),
        Reset(),
        Idle(0),
        burst(ask(("prelude", 9), ("q", 4), chat=True, priority=3)),
        put("B", route=Route.IN_PLACE),
    ]
    history = settled(ScriptedEngine(), tmp_path, *steps)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
