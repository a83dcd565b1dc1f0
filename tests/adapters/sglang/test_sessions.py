"""Sessions of SGLang's adapter against a stand-in: what a turn sends, and when a session ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import report_samples
from support.fake_reply import answer
from support.fake_sglang import MODEL, SESSION_ROUTES, FakeSglang, Fault, ServerBehaviour, serving
from support.histories import ask, burst, contents, put
from support.scripts import run_script

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import Abort, CompletionRequest
from coldproof.adapters.sglang.spec import attach
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.features.sessions.workloads import sessions_that_switch
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Prompt, Request, Segment, Workload

OPEN, CLOSE = SESSION_ROUTES
LIMITS = WorkloadLimits(block=16, slots=4, contents=("A", "B"), mixtures=frozenset({BASE_WITH_ADAPTER}))
FIRST, MORE = tuple(range(40, 50)), (60, 61, 62)


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    """Yield a server with sessions."""
    with serving(page=1) as made:
        yield made


def attached(fake: FakeSglang) -> CheckedEngine:
    """Return the attached engine, without the requests of its probe."""
    engine = CheckedEngine(attach(fake.url, adapter_for=lambda _: None))
    fake.bodies.clear()
    return engine


def turn(prompt: tuple[int, ...], held: int = 0, **more: Any) -> CompletionRequest:
    """Return a turn of the session `talk` for three tokens."""
    facts = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "session": "talk", "held": held}
    return CompletionRequest(**{**facts, **more})


def sessions_of(behaviour: ServerBehaviour, kind: Capability = Capability.SESSIONS) -> Support:
    """Return the session capability of a server with this behaviour."""
    with serving(behaviour) as made:
        return attach(made.url, adapter_for=lambda _: None).capabilities[kind]


def test_a_turn_is_sent_as_its_new_tokens_and_answered_over_all(fake: FakeSglang) -> None:
    """A turn names the previous turn and an offset, which keep all but the last token of its answer."""
    engine = attached(fake)
    said = answer("", FIRST, 3)
    assert [token.id for token in engine.complete(turn(FIRST)).tokens] == said
    prompt = (*FIRST, *said[:-1], *MORE)
    later = engine.complete(turn(prompt, held=len(prompt) - len(MORE)))
    assert [token.id for token in later.tokens] == answer("", prompt, 3)
    assert later.cached_tokens == len(FIRST) + 2
    first, second = fake.received("/generate")
    assert (first["input_ids"], first["session_params"]) == (list(FIRST), {"id": "talk"})
    assert (second["input_ids"], second["session_params"]) == (
        list(MORE),
        {"id": "talk", "rid": first["rid"], "offset": len(FIRST) + 2},
    )
    assert not second["rid"].startswith(first["rid"])  # SGLang aborts by the beginning of a name


def test_a_closed_session_takes_no_turn(fake: FakeSglang) -> None:
    """A session is closed once, however it ends, and its name can be opened again."""
    engine = attached(fake)
    engine.complete(turn(FIRST))
    engine.close_session("talk", aborted=True)
    engine.close_session("talk", aborted=False)
    assert fake.received(CLOSE) == [{"session_id": "talk"}]
    with pytest.raises(RequestRefused, match="session 'talk' is not open"):
        engine.complete(turn(FIRST + MORE, held=len(FIRST)))
    engine.complete(turn(FIRST))
    assert len(fake.received(OPEN)) == 2


def test_a_client_that_leaves_during_a_turn_ends_the_session(fake: FakeSglang) -> None:
    """SGLang keeps the session open; the protocol does not."""
    engine = attached(fake)
    assert engine.complete(turn(FIRST, abort=Abort(after_tokens=1))).aborted is not None
    assert len(fake.received(CLOSE)) == 1
    with pytest.raises(RequestRefused, match="not open"):
        engine.complete(turn(FIRST + MORE, held=len(FIRST)))


def test_a_refused_turn_ends_the_session() -> None:
    """The session is closed on the server too."""
    with serving(fault=Fault.ABORT_EVENT, routes=()) as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
        with pytest.raises(RequestRefused, match="too long"):
            engine.complete(turn(FIRST))
        assert fake.received(CLOSE) == [{"session_id": "talk"}]
        assert fake.sessions == {}


def test_sessions_are_there_if_a_second_turn_is_answered_as_its_whole_prompt() -> None:
    """Otherwise the evidence says what was seen."""
    found = sessions_of(ServerBehaviour())
    assert (found.present, "the same answer as" in found.evidence) == (True, True)
    found = sessions_of(ServerBehaviour(forgets=True))
    assert (found.present, "another answer than" in found.evidence) == (False, True)
    found = sessions_of(ServerBehaviour(routes=()))
    assert (found.present, found.evidence) == (False, f"the server does not list {OPEN} and {CLOSE} in /openapi.json")
    found = sessions_of(ServerBehaviour(refuses=("session_params",)))
    assert (found.present, "session_params is off" in found.evidence) == (False, True)


def test_a_turn_of_a_streaming_session_is_appended(fake: FakeSglang) -> None:
    """It names no turn and no offset, keeps the whole previous answer, and may use another adapter."""
    engine = attached(fake)
    fake.adapters["tenant"] = "/adapters/A"
    said = [token.id for token in engine.complete(turn(FIRST, streaming=True)).tokens]
    prompt = (*FIRST, *said, *MORE)
    later = engine.complete(turn(prompt, len(prompt) - len(MORE), streaming=True, model="tenant"))
    assert [token.id for token in later.tokens] == answer("/adapters/A", prompt, 3)
    assert fake.received(OPEN)[0]["streaming"] is True
    assert [body["session_params"] for body in fake.received("/generate")] == [{"id": "talk"}] * 2
    assert [body["input_ids"] for body in fake.received("/generate")] == [list(FIRST), list(MORE)]


def test_streaming_sessions_are_there_if_the_server_has_them_on() -> None:
    """Otherwise the evidence has what the server reports or what was seen."""
    kind = Capability.STREAMING_SESSIONS
    found = sessions_of(ServerBehaviour(), kind)
    assert (found.present, "a streaming turn gets the same answer as" in found.evidence) == (True, True)
    found = sessions_of(ServerBehaviour(streams=False), kind)
    assert (found.present, found.evidence) == (False, "/server_info: enable_streaming_session False")
    assert sessions_of(ServerBehaviour(forgets=True), kind).present is False


def in_session(prompt: Prompt, adapter: str | None = None) -> Request:
    """Return a turn of a streaming session."""
    return Request(prompt=prompt, adapter=adapter, max_tokens=4, session="a", streaming=True)


@pytest.mark.parametrize("careless", [False, True])
def test_a_script_sends_the_turns_of_sessions(careless: bool, tmp_path: Path) -> None:
    """The script finds the turn that is answered from another adapter's KV."""
    first, more, own = Segment("stem", 40), Segment("more", 5), Segment("own", 9)
    offset = Request(prompt=Prompt((more,), continues=2, start=0, end=-1), max_tokens=4, session="b")
    story = (
        put("A"),
        burst(in_session(Prompt((first,)))),
        burst(in_session(Prompt((more,), continues=0), "tenant")),
        CloseSession("a"),
        burst(Request(prompt=Prompt((own,)), max_tokens=4, session="b")),
        burst(offset),
        CloseSession("b"),
        burst(ask(("stem", 40))),
    )
    case = report_samples.case(
        engine="sglang",
        workload=msgspec.to_builtins(Workload(story)),
        recipes={"A": {"seed": 1, "rank": 4}},
        engine_config={"url": "http://somewhere"},
        failing_request=1,
        first_difference=0,
    )
    with serving(careless=careless, page=1) as fake:
        code, said = run_script(tmp_path, case, fake.url)
    assert code == int(careless), said
    assert len(fake.received(OPEN)) == len(fake.received(CLOSE)) == 2 * (1 if careless else 5)
    turns = [body["session_params"] for body in fake.received("/generate") if "session_params" in body]
    assert [turn.get("offset") for turn in turns[:4]] == [None, None, None, 4 + 9 + 3]


def judged(behaviour: ServerBehaviour, workload: Workload, folder: Path) -> list[int | None]:
    """Return the numbers of the requests that hit what was never computed for them."""
    with serving(behaviour) as made:
        engine = CheckedEngine(attach(made.url, adapter_for=lambda _: None))
        run = WorkloadRun(engine, workload, "n", contents(folder), folder / "run", settle_seconds=0.0).history()
    assert all(one.error is None for one in run.outcomes)
    return [found.request for found in check_bounds(run)]


@pytest.mark.parametrize(("careless", "wrong"), [(False, []), (True, [1, 2])])
def test_a_session_that_keeps_its_kv_over_adapters_is_found(careless: bool, wrong: list[int], tmp_path: Path) -> None:
    """A turn with an adapter hits what the base model wrote, and the next turn without it hits what the adapter
    wrote.
    """
    first, more = Prompt((Segment("stem", 40),)), Segment("more", 5)
    turns = [in_session(Prompt((more,), continues=0), "tenant"), in_session(Prompt((more,), continues=1))]
    story = (put("A"), burst(in_session(first)), *map(burst, turns), CloseSession("a"))
    assert judged(ServerBehaviour(careless=careless), Workload(story), tmp_path) == wrong


@given(data=st.data())
@settings(max_examples=4, deadline=None, database=None, phases=[Phase.generate])
def test_sessions_that_switch_find_nothing_on_an_honest_server(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """No drawn workload has a finding."""
    workload = data.draw(sessions_that_switch(LIMITS))
    assert judged(ServerBehaviour(), workload, tmp_path_factory.mktemp("run")) == []
