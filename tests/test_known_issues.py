"""A waiver waives what it names, on the versions it names, until it expires; a file that is wrong is refused whole."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.known_issues import KnownIssue, Waivers, read_known_issues
from harness.options import UsageError
from reports.schema import Case
from tests import report_samples

TODAY = datetime.date(2026, 3, 1)
SIGNATURE = "stale state; in-place reload; same path; between requests"
ENTRY = {"requirement": "LORA-3", "signature": SIGNATURE, "versions": ">=0.32", "reason": "known", "link": "https://x"}


def issue(**changes: Any) -> KnownIssue:
    """A waiver that fits `case()`."""
    return KnownIssue(**{**ENTRY, **changes})


def case(**changes: Any) -> Case:
    """A case that `issue()` waives."""
    facts = {"requirement": "LORA-3", "cell": "default", "signature": SIGNATURE}
    return report_samples.case(**{**facts, **changes})


def waivers(*issues: KnownIssue, version: str | None = "0.32.0") -> Waivers:
    """These waivers, today."""
    return Waivers(list(issues), version=version, today=TODAY)


def state(one: KnownIssue, *cases: Case, ran: tuple[str, ...] = ("LORA-3",), version: str | None = "0.32.0") -> str:
    """What became of a waiver in a run."""
    (row,) = waivers(one, version=version).report(list(cases), set(ran))
    return row.state


def written(folder: Path, text: str | bytes) -> Path:
    """A known-issues file with this text."""
    path = folder / "issues.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def entry(**changes: str) -> str:
    """One entry as TOML."""
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
    ],
)
def test_a_waiver_fits_by_requirement_cell_and_signature(changes: dict[str, str], fits: bool) -> None:
    """Cell and signature are patterns over the whole text, the requirement is spelled out."""
    assert (waivers(issue(**changes)).waive(case()) is not None) is fits


@pytest.mark.parametrize(
    ("versions", "version", "meant"),
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
def test_a_waiver_is_for_the_versions_it_names(versions: str, version: str | None, meant: bool) -> None:
    """Release candidates count; a version that cannot be told is never waived for."""
    assert (waivers(issue(versions=versions), version=version).waive(case()) is not None) is meant


@pytest.mark.parametrize(("days", "in_force"), [(-1, False), (0, True), (1, True)])
def test_a_waiver_holds_through_the_day_it_expires(days: int, in_force: bool) -> None:
    """The day after it waives nothing."""
    limited = issue(expires=TODAY + datetime.timedelta(days=days))
    assert (waivers(limited).waive(case()) is not None) is in_force


def test_the_first_waiver_in_force_is_the_one() -> None:
    """One that has expired stands in nobody's way."""
    expired, first, second = issue(expires=datetime.date(2020, 1, 1)), issue(reason="first"), issue(reason="second")
    assert waivers(expired, first, second).waive(case()) is first


@pytest.mark.parametrize(
    ("changes", "ran", "version", "expected"),
    [
        ({}, ("LORA-3",), "0.32.0", "stale"),
        ({}, ("LORA-1",), "0.32.0", "not exercised"),
        ({"expires": datetime.date(2026, 2, 28)}, ("LORA-3",), "0.32.0", "expired"),
        ({"versions": "<0.32"}, ("LORA-3",), "0.32.0", "not applicable"),
        ({"versions": "<0.32", "expires": datetime.date(2020, 1, 1)}, ("LORA-3",), "0.32.0", "not applicable"),
        ({}, ("LORA-3",), None, "not applicable"),
    ],
)
def test_a_waiver_that_waived_nothing_is_reported_with_the_reason(
    changes: dict[str, Any], ran: tuple[str, ...], version: str | None, expected: str
) -> None:
    """Stale only where its requirement ran here and the fault did not show."""
    assert state(issue(**changes), ran=ran, version=version) == expected


def test_a_waiver_that_fired_names_its_cases() -> None:
    """And only those that it waived."""
    (row,) = waivers(issue()).report([case(id="one"), case(id="two", cell="sync"), case(signature="other")], {"LORA-3"})
    assert (row.state, row.cases) == ("used", ["one", "two"])


def test_an_expired_waiver_is_not_used_by_the_fault_it_named() -> None:
    """The violation counts again, and the report says why."""
    assert state(issue(expires=datetime.date(2026, 2, 28)), case()) == "expired"


def test_a_file_is_read_with_dates_and_patterns(tmp_path: Path) -> None:
    """Without a cell it is meant for all of them, without an expiry for ever."""
    path = written(tmp_path, entry() + "\n" + entry(cell="blocks-*") + "\nexpires = 2026-12-31\n")
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
        b"\xff\xfe",
        entry(reason="caf\xe9").encode("latin-1"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(text: str | bytes, tmp_path: Path) -> None:
    """Syntax, encoding, missing, unknown or misspelled fields or tables, wrong types, no version specifier: one line,
    with the path."""
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=str(path)) as refused:
        read_known_issues(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    """A waiver file that cannot be read must not be taken for an empty one."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            read_known_issues(path)


@pytest.mark.parametrize(("worker", "applies"), [("model", True), ("fingerprint", False)])
def test_a_fault_of_arithmetic_is_not_missed_where_there_is_none(worker: str, applies: bool) -> None:
    """Its waiver is not applicable there, and so not stale either."""
    one = issue(worker="model")
    waivers = Waivers([one], version="0.32.0", today=TODAY, worker=worker)
    assert waivers.applies(one) is applies
    (row,) = waivers.report([], {one.requirement})
    assert row.state == ("stale" if applies else "not applicable")
