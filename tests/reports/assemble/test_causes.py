"""Cases of one root cause are one finding with a count and a stable fingerprint, and no case is lost."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import given
from hypothesis import strategies as st
from support import report_samples as samples

from coldproof.harness.case.known_issues import FINGERPRINT
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.assemble.assemble import assemble
from coldproof.reports.assemble.causes import cause_places, cause_summary, causes, fingerprint
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html

STALE = "stale state; in-place reload; same path; between requests"
CRASH = "crash; no reload; preempted"
# Two causes in five cases: one seen under two requirements and in three cells, one of its cases waived.
FIVE = (
    samples.case("one", signature=STALE, requirement="MIXED-1", cell="default", sentence="The first said this."),
    samples.case("two", signature=CRASH, requirement="TIER-2", cell="tier-example", known_issue="known"),
    samples.case("three", signature=STALE, requirement="LORA-1", cell="tight", nonce="77", engine_version="0.33.0rc1"),
    samples.case("four", signature=STALE, requirement="LORA-1", cell="sync", contents={"A": "sha256:00"}),
    samples.case("five", signature=STALE, requirement="LORA-1", cell="default", known_issue="known"),
)
SIGNATURES = st.sampled_from([STALE, CRASH, "corrupt; no reload", ""]) | st.text(max_size=9)
PLACES = st.sampled_from(["LORA-1", "LORA-2"]), st.sampled_from(["default", "tight"]), st.sampled_from([None, "known"])


@st.composite
def found(draw: st.DrawFn) -> Case:
    """Draw a case of any signature, requirement and cell. Its id may occur more than once."""
    requirement, cell, known = draw(st.tuples(*PLACES))
    facts: dict[str, Any] = {"requirement": requirement, "cell": cell, "known_issue": known}
    return samples.case(draw(st.sampled_from("abc")), signature=draw(SIGNATURES), **facts)


def page_text(results: Results) -> str:
    """Return the text of the page without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", render_html(results)))


def last_screen(config: pytest.Config, results: Results) -> str:
    """Return what the terminal prints at the end of a run."""
    file = io.StringIO()
    Terminal(TerminalReporter(config, file), None).print_summary(results, Path("out"))
    return file.getvalue()


def test_cases_of_one_signature_are_one_cause() -> None:
    """Requirement, cell, nonce, engine and adapters do not matter, and the order is that of the run."""
    stale, crash = causes(FIVE)
    assert (stale.requirements, stale.cells) == (["LORA-1", "MIXED-1"], ["default", "sync", "tight"])
    assert (stale.cases, stale.waived, stale.sentence) == (["one", "three", "four", "five"], 1, "The first said this.")
    assert (crash.cases, crash.waived) == (["two"], 1)
    assert cause_places(stale) == "LORA-1 and MIXED-1 in 3 cells, 4 counterexamples, 1 of 4 waived"
    assert cause_places(crash) == "TIER-2 in 1 cell, 1 counterexample, waived"


def test_cases_that_belong_to_one_finding_are_one_cause() -> None:
    """Whatever their signatures. Page and summary say how that was found, and whether it is accepted."""
    known = Attribution(basis=Basis.REPAIR, finding="vllm/one", link="https://github.com/o/r/pull/7")
    unknown = Attribution(basis=Basis.UNDECIDED, candidates=["vllm/one", "vllm/two"])
    cases = [
        msgspec.structs.replace(FIVE[0], attribution=known),
        msgspec.structs.replace(FIVE[1], attribution=known),
        msgspec.structs.replace(FIVE[2], attribution=unknown),
    ]
    one, other = sorted(causes(cases), key=lambda cause: cause.finding, reverse=True)
    assert (one.finding, one.cases, one.fingerprint) == ("vllm/one", ["one", "two"], fingerprint("vllm/one"))
    assert (other.finding, other.cases, other.fingerprint) == ("", ["three"], fingerprint(STALE))
    text, summary = page_text(samples.results(*cases)), summary_markdown(samples.results(*cases)).replace("\\", "")
    assert "Cause: vanishes with the repair of vllm/one (by repair) https://github.com/o/r/pull/7 (not accepted" in text
    assert text.count(f"Cause fingerprint{fingerprint('vllm/one')}") == 2
    assert "undecided between vllm/one, vllm/two" in text
    assert "It matches vllm/one, reported as #7, not accepted in this run: it vanishes with the repair" in summary
    assert "It is undecided between vllm/one, vllm/two." in summary


def test_a_wholly_waived_cause_comes_last() -> None:
    """Causes that need attention come first, whenever they were found."""
    assert [cause.signature for cause in causes(FIVE[1:3])] == [STALE, CRASH]


@given(st.lists(found(), max_size=12))
def test_every_case_is_in_one_cause_and_none_is_lost(cases: list[Case]) -> None:
    """Two cases with one id count separately, because two tests found them."""
    grouped = causes(cases)
    assert Counter(case for cause in grouped for case in cause.cases) == Counter(case.id for case in cases)
    assert len({cause.signature for cause in grouped}) == len(grouped)
    assert sum(cause.waived for cause in grouped) == sum(case.known_issue is not None for case in cases)


@given(st.text())
def test_a_fingerprint_is_eight_digits_of_any_signature(signature: str) -> None:
    """A waiver may name any such fingerprint."""
    assert re.fullmatch(FINGERPRINT, fingerprint(signature))


def test_a_fingerprint_is_the_same_in_every_run() -> None:
    """Waivers and later comparisons use these digits, so a new version must not change them."""
    assert [fingerprint(STALE), fingerprint(CRASH)] == ["cce03b0d", "e759f2f9"]
    assert fingerprint("half \ud83d pair") != fingerprint("half pair")


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ((), ""),
        (FIVE[:1], "1 counterexample of 1 cause"),
        (FIVE[:3], "3 counterexamples of 2 causes, 1 waived"),
        (FIVE, "5 counterexamples of 2 causes, 2 waived"),
    ],
)
def test_counterexamples_are_counted_by_cause(cases: tuple[Case, ...], words: str) -> None:
    """The summary is one line, and empty where there is nothing to count."""
    assert cause_summary(causes(cases)) == words


def test_results_hold_the_causes_of_their_cases() -> None:
    """Causes are computed from the events, like the other results."""
    start = {"event": "run_started", "version": "0", "started": "", "command": "", "profile": "", "seed": "", "at": 0.0}
    events = [{"event": "case", "at": 1.0, "case": msgspec.to_builtins(case)} for case in FIVE]
    results = assemble([{**start, "environment": {}, "allowed": []}, *events])
    assert results.causes == causes(FIVE)
    assert results.cases == list(FIVE)


def test_the_page_lists_causes_above_their_cases() -> None:
    """Each cause has its fingerprint, its places, its waiver and a link to every case."""
    source, text = render_html(samples.results(*FIVE)), page_text(samples.results(*FIVE))
    table = source[source.index("stack causes") : source.index("stack caselist")]
    assert re.findall(r'href="#case-(\w+)"', table) == ["one", "three", "four", "five", "two"]
    for words in (fingerprint(STALE), fingerprint(CRASH), "LORA-1, MIXED-1", "default, sync, tight", "1 of 4 waived"):
        assert words in table
    assert "5 counterexamples of 2 causes, 2 waived." in text
    assert text.count(f"Cause fingerprint{fingerprint(STALE)}") == 4


def test_the_summary_says_how_many_causes_and_names_them() -> None:
    """The causes come before the violations, each of which keeps its own line."""
    text = summary_markdown(samples.results(*FIVE))
    assert text.index("### 5 counterexamples of 2 causes, 2 waived") < text.index("### Violations")
    assert f"- `{fingerprint(STALE)}` LORA-1 and MIXED-1 in 3 cells, 4 counterexamples, 1 of 4 waived: " in text
    assert text.count("  Replay: ") == 3


def test_the_terminal_summary_counts_causes(pytestconfig: pytest.Config) -> None:
    """The causes take one line, and each case that is not waived keeps its own."""
    said = last_screen(pytestconfig, samples.results(*FIVE))
    assert said.count("5 counterexamples of 2 causes, 2 waived\n") == 1
    assert re.findall(r"^replay (\w+):", said, re.MULTILINE) == ["one", "three", "four"]


def test_junit_names_the_cause_of_a_case() -> None:
    """Two builds can be compared by the cause."""
    texts = [
        one.text or "" for one in ElementTree.fromstring(junit_xml(samples.results(samples.case()))).iter("failure")
    ]
    assert any(f"cause {fingerprint(samples.case().signature)}" in text for text in texts)


def test_reports_without_cases_do_not_mention_causes(pytestconfig: pytest.Config) -> None:
    """The reports of a conforming run do not mention causes."""
    clean = samples.results()
    for said in (render_html(clean), summary_markdown(clean), last_screen(pytestconfig, clean)):
        assert " cause" not in said
        assert "stack causes" not in said


def test_expired_and_stale_waivers_are_explained(pytestconfig: pytest.Config) -> None:
    """The page, the summary and the terminal use the same words."""
    results = samples.results(waivers=[samples.waiver("stale"), samples.waiver("expired", fingerprint="1a2b3c4d")])
    for said in (page_text(results), summary_markdown(results), last_screen(pytestconfig, results)):
        assert "expired on 2027-01-31: it no longer waives anything" in said
        assert "stale: the known issue did not occur in this run; this does not fail the run" in said
        assert "fingerprint 1a2b3c4d" in said
