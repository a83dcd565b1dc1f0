"""The comparison of two runs as Markdown and as a page: contents, order and escaping."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest
from support import report_samples as samples
from support.page import Page
from support.side_by_side_samples import pair

from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.changes import ChangeKind
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side
from coldproof.reports.side_by_side.slowdowns import Slowdown

FAILING = samples.results(samples.case())
BOTH_CELLS = samples.requirement("LORA-1", "in-place reload", samples.cell("hybrid"), samples.cell())
CLEAN = samples.results(requirements=[BOTH_CELLS, *FAILING.requirements[1:]])


def compare(old: Results, new: Results) -> SideBySide:
    """The page of two runs."""
    return side_by_side(pair(old, new), kinds.TWO_RUNS)


def everything() -> tuple[Results, Results]:
    """Return two runs with a finding of every kind, warnings and slowdowns."""
    fails, waived = Verdict.VIOLATED, Verdict.KNOWN_ISSUE
    ways = {
        ChangeKind.NEWLY_VIOLATED: (Verdict.CONFORMS, fails),
        ChangeKind.FAILS_DIFFERENTLY: (fails, fails),
        ChangeKind.NO_LONGER_EXERCISED: (fails, Verdict.NOT_EXERCISED),
        ChangeKind.WAIVER_REMOVED: (waived, fails),
        ChangeKind.STILL_VIOLATED: (fails, fails),
        ChangeKind.NEWLY_WAIVED: (fails, waived),
        ChangeKind.STILL_WAIVED: (waived, waived),
        ChangeKind.FIXED: (fails, Verdict.CONFORMS),
        ChangeKind.NEWLY_EXERCISED: (Verdict.UNSUPPORTED, Verdict.CONFORMS),
        ChangeKind.UNCHANGED: (Verdict.CONFORMS, Verdict.CONFORMS),
    }
    runs = []
    for side in (0, 1):
        rows = {kind.value: samples.cell(verdict=way[side], drawn=10.0 + 90 * side) for kind, way in ways.items()}
        runs.append(
            samples.results(
                *(
                    samples.case(
                        f"{name}-{side}",
                        requirement=name,
                        known_issue="keyed by path" if row.verdict is waived else None,
                        signature=f"signature{side if name == ChangeKind.FAILS_DIFFERENTLY else ''}",
                    )
                    for name, row in rows.items()
                    if row.verdict in (fails, waived)
                ),
                requirements=[samples.requirement(name, f"title of {name}", row) for name, row in rows.items()],
                profile="ci" if side else "smoke",
            )
        )
    return runs[0], runs[1]


@pytest.fixture(scope="module")
def full() -> SideBySide:
    """Return a comparison with everything that one can have."""
    return compare(*everything())


def section(text: str, title: str) -> str:
    """Return a section of the Markdown, without its heading."""
    return text.split(f"### {title}\n\n", 1)[1].split("\n### ", 1)[0]


# Markdown


def test_every_kind_has_its_section_worst_first(full: SideBySide) -> None:
    """Unchanged requirements are only counted; the page has the rest."""
    found = re.findall(r"^### (.*)$", side_by_side_markdown(full), flags=re.MULTILINE)
    kinds = [kind.value.capitalize() for kind in ChangeKind if kind is not ChangeKind.UNCHANGED]
    assert found == ["What can be compared", *kinds, "Slower", "Requirements", "Why"]
    assert "1 conform in both runs, 0 have no verdict in either" in side_by_side_markdown(full)


def test_a_finding_has_its_transition_place_and_replay() -> None:
    """The entry has what a maintainer needs first."""
    text = section(side_by_side_markdown(compare(CLEAN, FAILING)), "Newly violated")
    for part in (
        "- **LORA-1** stale state: Request r3",
        "  - CONFORMS → VIOLATED, in tiny-llama",
        "  - Signature: `LORA-1|stale state|burst,reload,burst`",
        "  - Cases: none before, 7c21a0f3 now",
        "  - Replay: `coldproof replay coldproof-report/cases/7c21a0f3.json`",
    ):
        assert part in text


def test_a_different_failure_names_the_earlier_one(full: SideBySide) -> None:
    """A waiver is shown with its reason."""
    text = side_by_side_markdown(full)
    assert "Did not occur this time: `signature0`" in section(text, "Fails in a different way")
    assert "Known issue: keyed by path" in section(text, "Newly waived")
    assert "in tiny-llama" in section(text, "No longer exercised")


def test_a_slowdown_is_shown_with_its_figures(full: SideBySide) -> None:
    """A factor is shown with the counts that it is based on."""
    assert "by a factor of 10.0 (1\u202f312 and 1\u202f312 requests)" in section(side_by_side_markdown(full), "Slower")


def test_the_markdown_is_bounded() -> None:
    """CI systems refuse a summary that is too long."""
    names = [f"R-{number}" for number in range(300)]
    conforms = samples.results(requirements=[samples.requirement(name, "x") for name in names])
    comparison = compare(conforms, samples.results(requirements=[]))
    slow = Slowdown(runs=("Before", "Now"), what="x", before="1", now="2", factor=2.0, counted="9 and 9 requests")
    text = side_by_side_markdown(dataclasses.replace(comparison, slower=[slow] * 300))
    assert "- and 250 more" in text
    assert "And 250 more." in text
    assert text.count("by a factor") == 50


# The page


def test_the_page_has_every_kind_with_its_meaning(full: SideBySide) -> None:
    """Each kind has a section, and links lead to it. What did not change is counted, and stands in the matrix."""
    page = Page(render_side_by_side(full))
    assert page.open == []
    for kind in ChangeKind:
        assert (kind.meaning in page.text) is (kind is not ChangeKind.UNCHANGED)
        assert f"1 {kind.value}" in page.text
    ids = list(page.attributes("id"))
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.attributes("href") if link.startswith("#")} <= set(ids)
    assert (
        "Comparability warnings: Not comparable with the other runs: Now. Differs from Before in: profile." in page.text
    )
    assert "by a factor of 10.0" in page.text


def test_the_page_of_two_equal_runs_states_that() -> None:
    """The page has no empty table."""
    text = Page(render_side_by_side(compare(CLEAN, CLEAN))).text
    assert "NO NEW FAILURES" in text
    assert "No requirement changed." in text
    assert "to be distinguished from noise" in text
    assert "Comparability warnings" not in text


def test_the_same_runs_give_the_same_bytes() -> None:
    """The order of requirements and cases in the files does not matter."""
    old, new = everything()
    turned = msgspec.structs.replace(new, requirements=new.requirements[::-1], cases=new.cases[::-1])
    assert render_side_by_side(compare(old, new)) == render_side_by_side(compare(old, turned))
    assert side_by_side_markdown(compare(old, new)) == side_by_side_markdown(compare(old, turned))
