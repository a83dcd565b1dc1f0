"""Checks that the histories of stored examples are those of different runs, on the engines that the run opened.

What is checked is true of every run: each workload has a nonce of its own, and its prompts follow from both. Copied
histories are detected; those that somebody invents for an unsigned bundle are not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from coldproof.adapters.protocol.shape import EngineShape
from coldproof.harness.history.prompts import tokens_of
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.release.bundle.refusal import Reason, altered, not_accepted
from coldproof.harness.release.requirements.frozen import Place
from coldproof.harness.workload.steps import Request, lives_of
from coldproof.harness.workload.validity import is_valid

# Sizes that are measured when an engine starts, and that differ between an engine and one without its cache.
MEASURED = (
    "pool_blocks",
    "tier_blocks",
    "prefix_caching",
    "block_size",
    "groups",
    "uniform",
    "kept_every",
    "second_tier",
)


class Opened(Protocol):
    """An engine that the run opened, as far as its histories show it."""

    @property
    def digests(self) -> dict[str, str]:
        """The digests of the adapter contents by name."""

    @property
    def shape(self) -> EngineShape:
        """Its sizes."""


class Seen(msgspec.Struct, frozen=True):
    """What is kept of a history."""

    place: Place
    finding: str
    contents: tuple[tuple[str, str], ...]
    shape: EngineShape
    restarts: bool
    contradiction: str


class SeenHistories:
    """The histories of one run, by their nonces."""

    def __init__(self) -> None:
        self.by_nonce: dict[str, list[Seen]] = defaultdict(list)

    def add(self, place: Place, history: History, *, finding: str) -> None:
        """Add the history of an example. `finding`: of which it is a replay."""
        self.by_nonce[history.nonce].append(
            Seen(
                place,
                finding,
                tuple(sorted(history.contents.items())),
                history.shape,
                len(lives_of(history.workload)) > 1,
                contradiction(history),
            )
        )


def contradiction(history: History) -> str:
    """Return what in a history cannot have been recorded of its workload; empty if nothing is."""
    workload = history.workload
    if not is_valid(workload):
        return "its workload could not be run"
    requests = {number: (step, request) for number, step, request in workload.requests()}
    sent = [outcome.request for outcome in history.outcomes]
    if len(set(sent)) < len(sent) or not set(sent) <= requests.keys():
        return "its answers are not those of its requests"
    if any(outcome.finished < outcome.sent for outcome in history.outcomes):
        return "an answer was finished before its request was sent"
    for outcome in history.outcomes:
        step, request = requests[outcome.request]
        earlier = {one.request: one for one in history.outcomes if one.step < step}
        if outcome.step != step or outcome.max_tokens != request.max_tokens:
            return f"request {outcome.request} is not that of its workload"
        if not request.chat and not follows(outcome.prompt, request, history.nonce, earlier):
            return f"the prompt of request {outcome.request} does not follow from its workload and its nonce"
    return ""


def follows(prompt: tuple[int, ...], request: Request, nonce: str, earlier: Mapping[int, Outcome]) -> bool:
    """Return whether a prompt is the one of a request. The tokens of a segment of any length are not computed."""
    fits = all(segment.length <= len(prompt) for segment in request.prompt.segments)
    return fits and prompt == tokens_of(request, nonce, earlier)


def check_histories(
    seen: SeenHistories, engines: Mapping[str, Iterable[Opened]], replays: Mapping[str, str]
) -> Iterator[Reason]:
    """Yield a reason for histories that contradict themselves or the engines of their cells, or are not of their own.

    `replays`: the nonce of each known finding's case, with which it is replayed.
    """
    wrong: Counter[tuple[Place, str]] = Counter()
    for nonce, histories in seen.by_nonce.items():
        own = [one for one in histories if not (one.finding and replays.get(one.finding) == nonce)]
        for one in own[1:]:
            wrong[one.place, "have the nonce of another example, so that one is a copy of the other"] += 1
        for one in histories:
            if one.contradiction:
                wrong[one.place, f"contradict themselves: {one.contradiction}"] += 1
            elif why := foreign(one, engines.get(one.place.cell, ())):
                wrong[one.place, why] += 1
    for (place, why), count in sorted(wrong.items()):
        yield altered(f"{place}: {count} examples {why}")


def foreign(seen: Seen, engines: Iterable[Opened]) -> str:
    """Return why a history is not of one of these engines; empty if it may be."""
    engines = list(engines)
    if not engines:
        return "ran in a cell whose engine was never opened"
    if all(seen.contents != tuple(sorted(engine.digests.items())) for engine in engines):
        return "ran with other adapter contents than the engine of the cell"
    if not seen.restarts and all(fixed_sizes(seen.shape) != fixed_sizes(engine.shape) for engine in engines):
        return "ran on an engine with other sizes than that of the cell"
    return ""


def fixed_sizes(shape: EngineShape) -> dict[str, object]:
    """Return the sizes that are the same for every engine of a cell."""
    return {name: getattr(shape, name) for name in shape.__struct_fields__ if name not in MEASURED}


def check_shared_nonces(parts: Iterable[tuple[str, SeenHistories]], replays: Iterable[str]) -> Iterator[Reason]:
    """Yield a reason for each shard that has examples of another one. `replays`: nonces of known findings."""
    known = set(replays)
    owner: dict[str, str] = {}
    shared: Counter[tuple[str, str]] = Counter()
    for name, seen in parts:
        for nonce in seen.by_nonce.keys() - known:
            if owner.setdefault(nonce, name) != name:
                shared[owner[nonce], name] += 1
    for (first, second), count in sorted(shared.items()):
        yield not_accepted(f"{first} and {second} have {count} examples in common")
