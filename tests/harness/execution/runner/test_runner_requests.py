"""Chats, aborts, refusals and stalls: what the engine receives, and what is recorded of the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.histories import SideBySide, ask, burst, contents, play

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import (
    Abort,
    Arrival,
    Completion,
    CompletionRequest,
    Message,
    ResponseOptions,
    Stage,
)
from coldproof.harness.execution.runner.burst import BurstMonitor
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Workload
from coldproof.harness.workload.tokens import nonce_tokens


class Recorder(ScriptedEngine):
    """An engine that records its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[CompletionRequest] = []

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Record the request and answer it."""
        self.requests.append(request)
        return super().send(request, on_token)


def test_a_chat_goes_as_messages_with_the_ids_that_they_render_to(tmp_path: Path) -> None:
    """The ids come from the engine's own template, which is called before."""
    engine = Recorder()
    chat = ask(("prelude", 20), ("question", 5), chat=True)
    (one,) = play(engine, tmp_path, burst(chat)).outcomes
    (said,) = engine.requests
    assert said.messages is not None
    assert [m.role for m in said.messages] == ["system", "user"]
    assert said.messages[0].content.encode().startswith(bytes(nonce_tokens("n")))
    assert one.prompt == said.prompt == one.rendered == engine.render(said.messages)


def test_the_next_turn_of_a_chat_replays_the_answers_text(tmp_path: Path) -> None:
    """The roles alternate, and a plain request has no messages."""
    engine = Recorder()
    turn = ask(("turn", 5), continues=0, chat=True)
    first, _, _ = play(
        engine, tmp_path, burst(ask(("prelude", 20), ("q", 5), chat=True)), burst(turn), burst(ask())
    ).outcomes
    opened, then, plain = (said.messages for said in engine.requests)
    assert opened is not None
    assert then is not None
    assert then[:3] == (*opened, Message("assistant", first.text))
    assert (then[3].role, plain) == ("user", None)


def test_a_template_that_refuses_is_an_error_of_the_step(tmp_path: Path) -> None:
    """No request is sent, and the run continues."""

    class WithoutTemplate(ScriptedEngine):
        def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
            raise RequestRefused(400, "no chat template")

    history = play(WithoutTemplate(), tmp_path, burst(ask(("prelude", 9), chat=True)), burst(ask()))
    assert [bool(step.error) for step in history.steps] == [True, False]
    assert [o.request for o in history.outcomes] == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": -5},
        {"options": ResponseOptions(prompt_logprobs=True)},
        {"abort": Abort(after_tokens=2)},
        {"salt": "red"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_options_of_a_request_reach_the_engine(changes: dict[str, Any], tmp_path: Path) -> None:
    """Options are sent as in the workload; a salt is made unique to the run."""
    engine = Recorder()
    play(engine, tmp_path, burst(ask(**changes)))
    (said,) = engine.requests
    wanted = {"cache_salt": "red-n"} if "salt" in changes else changes
    assert {name: getattr(said, name) for name in wanted} == wanted


@pytest.mark.parametrize("chooses", [True, False])
def test_a_rank_reaches_only_an_engine_that_has_one_to_choose(tmp_path: Path, *, chooses: bool) -> None:
    """A control engine with one rank serves the same workload from one cache."""
    engine = Recorder()
    engine.capabilities[Capability.RANK_CHOICE] = Support(chooses, "scripted")
    (one,) = play(engine, tmp_path, burst(ask(rank=1))).outcomes
    (said,) = engine.requests
    assert said.rank == (1 if chooses else None)
    assert one.partition.rank == (1 if chooses else None)


def test_offsets_reach_the_engine(tmp_path: Path) -> None:
    """They are milliseconds from the beginning of the burst, in the order of the requests."""
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
    """Its tokens and its stage are kept, and a missing count is None."""
    (one,) = play(ScriptedEngine(), tmp_path, burst(ask(abort=Abort(after_tokens=2)))).outcomes
    assert (len(one.tokens), one.aborted, one.cached_tokens) == (2, Stage.DECODE, None)
    assert (one.error, one.answered, one.refused, one.silent) == (None, False, False, False)


def test_what_came_beside_the_tokens_is_kept(tmp_path: Path) -> None:
    """These are scores, text, and the prompt as the engine reports it."""
    (one,) = play(ScriptedEngine(), tmp_path, burst(ask(options=ResponseOptions(prompt_logprobs=True)))).outcomes
    assert one.prompt_logprobs is not None
    assert len(one.prompt_logprobs) == len(one.prompt)
    assert (one.text, one.rendered) == ("".join(map(chr, one.token_ids)), one.prompt)
    assert one.options == ResponseOptions(prompt_logprobs=True)


class Failing(ScriptedEngine):
    """An engine that raises these problems, one per request, where there is one."""

    def __init__(self, *problems: EngineError | None) -> None:
        super().__init__()
        self.problems = list(problems)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Raise the next problem, or answer."""
        problem = self.problems.pop(0)
        if problem is not None:
            raise problem
        return super().send(request, on_token)


@pytest.mark.parametrize(
    ("problem", "refused", "lost"),
    [
        (RequestRefused(400, "too long"), True, False),
        (RequestRefused(413, "too long"), True, False),
        (RequestRefused(500, "internal"), False, False),
        (EngineDied("gone"), False, True),
    ],
)
def test_refusals_and_failures_are_distinguished(
    problem: EngineError, refused: bool, lost: bool, tmp_path: Path
) -> None:
    """Only the refusal of one request is a refusal; an internal error is not, and other requests continue."""
    history = play(Failing(None, problem, None), tmp_path, burst(ask(), ask(("b", 9)), ask(("c", 9))))
    assert [(bool(o.error), o.refused) for o in history.outcomes] == [(False, False), (True, refused), (False, False)]
    assert (history.engine_lost is not None) is lost


class Stalling(SideBySide):
    """An engine that does not answer until it is stopped; an attached one resumes once the stall was detected."""

    def __init__(self, *, spawned: bool) -> None:
        super().__init__()
        self.capabilities[Capability.SPAWNABLE] = Support(spawned, "")
        self.spawned, self.ended = spawned, threading.Event()

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Wait for the end."""
        self.ended.wait()
        if self.spawned:
            raise EngineDied("the engine's process has ended")
        return super().send(request, on_token)

    def metrics(self) -> Metrics:
        """Return a queue that does not move."""
        return Metrics(running=0, waiting=2, pool_usage=1.0)

    def stop(self) -> None:
        """End the wait, as the runner stops a spawned engine."""
        self.ended.set()


@pytest.mark.parametrize("spawned", [True, False])
def test_a_stall_is_silence_with_the_queue_of_that_moment(
    spawned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spawned engine is stopped, so that its requests end too. In both cases the run is over."""
    workload = Workload((burst(ask(), ask(("b", 9))), burst(ask())))
    engine = Stalling(spawned=spawned)

    class Monitor(BurstMonitor):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "stalled" and value is not None and not spawned:
                engine.ended.set()

    monkeypatch.setattr("coldproof.harness.execution.runner.runner.BurstMonitor", Monitor)
    run = WorkloadRun(engine, workload, "n", contents(tmp_path), tmp_path / "run", stall_seconds=0.1)
    history = run.history()
    assert history.stalled is not None
    assert (history.stalled.running, history.stalled.waiting) == (0, 2)
    assert history.engine_lost is not None
    assert history.engine_lost.startswith("no progress for 0 s with requests in flight (running 0, waiting 2")
    assert [(o.error, o.silent) for o in history.outcomes] == [(history.engine_lost if spawned else None, spawned)] * 2
    assert len(history.steps) == 1


def test_silence_without_a_stall_has_the_clients_message(tmp_path: Path) -> None:
    """Without a stall the client's own message is the reason."""
    history = play(Failing(EngineSilent("no byte for 180 s")), tmp_path, burst(ask()))
    assert history.outcomes[0].error == history.engine_lost == "no byte for 180 s"
    assert (history.stalled, history.outcomes[0].silent) == (None, True)
