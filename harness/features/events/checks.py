"""Checks that published KV events are consistent, belong to requests that were sent, and explain the hits."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.kv_events import Cleared, EventBatch, Stored
from coldproof.harness.features.events.facts import quiet_resets
from coldproof.harness.history.kv_event_replay import POOL, replay
from coldproof.harness.history.kv_events import blocks_of
from coldproof.harness.history.records import History, ResetRecord, counts_drafts
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.expected_hits import View, may_have_stored, view
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import ANNOUNCED_MS

UNREADABLE = ("gap", "shape")  # after these faults the content of the cache is unknown
RULES = (*UNREADABLE, "parent", "removed", "collision", "empty", "evicted")  # faults within the stream, gravest first
# With "shape" and "empty", an event's own fields are invalid, whatever the cache holds.
CLASSES = {"shape": FailureClass.API, "empty": FailureClass.API, "evicted": FailureClass.LOST_REUSE}


@check(
    "events",
    order=200,
    fails="Published KV events that contradict one another, the requests or the hits.",
)
def check_events(history: History) -> list[Finding]:
    """Return a finding for the first violation of each rule. Return none if the engine publishes no events."""
    seen = view(history)
    if seen is None:
        return []
    found = [*contradictions(seen), *overflows(seen), *unknown_blocks(seen), *unreported_resets(seen)]
    found += [*late_resets(seen), *unseen_restarts(seen)]
    if not any(fault.rule in UNREADABLE for fault in seen.cache.faults):
        found += unexplained(seen)
    return found


def finding(
    sentence: str, request: int | None = None, failure_class: FailureClass = FailureClass.ACCOUNTING
) -> Finding:
    """Return the finding for a violated rule."""
    return Finding(checker="events", failure_class=failure_class, sentence=f"KV events: {sentence}.", request=request)


def contradictions(seen: View) -> Iterator[Finding]:
    """Yield findings within the stream: gaps, removals of absent blocks, absent parents, one hash for two blocks, and
    blocks that are evicted before those that follow them.

    A request's last block is evicted first: "it must hash more tokens and is less likely to be reused" (vLLM, Automatic
    Prefix Caching, Free). Its blocks in a second tier, or of several kinds of layers, have other rules. With blocks of
    unequal sizes, an event may tell of a part of a block, whose parent is a part that no layer holds alone
    (vllm/v1/core/block_pool.py, `cache_partial_block`).
    """
    first = {fault.rule: fault.sentence for fault in reversed(seen.cache.faults)}
    shape = seen.history.shape
    if shape.second_tier or not shape.uniform:
        first.pop("evicted", None)
    if shape.unequal_blocks:
        first.pop("parent", None)
    for rule in sorted(first, key=RULES.index):
        yield finding(first[rule], failure_class=CLASSES.get(rule, FailureClass.ACCOUNTING))


def overflows(seen: View) -> Iterator[Finding]:
    """Yield a finding if more blocks can be hit than the pool has: then removals were not published."""
    pool, most = seen.history.shape.pool_blocks, seen.cache.most_in_pool
    if pool is not None and seen.history.shape.uniform and most > pool:
        yield finding(f"according to the events, {most} blocks can be hit, but the pool has only {pool}")


def unknown_blocks(seen: View) -> Iterator[Finding]:
    """Yield a finding for stored blocks whose tokens, adapter name or extra keys match no request of this history."""
    for batch in seen.events.batches:
        for event in batch.events:
            if isinstance(event, Stored) and event.medium in POOL and is_unknown(seen, batch, event):
                blocks = list(blocks_of(event))
                stored = f"the blocks {blocks[0].hash} to {blocks[-1].hash} were stored with {blocks[-1]}"
                unknown = "no request until then has these tokens with this adapter name and these extra keys"
                yield finding(f"{stored}, but {unknown}")
                return


def is_unknown(seen: View, batch: EventBatch, event: Stored) -> bool:
    """Return whether no request can have stored these blocks. False if not all of their parents are known."""
    chain = seen.cache.blocks_up_to(event.group, event.parent)
    blocks = tuple(blocks_of(event))
    if chain is None or not blocks or not blocks[0].tokens:
        return False
    until = batch.at + seen.events.slack
    drafts, stored = counts_drafts(seen.history), chain + blocks
    return not any(may_have_stored(o, stored, drafts=drafts) for o in seen.history.outcomes if o.sent <= until)


def unreported_resets(seen: View) -> Iterator[Finding]:
    """Yield a finding for a successful reset that no event reports, even after a later request."""
    slack = seen.events.slack
    cleared = [b.at for b in seen.events.batches if any(isinstance(event, Cleared) for event in b.events)]
    for reset in seen.history.resets:
        later = [o.finished for o in seen.history.outcomes if o.answered and o.sent >= reset.ended]
        reported = any(reset.began - slack <= at <= min(later, default=0.0) + slack for at in cleared)
        if reset.success and later and not reported:
            yield finding(f"the cache reset at {reset.ended:.3f} s reported success, but no event reports it")
            return


def late_resets(seen: View) -> Iterator[Finding]:
    """Yield a finding for the first successful reset that no event reports while the engine stays idle afterwards, or
    after which the events describe blocks as cached.
    """
    for reset in late_announcements(seen.history):
        late = f"no event reports it within {ANNOUNCED_MS} ms without another request"
        yield finding(f"the cache reset at {reset.ended:.3f} s reported success, but {late}")
        return
    for reset, until in quiet_resets(seen.history):
        left = replay(seen.events, until + seen.events.slack).in_pool
        if left:
            said = f"the cache reset at {reset.ended:.3f} s reported success"
            yield finding(f"{said}, but {left} blocks can still be hit according to the events after it")
            return


def unseen_restarts(seen: View) -> Iterator[Finding]:
    """Yield a finding for the first restart that a subscriber cannot see: the first batch after it continues the
    numbers from before, and does not begin with a cleared cache. Then blocks that are gone stay in its index.
    """
    batches = seen.events.batches
    for count in (restart.batches for restart in seen.events.restarts):
        if not 0 < count < len(batches):
            continue
        last, first = batches[count - 1], batches[count]
        cleared = bool(first.events) and isinstance(first.events[0], Cleared)
        if first.sequence > last.sequence and not cleared:
            numbers = f"its first batch has number {first.sequence} after number {last.sequence} of the engine before"
            yield finding(f"the engine was restarted, and {numbers}, so that no subscriber can see the restart")
            return


def late_announcements(history: History) -> list[ResetRecord]:
    """Return the successful resets that no event reports while the engine stays idle afterwards."""
    events = history.events
    if events is None:
        return []
    clears = [batch.at for batch in events.batches if any(isinstance(event, Cleared) for event in batch.events)]
    return [
        reset
        for reset, until in quiet_resets(history)
        if not any(reset.began - events.slack <= at <= until + events.slack for at in clears)
    ]


def unexplained(seen: View) -> Iterator[Finding]:
    """Yield findings for hits of blocks that were absent according to the events, and misses of present blocks."""
    bounds = seen.bounds()
    for outcome in seen.history.outcomes:
        limits, cached = bounds.get(outcome.request), outcome.cached_tokens or 0
        if limits is None:
            continue
        said = f"request {outcome.request} hit {cached} tokens, but according to the events"
        if cached > limits.at_most:
            yield finding(f"{said} at most {limits.at_most} could be hit", outcome.request)
        elif limits.at_least is not None and cached < limits.at_least:
            resident = f"{limits.at_least} could be hit from before it was sent until it ended"
            yield finding(f"{said} {resident}", outcome.request)
