"""The pool: what is over must be given back, and blocks that are shared must buy concurrency."""

from __future__ import annotations

import math

from harness.checkers.finding import Finding
from harness.history import History, Outcome, StepRecord
from harness.reference_cache import blocks_needed, common_prefix
from harness.workload import Burst, Idle
from reports.schema import FailureClass

ENOUGH_LOOKS = 3  # at a queue, before anything is said about it
ENOUGH_ROOM = 4  # requests side by side that the pool should hold, before one at a time is too few


def check_conservation(history: History, *, exclusive: bool) -> list[Finding]:
    """After an idle gap nothing may run, wait or hold a block. Says nothing when the engine serves others too."""
    if not exclusive or history.engine_lost is not None:
        return []
    found = []
    for record in history.steps:
        gauges = {"running": record.after.running, "waiting": record.after.waiting}
        held = [f"{count:.0f} requests {name}" for name, count in gauges.items() if count]
        held += [f"{record.after.pool_usage:.2%} of the pool in use"] if record.after.pool_usage else []
        if isinstance(history.workload.steps[record.step], Idle) and held:
            found.append(
                Finding(
                    checker="conservation",
                    failure_class=FailureClass.ACCOUNTING,
                    sentence=f"Step {record.step}: seconds after every request was over the engine still reports "
                    f"{' and '.join(held)}.",
                )
            )
    return found


def check_concurrency(history: History) -> list[Finding]:
    """Identical prompts that wait while hardly any run, although their shared blocks leave room for many.

    The V0 scheduler of vLLM asked for as many free blocks as a cold prompt needs, so 200 identical prompts with 99 %
    hits ran one at a time. Judged by the engine's own gauges: a slow client proves nothing. Nor does a queue behind the
    first prefill: until somebody has a token there is nothing to share.
    """
    found = []
    for record in history.steps:
        room, ready = room_side_by_side(history, record), first_token(history, record)
        busy = [look for look in record.queue if look.waiting and look.running is not None and look.at >= ready]
        most = max((look.running or 0 for look in busy), default=0)
        if room is not None and room >= ENOUGH_ROOM and len(busy) >= ENOUGH_LOOKS and most < max(2, room // 2):
            found.append(
                Finding(
                    checker="concurrency",
                    failure_class=FailureClass.LOST_REUSE,
                    sentence=f"Step {record.step}: identical prompts share their blocks, which leaves room for {room} "
                    f"side by side; at {len(busy)} looks with requests waiting, no more than {most:.0f} ran.",
                )
            )
    return found


def room_side_by_side(history: History, record: StepRecord) -> int | None:
    """How many of a burst's identical prompts fit at a time when their whole blocks are shared; None if unknown."""
    if not isinstance(history.workload.steps[record.step], Burst):
        return None
    mine = [o for o in history.outcomes if o.step == record.step]
    pool, block = history.shape.pool_blocks, history.shape.block_size
    if not mine or pool is None or block is None or not history.shape.uniform or not same_prompt(mine):
        return None
    shared = len(mine[0].prompt) // block
    whole = max(blocks_needed(history, len(o.prompt) + o.max_tokens) or 0 for o in mine)
    most = history.shape.most_requests
    room = max(0, (pool - shared) // max(1, whole - shared))
    return min(room, len(mine), room if most is None else most)


def first_token(history: History, record: StepRecord) -> float:
    """When the first token of a step came: by then the prompt of an identical crowd is computed."""
    came = (o.sent + o.tokens[0].at for o in history.outcomes if o.step == record.step and o.tokens)
    return min(came, default=math.inf)


def same_prompt(outcomes: list[Outcome]) -> bool:
    """Whether all of them ask one prompt of one residence."""
    first = outcomes[0]
    return all(
        o.residence == first.residence and common_prefix(o.prompt, first.prompt) == len(first.prompt) == len(o.prompt)
        for o in outcomes
    )
