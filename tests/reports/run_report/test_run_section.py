"""The progress of a run over time, where its time went, and the badge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import report_samples as samples
from support.page import Page, contrast
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.harness.judgement.collect import COUNTERS
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import (
    EngineLoss,
    InjectedFault,
    PlantedRepair,
    ProgressPoint,
    Results,
    SelfTestRow,
)
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import assemble, read_events
from coldproof.reports.assemble.over_time import PROGRESS_POINTS, EvidenceSample, losses, progress
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.format.text import day_and_time, visible
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.run_report.run_section import view
from coldproof.reports.views.overview import RunStatus, banners, headline_style, run_status
from coldproof.reports.views.run_facts import run_description

SVG = "{http://www.w3.org/2000/svg}"


def example(at: float, **evidence: float) -> dict[str, Any]:
    """Return an example's event with this evidence, as it is read back."""
    seen = {ReportedEvidence[name.upper()].value: value for name, value in evidence.items()}
    return {"event": "example", "at": at, "requests": 3, "failed": False, "evidence": seen}


# What had been seen by when


def test_progress_sums_what_examples_saw() -> None:
    """Times count from the start of the run, and sums only grow."""
    events = [
        example(110.0, hit_tokens=64, discriminating=2),
        {"event": "phase", "at": 115.0},
        {**example(120.0, evicted=32, preemptions=1), "failed": True},
    ]
    assert progress(events, 100.0) == [
        ProgressPoint(at=10.0, examples=1, requests=3, hit_tokens=64, discriminating=2),
        ProgressPoint(
            at=20.0,
            examples=2,
            requests=6,
            hit_tokens=64,
            discriminating=2,
            evicted_tokens=32,
            preemptions=1,
            failing=1,
        ),
    ]


@given(st.lists(st.floats(0, 3600), max_size=400))
def test_progress_is_thinned_and_loses_no_sum(times: list[float]) -> None:
    """Neither the number of examples nor the clocks of parallel workers matter."""
    points = progress([example(at, hit_tokens=1) for at in times], 0.0)
    assert len(points) <= PROGRESS_POINTS
    assert points == sorted(points, key=lambda point: (point.at, point.examples))
    assert (points[-1].examples if points else 0) == len(times)


def test_the_names_that_are_counted_are_evidence() -> None:
    """Reports know only the names of the evidence, so a renamed counter would count as zero."""
    assert {field.encode_name for field in msgspec.structs.fields(EvidenceSample)} <= set(COUNTERS)


def test_results_hold_progress_and_losses_of_the_events(tmp_path: Path) -> None:
    """The events are read from the file that a run wrote."""
    written = {
        "event": "example",
        "at": 103.0,
        "requirement": "R-1",
        "cell": "default",
        "history": {"outcomes": [{}, {}]},
        "evidence": {Requests.HIT_TOKENS: 96, Reuse.CHATS: 4},
        "findings": [{}],
        "weight_pairs": [],
        "reach": {},
        "seen": [],
    }
    lost = {"event": "engine_lost", "at": 104.5, "cell": "default", "log_tail": "killed"}
    log = [STARTED, SOUND, announced("R-1"), written, lost, concluded("R-1", Verdict.CONFORMS), FINISHED]
    path = tmp_path / "events.ndjson"
    ordered = ({"event": event["event"], "at": 100.0, **event} for event in log)  # as the run's log has them
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in ordered))
    results = assemble(read_events(path))
    assert results.progress == [ProgressPoint(at=3.0, examples=1, requests=2, hit_tokens=96, failing=1)]
    assert results.losses == losses([lost], 100.0) == [EngineLoss(at=4.5, cell="default")]


def test_each_panel_rises_to_its_total_and_marks_what_was_lost() -> None:
    """The curve spans the run from bottom to top. A counter that never rose stays at the bottom."""
    results = samples.results()
    drawn = {panel.title: panel for panel in view.panels(results)}
    hits = drawn["Hit tokens"]
    assert hits.total == results.progress[-1].hit_tokens
    assert hits.line.startswith(f"M0 {view.HEIGHT:.1f}H")
    assert hits.line.endswith(f"V4.0H{view.WIDTH:g}")
    assert hits.losses == (pytest.approx(view.WIDTH * 201.4 / 412.7, abs=0.1),)
    assert set(re.findall(r"V([\d.]+)", drawn["Preemptions"].line)) == {f"{view.HEIGHT:.1f}"}


def test_the_page_draws_the_panels_and_says_the_same_as_a_table() -> None:
    """Each picture has a title, a counter of zero has no picture, and each sample is a row of the table."""
    results = samples.results()
    page = Page(render_html(results))
    assert "Hit tokens over the run's 6\u202fmin 53\u202fs: 163\u202f840 at its end" in "".join(page.texts)
    assert "Preemptions over" not in page.text
    assert "As a table, 8 samples" in page.text
    assert "2, 11.9 s to 12.4 s each; 1 lost and restarted, in hybrid" in page.text


def test_a_run_that_ends_before_its_first_example_has_no_progress() -> None:
    """The page says so."""
    page = Page(render_html(samples.results(progress=[], losses=[])))
    assert "No example was recorded with a time." in page.text


# Where the time went


def test_time_is_listed_by_requirement_longest_first() -> None:
    """The bar is relative to the longest requirement; its drawing part is never larger than the whole."""
    long = samples.requirement("B-1", "is slow", samples.cell(seconds=80.0, drawn=20.0))
    short = samples.requirement("A-1", "is quick", samples.cell(seconds=10.0, drawn=10.5), samples.cell(seconds=10.0))
    idle = samples.requirement("C-1", "did not run", samples.cell(seconds=0.0))
    found = view.time_by_requirement([short, idle, long])
    assert [(one.name, one.seconds, one.share, one.drawn_share) for one in found] == [
        ("B-1", 80.0, 100.0, 25.0),
        ("A-1", 20.0, 25.0, 13.1),
    ]


@pytest.mark.parametrize(("lasted", "rest"), [(130.0, 50.0), (60.0, 0.0)])
def test_time_is_listed_by_kind_of_work(lasted: float, rest: float) -> None:
    """Parallel workers may work longer than the run lasts; then nothing is left over."""
    one = samples.requirement("B-1", "is slow", samples.cell(seconds=80.0, drawn=20.0))
    found = view.time_by_work(samples.results(requirements=[one], duration_s=lasted))
    assert [span.seconds for span in found] == [20.0, 60.0, rest]


@pytest.mark.parametrize(
    ("starts", "lost", "words"),
    [
        ([], [], "none"),
        ([], [EngineLoss(at=1, cell="a")], "not recorded; 1 lost and restarted, in a"),
        ([9.5], [], "1, 9.5\u202fs; none lost"),
        (
            [9.5, 2],
            [EngineLoss(at=1, cell=c) for c in "aba"],
            "2, 2\u202fs to 9.5\u202fs each; 3 lost and restarted, in a and b",
        ),
    ],
)
def test_engine_starts_are_described(starts: list[float], lost: list[EngineLoss], words: str) -> None:
    """The text has their number and duration, and how many starts followed a lost engine."""
    assert view.engine_starts(starts, lost) == words


@pytest.mark.parametrize(
    ("command", "seed", "repeated"),
    [
        ("pytest suites", "7", "pytest suites --hypothesis-seed=7"),
        ("pytest suites --hypothesis-seed 7", "7", "pytest suites --hypothesis-seed 7"),
        ("pytest suites", "7; rm -rf /", "pytest suites --hypothesis-seed='7; rm -rf /'"),
    ],
)
def test_the_command_to_repeat_has_the_seed(command: str, seed: str, repeated: str) -> None:
    """The seed appears once and as a single word."""
    assert view.repeat_command(samples.results(command=command, seed=seed)) == repeated


# The badge


def only(verdict: Verdict, *more: Verdict, **changes: Any) -> Results:
    """Return a run of one requirement for each verdict, with the exit code of such a run."""
    requirements = [samples.requirement(f"R-{v}", "holds", samples.cell(verdict=v)) for v in (verdict, *more)]
    fine = {Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.UNSUPPORTED}
    return samples.results(**{"requirements": requirements, "exit_code": int(not {verdict, *more} <= fine), **changes})


BLIND = [SelfTestRow(planted="never hits", caught=False, said="no alarm")]
FAULT = InjectedFault(name="salts are cut", summary="s", stands_for="f", acted=True)
REPAIR = PlantedRepair(name="vllm/salts-are-cut", title="Keep the whole salt.")


@pytest.mark.parametrize(
    ("results", "word"),
    [
        (only(Verdict.CONFORMS), RunStatus.CONFORMANT),
        (only(Verdict.CONFORMS, Verdict.UNSUPPORTED), RunStatus.CONFORMANT),
        (only(Verdict.CONFORMS, Verdict.KNOWN_ISSUE), RunStatus.KNOWN_ISSUES),
        (only(Verdict.KNOWN_ISSUE, Verdict.VIOLATED), RunStatus.NOT_CONFORMANT),
        (only(Verdict.VIOLATED, complete=False), RunStatus.NOT_CONFORMANT),
        (only(Verdict.UNSUPPORTED), RunStatus.NOT_VERIFIED),
        (only(Verdict.CONFORMS, Verdict.NOT_EXERCISED), RunStatus.NOT_VERIFIED),
        (only(Verdict.CONFORMS, exit_code=3), RunStatus.NOT_VERIFIED),
        (only(Verdict.CONFORMS, complete=False), RunStatus.NOT_VERIFIED),
        (only(Verdict.VIOLATED, selftest=BLIND), RunStatus.NOT_VERIFIED),
        (only(Verdict.VIOLATED, fault=FAULT), RunStatus.NOT_VERIFIED),
        (only(Verdict.CONFORMS, repairs=[REPAIR]), RunStatus.NOT_VERIFIED),
    ],
)
def test_the_badge_says_no_more_than_the_run_showed(results: Results, word: RunStatus) -> None:
    """A violation always shows; any other result needs a run that passed."""
    assert run_status(results) is word
    root = ElementTree.fromstring(badge_svg(results))
    assert [text.text for text in root.iter(f"{SVG}text")] == ["prefix cache", word.value]
    title = root.find(f"{SVG}title")
    assert title is not None
    assert (title.text or "").startswith("Prefix cache of vLLM 0.32.0: ")
    assert word.value in (title.text or "")


def test_the_badge_loads_nothing_and_its_words_can_be_read() -> None:
    """The text is white on each colour, the same in light and dark pages."""
    for results in (only(Verdict.CONFORMS), only(Verdict.KNOWN_ISSUE), only(Verdict.VIOLATED), only(Verdict.ERROR)):
        source = badge_svg(results)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|href|<style|<script|@import", source)
        backs = re.findall(r'<rect[^>]* fill="(#\w{6})"', source)
        assert len(backs) == 2
        assert all(contrast(back, "#ffffff") >= 4.5 for back in backs)


def test_hostile_text_is_inert_in_the_badge() -> None:
    """The name of an engine is text in valid XML."""
    source = badge_svg(samples.poisoned(samples.HOSTILE))
    assert visible(source) == source
    assert {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(source).iter()} == {
        *("svg", "title", "rect", "g", "text")
    }


def test_a_repaired_engine_is_marked_as_one() -> None:
    """The facts of the run name the repairs, and a banner stands before the headline."""
    repaired = only(Verdict.CONFORMS, repairs=[REPAIR])
    assert banners(repaired) == ["ENGINE REPAIRED"]
    assert run_description(repaired)["Repairs"] == REPAIR.name
    assert run_description(only(Verdict.CONFORMS))["Repairs"] == "none"


def test_the_headline_looks_like_its_verdict() -> None:
    """A run with an injected fault makes no statement about the unmodified engine."""
    assert headline_style(only(Verdict.VIOLATED, fault=FAULT)) is Verdict.VIOLATED
    assert headline_style(only(Verdict.CONFORMS)) is Verdict.CONFORMS
    assert headline_style(only(Verdict.CONFORMS, Verdict.INCONCLUSIVE)) is Verdict.NOT_EXERCISED


# The summary and small words


def test_the_summary_says_the_verdict_first_and_lists_only_what_needs_a_hand() -> None:
    """Then come the causes, what was not tested, and last the files to look at."""
    lines = summary_markdown(samples.results(samples.case())).splitlines()
    assert lines[0] == "## Coldproof: ✕ prefix cache not conformant"
    assert lines[2].startswith("**vLLM 0.32.0 does not conform: 1 new cause broke 1 of 8 requirements.")
    rows = [line.split(":")[0] for line in lines if line.startswith("- ")]
    assert rows[:5] == ["- ‼ foreign data", "- ! ERROR", "- ? INCONCLUSIVE", "- ○ NOT EXERCISED", "- – UNSUPPORTED"]
    assert "cases/ID.md" in lines[-1]


def test_times_of_day_are_formatted() -> None:
    """Any other text stays unchanged."""
    assert day_and_time("2026-11-21T23:57:30+00:00") == day_and_time("2026-11-21T23:57:30Z") == "2026-11-21 23:57 UTC"
    assert day_and_time("2026-11-21T23:57:30+02:00 <b>") == "2026-11-21T23:57:30+02:00 <b>"
