"""How requirements and failures changed between two runs: new, fixed, still there, or no longer exercised."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support import report_samples as samples
from support.side_by_side_samples import pair, source, two

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import CellResult, Results, SelfTestRow
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.side_by_side import kinds as page_kinds
from coldproof.reports.side_by_side.changes import NEW, Change, ChangeKind, changes, exit_code
from coldproof.reports.side_by_side.columns import columns
from coldproof.reports.side_by_side.comparable_runs import notes
from coldproof.reports.side_by_side.matrix import side_by_side

STALE = "stale state; in-place reload; same path; between requests"
CORRUPT = "corrupt; no reload"
FAILING = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)
UNDECIDED = (Verdict.NOT_EXERCISED, Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED, Verdict.ERROR)


def case(signature: str = STALE, cell: str = "default", *, waived: bool = False, **changes: Any) -> Case:
    """Return a case of LORA-3."""
    issue = "keyed by path (https://example.org/issues/1)" if waived else None
    return samples.case(requirement="LORA-3", cell=cell, signature=signature, known_issue=issue, **changes)


def run(verdict: Verdict | None, *cases: Case, **changes: Any) -> Results:
    """Return a run of LORA-3 in the default cell; without a verdict it has only GROUND-1."""
    cells = [] if verdict is None else [samples.cell("default", verdict)]
    return of(*cells, cases=cases, **changes)


def of(*cells: CellResult, cases: tuple[Case, ...] = (), **changes: Any) -> Results:
    """Return a run of LORA-3 in these cells, and of GROUND-1, which conforms."""
    requirements = [samples.requirement("LORA-3", "same path", *cells)] if cells else []
    ground = samples.requirement("GROUND-1", "alone and in a batch")
    return samples.results(requirements=[ground, *requirements], **{"cases": list(cases), **changes})


def violated(*signatures: str, **changes: Any) -> Results:
    """Return a run in which LORA-3 fails with these signatures in the default cell."""
    return run(Verdict.VIOLATED, *(case(sign) for sign in signatures), **changes)


def waived(*signatures: str) -> Results:
    """Return a run in which LORA-3 fails with these signatures, all of them waived."""
    return run(Verdict.KNOWN_ISSUE, *(case(sign, waived=True) for sign in signatures))


def compare(old: Results, new: Results) -> list[Change]:
    """What changed between two runs."""
    return changes(two(old, new))


def headline(old: Results, new: Results) -> str:
    """The comparison in one sentence."""
    return side_by_side(pair(old, new), page_kinds.TWO_RUNS).headline


def about(found: list[Change], requirement: str = "LORA-3") -> list[Change]:
    """Return the findings about one requirement."""
    return [change for change in found if change.requirement == requirement]


def kinds(old: Results, new: Results) -> list[tuple[ChangeKind, str]]:
    """Return the kinds of change of LORA-3, with the signatures."""
    return [(finding.kind, finding.signature) for finding in about(compare(old, new))]


# What became of it


@pytest.mark.parametrize("before", [Verdict.CONFORMS, *UNDECIDED, None])
def test_what_fails_and_was_not_known_to_is_newly_violated(before: Verdict | None) -> None:
    """The verdict before does not matter, also if the requirement was not in the run."""
    assert kinds(run(before), violated(STALE)) == [(ChangeKind.NEWLY_VIOLATED, STALE)]
    assert exit_code(compare(run(before), violated(STALE))) == 1


@pytest.mark.parametrize("before", [violated(STALE), waived(STALE)], ids=FAILING)
def test_what_failed_and_conforms_now_is_fixed(before: Results) -> None:
    """A known issue is fixed too, so its waiver can be removed."""
    comparison = compare(before, run(Verdict.CONFORMS))
    assert [(one.kind, one.signature, one.gone) for one in about(comparison)] == [(ChangeKind.FIXED, STALE, [])]
    assert exit_code(comparison) == 0


@pytest.mark.parametrize("now", [*UNDECIDED, None])
@pytest.mark.parametrize("before", [violated(STALE), waived(STALE), run(Verdict.CONFORMS)], ids=[*FAILING, "CONFORMS"])
def test_a_requirement_that_is_no_longer_decided_is_not_fixed(before: Results, now: Verdict | None) -> None:
    """Otherwise a run that does less would look better, so the comparison fails."""
    comparison = compare(before, run(now))
    assert [finding.kind for finding in about(comparison)] == [ChangeKind.NO_LONGER_EXERCISED]
    assert exit_code(comparison) == 1


@pytest.mark.parametrize("now", UNDECIDED)
def test_the_reason_for_no_decision_is_shown(now: Verdict) -> None:
    """The reason is that of the later run."""
    new = of(samples.cell("default", now, reason="never seen: hits"))
    assert about(compare(violated(STALE), new))[0].transitions[0].reason == "never seen: hits"


@pytest.mark.parametrize("before", [*UNDECIDED, None])
def test_what_conforms_and_was_not_decided_is_newly_exercised(before: Verdict | None) -> None:
    """It is not a fix, because no failure was known."""
    assert kinds(run(before), run(Verdict.CONFORMS)) == [(ChangeKind.NEWLY_EXERCISED, "")]
    assert exit_code(compare(run(before), run(Verdict.CONFORMS))) == 0


@pytest.mark.parametrize("before", UNDECIDED)
@pytest.mark.parametrize("now", UNDECIDED)
def test_what_was_decided_in_neither_is_unchanged(before: Verdict, now: Verdict) -> None:
    """Both verdicts are kept for the details."""
    finding = about(compare(run(before), run(now)))[0]
    assert finding.kind is ChangeKind.UNCHANGED
    assert (finding.transitions[0].was, finding.transitions[0].now) == (before, now)


def test_a_run_against_itself_has_nothing_new() -> None:
    """This holds for failures, waivers and undecided requirements."""
    comparison = compare(samples.results(samples.case()), samples.results(samples.case()))
    assert {finding.kind for finding in comparison} == {ChangeKind.STILL_VIOLATED, ChangeKind.UNCHANGED}
    assert exit_code(comparison) == 0
    again = side_by_side(pair(samples.results(samples.case()), samples.results(samples.case())), page_kinds.TWO_RUNS)
    assert notes(again.columns, series=True, by_time=True) == []
    assert again.slower == []
    assert again.headline.startswith("NO NEW FAILURES — 1 still violated")


# Is it the same failure?


def test_the_same_signature_is_the_same_failure() -> None:
    """Ids, nonces, sentences and versions belong to a run and do not matter."""
    again = case(id="other", nonce="b0", sentence="Request 9 differs", engine_version="0.33.0", failing_request=9)
    assert kinds(violated(STALE), run(Verdict.VIOLATED, again)) == [(ChangeKind.STILL_VIOLATED, STALE)]
    assert exit_code(compare(violated(STALE), run(Verdict.VIOLATED, again))) == 0


def test_another_signature_is_a_different_failure() -> None:
    """The earlier failure is named but not called fixed, because one failure may hide the other."""
    comparison = compare(violated(STALE), violated(CORRUPT))
    (finding,) = about(comparison)
    assert (finding.kind, finding.signature, finding.gone) == (ChangeKind.FAILS_DIFFERENTLY, CORRUPT, [STALE])
    assert exit_code(comparison) == 1


def test_two_failures_are_compared_separately() -> None:
    """One failure is the same and one is not."""
    assert kinds(violated(STALE), violated(CORRUPT, STALE)) == [
        (ChangeKind.FAILS_DIFFERENTLY, CORRUPT),
        (ChangeKind.STILL_VIOLATED, STALE),
    ]


def test_one_of_two_failures_fixed_is_no_fix() -> None:
    """The requirement still fails in that cell."""
    (finding,) = about(compare(violated(STALE, CORRUPT), violated(STALE)))
    assert (finding.kind, finding.gone) == (ChangeKind.STILL_VIOLATED, [CORRUPT])


def test_violations_without_a_case_are_not_taken_for_the_same() -> None:
    """Two unknown failures are not assumed to be equal."""
    comparison = compare(run(Verdict.VIOLATED), run(Verdict.VIOLATED))
    assert [(finding.kind, finding.unsaved) for finding in about(comparison)] == [(ChangeKind.FAILS_DIFFERENTLY, True)]


def test_a_case_of_another_requirement_is_another_failure() -> None:
    """Many requirements fail with the same signature."""
    other = samples.case(requirement="LORA-1", cell="default", signature=STALE)
    assert kinds(run(Verdict.CONFORMS, other), violated(STALE)) == [(ChangeKind.NEWLY_VIOLATED, STALE)]


# Waivers


@pytest.mark.parametrize("before", [violated(STALE), violated(CORRUPT), waived(CORRUPT), run(Verdict.CONFORMS)])
def test_what_is_waived_now_and_was_not_is_newly_waived(before: Results) -> None:
    """A new waiver is reported and fails nothing."""
    assert kinds(before, waived(STALE)) == [(ChangeKind.NEWLY_WAIVED, STALE)]
    assert exit_code(compare(before, waived(STALE))) == 0


def test_a_known_issue_stays_one() -> None:
    """Known issues are matched by signature."""
    assert kinds(waived(STALE), waived(STALE)) == [(ChangeKind.STILL_WAIVED, STALE)]


def test_a_removed_waiver_is_no_new_failure() -> None:
    """The failure is old, so the comparison does not fail, but the run itself does."""
    assert kinds(waived(STALE), violated(STALE)) == [(ChangeKind.WAIVER_REMOVED, STALE)]
    assert exit_code(compare(waived(STALE), violated(STALE))) == 0


def test_another_failure_beside_a_known_issue_is_a_different_failure() -> None:
    """The waiver of one failure does not cover another."""
    new = run(Verdict.VIOLATED, case(STALE, waived=True), case(CORRUPT))
    assert kinds(waived(STALE), new) == [(ChangeKind.FAILS_DIFFERENTLY, CORRUPT), (ChangeKind.STILL_WAIVED, STALE)]


def test_a_violation_is_never_lost_behind_waived_cases() -> None:
    """If the verdict is VIOLATED and all cases are waived, something else failed."""
    assert (ChangeKind.FAILS_DIFFERENTLY, "") in kinds(waived(STALE), run(Verdict.VIOLATED, case(STALE, waived=True)))


# Cells


def test_one_signature_in_several_cells_is_one_finding() -> None:
    """The finding has the transition of each cell."""
    old = of(samples.cell("tight"), samples.cell("default", Verdict.NOT_EXERCISED), samples.cell("hybrid"))
    new = of(
        *(samples.cell(name, Verdict.VIOLATED) for name in ("tight", "hybrid", "default", "tiny")),
        cases=tuple(case(STALE, cell) for cell in ("tight", "hybrid", "default", "tiny")),
    )
    (finding,) = about(compare(old, new))
    assert finding.kind is ChangeKind.NEWLY_VIOLATED
    assert [(journey.was, journey.cells) for journey in finding.transitions] == [
        (Verdict.NOT_EXERCISED, ["default"]),
        (Verdict.CONFORMS, ["hybrid", "tight"]),
        (None, ["tiny"]),
    ]


def test_a_failure_known_from_another_cell_is_new_and_names_that_cell() -> None:
    """The finding names the cell in which the failure was known."""
    old = of(samples.cell("default", Verdict.VIOLATED), samples.cell("tight"), cases=(case(STALE),))
    new = of(samples.cell("default"), samples.cell("tight", Verdict.VIOLATED), cases=(case(STALE, "tight"),))
    first, second = about(compare(old, new))
    assert (first.kind, first.elsewhere) == (ChangeKind.NEWLY_VIOLATED, ["default"])
    assert (second.kind, second.elsewhere) == (ChangeKind.FIXED, [])


def test_fixed_in_one_cell_is_not_fixed_in_one_that_did_not_run() -> None:
    """One signature then has two findings."""
    both = (case(STALE), case(STALE, "tight"))
    old = of(samples.cell("default", Verdict.VIOLATED), samples.cell("tight", Verdict.VIOLATED), cases=both)
    assert kinds(old, of(samples.cell("default"))) == [
        (ChangeKind.NO_LONGER_EXERCISED, STALE),
        (ChangeKind.FIXED, STALE),
    ]


def facts_of(found: list[Change]) -> list[tuple[object, ...]]:
    """Return the fields of changes, without the runs themselves."""
    return [
        (
            *(one.kind, one.column.label, one.requirement, one.signature, one.transitions, one.requests),
            *(one.cases_before, one.cases_now, one.gone, one.elsewhere, one.case),
        )
        for one in found
    ]


def test_the_order_of_results_does_not_matter() -> None:
    """Runs with several workers write requirements, cells and cases in any order."""
    old = violated(CORRUPT)
    cells = [samples.cell(name, Verdict.VIOLATED) for name in ("default", "tight", "hybrid")]
    cases = tuple(
        case(sign, cell.cell, id=f"{cell.cell}-{sign[:3]}-{one}")
        for cell in cells
        for sign in (STALE, CORRUPT)
        for one in (0, 1)
    )
    new = of(*cells, cases=cases)
    turned = of(*reversed(cells), cases=tuple(reversed(cases)))
    turned = msgspec.structs.replace(turned, requirements=turned.requirements[::-1])
    assert facts_of(compare(old, new)) == facts_of(compare(old, turned))
    assert facts_of(compare(new, old)) == facts_of(compare(turned, old))


# Runs that show nothing


def invalid(results: Results) -> Results:
    """Return the run with a detector that missed a planted bug."""
    return msgspec.structs.replace(results, selftest=[SelfTestRow(planted="x", caught=False, said="no finding")])


def test_no_verdict_of_an_invalid_run_counts() -> None:
    """Neither its passes nor its failures count."""
    assert kinds(violated(STALE), invalid(run(Verdict.CONFORMS))) == [(ChangeKind.NO_LONGER_EXERCISED, STALE)]
    assert kinds(invalid(violated(STALE)), violated(STALE)) == [(ChangeKind.NEWLY_VIOLATED, STALE)]


def test_two_runs_without_a_verdict_are_no_pass() -> None:
    """A nightly job that fails every night must not be green."""
    nothing = samples.results(requirements=[])
    assert exit_code(compare(nothing, nothing)) == 1
    assert headline(nothing, nothing).startswith("NOTHING COMPARED")


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (run(Verdict.CONFORMS), violated(STALE), "NEW FAILURES — 1 newly violated, 1 unchanged"),
        (run(Verdict.CONFORMS), run(None), "LESS EXERCISED THAN BEFORE — 1 no longer exercised, 1 unchanged"),
        (violated(STALE), run(Verdict.CONFORMS), "NO NEW FAILURES — 1 fixed, 1 unchanged"),
    ],
)
def test_the_headline_states_whether_anything_is_new(old: Results, new: Results, word: str) -> None:
    """The exit code agrees with the headline."""
    comparison = compare(old, new)
    assert headline(old, new) == word
    assert bool(exit_code(comparison)) == any(finding.kind in NEW for finding in comparison)


# Several runs


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("VVC", [("2", "still violated", "1"), ("3", "fixed", "2")]),
        ("CVC", [("2", "newly violated", "1"), ("3", "fixed", "2")]),
        ("VNC", [("2", "no longer exercised", "1"), ("3", "fixed", "1")]),
        ("V-C", [("2", "no longer exercised", "1"), ("3", "fixed", "1")]),
        ("VNN", [("2", "no longer exercised", "1")]),
        ("VNV", [("2", "no longer exercised", "1"), ("3", "still violated", "1")]),
        ("VKV", [("2", "newly waived", "1"), ("3", "waiver removed", "2")]),
        ("NNC", [("2", "unchanged", "1"), ("3", "newly exercised", "2")]),
    ],
)
def test_a_run_is_compared_with_the_last_one_that_says_something(
    verdicts: str, expected: list[tuple[str, str, str]]
) -> None:
    """A run without a verdict is reported once."""
    runs = {
        "V": violated(STALE),
        "C": run(Verdict.CONFORMS),
        "K": waived(STALE),
        "N": run(Verdict.NOT_EXERCISED),
        "-": run(None),
    }
    sources = [source(runs[letter], label=str(place)) for place, letter in enumerate(verdicts, start=1)]
    found = [
        (change.column.label, change.kind.value, transition.before)
        for change in about(changes(columns(sources)))
        for transition in change.transitions
    ]
    assert sorted(found) == expected
