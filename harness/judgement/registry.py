"""Registers checkers and counters beside the functions that compute them, and finds their files by name.

Each function takes the fields of an example that it names as its parameters. Each has a place in the order of results;
two with the same place are an error at import.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from coldproof.harness.feature_files import Ordered
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import Answers, Question

Asks = Callable[[History], Iterable[Question]]


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A history with its cold answers, and how to compare them.

    `exclusive`: no other client uses the engine. `found`: what the checkers reported, noise included.
    """

    history: History
    answers: Answers
    rule: Rule
    exclusive: bool
    found: tuple[Finding, ...] = ()


def asks_nothing(_: History) -> Iterable[Question]:
    """Return no question."""
    return ()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A pure function of an example.

    `order`: its place in results. `asks`: returns the questions whose answers it needs besides those of every example.
    """

    function: Callable[..., Any]
    order: int
    asks: Asks = asks_nothing

    @property
    def takes(self) -> list[str]:
        """The fields of an example that the function takes."""
        return [one.name for one in parameters_of(self.function)]

    def result(self, example: Example) -> Any:
        """Return what the function returns for an example."""
        return self.function(**{name: getattr(example, name) for name in self.takes})


@functools.cache
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a function."""
    return tuple(inspect.signature(function).parameters.values())


Entry = TypeVar("Entry", bound=Registered)


class Registry(Ordered[Entry]):
    """What files register as functions of an example."""

    def add(self, entry: Entry) -> None:
        """Register a function. Raises TypeError for a parameter that no example has, ValueError for a taken place."""
        for one in parameters_of(entry.function):
            if Example.__annotations__.get(one.name) != one.annotation:
                raise TypeError(f"{entry.function.__qualname__} takes '{one}', which is no field of an example")
        self.put(entry.order, entry, entry.function)
