"""Circumstances of a failure, as texts of its signature. The file `circumstances` of a feature registers its own.

Known issues match these texts, and the order in which they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY
from coldproof.harness.feature_files import Ordered
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Request, Restart


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A violation: a history, the class of its finding, and the number of the request that it is about, if any."""

    history: History
    failure_class: FailureClass
    about: int | None = None

    @property
    def requests(self) -> list[Request]:
        """Return the requests of the workload, in order."""
        return [request for _, _, request in self.history.workload.requests()]

    @property
    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of the request that failed."""
        return [outcome for outcome in self.history.outcomes if outcome.request == self.about]


Circumstances = Callable[[Failure], Iterable[str]]
REGISTERED: Ordered[Circumstances] = Ordered("circumstances")


def circumstances(order: int) -> Callable[[Circumstances], Circumstances]:
    """Register a function that returns circumstances. `order`: its place. Raises ValueError for a taken place."""

    def register(function: Circumstances) -> Circumstances:
        REGISTERED.put(order, function, function)
        return function

    return register


def all_circumstances(failure: Failure) -> list[str]:
    """Return the circumstances of a failure, in order."""
    return [text for function in REGISTERED.load() for text in function(failure)]


def true_ones(texts: dict[str, bool]) -> list[str]:
    """Return the texts that are true."""
    return [text for text, true in texts.items() if true]


@circumstances(10)
def of_cache(failure: Failure) -> Iterable[str]:
    """Return what happened to the cache and to its requests."""
    history = failure.history
    return true_ones(
        {
            "preempted": bool(history.steps) and bool(history.steps[-1].after.preemptions),
            "reset": bool(history.resets),
        }
    )


@circumstances(70)
def of_requests(failure: Failure) -> Iterable[str]:
    """Return how requests were sent."""
    requests = failure.requests
    return true_ones(
        {
            "aborted": any(request.abort for request in requests),
            "chat": any(request.chat for request in requests),
            "priorities": any(request.priority not in (0, IMPOSSIBLE_PRIORITY) for request in requests),
        }
    )


@circumstances(160)
def of_impossible_priority(failure: Failure) -> Iterable[str]:
    """Return whether a request had a priority that no engine can take."""
    impossible = any(request.priority == IMPOSSIBLE_PRIORITY for request in failure.requests)
    return true_ones({"impossible priority": impossible})


@circumstances(270)
def of_restarts(failure: Failure) -> Iterable[str]:
    """Return what was different about the engine before each restart."""
    return [f"restart: {step.before}" for step in failure.history.workload.steps if isinstance(step, Restart)]
