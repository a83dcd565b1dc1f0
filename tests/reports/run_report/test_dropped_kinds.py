"""The report names each request kind that the run stopped sending: since when, why, and which tests it narrows."""

from __future__ import annotations

from typing import Any

from support import report_samples as samples
from support.page import Page
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.harness.schema.results import DroppedKind
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import assemble
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html

TITLE = "Requests that were no longer sent"
KIND = "prompt logprobs"
SEEN = DroppedKind(
    kind=KIND,
    at=12.5,
    cell="default",
    requirement="LORA-1",
    case="7c21a0f3",
    why="Request 0 got no answer: <it ended>",
    narrows=["MIXED-1", "SURFACE-1"],
)


def dropped(at: float, *, case: str = "", requirement: str = "", **more: Any) -> dict[str, Any]:
    """Return the event of a dropped request kind."""
    fields = {"kind": KIND, "cell": "default", "requirement": requirement, "why": "it ended", "case": case}
    return {"event": "kind_dropped", "at": at, "dropped": fields, **more}


def test_the_report_and_the_summary_name_the_kind() -> None:
    """The kind links to its case. A run that dropped none does not mention it."""
    shown = samples.results(samples.case(), dropped_kinds=[SEEN])
    page, summary = render_html(shown), summary_markdown(shown)
    assert TITLE in page
    assert "were no longer sent, since case 7c21a0f3 of LORA-1" in summary
    for text in (page, summary):
        assert "MIXED-1, SURFACE-1" in text
    assert "<it ended>" not in page
    assert 'href="#dropped-kinds"' in page
    Page(page)
    assert TITLE not in render_html(samples.results())
    assert "no longer sent" not in summary_markdown(samples.results())


def test_a_kind_that_no_case_confirmed_is_marked() -> None:
    """The calibration saw one crash, and the run had no time to confirm it."""
    unconfirmed = DroppedKind(kind=KIND, at=1.0, cell="default", why="it ended")
    shown = samples.results(dropped_kinds=[unconfirmed])
    assert "in the calibration; no case has confirmed it" in render_html(shown)
    assert "since the calibration in default" in summary_markdown(shown)


def test_results_have_the_first_time_and_the_confirmed_case_of_each_layer() -> None:
    """The results also name the requirements whose later tests did not send the kind there."""
    events = [
        {"at": 100.0, **STARTED},
        {"at": 100.5, **SOUND},
        {"at": 101.0, **announced("SURFACE-1")},
        {"at": 101.0, **announced("MIXED-1")},
        dropped(103.0),
        dropped(108.0, case="abc", requirement="SURFACE-1"),
        dropped(104.0, case="def", requirement="MIXED-1", layer="exact"),
        {"at": 110.0, **concluded("SURFACE-1", Verdict.VIOLATED, narrowed=[])},
        {"at": 111.0, **concluded("MIXED-1", Verdict.CONFORMS, narrowed=[KIND])},
        {"at": 112.0, **FINISHED},
    ]
    here, there = assemble(events).dropped_kinds
    assert (here.at, here.case, here.requirement, here.narrows) == (3.0, "abc", "SURFACE-1", ["MIXED-1"])
    assert (there.at, there.layer, there.case, there.narrows) == (4.0, "exact", "def", [])
