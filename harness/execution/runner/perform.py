"""Performs a step that is not a burst, by the function that a file registers for the step's class: one of `performers`,
or the file `perform` of a feature.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.harness import feature_files
from coldproof.harness.workload.kinds.kind import StepKind

PERFORMERS = "coldproof.harness.execution.runner.performers"


@functools.singledispatch
def perform(step: StepKind, _run: object) -> int | None:
    """Perform a step, between bursts or during one, for a `WorkloadRun`, and record there what was done.

    Return the number of moved tokens for a step that moves cached state, None for any other. Raises EngineError, and
    TypeError for a kind of step for which no function is registered.
    """
    raise TypeError(f"no function performs {type(step).__name__}")


@functools.singledispatch
def perform_apart(step: StepKind, _run: object, _sides: Iterable[Any]) -> None:
    """Perform a change during a burst on one side after the other. Raises EngineError.

    Getting the next of `sides` takes the time that the sides are apart. A kind for which no function is registered is
    refused.
    """
    raise RequestRefused(501, f"no {type(step).__name__} is made on one side before the other")


def load_performers() -> None:
    """Import every file that registers functions."""
    feature_files.load("perform", package=PERFORMERS)
