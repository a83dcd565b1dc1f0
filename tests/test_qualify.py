"""What `--profile qualify` will not be, what it records and what is frozen: a clear line before any engine starts."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from harness.evidence import Evidence
from harness.options import Options, UsageError
from harness.qualify import frozen, record
from harness.qualify.frozen import FrozenList, Place, differences, read_frozen, versions
from harness.qualify.rules import FORBIDDEN, check_folder, check_given
from harness.qualify.sources import PACKAGES, committed, sources_digest
from harness.qualify.verify import verify
from reports.schema import read_results
from tests import bundles
from tests.bundles import FROZEN
from tests.fake_server import Manners, serving

ROOT = Path(__file__).resolve().parent.parent


def test_the_suites_are_what_was_frozen() -> None:
    """What changes takes a new version or, before a release, `python -m harness.qualify.freeze --again`."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.qualify.freeze", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_newest_list_is_the_projects_version() -> None:
    """Whoever raises the version freezes its requirements."""
    assert versions()[-1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_place_of_an_engine_is_listed_once() -> None:
    """Each requirement in each cell that is for it; a server of somebody else's is one cell."""
    listed, _ = read_frozen(versions()[-1])
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
    """The small list with these fields."""
    return msgspec.structs.replace(FROZEN, **changes)


CHAT = FROZEN.tests[0]
HARDER = msgspec.structs.replace(CHAT.declared, shows=(*CHAT.declared.shows, Evidence.REQUESTS))


@pytest.mark.parametrize(
    ("today", "says"),
    [
        (FROZEN, []),
        (changed(tests=FROZEN.tests[1:]), ["test CHAT-9 test_chat is gone"]),
        (
            changed(tests=(*FROZEN.tests, msgspec.structs.replace(CHAT, test="test_more"))),
            ["test CHAT-9 test_more is new"],
        ),
        (
            changed(tests=(msgspec.structs.replace(CHAT, statement="s", source="1"), *FROZEN.tests[1:])),
            ["test CHAT-9 test_chat has another statement, source"],
        ),
        (
            changed(tests=(msgspec.structs.replace(CHAT, declared=HARDER), *FROZEN.tests[1:])),
            ["test CHAT-9 test_chat has another declared"],
        ),
        (
            changed(cells=(msgspec.structs.replace(FROZEN.cells[0], arguments=("--x",)), FROZEN.cells[1])),
            ["cell one has another arguments"],
        ),
    ],
    ids=["none", "a test gone", "a test more", "a test rewritten", "more evidence", "a cell's flags"],
)
def test_what_differs_from_the_list_is_named(today: FrozenList, says: list[str]) -> None:
    """By test or cell, and by field."""
    assert differences(FROZEN, today) == says


def test_a_list_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is what is read; a version without one is said to have none."""
    bundles.small_list(tmp_path, monkeypatch)
    assert frozen.current()[0] == FROZEN
    with pytest.raises(UsageError, match=r"version 1\.0 has no list"):
        read_frozen("1.0")


class Given:
    """The options of a command line on which only these were given."""

    def __init__(self, **given: object) -> None:
        self.given = given

    def getoption(self, name: str, default: object = None) -> object:
        """As pytest's."""
        return self.given.get(name, default)


@pytest.mark.parametrize(("name", "written"), FORBIDDEN.items())
def test_an_option_that_makes_less_of_it_is_refused(name: str, written: str) -> None:
    """By the name under which a user knows it."""
    with pytest.raises(UsageError) as refused:
        check_given(cast(pytest.Config, Given(**{name: "x"})))
    assert str(refused.value).endswith(f"leave out {written}")


def test_options_that_leave_all_of_it_are_taken() -> None:
    """Engine, budget, seed, waivers, shard."""
    given = {"--engine": "llamacpp", "--budget": "2h", "--shard": "1/2", "--known-issues": "x", "keyword": ""}
    check_given(cast(pytest.Config, Given(**given)))


def test_a_bundle_begins_in_an_empty_folder(tmp_path: Path) -> None:
    """One that is not there, or holds nothing."""
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "old.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        check_folder(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a file in each package and one beside them, all committed."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "harness" / "qualify").mkdir()
    for name in ("harness/qualify/__init__.py", "harness/qualify/sources.py", "README.md"):
        (tmp_path / name).write_text("x = 1\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize("name", ["harness/qualify/sources.py", "suites/__init__.py", "suites/test_mine.py"])
def test_uncommitted_changes_of_the_suite_are_refused(repository: Path, name: str) -> None:
    """A new file too; the line names it."""
    assert len(committed(repository) or "") == 40
    (repository / name).write_text("x = 2\n")
    with pytest.raises(UsageError, match=rf"1 of its files are not \({name}\): commit or restore"):
        committed(repository)


def test_what_stands_beside_the_suite_may_change(repository: Path) -> None:
    """It is no part of what judges the engine."""
    before = committed(repository), sources_digest(repository)
    (repository / "README.md").write_text("other\n")
    (repository / "reports" / "bundle" / "cases").mkdir(parents=True)
    assert (committed(repository), sources_digest(repository)) == before


def test_without_git_the_digest_stands_for_the_sources(repository: Path) -> None:
    """It is that of the checkout, until a line changes; what a run leaves in a folder of a package does not count."""
    before = sources_digest(repository)
    shutil.rmtree(repository / ".git")
    (repository / "reports" / "out").mkdir()
    (repository / "reports" / "out" / "LORA-1.py").write_text("a reproducer")
    assert committed(repository) is None
    assert sources_digest(repository) == before
    (repository / "adapters" / "__init__.py").write_text("x = 2\n")
    assert sources_digest(repository) != before


def test_the_engines_build_is_its_packages_and_what_these_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its version and the digest of its own list of files; nothing of a server that somebody else runs."""
    kind = msgspec.structs.replace(record.KINDS["llamacpp"], package="pytest")
    monkeypatch.setitem(record.KINDS, "llamacpp", kind)
    built = {package.name: package for package in record.build("llamacpp")}
    assert {"pytest", "pluggy", "iniconfig"} <= built.keys()
    assert built["pytest"].version == importlib.metadata.version("pytest")
    assert all(len(package.record) == 64 for package in built.values())
    assert record.build("endpoint") == ()


def test_known_issues_lie_in_the_bundle(tmp_path: Path) -> None:
    """The very file, under one name."""
    (tmp_path / "mine.toml").write_text(bundles.KNOWN)
    (tmp_path / "bundle").mkdir()
    options = Options(engine="llamacpp", report_dir=tmp_path / "bundle", known_issues=tmp_path / "mine.toml")
    record.keep_known_issues(options)
    assert (tmp_path / "bundle" / "known_issues.toml").read_text() == bundles.KNOWN


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project without git and with two suites only, frozen so."""
    tree = tmp_path_factory.mktemp("tree")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "out"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    for suite in (tree / "suites").glob("test_*.py"):
        if suite.name not in ("test_cache_salt.py", "test_groups.py"):
            suite.unlink()
    python(tree, "-m", "harness.qualify.freeze", "--again")
    return tree


def python(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run python there."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)


def test_a_run_leaves_a_bundle_that_holds_together(tree: Path, tmp_path: Path) -> None:
    """From the command line to `verify`: the bundle is whole, and refused for what a stand-in server did not show."""
    with serving(Manners(lora=(404, "Not Found"))) as fake:
        words = ("--engine-url", fake.url, "--profile", "qualify", "--budget", "1s", "--hypothesis-seed", "7")
        run = python(tree, "-m", "pytest", "suites", *words, "--report-dir", str(tmp_path / "bundle"))
    assert "bundle: python -m reports verify" in run.stdout, run.stdout + run.stderr
    results = read_results(tmp_path / "bundle" / "results.json")
    assert (results.profile, results.seed, results.complete) == ("qualify", "7", True)
    assert len(results.environment["coldproof sources"]) == len("SHA-256 ") + 64
    done = python(tree, "-m", "reports", "verify", str(tmp_path / "bundle"))
    lines = done.stdout.splitlines()
    assert lines[0].startswith("REFUSED")
    assert {line.split(":")[0] for line in lines[1:]} == {"  not shown"}, done.stdout
    mine = verify(tmp_path / "bundle").reasons  # by the whole suite, which it was not made with
    assert {reason.doubt.value for reason in mine} == {"other version"}


def test_half_a_suite_is_refused_however_it_was_chosen(tree: Path, tmp_path: Path) -> None:
    """pytest was told of one file only: what was collected counts."""
    words = ("--engine-url", "http://127.0.0.1:9", "--profile", "qualify", "--report-dir", str(tmp_path / "bundle"))
    run = python(tree, "-m", "pytest", "suites/test_cache_salt.py", *words)
    said = run.stdout + run.stderr
    assert run.returncode == 4
    assert "5 of 6 tests are left out (the first: GROUP-1" in said, said
    assert not (tmp_path / "bundle").exists()


def test_a_changed_requirement_is_refused_until_it_is_frozen(tree: Path, tmp_path: Path) -> None:
    """The line says how to see what changed."""
    suite = tree / "suites" / "test_cache_salt.py"
    before = suite.read_text()
    suite.write_text(before.replace("never shares KV", "seldom shares KV"))
    words = ("--engine-url", "http://127.0.0.1:9", "--profile", "qualify", "--report-dir", str(tmp_path / "bundle"))
    run = python(tree, "-m", "pytest", "suites", *words)
    suite.write_text(before)
    said = run.stdout + run.stderr
    assert run.returncode == 4
    assert "has frozen (test SALT-1 test_salts_keep_apart_what_they_should has another statement, source" in said, said


def test_a_place_is_told_in_words() -> None:
    """As reasons name it."""
    assert str(Place("LORA-1", "test_it", "default")) == "LORA-1 (test_it) in default"
