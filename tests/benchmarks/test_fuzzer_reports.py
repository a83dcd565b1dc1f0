"""The public traces of a fuzzer are workloads, and their answers are counted, on a scripted engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.histories import Tampered
from support.modules import script

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.validity import is_valid

TRACES, RERUN = (script(f"benchmarks/fuzzer_reports/{name}.py") for name in ("traces", "rerun"))


@pytest.mark.parametrize("trace", TRACES.TRACES, ids=lambda trace: trace.name)
def test_a_trace_is_a_workload_of_a_cell(trace: object) -> None:
    """The workload is valid."""
    assert is_valid(trace.workload)  # type: ignore[attr-defined]
    assert trace.cell in CELLS  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [False, True])
def test_answers_are_counted(wrong: bool, tmp_path: Path) -> None:
    """They are counted by what a fuzzer compares, and by the rule."""

    def other(request: CompletionRequest, honest: Completion) -> Completion:
        if not wrong or len(request.prompt) < 60:
            return honest
        first = msgspec.structs.replace(honest.tokens[0], id=honest.tokens[0].id ^ 1)
        return msgspec.structs.replace(honest, tokens=(first, *honest.tokens[1:]))

    engine: ScriptedEngine = Tampered(other)
    run = WorkloadRun(CheckedEngine(engine), TRACES.two_lengths(), "nonce", {}, tmp_path)
    seen = RERUN.counted(judge(run.history(), ClosedFormOracle(), EXACT, exclusive=True))
    assert (seen["answers"], seen["differ"], seen["wrong"]) == (2, int(wrong), int(wrong))
