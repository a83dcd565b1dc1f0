"""What `--profile qualify` refuses, records and freezes. Errors come in a clear line before any engine starts."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from packaging.version import Version
from support import bundles
from support.bundles import FROZEN
from support.fake_reply import ServerBehaviour
from support.fake_server import serving
from support.paths import ROOT
from support.qualified_tree import make_tree, python

from coldproof.adapters import registry
from coldproof.harness.cli.main import main
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.options import Options, UsageError
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.requirements import frozen, suites
from coldproof.harness.release.requirements.frozen import (
    FrozenList,
    differences,
    encode,
    list_path,
    read_frozen,
    versions,
)
from coldproof.harness.release.requirements.statements import statements
from coldproof.harness.release.run import record
from coldproof.harness.release.run.rules import FORBIDDEN, check_folder, check_qualify_options
from coldproof.harness.release.run.sources import PACKAGES, source_commit, source_files, sources_digest
from coldproof.harness.schema.results import read_results

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_released_version_keeps_its_requirements(capsys: pytest.CaptureFixture[str]) -> None:
    """A change after a release needs a new version. A version that is not released has nothing to compare with."""
    assert main(["freeze", "--check"]) == (0 if VERSION in versions() else 1), capsys.readouterr().err


def test_no_released_version_is_newer_than_the_project() -> None:
    """The newest list is that of the checkout."""
    assert [one for one in versions() if Version(one) > Version(VERSION)] == []


def test_a_list_is_written_once_and_checked_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, there is nothing to check, which is not a success. Afterwards the list is not overwritten."""
    monkeypatch.setattr(frozen, "LISTS", tmp_path / "lists")
    assert main(["freeze", "--check"]) == 1
    assert f"version {VERSION} has no frozen list of requirements yet" in capsys.readouterr().err
    assert main(["freeze"]) == 0
    assert main(["freeze", "--check"]) == 0
    listed, _ = read_frozen(VERSION)
    first, *others = listed.tests
    before = encode(msgspec.structs.replace(listed, tests=tuple(others)))
    list_path(VERSION).write_bytes(before)
    for words in (["freeze", "--check"], ["freeze"]):
        capsys.readouterr()
        assert main(words) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"test {first.declared.id} {first.test} was added",
            f"the requirements differ from the frozen list of version {VERSION}, which is released: raise the version "
            "in pyproject.toml",
        ]
    assert list_path(VERSION).read_bytes() == before


def test_without_a_list_nothing_can_be_qualified_or_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both say in one line that this is not a release. Stored examples can be re-evaluated without a list."""
    monkeypatch.setattr(frozen, "LISTS", tmp_path / "none")
    with pytest.raises(UsageError, match="not a release and has no frozen list"):
        record.qualification(Options(engine="llamacpp", report_dir=tmp_path / "bundle"))
    assert main(["verify", str(whole)]) == 4
    assert capsys.readouterr().err.startswith("coldproof verify: this Coldproof is not a release")
    monkeypatch.setattr(suites, "list_of_suites", lambda: FROZEN)
    assert main(["rejudge", str(whole)]) == 0


def test_the_statements_in_the_text_are_those_of_the_tests() -> None:
    """The text is read where the suites cannot be imported."""
    found: dict[str, list[str]] = {}
    for test in suites.list_of_suites().tests:
        found.setdefault(test.declared.id, []).append(test.statement)
    assert statements() == {name: "\n\n".join(texts) for name, texts in found.items()}
    assert len(found) > 30


def test_all_tests_of_one_requirement_have_the_same_rules() -> None:
    """A case names its requirement and not its test, and must fail again when it is replayed."""
    listed = suites.list_of_suites()
    rules = {(one.declared.id, one.declared.overlapped_too, one.declared.hashes_too) for one in listed.tests}
    assert sorted(name for name, *_ in rules) == sorted({one.declared.id for one in listed.tests})


def test_every_place_of_an_engine_is_listed_once() -> None:
    """Each requirement is listed in each of its cells. An attached server is one cell."""
    listed = suites.list_of_suites()
    tests = {(test.declared.id, test.test) for test in listed.tests}
    assert len(tests) == len(listed.tests)
    for engine in ("vllm", "vllm-inproc", "llamacpp", "endpoint"):
        cells = listed.cells_of(engine, "model", attached=engine == "endpoint")
        places = listed.places(cells)
        assert len(set(places)) == len(places)
        assert {(place.requirement, place.test) for place in places} == tests
        assert {place.cell for place in places} == {cell.name for cell in cells}
    assert [cell.name for cell in listed.cells_of("llamacpp", "model", attached=True)] == ["attached"]


def changed(**changes: Any) -> FrozenList:
    """Return the small list with changed fields."""
    return msgspec.structs.replace(FROZEN, **changes)


CHAT = FROZEN.tests[0]
HARDER = msgspec.structs.replace(CHAT.declared, shows=(*CHAT.declared.shows, Requests.REQUESTS))


@pytest.mark.parametrize(
    ("today", "says"),
    [
        (FROZEN, []),
        (changed(tests=FROZEN.tests[1:]), ["test CHAT-9 test_chat was removed"]),
        (
            changed(tests=(*FROZEN.tests, msgspec.structs.replace(CHAT, test="test_more"))),
            ["test CHAT-9 test_more was added"],
        ),
        (
            changed(tests=(msgspec.structs.replace(CHAT, statement="s", source="1"), *FROZEN.tests[1:])),
            ["test CHAT-9 test_chat changed: statement, source"],
        ),
        (
            changed(tests=(msgspec.structs.replace(CHAT, declared=HARDER), *FROZEN.tests[1:])),
            ["test CHAT-9 test_chat changed: declared"],
        ),
        (
            changed(cells=(msgspec.structs.replace(FROZEN.cells[0], arguments=("--x",)), FROZEN.cells[1])),
            ["cell one changed: arguments"],
        ),
    ],
    ids=["none", "a test gone", "a test more", "a test rewritten", "more evidence", "a cell's flags"],
)
def test_what_differs_from_the_list_is_named(today: FrozenList, says: list[str]) -> None:
    """A difference names the test or cell, and the field."""
    assert list(map(str, differences(FROZEN, today))) == says


def test_a_list_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is equal after a round trip, and a version without a list is reported."""
    bundles.small_list(tmp_path, monkeypatch)
    assert frozen.current_list()[0] == FROZEN
    with pytest.raises(UsageError, match=r"version 1\.0 has no frozen list"):
        read_frozen("1.0")


class Given:
    """A command line's options, of which only these are given."""

    def __init__(self, **given: object) -> None:
        self.given = given

    def getoption(self, name: str, default: object = None) -> object:
        """Return an option as pytest does."""
        return self.given.get(name, default)


@pytest.mark.parametrize(("name", "written"), FORBIDDEN.items())
def test_an_option_that_reduces_a_qualification_is_refused(name: str, written: str) -> None:
    """The error has the name of the option that a user writes."""
    with pytest.raises(UsageError) as refused:
        check_qualify_options(cast(pytest.Config, Given(**{name: "x"})))
    assert str(refused.value).endswith(f"leave out {written}")


def test_options_that_do_not_reduce_a_qualification_are_accepted() -> None:
    """Engine, budget, seed, waivers and shard may be given."""
    given = {"--engine": "llamacpp", "--budget": "2h", "--shard": "1/2", "--known-issues": "x", "keyword": ""}
    check_qualify_options(cast(pytest.Config, Given(**given)))


def test_a_bundle_begins_in_an_empty_folder(tmp_path: Path) -> None:
    """The folder may be missing or empty."""
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "old.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        check_folder(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a committed repository with a file in each package and one outside them."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "harness" / "release" / "run").mkdir(parents=True)
    for name in ("harness/release/__init__.py", "harness/release/run/sources.py", "README.md"):
        (tmp_path / name).write_text("x = 1\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize("name", ["harness/release/run/sources.py", "suites/__init__.py", "suites/test_mine.py"])
def test_uncommitted_changes_of_the_suite_are_refused(repository: Path, name: str) -> None:
    """A new file counts too, and the error names the file."""
    assert len(source_commit(repository) or "") == 40
    (repository / name).write_text("x = 2\n")
    with pytest.raises(UsageError, match=rf"1 files have uncommitted changes \({name}\): commit or restore"):
        source_commit(repository)


def test_files_outside_the_suite_may_change(repository: Path) -> None:
    """Other files do not take part in the judgement of an engine."""
    before = source_commit(repository), sources_digest(repository)
    (repository / "README.md").write_text("other\n")
    (repository / "reports" / "bundle" / "cases").mkdir(parents=True)
    assert (source_commit(repository), sources_digest(repository)) == before


def test_without_git_the_digest_stands_for_the_sources(repository: Path) -> None:
    """The digest equals that of the checkout until a line changes. Files that Python and tools leave do not count."""
    before = sources_digest(repository)
    shutil.rmtree(repository / ".git")
    for name in ("__pycache__/sources.pyc", ".mypy_cache/sources.json", ".sources.py.swp"):
        path = repository / "harness" / "release" / "run" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("left behind")
    assert source_commit(repository) is None
    assert sources_digest(repository) == before
    (repository / "adapters" / "__init__.py").write_text("x = 2\n")
    assert sources_digest(repository) != before


def test_every_committed_file_of_the_packages_is_a_source() -> None:
    """Templates and lists are sources too, because they change what a run writes."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {name for name in listed.splitlines() if (ROOT / name).is_file()}
    assert any(name.endswith("bug_report.md.j2") for name in there)
    assert there - {path.relative_to(ROOT).as_posix() for path in source_files(ROOT)} == set()


def test_a_package_of_one_name_has_one_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Different spellings of a package's name are listed once."""
    monkeypatch.setattr(record, "packages", lambda engine: ("typing_extensions", "Typing..Extensions"))
    assert [package.name for package in record.build("llamacpp")] == ["typing-extensions"]


def test_the_engines_build_is_its_packages_and_what_these_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each package has its version and the digest of its file list. An attached server has none."""
    kind = msgspec.structs.replace(registry.ENGINES["llamacpp"], package="pytest")
    monkeypatch.setitem(registry.ENGINES, "llamacpp", kind)
    built = {package.name: package for package in record.build("llamacpp")}
    assert {"pytest", "pluggy", "iniconfig"} <= built.keys()
    assert built["pytest"].version == importlib.metadata.version("pytest")
    assert all(len(package.record) == 64 for package in built.values())
    assert record.build("endpoint") == ()


def test_known_issues_are_copied_into_the_bundle(tmp_path: Path) -> None:
    """The bundle has a copy of the file under a fixed name."""
    (tmp_path / "mine.toml").write_text(bundles.KNOWN)
    (tmp_path / "bundle").mkdir()
    options = Options(engine="llamacpp", report_dir=tmp_path / "bundle", known_issues=tmp_path / "mine.toml")
    record.keep_known_issues(options)
    assert (tmp_path / "bundle" / "known_issues.toml").read_text() == bundles.KNOWN


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project without git and with two suites only, with a frozen list of its own."""
    return make_tree(tmp_path_factory.mktemp("tree"))


def test_a_run_writes_a_consistent_bundle(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to `verify`, the bundle is complete and accepted, and refused with another list."""
    with serving(ServerBehaviour(lora=(404, "Not Found"))) as fake:
        words = ("--engine-url", fake.url, "--profile", "qualify", "--budget", "1s", "--hypothesis-seed", "7")
        run = python(tree, "-m", "pytest", "suites", *words, "--report-dir", str(tmp_path / "bundle"))
    assert "bundle: coldproof verify" in run.stdout, run.stdout + run.stderr
    results = read_results(tmp_path / "bundle" / "results.json")
    assert (results.profile, results.seed, results.complete) == ("qualify", "7", True)
    assert len(results.environment["coldproof sources"]) == len("SHA-256 ") + 64
    done = python(tree, "-m", "coldproof", "verify", str(tmp_path / "bundle"))
    assert done.stdout.startswith("ACCEPTED"), done.stdout
    bundles.small_list(tmp_path, monkeypatch, suites.list_of_suites())  # the whole suite, which it was not made with
    mine = verify(tmp_path / "bundle").reasons
    assert {reason.kind.value for reason in mine} == {"other version"}


def test_half_a_suite_is_refused_however_it_was_chosen(tree: Path, tmp_path: Path) -> None:
    """If pytest is given one file only, the collected tests count."""
    words = ("--engine-url", "http://127.0.0.1:9", "--profile", "qualify", "--report-dir", str(tmp_path / "bundle"))
    run = python(tree, "-m", "pytest", "suites/test_cache_salt.py", *words)
    said = run.stdout + run.stderr
    assert run.returncode == 4
    assert "7 of 8 tests were not collected (the first: GROUP-1" in said, said
    assert not (tmp_path / "bundle").exists()


@pytest.fixture
def other_distribution(tmp_path: Path) -> str:
    """Return a folder for PYTHONPATH with an installed distribution that declares an engine with one cell."""
    entry_points = f"[{registry.GROUP}]\ntoy = toy_spec\n"
    (tmp_path / "toy-1.0.dist-info").mkdir()
    (tmp_path / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (tmp_path / "toy-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
    (tmp_path / "toy_spec.py").write_text(
        "from coldproof.adapters.spec.cell import Cell\n"
        "from coldproof.adapters.spec.engine_spec import EngineSpec\n"
        "CELLS = (Cell(name='toy', about='its only cell', engine='toy'),)\n"
        "ENGINE = EngineSpec(name='toy', about='of another distribution', cells=CELLS, start=lambda options: None)\n"
    )
    return str(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("coldproof", "cells"), 0, "toy "),
        (("coldproof", "freeze", "--check"), 0, "0.1.0"),
        (("pytest", "suites/test_cache_salt.py", "--engine-url=http://127.0.0.1:9"), 4, "were not collected"),
        (("pytest", "suites", "--engine=toy"), 4, "cell 'toy' is of another distribution"),
    ],
    ids=["it is installed", "freeze", "an engine of Coldproof", "its engine"],
)
def test_an_engine_of_another_distribution_does_not_change_the_list(
    tree: Path, tmp_path: Path, other_distribution: str, words: tuple[str, ...], code: int, said: str
) -> None:
    """Coldproof's own engines can be qualified although it is installed; the other engine cannot."""
    qualify = ("--profile=qualify", f"--report-dir={tmp_path / 'bundle'}") if words[0] == "pytest" else ()
    done = python(tree, "-m", *words, *qualify, path=other_distribution)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def test_a_changed_requirement_is_refused_until_it_is_frozen(tree: Path, tmp_path: Path) -> None:
    """The error says how to see what changed."""
    suite = tree / "suites" / "test_cache_salt.py"
    before = suite.read_text()
    suite.write_text(before.replace("never shares KV", "seldom shares KV"))
    words = ("--engine-url", "http://127.0.0.1:9", "--profile", "qualify", "--report-dir", str(tmp_path / "bundle"))
    run = python(tree, "-m", "pytest", "suites", *words)
    suite.write_text(before)
    said = run.stdout + run.stderr
    assert run.returncode == 4
    assert "version 0.1.0 (test SALT-1 test_salts_isolate_the_cache changed: statement, source" in said, said
