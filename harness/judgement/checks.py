"""How a checker is declared: beside its function, with its place in the order and what it looks for.

Every checker judges every example, whatever requirement it is drawn for. Any finding therefore violates the
requirement, except those that the requirement's own fields leave to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.registry import Asks, Example, Registered, Registry, asks_nothing

Checker = TypeVar("Checker", bound=Callable[..., list[Finding]])


class Check(Registered, frozen=True, kw_only=True):
    """A function that returns findings. Several functions may report under one name, which has what any of them states.

    `fails`: what it looks for, as the report shows it; empty if another one with its name says it.
    `gravity`: the rank of its name among all names, the gravest first.
    `of_answers`: it compares answers with cold ones. `lasting`: a finding means that the engine's state may be
    corrupted. `without_cache`: a finding of an engine without its cache shows that the cache is not the cause.
    """

    name: str
    fails: str
    gravity: int
    of_answers: bool
    lasting: bool
    without_cache: bool

    def result(self, example: Example) -> list[Finding]:
        """Return the findings. Raises ValueError for one of another name, which nothing would rank."""
        found: list[Finding] = super().result(example)
        for one in found:
            if one.checker != self.name:
                function = self.function.__qualname__
                raise ValueError(f"{function} is the checker {self.name!r} and returned a finding of {one.checker!r}")
        return found


CHECKERS: Registry[Check] = Registry("checks", package="coldproof.harness.judgement.checkers")


def check(
    name: str,
    *,
    order: int,
    fails: str = "",
    gravity: int | None = None,
    of_answers: bool = False,
    lasting: bool = False,
    without_cache: bool = False,
    asks: Asks = asks_nothing,
) -> Callable[[Checker], Checker]:
    """Register a function as a checker. See `Check`; its gravity is its place in the order if it has no other."""

    def register(function: Checker) -> Checker:
        CHECKERS.add(
            Check(
                function=function,
                order=order,
                asks=asks,
                name=name,
                fails=fails,
                gravity=order if gravity is None else gravity,
                of_answers=of_answers,
                lasting=lasting,
                without_cache=without_cache,
            )
        )
        return function

    return register
