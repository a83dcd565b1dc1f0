"""Every kind of step is performed by a function that is registered for its class."""

from __future__ import annotations

from typing import get_args

import pytest

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.harness.execution.runner.perform import load_performers, perform, perform_apart
from coldproof.harness.workload.kinds.kind import StepKind
from coldproof.harness.workload.steps import Action, Change, Reset, SetAdapter, UpdateWeights


class Unknown(StepKind, frozen=True, tag="unknown"):
    """A kind for which no function is registered."""


@pytest.mark.parametrize("kind", get_args(Action))
def test_every_kind_has_a_function(kind: type[StepKind]) -> None:
    """Otherwise a run would fail at the step."""
    load_performers()
    assert perform.dispatch(kind) is not perform.dispatch(Unknown)


def test_a_kind_without_a_function_is_an_error_of_the_harness() -> None:
    """Its step must not be reported as one that the engine refused."""
    load_performers()
    with pytest.raises(TypeError, match="no function performs Unknown"):
        perform(Unknown(), None)


def test_only_some_changes_are_made_on_one_side_first() -> None:
    """Any other is refused as something that is not supported."""
    load_performers()
    apart = {kind for kind in get_args(Change) if perform_apart.dispatch(kind) is not perform_apart.dispatch(Unknown)}
    assert apart == {SetAdapter, UpdateWeights, Reset}
    with pytest.raises(RequestRefused, match="no Unknown is made on one side before the other"):
        perform_apart(Unknown(), None, ())
