"""Reached states of lookups: what was found, who had written it, and what had happened since."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from coldproof.harness.history.records import Outcome, restart_times
from coldproof.harness.judgement.reach.model import LOOKUPS
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Phase, Start, Timeline
from coldproof.harness.workload.steps import SetAdapter

WRITERS = {
    Phase.ABSENT: "over",
    Phase.DECODE: "decode",
    Phase.PREFILL: "prefill",
    Phase.QUEUED: "prefill",
    Phase.PREEMPTED: "preempted",
}


@states(*LOOKUPS, order=100)
def lookups(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of all lookups of new requests."""
    for start in timeline.starts:
        if not start.resumed:
            yield from conflicts(timeline, start.outcome)
            if start.hit is not None:
                yield from lookup(timeline, start, start.hit)
    yield from pairs(timeline)


def lookup(timeline: Timeline, start: Start, hit: int) -> Iterator[Cell]:
    """Yield the cells of one lookup with a known hit."""
    outcome = start.outcome
    kind = timeline.hit_kind(hit, len(outcome.prompt))
    yield "lookup", kind, timeline.end(len(outcome.prompt))
    related = [o for o in timeline.earlier(outcome) if timeline.share_block(o, outcome)]
    writer = next((o for o in related if timeline.shared(o, outcome) >= hit), None)
    if hit and writer is not None:
        state = (
            "aborted" if writer.aborted and writer.finished <= start.at else WRITERS[timeline.phase(writer, start.at)]
        )
        yield "writer", state, "prompt" if hit <= len(writer.prompt) else "answer"
    if related:
        longest = max(related, key=lambda o: timeline.shared(o, outcome))
        for event in since(timeline, longest, start.at):
            yield "again", event, kind
    for before in related:
        if len(outcome.prompt) > timeline.shared(before, outcome) >= len(before.prompt) + len(before.tokens) - 1:
            whole = timeline.shared(before, outcome) // timeline.block * timeline.block
            yield (
                "turn",
                "none" if not hit else "most" if hit >= whole else "part",
                timeline.end(len(before.prompt) + len(before.tokens)),
            )


def since(timeline: Timeline, writer: Outcome, at: float) -> Iterator[str]:
    """Yield what has happened to the blocks of a request until a moment: rows of the model."""
    history, known = timeline.history, len(timeline.history.weights) > 0
    events = {
        "eviction": any(step.evicted and writer.sent < step.at <= at for step in timeline.steps),
        "reset": any(reset.success and writer.sent < reset.ended <= at for reset in history.resets),
        "preemption": any(writer.sent + lost <= at for lost in writer.preempted_at),
        "abort": writer.aborted is not None and writer.finished <= at,
        "load": any(
            writer.sent < record.finished <= at and isinstance(history.workload.steps[record.step], SetAdapter)
            for record in history.steps
        ),
        "update": known and any(writer.finished <= one.ended <= at for one in history.updates if one.error is None),
        "restart": any(writer.finished <= restart <= at for restart in restart_times(history)),
    }
    happened = [name for name, has in events.items() if has]
    yield from happened or ["nothing"]


def conflicts(timeline: Timeline, outcome: Outcome) -> Iterator[Cell]:
    """Yield the cells of a lookup of tokens that were computed under another identity."""
    earlier = timeline.earlier(outcome)
    own = max((timeline.shared(o, outcome) for o in earlier if timeline.alike(o, outcome)), default=0)
    for other in earlier:
        foreign = timeline.shared(other, outcome)
        if foreign >= timeline.block and not timeline.alike(other, outcome):
            known = "nothing" if own < timeline.block else "less" if own < foreign else "more"
            yield "conflict", difference(other, outcome), known


def difference(left: Outcome, right: Outcome) -> str:
    """Return in what two identities differ: a row of the model."""
    one, other = left.identities[-1], right.identities[-1]
    if one.weights != other.weights or one.engine != other.engine:
        return "weights"
    if one.adapter == other.adapter:
        return "salt"
    if None in (one.adapter, other.adapter):
        return "base"
    return "content" if left.partition.name == right.partition.name else "adapter"


def pairs(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of pairs of requests that were admitted in one step."""
    new = [start for start in timeline.starts if not start.resumed and start.step is not None]
    for _, group in itertools.groupby(new, key=lambda start: start.at):
        for left, right in itertools.combinations(group, 2):
            hits = sum(bool(one.hit) for one in (left, right))
            yield "pair", relation(timeline, left.outcome, right.outcome), str(hits)


def relation(timeline: Timeline, left: Outcome, right: Outcome) -> str:
    """Return how the prompts of two requests are related: a row of the model."""
    shared = min(timeline.shared(left, right), len(left.prompt))
    if shared < timeline.block:
        return "apart"
    if not timeline.alike(left, right):
        return "other"
    if left.prompt == right.prompt:
        return "equal"
    return "extends" if shared == min(len(left.prompt), len(right.prompt)) else "block"
