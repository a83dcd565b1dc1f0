"""Each record of a finding is complete, each case loads, and is accepted by the finding's name."""

from __future__ import annotations

import ast
import datetime
import fnmatch
import re
import socket
import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from support.case_samples import stale
from support.paths import ROOT

from coldproof.adapters.registry import ATTACHED, CELLS, ENGINES
from coldproof.harness.case.finding_folder import portable, report_of, script_of
from coldproof.harness.case.finding_issue import issue_text
from coldproof.harness.case.finding_records import (
    CASE,
    FOLDER,
    ISSUE,
    RECORD,
    REGRESSION,
    REPRODUCER,
    SCRIPT,
    StoredFinding,
    inconsistent,
    is_regression,
    read_finding,
    read_record,
    read_records,
)
from coldproof.harness.case.known_issues import Accepted, is_alike, read_known_issues, shows
from coldproof.harness.case.repairs import REPAIR, read_repairs, repairing
from coldproof.harness.case.reproducer.script import reproduction
from coldproof.harness.options import UsageError
from coldproof.harness.schema.findings import Contract, FindingRecord, FindingStatus, Hit, Search
from coldproof.harness.schema.verdict import FailureClass

RECORDS = read_records()
WAIVERS = {
    path.parent.name: read_known_issues(path) for path in sorted((ROOT / "adapters").glob("*/known_issues.toml"))
}
MACHINE = re.compile(r"(?<![\w.-])/(?:work|home|root|Users|mnt|var)/")
MIN_FINDINGS = 40
MAX_LINES = 820  # lines of a script that is made from a case: images, and the model that takes them
MAX_SHORT_LINES = 25
NEW_LINE = "\n"
MAX_WORDS, MEDIAN_WORDS = 500, 300  # of a report without its diff
REPAIRS = read_repairs()
REQUIRED_PYTHON = re.compile(r"Needs Python 3\.11")


def with_case() -> list[FindingRecord]:
    """Return the records that have a case."""
    return [record for record in RECORDS.values() if record.no_case is None]


def test_there_are_as_many_as_the_documentation_says() -> None:
    """Each has its own title, cause and reason why it is distinct."""
    assert len(RECORDS) >= MIN_FINDINGS
    for field in ("title", "cause", "distinct"):
        assert len({(one.engine, getattr(one, field)) for one in RECORDS.values()}) == len(RECORDS)


@pytest.mark.parametrize("record", with_case(), ids=lambda record: record.id)
def test_each_case_is_that_of_its_record_and_can_be_replayed(record: FindingRecord) -> None:
    """Its cell and engine exist, it was confirmed, and its command names it."""
    finding = read_finding(record)
    case = finding.case
    assert case is not None
    if case.cell == ATTACHED.name:
        assert case.replay.startswith(f"coldproof replay findings/{record.id}/case.json ")
    else:
        assert CELLS[case.cell].fits(case.engine, record.found.worker)
    assert case.known_issue is None
    assert not case.history_dependent
    assert record.id in case.replay
    assert {CASE, RECORD} <= files_of(finding) <= {CASE, RECORD, REPAIR, SCRIPT, REGRESSION}  # its report is generated


def files_of(finding: StoredFinding) -> set[str]:
    """Return the names of the files in the folder of a finding."""
    return {path.name for path in finding.folder.iterdir()}


@pytest.mark.parametrize("record", with_case(), ids=lambda record: record.id)
def test_each_script_can_be_generated(record: FindingRecord) -> None:
    """It compiles, defines each name once, imports nothing of Coldproof, and calls only methods of its client."""
    finding = read_finding(record)
    assert finding.case is not None
    source = script_of(finding, from_case=True)
    tree = ast.parse(source)
    compile(source, f"{record.id}.py", "exec")
    assert "import coldproof" not in source
    assert "from coldproof" not in source
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    client = reproduction(finding.case).client.split(":")[1]
    story = next((name for name, node in classes.items() if "Story" in map(ast.unparse, node.bases)), "Story")
    (scenario,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "scenario")
    for owner, name in calls_of(scenario):
        assert name in methods_of(classes, client if owner == "client" else story), (owner, name)
    assert REQUIRED_PYTHON.search(ast.get_docstring(tree) or "")
    assert len(source.splitlines()) <= MAX_LINES


def calls_of(scenario: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the owner and the name of each method that a scenario calls. The owner is the story or its client."""
    for node in ast.walk(scenario):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Attribute) or (isinstance(owner, ast.Name) and owner.id == "story"):
                yield ("client" if isinstance(owner, ast.Attribute) else "story"), node.func.attr


def methods_of(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """Return the methods of a class and of its base classes."""
    node = classes[name]
    own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return own.union(*(methods_of(classes, base) for base in bases))


@pytest.mark.parametrize("record", with_case(), ids=lambda record: record.id)
def test_each_report_can_be_generated(record: FindingRecord) -> None:
    """The report has the title and the cause of the record, and its commands exist. It is one screen."""
    text = report_of(read_finding(record), repair=repairing(record.id, REPAIRS.values()))
    assert text.startswith(("# [Bug] ", "# [Question] "))
    assert len(text.split()) <= MAX_WORDS
    assert record.title in text
    assert record.cause.strip() in text
    for name in re.findall(r"coldproof findings --\w+ (\S+?)`", text):
        assert name in RECORDS


def test_a_finding_without_a_case_has_only_files_written_by_hand() -> None:
    """It may have a script and a report, and no generated file."""
    for record in RECORDS.values():
        if record.no_case is not None:
            finding = read_finding(record)
            names = files_of(finding)
            assert names <= {RECORD, REPRODUCER, ISSUE, REPAIR, SCRIPT}
            if REPRODUCER in names:
                compile(script_of(finding), record.id, "exec")


@pytest.mark.parametrize("record", with_case(), ids=lambda record: record.id)
def test_a_finding_is_accepted_by_its_name_where_it_is_seen(record: FindingRecord) -> None:
    """A run then recognises it by its case. A fixed finding is not accepted for the release that fixed it."""
    case = read_finding(record).case
    assert case is not None
    named = [issue for issue in WAIVERS.get(record.engine, []) if issue.finding == record.id]
    if record.status is FindingStatus.FIXED:
        assert record.fixed_in is not None
        assert not any(SpecifierSet(issue.versions).contains(record.fixed_in) for issue in named)
    else:
        assert is_alike(record, case)
        assert any(SpecifierSet(one.versions).contains(record.last_release, prereleases=True) for one in named)


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.id)
def test_signatures_decide_only_where_no_repair_does(record: FindingRecord) -> None:
    """The record of a root cause with a repair has no patterns, unless it is found in the layer of servers, in which
    nothing is replayed with repairs. Those without a repair match their own case. No pattern names a failure of every
    kind; those of a remark with a repair are what it does besides its own case.
    """
    repaired = repairing(record.id, read_repairs(record.engine).values()) is not None
    if repaired and record.is_root_cause and record.found.layer != "server":
        assert not record.shows
    case = read_finding(record).case
    if record.shows and not repaired and case is not None and record.status is not FindingStatus.FIXED:
        assert any(shows(one, case) for one in record.shows)
    for one in record.shows:
        assert one.signature.strip("*? ;"), one
        assert any(fnmatch.fnmatchcase(name, one.cell) for name in (*CELLS, ATTACHED.name)), one


@pytest.mark.parametrize("engine", WAIVERS)
def test_our_own_files_accept_nothing_but_findings(engine: str) -> None:
    """Each is a finding of the engine, and is there once."""
    names = [issue.finding for issue in WAIVERS[engine] if isinstance(issue, Accepted)]
    assert len(names) == len(WAIVERS[engine]) == len(set(names))
    assert all(name.startswith(f"{engine}/") for name in names)


def test_no_file_names_the_machine_that_found_it() -> None:
    """No file has a folder or the host name of that machine."""
    host = socket.gethostname()
    names = [host] if re.search(r"[\d-]", host) else []  # another name may be a word of the field
    files = [path for path in FOLDER.glob("*/*/*") if path.is_file()]
    assert len(files) > MIN_FINDINGS
    for path in files:
        text = path.read_text()
        assert MACHINE.search(text) is None, (path, MACHINE.search(text))
        assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)], path


def test_a_case_loses_the_paths_of_its_machine() -> None:
    """Paths go from its configuration, log and messages. A generated model gets a neutral path, and routes stay."""
    model = "/home/x/.cache/models/0123456789abcdef"
    case = msgspec.structs.replace(
        stale(),
        failure_class=FailureClass.CRASH,
        engine_config={"command": f"serve --model {model} --port 80", "tier": '{"path": "/home/me/run/a.tier"}'},
        log_tail='File "/root/env/lib/python3.11/site-packages/vllm/x.py"\nPOST /v1/completions /inference/v1/generate http://a/b/c',
        known_issue="waived",
        replay="coldproof replay /home/out/cases/x.json",
    )
    kept = portable(case, "vllm/x")
    assert kept.engine_config == {
        "command": "serve --model /tmp/coldproof/models/0123456789abcdef --port 80",
        "tier": '{"path": "a.tier"}',
    }
    assert kept.log_tail == 'File "site-packages/vllm/x.py"\nPOST /v1/completions /inference/v1/generate http://a/b/c'
    assert kept.known_issue is None
    assert kept.replay == "coldproof findings --replay vllm/x"


LINK_OF_SEARCH = "https://github.com/vllm-project/vllm/pull/1"
SEARCH = Search(
    date=datetime.date(2026, 11, 28),
    queries=["issues: a", "docs: b", "pages: c"],
    nearest=[Hit(link=LINK_OF_SEARCH, note="another cause")],
)
RECORD_OF_CASE = msgspec.structs.replace(
    next(record for record in with_case() if record.id == "vllm/failed-load-stays-in-the-cache"),
    status=FindingStatus.NEW,
    search=SEARCH,
    upstream=[],
    with_pull_request=None,
)
CONTRACT = Contract(sentence="Tiers are kept.", place="a docstring")
LINK = "https://github.com/vllm-project/vllm/issues/1"


@pytest.mark.parametrize(
    ("changes", "name", "error"),
    [
        ({}, "vllm/good-name", ""),
        ({"engine": "other"}, "vllm/x", "is not the engine 'other'"),
        ({}, "vllm/Bad", "with a name of small letters"),
        ({"fixed_in": "1"}, "vllm/x", "names the release in `fixed_in`"),
        ({"status": FindingStatus.FIXED}, "vllm/x", "names the release in `fixed_in`"),
        ({"search": None}, "vllm/x", "needs a [search] of at least 3 queries"),
        ({"search": msgspec.structs.replace(SEARCH, queries=["a", "b"])}, "vllm/x", "at least 3 queries"),
        ({"search": msgspec.structs.replace(SEARCH, queries=["a", "b", "a"])}, "vllm/x", "at least 3 queries"),
        ({"upstream": [LINK]}, "vllm/x", "a public report in `upstream` is not `new`"),
        ({"status": FindingStatus.NOT_SEARCHED, "search": None}, "vllm/x", ""),
        ({"status": FindingStatus.NOT_SEARCHED, "upstream": [LINK]}, "vllm/x", "is not `not searched`"),
        ({"status": FindingStatus.REPORTED}, "vllm/x", "needs the link"),
        ({"status": FindingStatus.REPORTED, "upstream": [LINK], "search": None}, "vllm/x", ""),
        ({"status": FindingStatus.PULL_REQUEST, "with_pull_request": "it passes"}, "vllm/x", "needs the link"),
        ({"status": FindingStatus.PULL_REQUEST, "upstream": [LINK]}, "vllm/x", "whether its case passes"),
        ({"with_pull_request": "it passes"}, "vllm/x", "no other does"),
        ({"status": FindingStatus.BY_DESIGN}, "vllm/x", "quotes the sentence in [contract]"),
        ({"status": FindingStatus.BY_DESIGN, "contract": CONTRACT}, "vllm/x", ""),
        ({"status": FindingStatus.LIMITATION}, "vllm/x", "quotes the sentence in [contract]"),
        ({"contract": CONTRACT}, "vllm/x", "no other finding does"),
        ({"id": "vllm/x"}, "vllm/x", "leave out `id`"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, object], name: str, error: str) -> None:
    """The error says what is wrong."""
    record = msgspec.structs.replace(RECORD_OF_CASE, **{"id": "", "engine": "vllm", **changes})
    found = inconsistent(record, name)
    assert error in found
    assert bool(found) == bool(error)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title = ", "topic = "),
        ("[found]", "[seen]"),
        ("distinct = ", "#"),
        ("severity = ", "#"),
        ("severity = .*", 'severity = "terrible"'),
        ("status = .*", 'status = "new"\nupstream = ["not reported"]'),
    ],
)
def test_an_incomplete_record_is_refused(old: str, new: str, tmp_path: Path) -> None:
    """The error has the path of the file."""
    folder = tmp_path / "vllm" / "x"
    folder.mkdir(parents=True)
    text = (FOLDER / RECORD_OF_CASE.id / RECORD).read_text()
    (folder / RECORD).write_text(re.sub(rf"(?m)^{re.escape(old) if old.startswith('[') else old}", new, text))
    with pytest.raises(UsageError, match=re.escape(str(folder / RECORD))):
        read_record(folder / RECORD)


def test_a_case_of_another_failure_is_refused() -> None:
    """A record and its case must agree."""
    with pytest.raises(UsageError, match="is not the case of its record"):
        read_finding(msgspec.structs.replace(RECORD_OF_CASE, signature="stale state; something else"))
    with pytest.raises(UsageError, match="its record says why there is none"):
        read_finding(msgspec.structs.replace(RECORD_OF_CASE, no_case="lost"))


@pytest.mark.parametrize(
    ("fixed_in", "version", "expected"),
    [
        ("0.31.0", "0.31.0", True),
        ("0.31.0", "0.32.0rc1", True),
        ("0.31.0", "0.31.0rc1", False),
        ("0.31.0", "0.30.9", False),
        ("0.31.0", None, False),
        ("0.31.0", "main", False),
        (None, "0.32.0", False),
    ],
)
def test_a_regression_is_a_failure_of_a_release_that_has_the_fix(
    fixed_in: str | None, version: str | None, expected: bool
) -> None:
    """A version that cannot be compared has no regression."""
    assert is_regression(msgspec.structs.replace(RECORD_OF_CASE, fixed_in=fixed_in), version) is expected


def test_reports_are_short() -> None:
    """Half of them have at most as many words as a screen."""
    texts = (report_of(read_finding(one), repair=repairing(one.id, REPAIRS.values())) for one in with_case())
    assert statistics.median(len(text.split()) for text in texts) <= MEDIAN_WORDS


@pytest.mark.parametrize("record", with_case(), ids=lambda record: record.id)
def test_a_report_without_a_script_has_only_what_matters(record: FindingRecord) -> None:
    """Its command has no variable that changes no answer, and tokens are expected only where others were seen."""
    case = read_finding(record).case
    assert case is not None
    text = issue_text(record, case)
    assert not [name for name in reproduction(case).left_out if f"{name}=" in text]
    if case.first_difference is None:
        assert "Expected: what a cold start shows" in text
    else:
        assert "Expected: the answer of a cold start, tokens" in text


def test_the_report_to_file_has_cause_script_and_repair_in_this_order() -> None:
    """Its title is that of the record. The script's own line says what is seen, and the diff is a block of its own."""
    finding = read_finding(msgspec.structs.replace(RECORD_OF_CASE, prints="hits: 3; expected: 0"))
    assert finding.script is not None
    text = report_of(finding, repair=REPAIRS[RECORD_OF_CASE.id], diff="-a\n+```b\n")
    assert RECORD_OF_CASE.title in text.splitlines()[0]
    parts = (
        RECORD_OF_CASE.cause.strip(),
        f"`{RECORD_OF_CASE.source[0]}`",
        f"```python\n{finding.script.partition(NEW_LINE * 2)[2].rstrip()}\n```",
        "`hits: 3; expected: 0`",
        REPAIRS[RECORD_OF_CASE.id].title,
        "````diff\n-a\n+```b\n````",
        LINK_OF_SEARCH,
        f"`coldproof findings --replay {RECORD_OF_CASE.id}`",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_report_of_a_finding_without_a_short_script_has_the_steps_of_its_case() -> None:
    """It says what was observed and expected, and text of the engine cannot leave its place."""
    case = read_finding(RECORD_OF_CASE).case
    assert case is not None
    hostile = msgspec.structs.replace(case, sentence="Request 1 <b>failed</b>\n# owned")
    text = issue_text(RECORD_OF_CASE, hostile)
    assert "Observed: Request 1 &lt;b&gt;failed&lt;/b&gt; \\# owned" in text
    assert "1. send: " in text
    assert f"`coldproof findings --script {RECORD_OF_CASE.id}`" in text
    assert "requirement TIER-4" in text


@pytest.mark.parametrize("path", sorted(FOLDER.glob(f"*/*/{SCRIPT}")), ids=lambda path: "/".join(path.parts[-3:-1]))
def test_a_short_script_stands_alone(path: Path) -> None:
    """It compiles, has at most 25 lines, uses nothing of Coldproof, and says what it expects."""
    source = path.read_text()
    tree = ast.parse(source)
    assert len(source.splitlines()) <= MAX_SHORT_LINES
    assert re.search(r"Exit status 1: (the bug|as described)\.$", ast.get_docstring(tree) or "")
    assert "coldproof" not in source
    assert "expected" in source
    record = RECORDS["/".join(path.parts[-3:-1])]
    assert record.prints is not None
    assert "expected" in record.prints


def test_engines_of_findings_are_known_or_have_no_case() -> None:
    """A library that uses an engine, such as TRL, is not an engine."""
    assert all(record.found.adapter in ENGINES for record in RECORDS.values())
