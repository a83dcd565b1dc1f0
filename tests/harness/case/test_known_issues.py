"""A waiver waives what it names, on the versions it names, until it expires.

A file with an error is refused as a whole.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.paths import ROOT

from coldproof.adapters.registry import ENGINES
from coldproof.harness.case.attribution import by_signature
from coldproof.harness.case.finding_records import read_finding, read_records
from coldproof.harness.case.known_issues import (
    Accepted,
    Issue,
    KnownIssue,
    Waivers,
    named_issues,
    read_known_issues,
    without_end,
)
from coldproof.harness.options import UsageError
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import RequirementResult
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import fingerprint

TODAY = datetime.date(2026, 3, 1)
SIGNATURE = "stale state; in-place reload; same path; between requests"
ENTRY = {"requirement": "LORA-3", "signature": SIGNATURE, "versions": ">=0.32", "reason": "known", "link": "https://x"}


def issue(**changes: Any) -> KnownIssue:
    """Return a waiver that matches `case()`."""
    return KnownIssue(**{**ENTRY, **changes})


def case(**changes: Any) -> Case:
    """Return a case that `issue()` waives."""
    facts = {"requirement": "LORA-3", "cell": "default", "signature": SIGNATURE}
    return report_samples.case(**{**facts, **changes})


def waivers(*issues: KnownIssue, version: str | None = "0.32.0") -> Waivers:
    """Return these waivers, evaluated today."""
    return Waivers(list(issues), version=version, today=TODAY)


def result_of(*cells: tuple[str, Verdict], requirement: str = "LORA-3") -> RequirementResult:
    """Return the result of a requirement with these verdicts of its cells."""
    rows = [report_samples.cell(name, verdict) for name, verdict in cells]
    return report_samples.requirement(requirement, "a title", *rows)


CONFORMS = result_of(("default", Verdict.CONFORMS))


def state(one: KnownIssue, *cases: Case, ran: RequirementResult = CONFORMS, version: str | None = "0.32.0") -> str:
    """Return the state of a waiver after a run."""
    (row,) = waivers(one, version=version).report(list(cases), [ran])
    return row.state


def write_file(folder: Path, text: str | bytes) -> Path:
    """Write a known-issues file with this text, and return its path."""
    path = folder / "issues.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def entry(**changes: str) -> str:
    """Return an entry as TOML."""
    return "[[issue]]\n" + "\n".join(f'{key} = "{value}"' for key, value in {**ENTRY, **changes}.items())


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"requirement": "LORA-1"}, False),
        ({"requirement": "LORA-*"}, False),
        ({"cell": "default"}, True),
        ({"cell": "blocks-*"}, False),
        ({"cell": "d*t"}, True),
        ({"signature": "stale state; *"}, True),
        ({"signature": "*; same path; *"}, True),
        ({"signature": "stale state"}, False),
        ({"signature": "Stale state; *"}, False),
        ({"signature": "corrupt; *"}, False),
        ({"signature": None, "fingerprint": fingerprint(SIGNATURE)}, True),
        ({"signature": None, "fingerprint": "1a2b3c4d"}, False),
        ({"signature": "stale state; *", "fingerprint": fingerprint(SIGNATURE)}, True),
        ({"signature": "corrupt; *", "fingerprint": fingerprint(SIGNATURE)}, False),
        ({"fingerprint": "1a2b3c4d"}, False),
        ({"requirement": "LORA-1", "signature": None, "fingerprint": fingerprint(SIGNATURE)}, False),
    ],
)
def test_a_waiver_fits_by_requirement_cell_signature_and_fingerprint(changes: dict[str, Any], fits: bool) -> None:
    """Cell and signature are patterns for the whole text. Requirement and fingerprint must be equal."""
    assert (waivers(issue(**changes)).waive(case()) is not None) is fits


@pytest.mark.parametrize(("says", "fits"), [("in the sentence", True), ("in the log", True), ("elsewhere", False)])
def test_a_waiver_of_a_crash_says_how_the_engine_crashed(says: str, fits: bool) -> None:
    """The same requests may crash the engine in several ways."""
    ended = msgspec.structs.replace(case(), sentence="words in the sentence", log_tail="and in the log")
    assert (waivers(issue(says=says)).waive(ended) is not None) is fits


@pytest.mark.parametrize(
    ("versions", "version", "applies"),
    [
        (">=0.33.dev0,<0.34.dev0", "0.33.0rc1", True),
        (">=0.33.dev0,<0.34.dev0", "0.33.0.dev7", True),
        (">=0.33.dev0,<0.34.dev0", "0.33.2", True),
        (">=0.33.dev0,<0.34.dev0", "0.33.0+cpu", True),
        (">=0.33.dev0,<0.34.dev0", "0.34.0.dev5", False),
        (">=0.33.dev0,<0.34.dev0", "0.34.0rc1", False),
        (">=0.33.dev0,<0.34.dev0", "0.32.0", False),
        ("==0.32.0", "0.32.0+cpu", True),
        ("", "0.34.0rc1", True),
        (">=0.32", "unknown build", False),
        ("", None, False),
    ],
)
def test_a_waiver_is_for_the_versions_it_names(versions: str, version: str | None, applies: bool) -> None:
    """Release candidates count. No waiver applies to an unknown version."""
    assert (waivers(issue(versions=versions), version=version).waive(case()) is not None) is applies


@pytest.mark.parametrize(("days", "in_force"), [(-1, False), (0, True), (1, True)])
def test_a_waiver_is_in_force_until_the_end_of_its_last_day(days: int, in_force: bool) -> None:
    """It waives nothing from the day after."""
    limited = issue(expires=TODAY + datetime.timedelta(days=days))
    assert (waivers(limited).waive(case()) is not None) is in_force


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"signature": "nothing like it"}, True),
        ({"requirement": "LORA-9"}, False),
        ({"cell": "elsewhere-*"}, False),
        ({"versions": "<0.1"}, False),
        ({"expires": datetime.date(2020, 1, 1)}, False),
    ],
)
def test_whether_anything_may_be_waived_is_known_before_it_fails(changes: dict[str, Any], may: bool) -> None:
    """Requirement, cell, version and date decide. How it will fail is not known yet."""
    assert waivers(issue(**changes)).may_waive(case().requirement, case().cell) is may


def test_the_first_waiver_in_force_is_used() -> None:
    """An expired waiver before it is skipped."""
    expired, first, second = issue(expires=datetime.date(2020, 1, 1)), issue(reason="first"), issue(reason="second")
    assert waivers(expired, first, second).waive(case()) is first


@pytest.mark.parametrize(
    ("changes", "version", "expected"),
    [
        ({}, "0.32.0", "stale"),
        ({"requirement": "LORA-1"}, "0.32.0", "not exercised"),
        ({"cell": "tight"}, "0.32.0", "not exercised"),
        ({"expires": datetime.date(2026, 2, 28)}, "0.32.0", "expired"),
        ({"versions": "<0.32"}, "0.32.0", "not applicable"),
        ({"versions": "<0.32", "expires": datetime.date(2020, 1, 1)}, "0.32.0", "not applicable"),
        ({}, None, "not applicable"),
    ],
)
def test_a_waiver_that_waived_nothing_is_reported_with_the_reason(
    changes: dict[str, Any], version: str | None, expected: str
) -> None:
    """It is stale only if its requirement ran in its cells and conforms."""
    assert state(issue(**changes), version=version) == expected


@pytest.mark.parametrize(
    ("cells", "stale"),
    [
        ((Verdict.CONFORMS, Verdict.CONFORMS), True),
        ((Verdict.CONFORMS, Verdict.UNSUPPORTED), True),
        ((Verdict.UNSUPPORTED, Verdict.UNSUPPORTED), False),
        ((Verdict.CONFORMS, Verdict.VIOLATED), False),
        ((Verdict.KNOWN_ISSUE, Verdict.CONFORMS), False),
        ((Verdict.CONFORMS, Verdict.ERROR), False),
        ((Verdict.CONFORMS, Verdict.NOT_EXERCISED), False),
        ((Verdict.INCONCLUSIVE, Verdict.CONFORMS), False),
    ],
)
def test_a_waiver_is_not_stale_if_a_cell_fails_in_another_way(cells: tuple[Verdict, Verdict], stale: bool) -> None:
    """A waiver is stale only if every cell ran to the end.

    One counterexample ends a search, and an engine that did not start passes nothing, so such a waiver should not be
    removed.
    """
    ran = result_of(*zip(("default", "tight"), cells, strict=True))
    assert state(issue(), ran=ran) == ("stale" if stale else "not exercised")
    other = (cells[0], Verdict.VIOLATED)
    ran = result_of(*zip(("default", "tight"), other, strict=True))
    assert (state(issue(cell="default"), ran=ran) == "stale") is (cells[0] is Verdict.CONFORMS)


def test_a_used_waiver_names_its_cases() -> None:
    """It names only the cases that it waived."""
    (row,) = waivers(issue()).report([case(id="one"), case(id="two", cell="sync"), case(signature="other")], [])
    assert (row.state, row.cases) == ("used", ["one", "two"])


@pytest.mark.parametrize(
    ("changes", "given", "verdict"),
    [
        ({}, Verdict.CONFORMS, Verdict.KNOWN_ISSUE),
        ({}, Verdict.NOT_EXERCISED, Verdict.NOT_EXERCISED),
        ({}, Verdict.ERROR, Verdict.ERROR),
        ({"rate": None}, Verdict.CONFORMS, Verdict.CONFORMS),
        ({"cell": "tight"}, Verdict.CONFORMS, Verdict.CONFORMS),
        ({"versions": "<0.32"}, Verdict.CONFORMS, Verdict.CONFORMS),
        ({"expires": TODAY - datetime.timedelta(days=1)}, Verdict.CONFORMS, Verdict.CONFORMS),
    ],
)
def test_a_rare_issue_that_was_not_found_keeps_a_requirement_from_conforming(
    changes: dict[str, Any], given: Verdict, verdict: Verdict
) -> None:
    """This holds where the issue is known and in force, and the reason has its rate."""
    rare = issue(**{"rate": "found in 2 of 7 runs", **changes})
    found, reason = waivers(rare).with_rare("LORA-3", "default", given, "30 examples")
    assert found is verdict
    assert ("found in 2 of 7 runs" in reason) is (verdict is Verdict.KNOWN_ISSUE)
    assert "30 examples" in reason


def test_a_rare_issue_that_was_not_found_is_not_stale() -> None:
    """Its state has the rate."""
    assert state(issue(rate="found in 2 of 7 runs")) == "not found in this run, but found in 2 of 7 runs"


def test_an_expired_waiver_does_not_waive_its_fault() -> None:
    """The violation counts again, and the report says why."""
    assert state(issue(expires=datetime.date(2026, 2, 28)), case()) == "expired"


def test_a_waiver_by_fingerprint_is_reported_with_it() -> None:
    """It matches any signature with this fingerprint, and the report shows both."""
    (row,) = waivers(issue(signature=None, fingerprint="1a2b3c4d")).report([], [])
    assert (row.signature, row.fingerprint) == ("*", "1a2b3c4d")


def test_a_file_is_read_with_dates_and_patterns(tmp_path: Path) -> None:
    """An entry without a cell is for all cells, and an entry without a date never expires."""
    path = write_file(tmp_path, entry() + "\n" + entry(cell="blocks-*") + "\nexpires = 2026-12-31\n")
    assert read_known_issues(path) == [issue(), issue(cell="blocks-*", expires=datetime.date(2026, 12, 31))]
    assert read_known_issues(None) == []


@pytest.mark.parametrize(
    "text",
    [
        "[[issue]\n",
        entry().replace('reason = "known"\n', ""),
        entry(unknown="field"),
        entry(expiry="2026-12-31"),
        entry(versions="about 0.32"),
        entry(expires="next year"),
        entry().replace('"LORA-3"', "3"),
        "issue = 3",
        'issue = ["LORA-3"]',
        entry().replace("[[issue]]", "[[issues]]"),
        entry() + "\n" + entry().replace("[[issue]]", "[[issues]]"),
        'version = "0.32"\n' + entry(),
        entry(link=""),
        entry(link="  "),
        entry(reason=""),
        entry().replace(f'signature = "{SIGNATURE}"\n', ""),
        entry(fingerprint="1A2B3C4D"),
        entry(fingerprint="1a2b3c4d5"),
        entry(fingerprint="1a2b3c4d\\n"),
        entry(link="", requirement="LORA\\n3"),
        b"\xff\xfe",
        entry(reason="caf\xe9").encode("latin-1"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(text: str | bytes, tmp_path: Path) -> None:
    """Bad syntax, encoding, fields, tables, types and version specifiers are each refused in one line with the path."""
    path = write_file(tmp_path, text)
    with pytest.raises(UsageError, match=str(path)) as refused:
        read_known_issues(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"link": ""}, "entry 2, for 'LORA-3', has an empty link: give the upstream report"),
        ({"reason": " "}, "entry 2, for 'LORA-3', has an empty reason"),
    ],
)
def test_an_incomplete_entry_is_named(changes: dict[str, str], says: str, tmp_path: Path) -> None:
    """A proposal that was copied without changes waives nothing: the file is refused with the entry's number."""
    with pytest.raises(UsageError, match=says):
        read_known_issues(write_file(tmp_path, entry() + "\n" + entry(**changes)))


def test_an_entry_may_name_a_fingerprint_alone_or_with_a_signature(tmp_path: Path) -> None:
    """An entry needs at least one of them."""
    alone = entry(fingerprint="1a2b3c4d").replace(f'signature = "{SIGNATURE}"\n', "")
    read = read_known_issues(write_file(tmp_path, alone + "\n" + entry(fingerprint="1a2b3c4d")))
    assert read == [issue(signature=None, fingerprint="1a2b3c4d"), issue(fingerprint="1a2b3c4d")]


def test_a_file_without_entries_waives_nothing(tmp_path: Path) -> None:
    """The file of an engine without known issues has only a comment."""
    path = tmp_path / "known.toml"
    for text in ("", "# None so far.\n"):
        path.write_text(text)
        assert read_known_issues(path) == []


@pytest.mark.parametrize("path", sorted((ROOT / "adapters").glob("*/*_issues.toml")), ids=str)
def test_our_own_files_can_be_used(path: Path) -> None:
    """Runs use the known issues, and histories of releases the past ones."""
    assert read_known_issues(path)
    if path.stem == "known_issues":
        assert named_issues(path.parent.name).samefile(path)


def test_a_file_of_the_users_goes_before_that_of_an_engine(tmp_path: Path) -> None:
    """An engine's name stands for the file that ships for it, unless there is such a file."""
    assert named_issues("vllm", tmp_path) == ENGINES["vllm"].known_issues
    (tmp_path / "vllm").write_text("")
    assert named_issues("vllm", tmp_path) == tmp_path / "vllm"
    assert named_issues("mine.toml", tmp_path) == tmp_path / "mine.toml"


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    """A waiver file that cannot be read must not be treated as an empty one."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            read_known_issues(path)


@pytest.mark.parametrize(("worker", "applies"), [("model", True), ("fingerprint", False)])
def test_a_waiver_for_the_worker_with_a_model_is_not_stale_without_one(worker: str, applies: bool) -> None:
    """A waiver for another worker is not applicable, and therefore not stale either."""
    one = issue(worker="model")
    waivers = Waivers([one], version="0.32.0", today=TODAY, worker=worker)
    assert waivers.applies(one) is applies
    (row,) = waivers.report([], [CONFORMS])
    assert row.state == ("stale" if applies else "not applicable")


FINDING = "vllm/adapter-key-lacks-the-contents"
ACCEPTED = f'[[accepted]]\nfinding = "{FINDING}"\nversions = ">=0.32"\nreason = "known"\n'


def accepted(folder: Path, text: str = ACCEPTED) -> Issue:
    """Return the accepted finding of a file."""
    (one,) = read_known_issues(write_file(folder, text))
    return one


@pytest.mark.parametrize(
    ("found", "waived"),
    [
        (None, False),
        (Attribution(basis=Basis.REPAIR, finding=FINDING), True),
        (Attribution(basis=Basis.LOCAL, finding=FINDING), True),
        (Attribution(basis=Basis.REPAIR, finding="vllm/rows-behind-a-prompt-enter-the-key"), False),
        (Attribution(basis=Basis.SIGNATURE, finding=FINDING), True),
        (Attribution(basis=Basis.UNDECIDED, candidates=[FINDING]), False),
        (Attribution(basis=Basis.NEW), False),
        (Attribution(basis=Basis.NOT_TRIED), False),
    ],
)
def test_an_accepted_finding_waives_what_belongs_to_it(found: Attribution | None, waived: bool, tmp_path: Path) -> None:
    """A case that is only like it, or that nobody could attribute, is not waived."""
    one = accepted(tmp_path)
    assert (Waivers([one], version="0.32.0", today=TODAY).waive(case(attribution=found)) is one) is waived
    assert str(one) == f"known ({FINDING})"


@pytest.mark.parametrize(("also", "waived"), [(True, True), (False, False)])
def test_of_two_causes_with_one_signature_both_have_to_be_accepted(also: bool, waived: bool, tmp_path: Path) -> None:
    """No repair tells which of them it is. With only one accepted, it may be the other."""
    names = ["llamacpp/host-cache-lacks-the-adapters", "llamacpp/slot-keeps-the-adapter"]
    text = "".join(ACCEPTED.replace(FINDING, name) for name in (names if also else names[:1]))
    issues = read_known_issues(write_file(tmp_path, text))
    found = Attribution(basis=Basis.SIGNATURE, candidates=names)
    alike = case(
        requirement="LORA-4", cell="llamacpp-host-cache", signature="stale state; no reload", attribution=found
    )
    waivers = Waivers(issues, version="0.32.0", today=TODAY)
    assert (waivers.waive(alike) is not None) is waived
    undecided = msgspec.structs.replace(found, basis=Basis.UNDECIDED)
    assert waivers.waive(msgspec.structs.replace(alike, attribution=undecided)) is None
    beside_remark = msgspec.structs.replace(found, candidates=[*names, "vllm/reload-changes-running-answers"])
    assert waivers.waive(msgspec.structs.replace(alike, attribution=beside_remark)) is None


@pytest.mark.parametrize(
    ("names", "accepting", "waived"),
    [
        ([FINDING, "vllm/rows-behind-a-prompt-enter-the-key"], 2, True),
        ([FINDING, "vllm/rows-behind-a-prompt-enter-the-key"], 1, False),
        ([FINDING, "vllm/reload-changes-running-answers"], 1, True),  # a remark needs no waiver
    ],
)
def test_causes_that_act_together_all_have_to_be_accepted(
    names: list[str], accepting: int, waived: bool, tmp_path: Path
) -> None:
    """With one of them repaired, the case still fails."""
    text = "".join(ACCEPTED.replace(FINDING, name) for name in names[:accepting])
    found = Attribution(basis=Basis.REPAIR, finding=names[0], with_findings=names[1:])
    waivers = Waivers(read_known_issues(write_file(tmp_path, text)), version="0.32.0", today=TODAY)
    assert (waivers.waive(case(attribution=found)) is not None) is waived


@pytest.mark.parametrize("engine", ["llamacpp", "openvino"])
def test_what_an_engine_without_repairs_is_accepted_for_is_accepted(engine: str) -> None:
    """Else a run of it would fail by a cause that its file accepts: two causes may have one signature."""
    records = [one for one in read_records().values() if one.engine == engine]
    issues = read_known_issues(ROOT / "adapters" / engine / "known_issues.toml")
    found = [read_finding(one.record).case for one in issues if isinstance(one, Accepted)]
    cases = [one for one in found if one is not None]
    assert cases
    for one in cases:
        own = msgspec.structs.replace(one, attribution=by_signature(one, records, "no repair"))
        assert Waivers(issues, version=own.engine_version, today=TODAY).waive(own) is not None, one.id


@pytest.mark.parametrize(
    ("finding", "versions"),
    [(FINDING, "<0.31"), (FINDING, ">=0.33.dev0,<0.34.dev0"), ("llamacpp/context-shift-is-a-prefix", ">=2026.10")],
)
def test_patterns_decide_about_a_finding_where_no_repair_does(finding: str, versions: str, tmp_path: Path) -> None:
    """None is for these versions, or for this engine."""
    (one,) = read_known_issues(write_file(tmp_path, entry(finding=finding, versions=versions)))
    assert (one.finding, one.versions) == (finding, versions)


def test_by_signature_alone_the_record_decides(tmp_path: Path) -> None:
    """A case that says so, and does not have the finding's signature, was altered."""
    found = Attribution(basis=Basis.SIGNATURE, finding=FINDING)
    waivers = Waivers([accepted(tmp_path)], version="0.32.0", today=TODAY)
    assert waivers.waive(case(attribution=found, signature="crash; no reload")) is None


def test_an_accepted_finding_is_for_its_versions_until_it_expires(tmp_path: Path) -> None:
    """As any entry."""
    found = case(attribution=Attribution(basis=Basis.REPAIR, finding=FINDING))
    one = accepted(tmp_path, ACCEPTED + "expires = 2026-02-28\n")
    assert Waivers([one], version="0.32.0", today=TODAY).waive(found) is None
    assert Waivers([without_end(one)], version="0.32.0", today=TODAY).waive(found) is not None
    assert Waivers([without_end(one)], version="0.31.0", today=TODAY).waive(found) is None
    assert Waivers([without_end(one)], version="0.32.0", today=TODAY, repaired={FINDING}).waive(found) is None


def test_a_history_explains_a_case_that_no_run_attributed(tmp_path: Path) -> None:
    """By the signature of the finding's record. It waives nothing."""
    one = accepted(tmp_path)
    waivers = Waivers([one], version="0.32.0", today=TODAY)
    assert (waivers.waive(case()), waivers.explain(case())) == (None, one)
    assert waivers.explain(case(signature="crash; no reload")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ACCEPTED.replace(FINDING, "vllm/nosuch"), "accepted finding 1, 'vllm/nosuch', is unknown"),
        (ACCEPTED.replace('"known"', '""'), "has an empty reason"),
        (ACCEPTED + ACCEPTED, f"accepted finding 2, '{FINDING}', is there twice"),
        (ACCEPTED + 'signature = "crash; *"\n', "unknown field `signature`"),
        (
            entry(finding=FINDING),
            rf"patterns for the finding '{FINDING}', .* write \[\[accepted\]\]",
        ),
        (entry(finding="vllm/nosuch"), "names the finding 'vllm/nosuch', which is unknown"),
    ],
)
def test_a_faulty_accepted_finding_is_refused_with_what_to_write(text: str, says: str, tmp_path: Path) -> None:
    """So is an entry of the older form, whose patterns a repair replaces."""
    with pytest.raises(UsageError, match=says):
        read_known_issues(write_file(tmp_path, text))


def test_a_waiver_does_not_hide_what_is_violated_on_an_engine_without_its_cause() -> None:
    """A repair removes the cause, so that a violation with the same signature has another one."""
    known, other = issue(finding="vllm/one"), issue(finding="vllm/other")
    waivers = Waivers([known, other], version="0.32.0", today=TODAY, repaired={"vllm/one"})
    assert waivers.waive(case()) is other
    assert Waivers([known], version="0.32.0", today=TODAY, repaired={"vllm/one"}).waive(case()) is None
