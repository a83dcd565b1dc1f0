"""Published KV events, replayed, must not contradict themselves, must be about what was asked, and must explain the
hits."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.kv_events import Cleared, EventBatch, Stored
from harness.checkers.finding import Finding
from harness.event_blocks import blocks_of
from harness.event_view import View, may_have_stored, view
from harness.history import History
from reports.schema import FailureClass

UNREADABLE = ("gap", "shape")  # behind these nobody can tell what is there
RULES = (*UNREADABLE, "parent", "removed", "collision", "empty")  # within the stream: the gravest first
UNSAID = ("shape", "empty")  # an event's own fields do not make sense, whatever the cache holds


def check_events(history: History) -> list[Finding]:
    """The first breach of each rule. Says nothing where no events are published."""
    seen = view(history)
    if seen is None:
        return []
    found = [*contradictions(seen), *overflows(seen), *strangers(seen), *unsaid_resets(seen)]
    if not any(fault.rule in UNREADABLE for fault in seen.cache.faults):
        found += unexplained(seen)
    return found


def finding(
    sentence: str, request: int | None = None, failure_class: FailureClass = FailureClass.ACCOUNTING
) -> Finding:
    """A breach of a rule."""
    return Finding(checker="events", failure_class=failure_class, sentence=f"KV events: {sentence}.", request=request)


def contradictions(seen: View) -> Iterator[Finding]:
    """Within the stream: gaps, removals of what is not there, parents that are not there, hashes that stand for two."""
    first = {fault.rule: fault.sentence for fault in reversed(seen.cache.faults)}
    for rule in sorted(first, key=RULES.index):
        yield finding(first[rule], failure_class=FailureClass.API if rule in UNSAID else FailureClass.ACCOUNTING)


def overflows(seen: View) -> Iterator[Finding]:
    """More blocks that can be hit than the pool has: some were removed and nobody was told."""
    pool, most = seen.history.shape.pool_blocks, seen.cache.most_in_pool
    if pool is not None and seen.history.shape.uniform and most > pool:
        yield finding(f"{most} blocks can be hit by what was published, in a pool of {pool}")


def strangers(seen: View) -> Iterator[Finding]:
    """Blocks that no request of this history asked for: other tokens, another adapter's name, other extra keys."""
    for batch in seen.events.batches:
        for event in batch.events:
            if isinstance(event, Stored) and is_strange(seen, batch, event):
                blocks = list(blocks_of(event))
                yield finding(
                    f"the blocks {blocks[0].hash} to {blocks[-1].hash} are stored with {blocks[-1]}, and no request "
                    "until then has these tokens under this adapter's name and these extra keys"
                )
                return


def is_strange(seen: View, batch: EventBatch, event: Stored) -> bool:
    """Whether no request can have stored these blocks. A chain that is not known whole says nothing."""
    chain = seen.cache.until(event.group, event.parent)
    blocks = tuple(blocks_of(event))
    if chain is None or not blocks or not blocks[0].tokens:
        return False
    until = batch.at + seen.events.slack
    return not any(may_have_stored(o, chain + blocks) for o in seen.history.outcomes if o.sent <= until)


def unsaid_resets(seen: View) -> Iterator[Finding]:
    """Resets that reported success, and a request later nothing has been said of them."""
    slack = seen.events.slack
    cleared = [b.at for b in seen.events.batches if any(isinstance(event, Cleared) for event in b.events)]
    for reset in seen.history.resets:
        later = [o.finished for o in seen.history.outcomes if o.answered and o.sent >= reset.ended]
        told = any(reset.began - slack <= at <= min(later, default=0.0) + slack for at in cleared)
        if reset.success and later and not told:
            yield finding(f"the cache reset at {reset.ended:.3f} s reported success, and no event says so")
            return


def unexplained(seen: View) -> Iterator[Finding]:
    """Hits of what was not there by the events, and misses of what was there all the while."""
    bounds = seen.bounds()
    for outcome in seen.history.outcomes:
        limits, cached = bounds.get(outcome.request), outcome.cached_tokens or 0
        if limits is None:
            continue
        if cached > limits.at_most:
            yield finding(
                f"request {outcome.request} hit {cached} tokens, of which {limits.at_most} could be hit by what was "
                "published",
                outcome.request,
            )
        elif limits.at_least is not None and cached < limits.at_least:
            yield finding(
                f"request {outcome.request} hit {cached} tokens while {limits.at_least} could be hit by what was "
                "published, from before it was sent until it was over",
                outcome.request,
            )
