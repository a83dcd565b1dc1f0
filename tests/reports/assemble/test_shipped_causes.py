"""A known cause of the engine as it is shipped hides nothing of what the repaired engine shows."""

from __future__ import annotations

from typing import Any

import pytest
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_OK
from coldproof.harness.schema.results import RequirementResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import Event, assemble
from coldproof.reports.views.overview import banners

REPAIRS = [{"name": "vllm/one", "title": "Mend one."}, {"name": "vllm/two", "title": "Mend two."}]
AS_SHIPPED = "on the engine as it is shipped"


def replayed(finding: str, result: str = "still there", *, verdict: str | None = "KNOWN ISSUE", **more: Any) -> Event:
    """Return the event of a replay of a finding about LORA-1 on the engine as it is shipped."""
    where = {"finding": finding, "requirement": "LORA-1", "cell": "default", "result": result}
    return {"event": "shipped", "replay": {**where, **more}, "verdict": verdict, "reason": f"{finding} fails"}


def run_of(*events: Event) -> Results:
    """Return the results of a run with these events, on an engine with two repairs."""
    started = {**STARTED, "repairs": REPAIRS}
    whole = [started, SOUND, announced("LORA-1"), announced("LORA-1", cell="tight"), *events, FINISHED]
    return assemble([{"at": number, **event} for number, event in enumerate(whole)])


def drawn(verdict: Verdict = Verdict.CONFORMS, **more: Any) -> list[Event]:
    """Return the events of the trials of LORA-1 in two cells, the second of which has this verdict."""
    return [
        concluded("LORA-1", Verdict.CONFORMS, examples=30),
        concluded("LORA-1", verdict, cell="tight", **{"examples": 11, **more}),
    ]


def requirement_of(results: Results) -> RequirementResult:
    """Return the result of LORA-1."""
    (found,) = results.requirements
    return found


def test_known_causes_are_named_beside_the_examples_without_them() -> None:
    """The cell with the causes is a known issue, the other one conforms, and the run ends with exit code 0."""
    results = run_of(replayed("vllm/one"), replayed("vllm/two"), *drawn())
    found = requirement_of(results)
    assert found.verdict is Verdict.KNOWN_ISSUE
    assert found.reason == "2 causes (vllm/one, vllm/two); conforms in 41 examples with them repaired"
    assert [(cell.verdict, cell.examples) for cell in found.cells] == [
        (Verdict.KNOWN_ISSUE, 30),
        (Verdict.CONFORMS, 11),
    ]
    assert found.cells[0].reason == "2 causes (vllm/one, vllm/two); conforms in 30 examples with them repaired"
    assert found.known_causes == ["vllm/one", "vllm/two"]
    assert results.exit_code == EXIT_OK
    assert results.headline.startswith("CONFORMANT, known issues aside")
    assert "with 2 repairs (its known findings as shipped: 2 still there)" in results.headline
    assert banners(results) == ["ENGINE REPAIRED AFTER REPLAYS ON THE SHIPPED ONE"]


def test_too_few_examples_are_not_hidden_by_a_known_cause() -> None:
    """The least evidence is that of the examples on the repaired engine."""
    few = [concluded("LORA-1", Verdict.CONFORMS, cell=cell, examples=4) for cell in ("default", "tight")]
    results = run_of(replayed("vllm/one"), *few)
    found = requirement_of(results)
    assert found.verdict is Verdict.NOT_EXERCISED
    assert found.reason.startswith("only 8 examples with 60 requests; CONFORMS needs 30 examples or 100 requests")
    assert found.reason.endswith(f"; besides it, 1 cause (vllm/one) {AS_SHIPPED}")
    assert results.exit_code == EXIT_FAILED


@pytest.mark.parametrize("verdict", [Verdict.NOT_EXERCISED, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.VIOLATED])
def test_what_the_repaired_engine_does_not_show_stays_the_verdict(verdict: Verdict) -> None:
    """A violation there is new, whatever is known of the engine as it is shipped."""
    results = run_of(replayed("vllm/one"), *drawn(verdict))
    found = requirement_of(results)
    assert found.verdict is verdict
    assert found.reason == f"LORA-1 {verdict.value}; besides it, 1 cause (vllm/one) {AS_SHIPPED}"
    assert results.exit_code != EXIT_OK


def test_a_cause_that_nothing_waives_is_a_violation() -> None:
    """That the engine conforms without it is said behind it."""
    results = run_of(replayed("vllm/one", verdict="VIOLATED"), replayed("vllm/two"), *drawn())
    found = requirement_of(results)
    assert found.verdict is Verdict.VIOLATED
    assert found.reason == f"{AS_SHIPPED}: vllm/one fails; with them repaired, CONFORMS: LORA-1 CONFORMS"
    assert results.exit_code == EXIT_FAILED


def test_a_known_issue_without_a_repair_stays_the_reason() -> None:
    results = run_of(replayed("vllm/one"), *drawn(Verdict.KNOWN_ISSUE, reason="by design (a link)"))
    assert requirement_of(results).reason == f"by design (a link); besides it, 1 cause (vllm/one) {AS_SHIPPED}"


def test_a_case_that_is_gone_is_said_and_makes_no_known_issue() -> None:
    """So is one that could not be replayed."""
    gone = replayed("vllm/one", "gone", verdict=None)
    results = run_of(gone, replayed("vllm/two", "cannot run here", verdict=None, words="no time"), *drawn())
    found = requirement_of(results)
    assert (found.verdict, found.known_causes) == (Verdict.CONFORMS, [])
    assert "(its known findings as shipped: 1 gone, 1 cannot run here)" in results.headline
    assert [one.finding for one in results.findings] == ["vllm/one", "vllm/two"]
