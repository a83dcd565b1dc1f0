"""Checks what running requests hold in the pool, in a pool of any size. Only for engines whose steps are recorded.

A block that a running request uses is not free, and no engine may evict it. So the pool has at least these blocks in
use, and a request that is admitted beside it hits what both prompts share: full pools excuse neither. vLLM documents
that only blocks without a reference are evicted ("Automatic Prefix Caching", `BlockPool.free_block_queue`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.preemption.step_checks import is_recorded
from coldproof.harness.features.pressure.checks import gauge_finding
from coldproof.harness.history.content import carry_the_same_until
from coldproof.harness.history.records import History, Outcome, common_prefix, has_sessions
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.reach.timeline import Phase, Start, Timeline
from coldproof.harness.judgement.reference_cache import changed_between, must_hit
from coldproof.harness.schema.verdict import FailureClass


@check(
    "conservation",
    order=161,
    fails="Where the engine's steps are recorded: fewer blocks in use than the prompts of running requests fill.",
)
def check_held_blocks(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first step in which the pool has fewer blocks in use than running requests hold."""
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if not is_judged(history, exclusive=exclusive) or block is None or pool is None:
        return []
    timeline = Timeline(history)
    for step in timeline.steps:
        holders = [one for one in history.outcomes if decodes(timeline, one, step.at)]
        used = pool - step.free
        if used >= sum(len(one.prompt) // block for one in holders):  # nothing has to be shared
            continue
        least = blocks_in_use(holders, block)
        if used < least:
            when, count = f"{step.at:.2f} s after the start of the run", len(holders)
            needs = f"the prompts of {count} running requests fill at least {least} blocks"
            return [gauge_finding(f"{when}, {needs}, but the pool has {used} in use. Some were freed while in use.")]
    return []


@check(
    "bounds",
    order=71,
    fails="Where the engine's steps are recorded: fewer cached tokens than a running request held of the same prompt.",
)
def check_hits_of_held_blocks(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first request that hit less than a running request held of its prompt."""
    if not is_judged(history, exclusive=exclusive):
        return []
    timeline = Timeline(history)
    for start in timeline.starts:
        for other, held in held_for(timeline, start):
            if start.hit is not None and start.hit < held:
                ran = f"request {other.request} was running then and held {held} of its prompt's tokens"
                return [
                    Finding(
                        checker="bounds",
                        failure_class=FailureClass.LOST_REUSE,
                        request=start.outcome.request,
                        sentence=f"Request {start.outcome.request} hit {start.hit} cached tokens, but {ran}.",
                    )
                ]
    return []


def is_judged(history: History, *, exclusive: bool) -> bool:
    """Return whether it is known what each running request holds.

    Windows and states give blocks back while a request runs. A second tier may take blocks over. A session holds more
    than its turn, and each of several answers starts by itself. A pause, or a reset of running requests, may free what
    they hold.
    """
    shape = history.shape
    several = any(outcome.options.answers > 1 for outcome in history.outcomes)
    freed = bool(history.pauses) or any(ResetScope.RUNNING in reset.scope for reset in history.resets)
    plain = shape.uniform and not shape.second_tier and shape.ranks == 1 and bool(shape.prefix_caching)
    return is_recorded(history, exclusive=exclusive) and plain and not (several or freed or has_sessions(history))


def decodes(timeline: Timeline, outcome: Outcome, at: float) -> bool:
    """Return whether a request has its whole prompt in the pool at a moment. One that is preempted in its life may have
    lost its blocks in this step.
    """
    kept = outcome.answered and not (outcome.preemptions or outcome.preempted_at or outcome.overlapped)
    return kept and timeline.phase(outcome, at) is Phase.DECODE


def blocks_in_use(holders: list[Outcome], block: int) -> int:
    """Return the least number of whole blocks that have the prompts of these requests, which may share them. Requests
    of two names for one content may share, too.
    """
    ends = {one.request: range(block, len(one.prompt) + 1, block) for one in holders}
    return len({(one.identities, one.prompt[:end]) for one in holders for end in ends[one.request]})


def held_for(timeline: Timeline, start: Start) -> Iterator[tuple[Outcome, int]]:
    """Yield the running requests whose blocks a request must hit when it is admitted, with the number of tokens.

    A reset takes the blocks out of the index. After one, or after a change of adapters, nothing is expected.
    """
    history, outcome, block = timeline.history, start.outcome, timeline.history.shape.block_size
    if block is None or start.resumed or not must_hit(history, outcome) or history.resets:
        return
    for other in history.outcomes:
        if (
            other.partition == outcome.partition
            and other is not outcome
            and not other.options.needs_whole_prompt
            and decodes(timeline, other, start.at)
            and not changed_between(history, other, outcome)
        ):
            common = min(common_prefix(other.prompt, outcome.prompt), carry_the_same_until(other, outcome))
            tokens = math.floor(min(common, len(outcome.prompt) - 1)) // block * block
            yield other, max(0, tokens - (block if history.shape.drops_block else 0))
