"""Repeats the test of a trial with other seeds.

Each round draws anew. In a single round of hours, hypothesis would keep every example in memory, and what a seed draws
seldom in its first examples stays seldom.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import core

from coldproof.harness.session.budget import TrialEnded

GLOBAL_SEED = "global_force_seed"
MORE_ROUNDS = 2  # for evidence that the first round did not show, as far as the budget allows


def in_rounds(test: Callable[..., None], seed: str, is_over: Callable[[], bool]) -> Callable[..., None]:
    """Return a test that repeats `test` in rounds until `is_over`, or until `test` raises a counterexample."""

    numbers = itertools.count()  # goes on where the test is called again behind a counterexample

    def rounds(**arguments: Any) -> None:
        for number in numbers:
            if is_over():
                return
            hypothesis.seed(f"{seed}, round {number}")(test)(**arguments)

    return rounds


def while_lacking(test: Callable[..., None], seed: str, lacks: Callable[[], bool]) -> Callable[..., None]:
    """Return a test that repeats `test` a few times as long as it `lacks` evidence."""

    def rounds(**arguments: Any) -> None:
        test(**arguments)
        for number in range(MORE_ROUNDS):
            if not lacks():
                return
            with other_seed(f"{seed}, another round {number}"):
                test(**arguments)

    return rounds


def behind_failures(
    test: Callable[..., None], seed: str, goes_on: Callable[[BaseException], bool]
) -> Callable[..., None]:
    """Return a test that is repeated with other seeds behind each failure, as long as it `goes_on`.

    `goes_on` puts the failure aside. A failure behind which the test does not go on is raised.
    """

    def rounds(**arguments: Any) -> None:
        for number in itertools.count():
            try:
                with other_seed(f"{seed}, behind {number}") if number else contextlib.nullcontext():
                    test(**arguments)
            except (Exception, TrialEnded, pytest.fail.Exception) as problem:  # noqa: BLE001 - it is raised below
                failure = problem
            else:
                return
            # Not in the clause above: this failure is no cause of one that the engine has while the first is proved.
            if not goes_on(failure):
                raise failure

    return rounds


@contextlib.contextmanager
def other_seed(seed: str) -> Iterator[None]:
    """Let hypothesis draw by another seed, as its pytest option does: a decorator would stay for the other cells."""
    before = core.global_force_seed
    setattr(core, GLOBAL_SEED, seed)
    try:
        yield
    finally:
        setattr(core, GLOBAL_SEED, before)
