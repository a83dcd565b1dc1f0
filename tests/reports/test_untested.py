"""What a run did not test is named with what would change that."""

from __future__ import annotations

import msgspec
import pytest
from support import report_samples

from coldproof.harness.schema.case import UNPROVED
from coldproof.harness.schema.results import CellResult
from coldproof.harness.schema.switches import ServerSwitches
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.evidence_floor import shortfall
from coldproof.reports.views.untested import untested

SWITCHES = ServerSwitches(engine="vLLM", known=True, requirements=60, now=["CHAT-1"], with_all=60)


def few(examples: int, requests: int, drawn: float) -> CellResult:
    """Return a cell with so many examples and requests in so many seconds, too few for a verdict."""
    made = report_samples.cell(
        verdict=Verdict.NOT_EXERCISED, examples=examples, requests=requests, drawn=drawn, evidence={}
    )
    return msgspec.structs.replace(made, reason=shortfall([made]))


@pytest.mark.parametrize(
    ("switches", "change"),
    [
        (None, "a --budget about 5 times as long"),  # the budget is divided evenly, so that the slowest counts
        (SWITCHES, "--budget 6m"),  # 250 s, and 20 s and 40 s more
    ],
)
def test_too_few_examples_name_the_budget_that_suffices(switches: ServerSwitches | None, change: str) -> None:
    """On a server, tests go on to their floor one after the other: what they lack adds up."""
    made = report_samples.results()
    lacking = [
        msgspec.structs.replace(
            report_samples.requirement(name, "t", cell), verdict=Verdict.NOT_EXERCISED, reason=cell.reason
        )
        for name, cell in (("CHAT-1", few(5, 50, 20.0)), ("CHAT-2", few(2, 20, 10.0)))
    ]
    made = msgspec.structs.replace(made, requirements=lacking, switches=switches, duration_s=250.0)
    (row,) = untested(made)
    assert (row.requirements, row.change) == (["CHAT-1", "CHAT-2"], change)


def test_counterexamples_that_wait_for_their_proof_are_one_line() -> None:
    """More runs of the same kind would not prove them, and the engine need not be another one."""
    made = report_samples.results()
    waiting = [
        msgspec.structs.replace(
            report_samples.requirement(name, "t", report_samples.cell()),
            verdict=Verdict.INCONCLUSIVE,
            reason=f"{UNPROVED}: {name} was wrong",
        )
        for name in ("CHAT-1", "CHAT-2")
    ]
    (row,) = untested(msgspec.structs.replace(made, requirements=waiting))
    assert row.requirements == ["CHAT-1", "CHAT-2"]
    assert "coldproof prove" in row.change
