"""The pool: what is over must be given back, and blocks that are shared must buy concurrency."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adapters.base import GroupShape, Metrics
from harness.checkers.finding import Finding
from harness.history import History, Outcome, Queue, StepRecord
from harness.reference_cache import least_blocks
from harness.tokens_computed import common_prefix
from harness.workload import Burst, Idle
from reports.schema import FailureClass

ENOUGH_LOOKS = 3  # at a queue, before anything is said about it
ENOUGH_ROOM = 4  # requests side by side that the pool should hold, before one at a time is too few
ROUNDING = 1e-6  # of a gauge


def check_conservation(history: History, *, exclusive: bool) -> list[Finding]:
    """After an idle gap nothing may run, wait or hold a block, but for what earlier runs on this engine left behind.

    Says nothing when the engine serves others too.
    """
    if not exclusive or history.engine_lost is not None:
        return []
    found = []
    for record in history.steps:
        held = list(still_held(history, record.after))
        if isinstance(history.workload.steps[record.step], Idle) and held:
            found.append(
                about_gauges(
                    f"Step {record.step}: seconds after every request was over the engine still reports "
                    f"{' and '.join(held)}."
                )
            )
    return found


def still_held(history: History, gauges: Metrics) -> Iterator[str]:
    """What is held and was not when the run began."""
    before = history.left_over
    for name, now, then in (
        ("running", gauges.running, before.running),
        ("waiting", gauges.waiting, before.waiting),
    ):
        if now and now > (then or 0):
            yield f"{now:.0f} requests {name}"
    used, then = gauges.pool_usage, before.pool_usage or 0.0
    if used and used > max(0.0, then + ROUNDING):
        yield f"{used:.2%} of the pool in use" + (f", {then:.2%} of it since before this run" if then else "")


def check_gauge(history: History) -> list[Finding]:
    """The gauge of the pool's use can be right: not below nothing, and above it while requests run."""
    if history.engine_lost is not None:
        return []
    for record in history.steps:
        usage = [record.after.pool_usage, *(look.pool_usage for look in record.queue)]
        least = min((used for used in usage if used is not None), default=0.0)
        if least < min(0.0, history.left_over.pool_usage or 0.0) - ROUNDING:
            return [
                about_gauges(
                    f"Step {record.step}: the engine reports {least:.2%} of its pool in use: more blocks are free than "
                    "it has, so some were given back twice, or while they were in use."
                )
            ]
    looks = [look for record in history.steps for look in looks_at_work(history, record)]
    if len(looks) < ENOUGH_LOOKS or any(look.pool_usage for look in looks):
        return []
    return [
        about_gauges(
            f"At {len(looks)} looks up to {max(look.running or 0 for look in looks):.0f} requests were running, whose "
            "prompts alone fill a hundredth of the pool, and the engine reported that nothing of it was in use."
        )
    ]


def looks_at_work(history: History, record: StepRecord) -> list[Queue]:
    """Looks at which requests had been running for a while, and must have held blocks: by the second token of somebody,
    and where each prompt takes so much of the pool that a rounded gauge shows it.
    """
    mine = [o for o in history.outcomes if o.step == record.step]
    pool = history.shape.pool_blocks
    if not mine or pool is None or min(least_blocks(history, len(o.prompt)) for o in mine) < pool / 100:
        return []
    began = min((o.sent + o.tokens[1].at for o in mine if len(o.tokens) > 1), default=math.inf)
    return [look for look in record.queue if look.running and look.pool_usage is not None and look.at >= began]


def about_gauges(sentence: str) -> Finding:
    """A gauge that does not come back, or cannot be right."""
    return Finding(checker="conservation", failure_class=FailureClass.ACCOUNTING, sentence=sentence)


def check_concurrency(history: History) -> list[Finding]:
    """Identical prompts that wait while hardly any run, although their shared blocks leave room for many.

    The V0 scheduler of vLLM asked for as many free blocks as a cold prompt needs, so 200 identical prompts with 99 %
    hits ran one at a time. Judged by the engine's own gauges: a slow client proves nothing. Nor does a queue behind the
    first prefill: until somebody has a token there is nothing to share. Nor do gauges that come late (SGLang's are of
    some earlier step): answers that were seen to come in side by side acquit the engine.
    """
    found = []
    for record in history.steps:
        room, ready = room_side_by_side(history, record), first_token(history, record)
        busy = [look for look in record.queue if look.waiting and look.running is not None and look.at >= ready]
        most = max((look.running or 0 for look in busy), default=0)
        most = max(most, answered_together(history, record))
        if room is None or room < ENOUGH_ROOM or len(busy) < ENOUGH_LOOKS:
            continue
        if most < max(3 if all_hit(history, record) else 2, room // 2):
            found.append(
                Finding(
                    checker="concurrency",
                    failure_class=FailureClass.LOST_REUSE,
                    sentence=f"Step {record.step}: identical prompts share their blocks, which leaves room for {room} "
                    f"side by side; at {len(busy)} looks with requests waiting, no more than {most:.0f} ran.",
                )
            )
    return found


def answered_together(history: History, record: StepRecord) -> int:
    """The most requests of a step that were between their first and their last token at one moment."""
    mine = [o for o in history.outcomes if o.step == record.step and o.tokens]
    spans = [(o.sent + o.tokens[0].at, o.sent + o.tokens[-1].at) for o in mine]
    return max((sum(first <= moment < last for first, last in spans) for moment, _ in spans), default=0)


def room_side_by_side(history: History, record: StepRecord) -> int | None:
    """How many of a burst's identical prompts fit at a time when their whole blocks are shared; None if unknown."""
    if not isinstance(history.workload.steps[record.step], Burst):
        return None
    mine = [o for o in history.outcomes if o.step == record.step]
    groups = groups_of(history)
    if not mine or history.shape.pool_blocks is None or not groups or not same_prompt(mine):
        return None
    shared = sum(len(mine[0].prompt) // group.block for group in groups if group.most_blocks is None)
    return fitting(history, mine, shared)


def groups_of(history: History) -> tuple[GroupShape, ...]:
    """The groups of blocks that a request needs, or none where that is not known: of layers of several kinds that are
    all said to keep everything nobody has told what a window keeps.
    """
    shape = history.shape
    if shape.uniform:
        return () if shape.block_size is None else (GroupShape(shape.block_size),)
    return shape.groups if any(group.most_blocks is not None for group in shape.groups) else ()


def fitting(history: History, crowd: list[Outcome], shared: int) -> int:
    """How many of a crowd fit side by side over so many shared blocks. What a window or a state keeps is taken for a
    request's own: it moves on with the answer."""
    groups, most = groups_of(history), history.shape.most_requests
    whole = max(sum(group.blocks(len(o.prompt) + o.max_tokens) for group in groups) for o in crowd)
    room = max(0, ((history.shape.pool_blocks or 0) - shared) // max(1, whole - shared))
    return min(room, len(crowd), room if most is None else most)


def all_hit(history: History, record: StepRecord) -> bool:
    """Whether all of a crowd found its prompt computed, and room is left by what they really share: nobody was busy
    computing a copy of their own, so more than two must have run side by side.
    """
    mine, block = [o for o in history.outcomes if o.step == record.step], history.shape.block_size
    least = min((o.hit_at_least for o in mine), default=0)
    if block is None or not history.shape.uniform or least < (len(mine[0].prompt) - 1) // block * block:
        return False
    return least > 0 and fitting(history, mine, least // block) >= ENOUGH_ROOM


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
