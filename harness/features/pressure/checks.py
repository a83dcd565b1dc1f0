"""Checks the block pool: finished requests free their blocks, and shared blocks allow more concurrent requests."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coldproof.adapters.protocol.metrics import Metrics, increase
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.history.records import History, Outcome, QueueSample, StepRecord, common_prefix, has_sessions
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.request_sizes import least_blocks
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Burst, Idle

ENOUGH_SAMPLES = 3  # of a queue, below which nothing is concluded
ENOUGH_ROOM = 4  # concurrent requests that must fit into the pool, below which nothing is concluded
ROUNDING = 1e-6  # of a gauge


@check(
    "conservation",
    order=140,
    fails=(
        "Any request that runs or waits, or any block in use, after an idle gap; a pool gauge of zero while requests "
        "run, or above one."
    ),
    lasting=True,
)
def check_conservation(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for each idle gap after which a request runs or waits, or a block is in use since this run.

    Return none if other clients use the engine (not `exclusive`).
    """
    if not exclusive or history.engine_lost is not None:
        return []
    found = []
    for record in history.steps:
        remaining = list(still_held(history, record.after))
        if isinstance(history.workload.steps[record.step], Idle) and remaining:
            late = f"Step {record.step}: seconds after all requests had ended"
            found.append(gauge_finding(f"{late}, the engine still reports {' and '.join(remaining)}."))
    return found


def still_held(history: History, gauges: Metrics) -> Iterator[str]:
    """Yield descriptions of what the engine holds now and did not hold when the run began."""
    before = history.left_over
    counts = (("running", gauges.running, before.running), ("waiting", gauges.waiting, before.waiting))
    for name, now, then in counts:
        if now and now > (then or 0):
            yield f"{now:.0f} requests {name}"
    used, then = gauges.pool_usage, before.pool_usage or 0.0
    if used and used > max(0.0, then + ROUNDING):
        yield f"{used:.2%} of the pool in use" + (f" ({then:.2%} before this run)" if then else "")


@check("conservation", order=150)
def check_gauge(history: History) -> list[Finding]:
    """Return a finding if the pool gauge is impossible: below zero, above one, or zero while requests run."""
    if history.engine_lost is not None:
        return []
    for record in history.steps:
        usage = [record.after.pool_usage, *(sample.pool_usage for sample in record.queue)]
        least = min((used for used in usage if used is not None), default=0.0)
        most = max((used for used in usage if used is not None), default=0.0)
        if least < min(0.0, history.left_over.pool_usage or 0.0) - ROUNDING:
            used = f"Step {record.step}: the engine reports {least:.2%} of its pool in use"
            why = "Some blocks were freed twice, or freed while in use."
            return [gauge_finding(f"{used}: more blocks are free than exist. {why}")]
        if most > 1 + ROUNDING:
            used = f"Step {record.step}: the engine reports {most:.2%} of its pool in use"
            return [gauge_finding(f"{used}: more blocks than exist. It counts shared blocks more than once.")]
    samples = [sample for record in history.steps for sample in samples_at_work(history, record)]
    if len(samples) < ENOUGH_SAMPLES or any(sample.pool_usage for sample in samples):
        return []
    return [
        gauge_finding(
            f"In {len(samples)} samples, up to {max(sample.running or 0 for sample in samples):.0f} requests were "
            "running. The prompt of each fills at least 1 % of the pool, but the engine reported a pool usage of zero."
        )
    ]


def samples_at_work(history: History, record: StepRecord) -> list[QueueSample]:
    """Return the queue samples after some request's second token, if each prompt is large enough for a rounded pool
    gauge to show it."""
    requests = [o for o in history.outcomes if o.step == record.step]
    pool = history.shape.pool_blocks
    if not requests or pool is None or min(least_blocks(history, len(o.prompt)) for o in requests) < pool / 100:
        return []
    began = min((o.sent + o.tokens[1].at for o in requests if len(o.tokens) > 1), default=math.inf)
    return [s for s in record.queue if s.running and s.pool_usage is not None and s.at >= began]


def gauge_finding(sentence: str) -> Finding:
    """Return a finding about a gauge."""
    return Finding(checker="conservation", failure_class=FailureClass.ACCOUNTING, sentence=sentence)


@check(
    "concurrency",
    order=120,
    fails=("Identical prompts that wait although the pool has room for them to run concurrently with shared blocks."),
)
def check_concurrency(history: History) -> list[Finding]:
    """Return a finding for each burst of identical prompts that waited although the pool had room for many of them.

    The V0 scheduler of vLLM required as many free blocks as a cold prompt needs, so that 200 identical prompts with
    99 % hits ran one at a time. The engine's own gauges count, because a slow client proves nothing. Samples before the
    first token do not count, because there are no blocks to share yet. Gauges may be late (SGLang reports those of an
    earlier step), so answers that arrived concurrently also count as concurrency. Nothing is owed in a step with loads
    from a second tier: see `may_load`.
    """
    found = []
    for record in history.steps:
        if may_load(history, record):
            continue
        room, ready = room_side_by_side(history, record), first_token(history, record)
        waiting_samples = [s for s in record.queue if s.waiting and s.running is not None and s.at >= ready]
        most = max((sample.running or 0 for sample in waiting_samples), default=0)
        most = max(most, answered_together(history, record))
        if room is None or room < ENOUGH_ROOM or len(waiting_samples) < ENOUGH_SAMPLES:
            continue
        if most < max(3 if all_hit(history, record) else 2, room // 2):
            shared = f"identical prompts share their blocks, so the pool has room for {room} at a time"
            ran = f"in {len(waiting_samples)} samples with requests waiting, at most {most:.0f} ran"
            sentence = f"Step {record.step}: {shared}; {ran}."
            found.append(Finding(checker="concurrency", failure_class=FailureClass.LOST_REUSE, sentence=sentence))
    return found


def may_load(history: History, record: StepRecord) -> bool:
    """Return whether requests of a step loaded blocks from a second tier. An engine that does not count its loads may
    have loaded some.

    Then requests wait for loads although the pool has room for them, and each load takes blocks of its own. vLLM's
    lookup in the pool leaves out a prompt's last token, so that of a prompt of whole blocks it misses the last block. A
    connector offers that block: each identical request loads it into another block, and OffloadingConnector lets the
    others wait meanwhile (0.32.0: `_chunks_being_loaded`), so that the length of the answers decides how many run.
    """
    grown = increase(record.before.external_hit_tokens, record.after.external_hit_tokens)
    return history.shape.second_tier and grown != 0


def answered_together(history: History, record: StepRecord) -> int:
    """Return the largest number of a step's requests that were between their first and last token at one time."""
    requests = [o for o in history.outcomes if o.step == record.step and o.tokens]
    spans = [(o.sent + o.tokens[0].at, o.sent + o.tokens[-1].at) for o in requests]
    return max((sum(first <= moment < last for first, last in spans) for moment, _ in spans), default=0)


def room_side_by_side(history: History, record: StepRecord) -> int | None:
    """Return how many identical prompts of a burst fit into the pool if all whole blocks are shared; None: unknown."""
    if not isinstance(history.workload.steps[record.step], Burst):
        return None
    requests = [o for o in history.outcomes if o.step == record.step]
    groups = groups_of(history)
    if not requests or history.shape.pool_blocks is None or not groups or not same_prompt(requests):
        return None
    if has_sessions(history):  # which may hold blocks
        return None
    shared = sum(len(requests[0].prompt) // group.block for group in groups if group.most_blocks is None)
    return fitting(history, requests, shared)


def groups_of(history: History) -> tuple[GroupShape, ...]:
    """Return the block groups that a request needs, or () if they are unknown.

    If all groups of an engine with several kinds of layers keep everything, the size of its windows is unknown.
    """
    shape = history.shape
    if shape.uniform:
        return () if shape.block_size is None else (GroupShape(shape.block_size),)
    return shape.groups if any(group.most_blocks is not None for group in shape.groups) else ()


def fitting(history: History, crowd: list[Outcome], shared: int) -> int:
    """Return how many requests of `crowd` fit into the pool at a time if they share `shared` blocks.

    Blocks of windows and states are not counted as shared, because they move on with each answer.
    """
    groups, most = groups_of(history), history.shape.most_requests
    whole = max(sum(group.blocks(len(o.prompt) + o.max_tokens) for group in groups) for o in crowd)
    room = max(0, ((history.shape.pool_blocks or 0) - shared) // max(1, whole - shared))
    return min(room, len(crowd), room if most is None else most)


def all_hit(history: History, record: StepRecord) -> bool:
    """Return whether all requests of a step hit their whole prompt and fit into the pool with what they share.

    Then no request computed a copy of its own, and more than two must have run concurrently.
    """
    requests, block = [o for o in history.outcomes if o.step == record.step], history.shape.block_size
    least = min((o.hit_at_least for o in requests), default=0)
    if block is None or not history.shape.uniform or least < (len(requests[0].prompt) - 1) // block * block:
        return False
    return least > 0 and fitting(history, requests, least // block) >= ENOUGH_ROOM


def first_token(history: History, record: StepRecord) -> float:
    """Return the time of a step's first token, when the prompt of identical requests is computed; inf if none came."""
    came = (o.sent + o.tokens[0].at for o in history.outcomes if o.step == record.step and o.tokens)
    return min(came, default=math.inf)


def same_prompt(outcomes: list[Outcome]) -> bool:
    """Return whether all requests have the same prompt and the same cache partition."""
    first = outcomes[0]
    return all(
        o.partition == first.partition and common_prefix(o.prompt, first.prompt) == len(first.prompt) == len(o.prompt)
        for o in outcomes
    )
