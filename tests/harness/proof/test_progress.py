"""A proof with a slow model reports its progress."""

from __future__ import annotations

from typing import Any

from support.histories import history

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.proof.progress import EVERY_SECONDS, Watched
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Workload


def test_progress_is_shown_now_and_then() -> None:
    """At most every ten seconds a line has the number of runs. The judgements are passed through unchanged."""
    now, shown = [0.0], []
    judgement = Judgement(history=history(), answers={}, findings=(), noise=(), evidence={})

    def observe(_engine: CheckedEngine, _workload: Workload, _nonce: str | None = None) -> Judgement:
        now[0] += 0.4 * EVERY_SECONDS
        return judgement

    def emit(kind: str, **fields: Any) -> None:
        shown.append((kind, fields["words"]))

    watched = Watched(observe, emit, "minimising LORA-1", clock=lambda: now[0])
    engine = CheckedEngine(ScriptedEngine())
    assert all(watched(engine, Workload(())) is judgement for _ in range(6))
    assert shown == [
        ("phase", "minimising LORA-1: 3 workloads run in 12 s"),
        ("phase", "minimising LORA-1: 6 workloads run in 24 s"),
    ]
