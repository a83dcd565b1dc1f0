"""The page of several releases: each change of a verdict is marked and listed with its case."""

from __future__ import annotations

import re

import msgspec
import pytest
from support.report_samples import HOSTILE, SCRIPT

from coldproof.reports.release_history.causes import causes
from coldproof.reports.release_history.changes import changes
from coldproof.reports.release_history.page import headline, render_history
from coldproof.reports.schema.releases import ReleaseCase, ReleaseHistory, ReleaseRow, ReleaseVerdict, RequirementHead
from coldproof.reports.schema.verdict import Verdict

V, C, K, N = Verdict.VIOLATED, Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.NOT_EXERCISED


def row(version: str, *verdicts: Verdict | None, problem: str = "", words: str = "because") -> ReleaseRow:
    """Return a release with these verdicts on R-1, R-2, ...; a violated one has a case."""
    found = {
        f"R-{number}": ReleaseVerdict(
            verdict=verdict,
            reason=words,
            examples=30,
            requests=100,
            cases=[case(f"R-{number}-{version}", words)] if verdict is V else [],
        )
        for number, verdict in enumerate(verdicts, start=1)
        if verdict is not None
    }
    return ReleaseRow(version=version, verdicts=found, requests=200, report=f"runs/{version}", problem=problem)


def case(name: str, words: str) -> ReleaseCase:
    """Return a counterexample."""
    return ReleaseCase(id=name, signature="stale state", sentence=words, file=f"runs/x/cases/{name}.json")


def history(*rows: ReleaseRow, complete: bool = True, title: str = "answers as cold") -> ReleaseHistory:
    """Return the history of these releases."""
    ids = sorted({id for one in rows for id in one.verdicts})
    return ReleaseHistory(
        engine="vLLM",
        worker="fingerprint",
        profile="smoke",
        command="coldproof history",
        coldproof_version="0.1",
        requirements={id: RequirementHead(title=title, upstream=["https://example.org/1"]) for id in ids},
        releases=list(rows),
        complete=complete,
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((V, V, C), [("2", "3", True)]),
        ((C, V, C), [("1", "2", False), ("2", "3", True)]),
        ((V, N, C), [("1", "3", True)]),
        ((V, None, C), [("1", "3", True)]),
        ((V, K, V), []),
        ((N, N, C), []),
    ],
)
def test_changes_are_between_releases_with_a_verdict(
    verdicts: tuple[Verdict | None, ...], expected: list[tuple[str, str, bool]]
) -> None:
    """A release that was not exercised does not count, and a known issue counts as a violation."""
    rows = [row(str(number), verdict) for number, verdict in enumerate(verdicts, start=1)]
    found = changes(history(*rows))
    assert [(one.before.version, one.after.version, one.mended) for one in found] == expected
    assert all(one.cases for one in found)


def test_the_page_marks_and_lists_a_change() -> None:
    """The change has the case of the violated release and the public reports."""
    shown = history(row("1.0", V, C), row("2.0", C, C), row("3.0", problem="not installed: no wheel"))
    page = render_history(shown)
    assert headline(shown) == "vLLM: 2 releases of 3 tested; 1 violation mended by a later release, 0 new in one"
    assert "violated up to 1.0, conforms on 2.0" in page
    assert 'href="runs/x/cases/R-1-1.0.json"' in page
    assert 'href="https://example.org/1"' in page
    assert "not installed: no wheel" in page
    assert len(re.findall(r'<td class="changed"', page)) == 1
    assert 'href="runs/2.0/index.html"' in page
    assert "INTERRUPTED" not in page


def test_what_no_release_supports_has_no_row() -> None:
    """Such a requirement is named below the table."""
    never = Verdict.UNSUPPORTED
    page = render_history(history(row("1.0", V, never, never), row("2.0", C, never, C)))
    table = page.split('id="changes"')[0]
    assert [f'<span class="id">R-{n}</span> answers' in table for n in (1, 2, 3)] == [True, False, True]
    assert "by these runs: R-2." in page


def test_text_of_the_engine_is_inert_and_an_interrupted_history_is_marked() -> None:
    """Sentences come from the engine."""
    page = render_history(history(row("1.0", V, words=HOSTILE), row("2.0", C), complete=False, title=HOSTILE))
    assert SCRIPT not in page
    assert "INTERRUPTED" in page


def explained(one: ReleaseRow, reason: str) -> ReleaseRow:
    """Return the release with a cause for its cases."""
    verdicts = {
        id: msgspec.structs.replace(
            found,
            cases=[msgspec.structs.replace(case, cause=reason, link="https://example.org/7") for case in found.cases],
        )
        for id, found in one.verdicts.items()
    }
    return msgspec.structs.replace(one, verdicts=verdicts)


def test_every_violation_is_under_its_cause() -> None:
    """A cause may have cases of several releases and requirements. Unknown causes come first."""
    shown = history(explained(row("1.0", V, V), "no tag"), explained(row("2.0", V, C), "no tag"), row("3.0", C, V))
    unknown, known = causes(shown)
    assert (known.known, known.reason, known.link) == (True, "no tag", "https://example.org/7")
    assert (known.requirements, known.versions) == (["R-1", "R-2"], ["1.0", "2.0"])
    assert [one.case.id for one in known.violations] == ["R-1-1.0", "R-2-1.0", "R-1-2.0"]
    assert (unknown.known, unknown.requirements, unknown.versions) == (False, ["R-2"], ["3.0"])
    assert unknown.reason == "R-2: stale state"


def test_unknown_causes_are_not_merged() -> None:
    """Requirements with unknown causes are listed separately."""
    assert [one.requirements for one in causes(history(row("1.0", V, V)))] == [["R-1"], ["R-2"]]


def test_the_page_lists_each_case_with_its_cause_and_report() -> None:
    """Cases without an explanation are named."""
    page = render_history(history(explained(row("1.0", V), "no tag"), row("2.0", C, V)))
    assert "R-1 on 1.0" in page
    assert "Not explained: R-2 on 2.0" in page
    assert 'href="https://example.org/7"' in page
    assert all(f'href="runs/x/cases/{name}.json"' in page for name in ("R-1-1.0", "R-2-2.0"))
    assert "No requirement is violated." not in page
    assert "No requirement is violated." in render_history(history(row("1.0", C)))
