"""A case belongs to the cause whose repair alone makes it vanish, and to no other one that it is like."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support import report_samples

from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.attribution import (
    SHIPPED_TRIES,
    Candidates,
    by_repairs,
    by_signature,
    in_order_of_likeness,
    tries_of,
)
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.known_issues import may_be_of
from coldproof.harness.schema.attribution import REPEATS, Attribution, Basis
from coldproof.harness.schema.case import ChangeRow
from coldproof.harness.schema.findings import FindingRecord, ReplayResult, Severity, Shows
from coldproof.harness.workload.steps import Workload

FAILS, PASSES, OTHERWISE, NOT_RUN = (
    ReplayResult.FAILS,
    ReplayResult.PASSES,
    ReplayResult.OTHERWISE,
    ReplayResult.NOT_RUN,
)
CASE = report_samples.case("LORA-3-1")
NAMES = [f"e/{number:02}" for number in range(12)]
SHOWS = Shows(requirement=CASE.requirement, signature=f"{CASE.signature[:5]}*")
Result = ReplayResult | list[ReplayResult]


def record(name: str, **changes: object) -> FindingRecord:
    """Return a record about the requirement, class and signature of the case, with changes."""
    usual = {"id": name, "requirement": CASE.requirement, "signature": CASE.signature, "upstream": [], "shows": []}
    return msgspec.structs.replace(
        next(iter(read_records().values())), failure_class=CASE.failure_class, **{**usual, **changes}
    )


def repair(*names: str) -> Repair:
    """Return the repair of the first of these findings, which removes the others as well."""
    return Repair(name=names[0], releases=">=0", text="a title", also=names[1:], path=Path("none"))


def candidates(*names: str, without: Collection[FindingRecord] = ()) -> Candidates:
    """Return findings with repairs, the likeliest first. `without`: findings without one."""
    return Candidates.of(CASE, [*map(record, names), *without], map(repair, names))


class Replays:
    """Replays with these results by the repair planted alone; a list has those of one replay after the other.

    `cause`: with any set of repairs in which it is, the case is gone. `together`: the result with all repairs.
    """

    def __init__(
        self, results: Mapping[str, Result] | None = None, *, cause: str = "", together: ReplayResult | None = None
    ) -> None:
        self.results, self.cause, self.together = dict(results or {}), cause, together
        self.tried: list[tuple[str, ...]] = []

    def __call__(self, names: tuple[str, ...]) -> ReplayResult:
        """Return how a replay under these repairs ended."""
        self.tried.append(names)
        if self.together is not None and len(names) > 1:
            return self.together
        found = self.results.get(",".join(names), PASSES if self.cause in names else FAILS)
        return found.pop(0) if isinstance(found, list) else found


def attributed(replays: Replays, *names: str, rounds: int = 1) -> Attribution:
    """Return the attribution of the case to one of these findings."""
    return by_repairs(CASE, candidates(*names), replays, rounds=rounds)


@pytest.mark.parametrize(("place", "most"), [(0, 2), (1, 4), (2, 5), (3, 10), (11, 10)])
def test_it_belongs_to_the_finding_whose_repair_alone_ends_it(place: int, most: int) -> None:
    """The likely ones are tried alone. Of the others, halves are tried, so that many take few replays."""
    replays = Replays(cause=NAMES[place])
    found = attributed(replays, *NAMES)
    assert (found.basis, found.finding) == (Basis.REPAIR, NAMES[place])
    assert replays.tried[-1] == ()
    assert len(replays.tried) <= most


@pytest.mark.parametrize(
    ("replays", "basis"),
    [
        (Replays(), Basis.NEW),
        (Replays(together=OTHERWISE), Basis.OTHERWISE),
        (Replays(together=NOT_RUN), Basis.NOT_RUN),
        (Replays({"": PASSES}, cause="e/00"), Basis.GONE),
        (Replays({"": OTHERWISE}, cause="e/00"), Basis.GONE),
        (Replays({"": NOT_RUN}, cause="e/00"), Basis.NOT_RUN),
    ],
)
def test_otherwise_it_belongs_to_none(replays: Replays, basis: Basis) -> None:
    """A case that fails under every repair is new, also if it has the signature of their findings."""
    found = attributed(replays, *NAMES)
    assert (found.basis, found.finding, found.is_known) == (basis, "", False)


class SeveralCauses:
    """Replays of a case in which these causes act: it passes with the repairs of all, and else fails as `left` says."""

    def __init__(self, *causes: str, left: ReplayResult = FAILS) -> None:
        self.causes, self.left, self.tried = causes, left, list[tuple[str, ...]]()

    def __call__(self, names: tuple[str, ...]) -> ReplayResult:
        """Return how a replay under these repairs ended."""
        self.tried.append(names)
        if set(self.causes) <= set(names):
            return PASSES
        return self.left if set(self.causes) & set(names) else FAILS


@pytest.mark.parametrize("left", [FAILS, OTHERWISE])
@pytest.mark.parametrize("causes", [("e/00", "e/01"), ("e/02", "e/10"), ("e/00", "e/07", "e/11"), ("e/09", "e/11")])
def test_a_case_belongs_to_the_causes_that_act_in_it_together(causes: tuple[str, ...], left: ReplayResult) -> None:
    """With one of their repairs left out it fails, as before or in another way."""
    replays = SeveralCauses(*causes, left=left)
    found = by_repairs(CASE, candidates(*NAMES), replays)
    assert (found.basis, set(found.findings), len(found.findings)) == (Basis.REPAIR, set(causes), len(causes))
    assert found.is_by_replay
    assert found.is_shown_by(causes, failed=False)
    assert not found.is_shown_by(causes[:1], failed=True)
    assert len(replays.tried) <= 30
    assert found.said == f"vanishes with the repairs of {' and '.join(found.findings)} together (by repair)"


@pytest.mark.parametrize(
    ("replays", "basis"),
    [
        (SeveralCauses(*NAMES[2:6]), Basis.NEW),  # more causes than are looked for
        (SeveralCauses("e/02", "e/10", left=NOT_RUN), Basis.NEW),  # whether both are needed is not known
    ],
)
def test_without_proof_that_each_of_them_acts_it_belongs_to_none(replays: SeveralCauses, basis: Basis) -> None:
    """It may be another fault, around which their repairs lead."""
    found = by_repairs(CASE, candidates(*NAMES), replays)
    assert (found.basis, found.findings) == (basis, [])
    assert found.words == "it is gone with all repairs together, and with no three of them"


def test_causes_of_which_none_is_a_wrong_are_none() -> None:
    """Two remarks together explain no violation. Of a remark and a root cause, the latter is the cause."""
    for known in (False, True):
        records = [remark("e/0"), record("e/1") if known else remark("e/1")]
        made = Candidates.of(CASE, records, [repair("e/0"), repair("e/1")])
        found = by_repairs(CASE, made, SeveralCauses("e/0", "e/1"))
        assert found.findings == (["e/1", "e/0"] if known else [])
        assert not found.remark


@pytest.mark.parametrize(
    ("shipped", "mended", "basis"),
    [
        ([FAILS, FAILS, FAILS], [PASSES, PASSES, PASSES], Basis.REPAIR),
        ([FAILS, PASSES, PASSES, PASSES], [PASSES, PASSES], Basis.GONE),
        ([FAILS, FAILS], [PASSES, FAILS], Basis.NEW),
    ],
)
def test_a_case_that_takes_luck_has_to_vanish_each_time(
    shipped: list[ReplayResult], mended: list[ReplayResult], basis: Basis
) -> None:
    """It fails without, passes with the repair, and so on."""
    assert attributed(Replays({"": shipped, "e/00": mended}), *NAMES, rounds=3).basis is basis


@pytest.mark.parametrize(
    ("shipped", "mended", "basis"),
    [
        ([PASSES, FAILS], [PASSES] * (1 + REPEATS), Basis.REPAIR),
        ([PASSES, PASSES, FAILS], [PASSES] * (1 + 2 * REPEATS), Basis.REPAIR),
        ([PASSES] * SHIPPED_TRIES, [PASSES], Basis.GONE),
        ([PASSES, FAILS], [*[PASSES] * REPEATS, FAILS], Basis.NEW),
    ],
)
def test_a_case_that_fails_only_sometimes_has_to_vanish_more_often(
    shipped: list[ReplayResult], mended: list[ReplayResult], basis: Basis
) -> None:
    """It has failed before, so that one replay without repairs that passes does not say that it is gone."""
    replays = Replays({"": shipped, "e/00": mended})
    found = attributed(replays, *NAMES)
    assert found.basis is basis
    assert not shipped
    assert not mended
    assert found.is_shown_by(["e/00"], failed=True) is (basis is Basis.REPAIR)
    once_less = msgspec.structs.replace(found, replays=found.replays[:-1])
    assert not once_less.is_shown_by(["e/00"], failed=False)


@pytest.mark.parametrize(
    ("failed", "tries", "timing", "expected"),
    [(3, 3, False, 1), (3, 3, True, 3), (2, 3, False, 5), (1, 3, True, 12), (0, 3, False, 20), (None, None, False, 1)],
)
def test_what_takes_luck_is_tried_until_luck_is_unlikely(
    failed: int | None, tries: int | None, timing: bool, expected: int
) -> None:
    """By how often it failed in replays; a workload that depends on timing takes luck in any case."""
    reproduction = msgspec.structs.replace(
        CASE.reproduction, fresh_failed=failed, fresh_tries=tries, running_tries=None
    )
    workload = cast(Workload, SimpleNamespace(depends_on_timing=lambda: timing))
    assert tries_of(msgspec.structs.replace(CASE, reproduction=reproduction), workload) == expected


def test_the_replays_are_recorded() -> None:
    """Of many repairs at once, their number is."""
    found = attributed(Replays(cause=NAMES[1]), *NAMES)
    assert [(one.number, one.repairs, one.result) for one in found.replays] == [
        (1, NAMES[:1], FAILS),
        (12, [], PASSES),
        (1, NAMES[1:2], PASSES),
        (0, [], FAILS),
    ]
    assert found.is_shown_by([NAMES[1]], failed=False)
    assert not found.is_shown_by([NAMES[0]], failed=True)


def test_what_has_just_failed_is_not_replayed_without_a_repair() -> None:
    """One replay tells that it is gone."""
    replays = Replays(cause="e/00")
    assert attributed(replays, *NAMES, rounds=0).finding == "e/00"
    assert replays.tried == [("e/00",)]


def test_a_finding_without_a_repair_is_left_when_every_repair_fails() -> None:
    """Its record has the signature. Without it, a finding with the same one whose repair does not help is no cause."""
    other = record("e/other", signature="x", shows=[SHOWS])
    found = by_repairs(CASE, candidates("e/0", without=[other]), Replays())
    assert (found.basis, found.finding) == (Basis.SIGNATURE, "e/other")
    found = by_repairs(CASE, candidates("e/0"), Replays())
    assert (found.basis, found.words) == (Basis.NEW, "it has the signature of e/0, but it fails with the repair")
    unlike = by_repairs(CASE, candidates("e/0", without=[record("e/other", signature="x")]), Replays())
    assert unlike.basis is Basis.NEW


def test_of_findings_with_one_repair_it_belongs_to_the_likeliest() -> None:
    """A repair may remove the cases of several."""
    near, far = record("e/near"), record("e/far", requirement="MM-1", signature="x")
    found = Candidates.of(CASE, [far, near], [repair("e/far", "e/near")])
    assert by_repairs(CASE, found, Replays(cause="e/far")).finding == "e/near"


def test_a_cause_that_cannot_have_acted_is_no_candidate() -> None:
    """One changed line, an adapter known by its number, vanished with the repair of the key without the contents, which
    puts more into the key: a reload from another path was taken for the known cause about the same path.
    """
    case = msgspec.structs.replace(CASE, signature="stale state; in-place reload; other path")
    found = record("e/0", signature="stale state; in-place reload; same path", only_with=["same path"])
    for repairs in ([repair("e/0")], []):
        other = by_repairs(case, Candidates.of(case, [found], repairs), Replays(cause="e/0"))
        assert (other.basis, other.candidates, other.words) == (Basis.NEW, [], "no repair is left")
    same = msgspec.structs.replace(case, signature=found.signature)
    assert by_repairs(same, Candidates.of(same, [found], [repair("e/0")]), Replays(cause="e/0")).finding == "e/0"


@pytest.mark.parametrize(("kind", "may_be"), [("weights at the same path", True), ("rope settings", True), ("", False)])
def test_a_cause_may_act_in_several_ways(kind: str, may_be: bool) -> None:
    """The key of a tier that lacks the model lacks its rope settings, too: that was called a new cause."""
    signature = f"stale state; no reload{f'; restart: other {kind}' if kind else ''}"
    record_of_tier = read_records()["vllm/file-tier-key-lacks-the-weights"]
    assert may_be_of(record_of_tier, msgspec.structs.replace(CASE, signature=signature)) is may_be


@pytest.mark.parametrize(
    ("signature", "may_be"),
    [
        ("stale state; in-place reload; same path", True),
        ("stale state; in-place reload; other path", False),
        ("stale state; no reload; restart: nothing", True),
    ],
)
def test_files_at_a_path_may_also_change_over_a_restart(signature: str, *, may_be: bool) -> None:
    """A second tier keeps the blocks of the old files. That was called a new cause."""
    contents = read_records()["vllm/adapter-key-lacks-the-contents"]
    assert may_be_of(contents, msgspec.structs.replace(CASE, signature=signature)) is may_be


@pytest.mark.parametrize(
    ("rows", "resets", "changes", "may_be"),
    [
        ([(0, 0.0, 1.0), (2, 1.0, 2.0)], [(1, 1.0, False)], {}, False),
        ([(0, 0.0, 1.0), (2, 1.0, 2.0)], [(1, 1.0, True)], {}, True),  # it was refused
        ([(0, 0.0, 1.0), (2, 1.0, 2.0)], [], {}, True),
        ([(0, 0.0, 1.5), (2, 1.0, 2.0)], [(1, 1.0, False)], {}, True),  # the first request ran over it
        ([(0, 0.0, 1.0), (2, 1.0, 2.0), (3, 2.0, 3.0)], [(1, 1.0, False)], {}, True),  # another one came between
        ([(0, 0.0, 1.0), (2, 1.0, 2.0)], [(1, 1.0, False)], {"cell": "attached"}, True),
        ([(0, 0.0, 1.0), (2, 1.0, 2.0)], [(1, 1.0, False)], {"engine_config": {"flags": "{kv_connector: X}"}}, True),
    ],
)
def test_behind_a_reset_a_cause_in_the_cache_cannot_act(
    rows: list[tuple[int, float, float]],
    resets: list[tuple[int, float, bool]],
    changes: dict[str, Any],
    *,
    may_be: bool,
) -> None:
    """A reset that is skipped after the load of an adapter vanished with the repair of the key without the contents."""
    requests = [
        report_samples.request(number, step=step, sent=sent, finished=finished)
        for number, (step, sent, finished) in enumerate(rows)
    ]
    made = [ChangeRow(step=step, kind="reset", began=at, ended=at, refused=refused) for step, at, refused in resets]
    usual: dict[str, Any] = {"requests": requests, "changes": made, "failing_request": len(rows) - 1, "cell": "default"}
    case = msgspec.structs.replace(CASE, **{**usual, "engine_config": {}, **changes})
    assert may_be_of(record("e/0", needs_earlier_blocks=True), case) is may_be
    assert may_be_of(record("e/0"), case)


def remark(name: str, **changes: object) -> FindingRecord:
    """Return the record of a remark."""
    return record(name, severity=Severity.REMARK, **changes)


def test_a_case_that_vanishes_with_the_repair_of_a_remark_is_one() -> None:
    """It needs no other replays than a root cause."""
    for severity, expected in ((Severity.REMARK, True), (Severity.API, False)):
        candidates = Candidates.of(CASE, [record("e/0", severity=severity)], [repair("e/0")])
        found = by_repairs(CASE, candidates, Replays(cause="e/0"))
        assert (found.finding, found.remark) == ("e/0", expected)
        assert by_repairs(CASE, candidates, Replays()).remark is False


@pytest.mark.parametrize(
    ("own", "result", "finding", "expected"),
    [
        (True, FAILS, "e/0", True),
        (True, PASSES, "e/1", False),
        (True, OTHERWISE, "e/0", False),
        (True, NOT_RUN, "e/0", False),
        (False, FAILS, "e/0", False),
    ],
)
def test_where_that_repair_removes_a_root_cause_its_own_repair_decides(
    own: bool, result: ReplayResult, finding: str, expected: bool
) -> None:
    """Without one, and without a clear result, the case is no remark."""
    records = [remark("e/0"), record("e/1", signature="x")]
    candidates = Candidates.of(CASE, records, [repair("e/0", "e/1"), *([repair("e/1")] if own else [])])
    found = by_repairs(CASE, candidates, Replays({"e/1": result}, cause="e/0"))
    assert (found.finding, found.remark) == (finding, expected)


@pytest.mark.parametrize(
    ("signature", "requirement", "expected"),
    [
        ("not the cache; in-place reload; other path; under traffic; overlaps the change", "LORA-6", True),
        ("corrupt; in-place reload; same path; under traffic; overlaps the change; preempted", "LORA-6", True),
        ("corrupt; in-place reload; same path; under traffic; overlaps the change", "MIXED-1", True),
        ("not the cache; in-place reload; other path; under traffic", "LORA-6", False),
        ("lost reuse; in-place reload; other path; under traffic; overlaps the change", "LORA-6", False),
        ("corrupt; in-place reload; same path; under traffic; overlaps the change", "LORA-3", False),
    ],
)
def test_what_vanishes_with_the_repair_of_a_remark_and_is_something_else_is_undecided(
    signature: str, requirement: str, expected: bool
) -> None:
    """The repair may lead around another fault: it loads adapters in another way."""
    case = msgspec.structs.replace(CASE, signature=signature, requirement=requirement)
    own = "not the cache; in-place reload; other path; under traffic; overlaps the change"
    records = [record("e/0", severity=Severity.REMARK, requirement="LORA-6", signature=own)]
    found = by_repairs(case, Candidates.of(case, records, [repair("e/0")]), Replays(cause="e/0"))
    assert (found.remark, found.is_known) == (expected, expected)
    assert (found.basis is Basis.UNDECIDED) is not expected


@pytest.mark.parametrize(("cell", "expected"), [("images-model", True), ("default", False)])
def test_a_remark_with_a_repair_may_say_what_else_it_does(cell: str, expected: bool) -> None:
    """Two images under one name may get the same answer, and then only the hit gives them away."""
    case = msgspec.structs.replace(
        CASE, cell=cell, requirement="MM-1", signature="accounting; no reload; images; named by the client"
    )
    own = read_records()["vllm/a-clients-name-replaces-the-image"]
    found = by_repairs(case, Candidates.of(case, [own], [repair(own.id)]), Replays(cause=own.id))
    assert (found.remark, found.is_known) == (expected, expected)


@pytest.mark.parametrize(("changes", "expected"), [({"shows": [SHOWS]}, True), ({}, False)])
def test_by_signature_a_case_is_a_remark_only_if_the_record_says_how_it_shows_itself(
    changes: dict[str, object], expected: bool
) -> None:
    """The signature of a remark's own case is not enough: another cause may have it."""
    found = by_signature(CASE, [remark("e/remark", **changes)], "no repair")
    assert (found.basis, found.finding, found.remark) == (Basis.SIGNATURE, "e/remark", expected)


def test_the_likeliest_findings_come_first() -> None:
    """The whole signature, then the class, the requirement and parts of the signature. Earlier causes go before all."""
    same, part, other = record("e/same"), record("e/part", signature="x; y"), record("e/other", requirement="MM-1")
    assert in_order_of_likeness(CASE, [other, part, same]) == [same, part, other]
    repairs = [repair(one.id) for one in (same, part, other)]
    ordered = Candidates.of(CASE, [other, part, same], repairs, first={"e/other"})
    assert ordered.names == ("e/other", "e/same", "e/part")


@pytest.mark.parametrize(
    ("records", "basis", "among"),
    [
        ([record("e/one")], Basis.SIGNATURE, []),
        ([record("e/two"), record("e/one")], Basis.SIGNATURE, ["e/one", "e/two"]),
        ([record("e/one"), record("e/two", shows=[Shows(requirement="MM-1", signature="x")])], Basis.SIGNATURE, []),
        ([record("e/x", signature="x")], Basis.UNDECIDED, ["e/x"]),
        ([record("e/x", signature="x", requirement="MM-1")], Basis.NEW, []),
        ([record("e/x", signature="x", only_with=["images"])], Basis.NEW, []),  # it cannot have acted
        ([record("e/x", signature="x", shows=[Shows(requirement="MM-1", signature="x")])], Basis.NEW, []),
        ([], Basis.NEW, []),
    ],
)
def test_an_engine_without_repairs_leaves_the_signature(
    records: list[FindingRecord], basis: Basis, among: list[str]
) -> None:
    """Several findings that it is like are all named: that is not the same as no known cause."""
    found = by_signature(CASE, records, "it is written in C++")
    assert (found.basis, found.candidates) == (basis, among)
    assert found.finding == ("e/one" if basis is Basis.SIGNATURE and not among else "")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Attribution(basis=Basis.REPAIR, finding="e/x"), "vanishes with the repair of e/x (by repair)"),
        (
            Attribution(basis=Basis.LOCAL, finding="e/x"),
            "vanishes with the repair of e/x (by replay on a local engine of the same release)",
        ),
        (Attribution(basis=Basis.SIGNATURE, finding="e/x"), "matches e/x by signature alone"),
        (Attribution(basis=Basis.SIGNATURE, candidates=["e/x", "e/y"]), "matches e/x or e/y by signature alone"),
        (Attribution(basis=Basis.UNDECIDED, candidates=["e/x", "e/y"]), "undecided between e/x, e/y"),
        (Attribution(basis=Basis.UNDECIDED, candidates=["e/x"]), "undecided whether it is e/x"),
        (Attribution(basis=Basis.NEW), "no known cause"),
        (Attribution(basis=Basis.NOT_TRIED), "not tried (budget)"),
    ],
)
def test_a_report_says_one_of_these(found: Attribution, said: str) -> None:
    """Each has its own words."""
    assert found.said == said


def test_a_known_cause_that_is_not_accepted_is_named_with_its_report() -> None:
    """The violation still counts."""
    found = Attribution(basis=Basis.REPAIR, finding="e/x", link="https://github.com/o/r/issues/42125")
    assert found.not_accepted == (
        "It matches e/x, reported as #42125, not accepted in this run: it vanishes with the repair of this finding "
        "(by repair)."
    )
    assert msgspec.structs.replace(found, with_findings=["e/y"], words="so").not_accepted == (
        "It vanishes with the repairs of e/x and e/y together (by repair): so; not all of them are accepted in this "
        "run."
    )


def test_what_a_remark_does_not_describe_may_be_the_root_cause_that_its_repair_removes() -> None:
    """It has the class and the circumstances of that one's case, in whatever requirement."""
    records = [remark("e/0", signature="not the cache; x"), record("e/1", signature="corrupt; x", requirement="LORA-5")]
    repairs = [repair("e/0", "e/1"), repair("e/1")]
    for signature, finding in (("corrupt; x; y", "e/1"), ("lost reuse; x", "")):
        case = msgspec.structs.replace(CASE, signature=signature, requirement="LORA-6")
        found = by_repairs(case, Candidates.of(case, records, repairs), Replays({"e/1": FAILS}, cause="e/0"))
        assert (found.finding, found.remark) == (finding, False)


@pytest.mark.parametrize(
    ("results", "requirement", "found"),
    [
        ({"e/0": OTHERWISE, "e/1": FAILS, "e/0,e/1": PASSES}, CASE.requirement, ("e/0", ["e/1"])),
        ({"e/0": OTHERWISE, "e/1": PASSES, "e/0,e/1": PASSES}, CASE.requirement, None),  # the remark's repair ends it
        ({"e/0": OTHERWISE, "e/1": FAILS, "e/0,e/1": OTHERWISE}, CASE.requirement, None),
        ({"e/0": OTHERWISE, "e/1": FAILS, "e/0,e/1": PASSES}, "SESS-2", None),
        ({"e/0": FAILS, "e/1": FAILS, "e/0,e/1": PASSES}, CASE.requirement, None),
    ],
)
def test_a_cause_behind_which_a_remark_shows_itself_is_found_without_halving(
    results: dict[str, Result], requirement: str, found: tuple[str, list[str]] | None
) -> None:
    """With its repair alone the case fails in another way, at times: what no contract forbids is there as well."""
    cause = record("e/0")
    remark = record("e/1", requirement=requirement, severity=Severity.REMARK, signature="accounting; reset")
    given = Candidates.of(CASE, [cause, remark, record("e/2", signature="x")], map(repair, ("e/0", "e/1", "e/2")))
    replays = Replays(results)
    got = by_repairs(CASE, given, replays)
    early = replays.tried[:3] == [("e/0",), ("e/0", "e/1"), ("e/1",)]
    assert (found is not None) == (early and got.is_known and (got.finding, got.with_findings) == found)
    assert not got.remark
    assert found is None or got.is_shown_by(got.findings, failed=False)  # as the check of a bundle asks
