"""Which failing examples of earlier runs are tried again: local ones, those of a CI on request, none in a
qualification.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from coldproof.harness.options import UsageError
from coldproof.harness.session.hypothesis_profile import EXAMPLES, PATCHES, database, leave_out_patches, load_settings


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Restore Hypothesis' settings after the test."""
    before = settings.default
    yield
    settings.register_profile("before", before)
    settings.load_profile("before")


def test_examples_of_a_ci_are_read_and_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched before an example is looked up."""
    monkeypatch.setattr(GitHubArtifactDatabase, "_get_bytes", lambda *_: pytest.fail("fetched"))
    both = database("vllm-project/vllm")
    assert isinstance(both, MultiplexedDatabase)
    local, shared = both._wrapped
    assert isinstance(local, DirectoryBasedExampleDatabase)
    assert isinstance(shared, ReadOnlyDatabase)
    assert shared._wrapped == GitHubArtifactDatabase("vllm-project", "vllm")


def test_what_is_kept_stays_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing example is saved locally, and examples of the CI are tried too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GitHubArtifactDatabase, "fetch", lambda *_: iter([b"from CI"]))
    both = database("a/b")
    both.save(b"key", b"found here")
    assert set(both.fetch(b"key")) == {b"found here", b"from CI"}
    assert any(path.read_bytes() == b"found here" for path in (tmp_path / EXAMPLES).rglob("*") if path.is_file())


@pytest.mark.parametrize("given", ["vllm", "a/b/c", "https://github.com/a/b", "", "a/"])
def test_an_invalid_repository_is_refused(given: str) -> None:
    """The error is one line with the expected form."""
    with pytest.raises(UsageError, match="use OWNER/REPO"):
        database(given)


@pytest.mark.usefixtures("_as_before")
def test_a_qualification_draws_from_its_seed_alone() -> None:
    """Stored examples are ignored."""
    load_settings("qualify", quick=False, examples_from="a/b")
    assert settings.default.database is None
    load_settings("ci", quick=False, examples_from="a/b")
    assert isinstance(settings.default.database, MultiplexedDatabase)


def test_a_failure_parses_no_module_for_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis' plugin then treats the module as not installed."""
    monkeypatch.delitem(sys.modules, PATCHES, raising=False)
    leave_out_patches()
    with pytest.raises(ImportError, match=r"None in sys\.modules"):
        importlib.import_module(PATCHES)
