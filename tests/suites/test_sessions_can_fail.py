"""SESS-1 and SESS-2 can fail: faults are injected into the sessions of a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, COUNTS, EXAMPLES, LOST, WRONG, Bench, one_for_each_requirement, open_bench

from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.inproc.sessions import Sessions
from coldproof.adapters.vllm.inproc.setup import InprocEngineParts
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_sessions as sessions

pytestmark = pytest.mark.engine
DEFAULT = CELLS["default"]
MORE = 3 * EXAMPLES  # for what few of the workloads show
BROKEN: list[tuple[str, tuple[FailureClass, ...], int]] = [
    ("a-session-keeps-the-hash-of-what-it-dropped", (*ANY_HIT, *LOST), EXAMPLES),
    ("a-session-goes-on-with-the-token-that-it-drops", (*WRONG, FailureClass.NOT_THE_CACHE), EXAMPLES),
    ("a-session-takes-its-next-token-for-computed", (*WRONG, FailureClass.NOT_THE_CACHE), EXAMPLES),
    ("a-session-goes-on-without-its-adapter", (*WRONG, FailureClass.NOT_THE_CACHE), MORE),
    ("later-turns-of-a-session-publish-nothing", LOST, EXAMPLES),
    ("a-closed-session-keeps-its-blocks", (*COUNTS, FailureClass.NOT_THE_CACHE), EXAMPLES),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("sessions") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "classes", "examples"),
    one_for_each_requirement(BROKEN, test=sessions.test_sessions_answer_as_cold),
)
def test_an_injected_fault_is_detected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str, classes: tuple[FailureClass, ...], examples: int
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    plant(fault, monkeypatch)
    case = bench.violation(sessions.test_sessions_answer_as_cold, DEFAULT, examples=examples)
    assert case.failure_class in classes, case.sentence


def test_unmodified_vllm_conforms(bench: Bench) -> None:
    """There is no finding without a fault."""
    verdict, reason, cases = bench.verdict(sessions.test_sessions_answer_as_cold, DEFAULT, examples=MORE)
    assert (verdict, cases) == (Verdict.CONFORMS, []), reason


def test_vllm_does_not_check_the_length_of_a_session(bench: Bench) -> None:
    """Without a fault, input beyond the context ends the engine. This is a known issue."""
    case = bench.violation(sessions.test_sessions_beyond_the_context, DEFAULT, examples=EXAMPLES)
    assert "could not broadcast" in case.sentence


def test_an_engine_that_checks_the_length_conforms(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SESS-2 conforms if the input is refused."""
    send = Sessions.send

    def checked(this: Sessions, parts: InprocEngineParts, request: CompletionRequest, name: str, **inputs: Any) -> Any:
        if len(request.prompt) > parts.engine.model_config.max_model_len:
            raise ValueError("the session exceeds the context")
        return send(this, parts, request, name, **inputs)

    monkeypatch.setattr(Sessions, "send", checked)
    verdict, reason, cases = bench.verdict(sessions.test_sessions_beyond_the_context, DEFAULT, examples=EXAMPLES)
    assert (verdict, cases) == (Verdict.CONFORMS, []), reason
