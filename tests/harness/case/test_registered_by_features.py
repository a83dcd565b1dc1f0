"""What features register for cases: circumstances in signatures, and calls of steps in scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from coldproof.harness import feature_files
from coldproof.harness.case.circumstances import REGISTERED, Failure, circumstances
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.features.sessions.steps import CloseSession
from coldproof.harness.judgement.checks import CHECKERS
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.registry import Example
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.kinds.kind import StepKind


class Unknown(StepKind, frozen=True, tag="unknown to scripts"):
    """A kind of step for which no call is registered."""


def test_circumstances_of_features_are_found() -> None:
    """They stand behind what happened to the cache, which is the room's own."""
    places = [function.__module__ for function in REGISTERED.load()]
    assert places[0] == "coldproof.harness.case.circumstances"
    assert f"{feature_files.FEATURES}.images.circumstances" in places


def test_two_functions_cannot_have_the_same_place() -> None:
    """Their order in signatures would depend on the order of imports."""
    REGISTERED.load()

    def second(_: Failure) -> Iterable[str]:
        """Return no text."""
        return ()

    with pytest.raises(ValueError, match="have the same place in the order: 230"):
        circumstances(230)(second)


def test_a_feature_writes_the_call_of_its_step() -> None:
    """The room's own file does not name this kind."""
    feature_files.load("script")
    assert step_call(CloseSession("s", aborted=True), set()) == "story.close_session('s', aborted=True)"


def test_a_step_that_no_script_can_make_is_an_error() -> None:
    """A script without it would be another scenario."""
    with pytest.raises(TypeError, match="no script makes Unknown"):
        step_call(Unknown(), set())


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ["__init__.py", "check.py"],
            "sums.check: the last word of the name of a feature's file must be one of steps,",
        ),
        (["checks.py"], "sums is no package, so that its files would not be found: add __init__.py"),
    ],
)
def test_a_file_of_a_feature_that_would_register_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], said: str
) -> None:
    """Its requirement would conform without its checker."""
    folder = tmp_path / f"features_of_{len(files)}" / "sums"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", *(folder / name for name in files)):
        path.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(feature_files, "FEATURES", folder.parent.name)
    with pytest.raises(ImportError, match=re.escape(said)):
        feature_files.feature_files.__wrapped__()


def test_a_finding_of_another_checker_is_refused() -> None:
    """Nothing would rank it. The example's verdict is ERROR, with this sentence."""
    finding = Finding(checker="reading", failure_class=FailureClass.API, request=None, sentence="x")
    one = msgspec.structs.replace(CHECKERS.load()[0], function=lambda: [finding], name="readings")
    with pytest.raises(ValueError, match="is the checker 'readings' and returned a finding of 'reading'"):
        one.result(Example(history=None, answers={}, rule=Rule(exact=True), exclusive=True))  # type: ignore[arg-type]
