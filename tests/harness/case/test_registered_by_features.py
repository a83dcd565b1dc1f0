"""What features register for cases: circumstances in signatures, and calls of steps in scripts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coldproof.harness import feature_files
from coldproof.harness.case.circumstances import REGISTERED, Failure, circumstances
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.features.sessions.steps import CloseSession
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
