"""Checks what the scheduler of an engine shows in each of its steps: gauges, limits, hits, and the order of admissions.

Only for engines whose steps are recorded. vLLM documents that requests are handled in the order of their arrival, or by
priority and then arrival (`SchedulerConfig.policy`), and that its gauges are the number of running and of waiting
requests and the fraction of used KV blocks (the metrics `num_requests_running`, `num_requests_waiting`,
`kv_cache_usage_perc`). A step has at most `max_num_batched_tokens` tokens and `max_num_seqs` requests. The cached-token
count of a request (`RequestOutput.num_cached_tokens`) is the number of prompt tokens that it does not compute.
Transformers passes over requests that do not fit (`Scheduler._process_candidates`), so that no order is judged there.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator

from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.preemption.checks import comes_after, needs_the_same
from coldproof.harness.features.pressure.checks import gauge_finding
from coldproof.harness.history.records import History, Outcome, has_sessions
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.request_sizes import AHEAD, blocks_held
from coldproof.harness.schema.verdict import FailureClass

MOMENT = 1e-6  # seconds: times are sums of whole steps, with rounding errors
ROUNDING = 1e-6  # of a gauge


@check(
    "conservation",
    order=160,
    fails=(
        "Where the engine's steps are recorded: gauges that are not the number of unanswered requests and the share "
        "of blocks that are not free, a step that exceeds the engine's limits, a reset that fails while no request "
        "holds blocks."
    ),
)
def check_step_gauges(history: History, *, exclusive: bool) -> list[Finding]:
    """Return findings for the first step whose gauges are wrong or that exceeds a limit, and for the first reset that
    fails for no reason.
    """
    if not is_recorded(history, exclusive=exclusive):
        return []
    return [*wrong_usage(history), *wrong_queue(history), *exceeded_limit(history), *failed_reset(history)]


@check(
    "accounting",
    order=170,
    fails=(
        "Where the engine's steps are recorded: a count that is not the number of tokens that a request did not "
        "compute."
    ),
)
def check_step_counts(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first request whose count is wrong."""
    return wrong_count(history) if is_recorded(history, exclusive=exclusive) else []


@check(
    "order",
    order=180,
    fails=(
        "A request that is admitted before an earlier one that is not less urgent, or before a more urgent one that "
        "was sent by then, where the engine's steps are recorded."
    ),
)
def check_admissions(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first request that was admitted out of order."""
    return wrong_admission(history) if is_recorded(history, exclusive=exclusive) and history.shape.in_order else []


@check(
    "concurrency",
    order=190,
    fails="Where the engine's steps are recorded: any request that waits although nothing is short.",
)
def check_waits(history: History, *, exclusive: bool) -> list[Finding]:
    """Return a finding for the first step in which a request waits although nothing is short."""
    return needless_wait(history) if is_recorded(history, exclusive=exclusive) and history.shape.in_order else []


def is_recorded(history: History, *, exclusive: bool) -> bool:
    """Return whether the engine's steps are recorded, and are those of this run alone."""
    return exclusive and history.engine_lost is None and bool(history.engine_steps)


def wrong_usage(history: History) -> list[Finding]:
    """Return a finding for the first step whose pool gauge is not the share of blocks that are not free."""
    pool = history.shape.pool_blocks
    for step in history.engine_steps or ():
        if pool and step.usage is not None and abs(step.usage - (1 - step.free / pool)) > ROUNDING:
            free = f"{step.free} of {pool} blocks are free, but the engine reports {step.usage:.2%} of its pool in use"
            return [gauge_finding(f"{step.at:.2f} s after the start of the run, {free}.")]
    return []


def wrong_queue(history: History) -> list[Finding]:
    """Return a finding for the first step in which more or fewer requests run or wait than were sent and not ended."""
    if any(outcome.options.answers > 1 for outcome in history.outcomes) or history.pauses:
        return []  # each answer counts as a request
    if has_sessions(history):
        return []  # one that waits for input is in the queue
    if history.left_over.running or history.left_over.waiting or history.shape.second_tier:
        return []  # of an earlier run, which has its own finding; a request may be in neither queue while KV is moved
    sent = sorted(outcome.sent for outcome in history.outcomes)
    ended = sorted(outcome.finished for outcome in history.outcomes)
    for step in history.engine_steps or ():
        known = bisect.bisect_right(sent, step.at + MOMENT) - bisect.bisect_right(ended, step.at + MOMENT)
        if step.running is not None and step.running + step.waiting != known:
            counts = f"{step.running} requests run and {step.waiting} wait in the engine, but {known} are unanswered"
            return [gauge_finding(f"{step.at:.2f} s after the start of the run, {counts}.")]
    return []


def exceeded_limit(history: History) -> list[Finding]:
    """Return a finding for the first step that computes more tokens or runs more requests than the engine's limits."""
    shape = history.shape
    tokens, requests = shape.step_tokens or math.inf, shape.most_requests or math.inf
    for step in history.engine_steps or ():
        computed = sum(chunk.end - chunk.start for chunk in step.chunks) + step.decoding
        if computed > tokens or (step.running or 0) > requests:
            does = f"a step computes {computed} tokens for {step.running} running requests"
            limit = f"the engine's limits are {tokens} tokens and {requests} requests"
            return [gauge_finding(f"{step.at:.2f} s after the start of the run, {does}; {limit}.")]
    return []


def failed_reset(history: History) -> list[Finding]:
    """Return a finding for the first reset that reports failure while no request holds blocks.

    vLLM's reset fails only where blocks are in use (`BlockPool.reset_prefix_cache`). A second tier may hold some.
    """
    if history.shape.second_tier or history.left_over.pool_usage:
        return []
    for reset in history.resets:
        busy = any(outcome.sent <= reset.began < outcome.finished for outcome in history.outcomes)
        if not reset.success and not busy:
            when = f"{reset.began:.2f} s after the start of the run"
            return [gauge_finding(f"A cache reset {when} failed while the engine was idle.")]
    return []


def wrong_count(history: History) -> list[Finding]:
    """Return a finding for the first request whose cached-token count is not where its first chunk began.

    Only without a second tier: a load may fail after it was counted.
    """
    if history.shape.second_tier:
        return []
    admitted = (one for step in history.engine_steps or () for one in step.admitted if not one.resumed)
    hits = {int(one.request): one.hit for one in admitted}
    for outcome in history.outcomes:
        cached, began = outcome.cached_tokens, hits.get(outcome.request)
        if outcome.tokens and outcome.options.answers == 1 and None not in (cached, began) and cached != began:
            says = f"Request {outcome.request} reports {cached} cached tokens"
            found = f"{says}, but its prompt was computed from token {began} on."
            return [
                Finding(
                    checker="accounting",
                    failure_class=FailureClass.ACCOUNTING,
                    request=outcome.request,
                    sentence=found,
                )
            ]
    return []


def wrong_admission(history: History) -> list[Finding]:
    """Return a finding for the first request that was admitted while one waited that is more urgent, or as urgent and
    was sent before it. Only for pairs that differ in nothing that could let one wait alone, as an adapter slot or a
    grammar.
    """
    if history.shape.second_tier or history.resets or has_sessions(history):
        return []  # a load from the tier, a request that a reset queued again, a session that goes on
    begun = first_admissions(history.engine_steps or ())
    urgency = {number: request.priority for number, _, request in history.workload.requests()}
    by_step = itertools.groupby(sorted(history.outcomes, key=lambda outcome: outcome.step), lambda one: one.step)
    for first, then in (pair for _, burst in by_step for pair in itertools.permutations(burst, 2)):
        began = begun.get(then.request)
        until = min(begun.get(first.request, (math.inf, 0)), (first.finished - MOMENT, 0))
        if began is None or began >= until:
            continue
        waited = first.sent <= began[0] + MOMENT and needs_the_same(first, then)
        more, equal = (compare(urgency[first.request], urgency[then.request]) for compare in (operator.lt, operator.eq))
        if (more and waited) or (equal and comes_after(then, first)):
            return [overtaking(first, then)]
    return []


def needless_wait(history: History) -> list[Finding]:
    """Return a finding for the first step in which a request of the base model waits although nothing is short.

    That is only certain where all unanswered requests fit into the pool with their whole answers and share nothing, and
    the step has tokens and requests to spare for all that wait. A second tier, other kinds of layers (whose chunks end
    at whole blocks), a pause, a reset of running requests, or open sessions may have other reasons.
    """
    shape, resets = history.shape, any(ResetScope.RUNNING in reset.scope for reset in history.resets)
    if shape.second_tier or not shape.uniform or None in (shape.step_tokens, shape.pool_blocks):
        return []
    if history.pauses or resets or has_sessions(history):
        return []
    begun = first_admissions(history.engine_steps or ())
    for step in history.engine_steps or ():
        live = [one for one in history.outcomes if one.sent <= step.at + MOMENT < one.finished]
        waits = [one for one in live if begun.get(one.request, (math.inf, 0))[0] > step.at + MOMENT]
        plain = [one for one in waits if one.partition.name is None and one.options.pattern is None]
        if plain and has_spare(history, step, live, waits):
            sentence = (
                f"Request {plain[0].request} waits {step.at:.2f} s after the start of the run, although the pool has "
                f"room for all {len(live)} unanswered requests, and the step has tokens to spare."
            )
            return [
                Finding(
                    checker="concurrency",
                    failure_class=FailureClass.LOST_REUSE,
                    request=plain[0].request,
                    sentence=sentence,
                )
            ]
    return []


def has_spare(history: History, step: EngineStep, live: list[Outcome], waits: list[Outcome]) -> bool:
    """Return whether a step could also compute the prompts of those that wait, and the pool holds all that live."""
    shape = history.shape
    if any(one.options.answers > 1 for one in live):
        return False
    computed = sum(chunk.end - chunk.start for chunk in step.chunks) + step.decoding
    tokens = computed + sum(len(one.prompt) for one in waits) <= (shape.step_tokens or 0)
    requests = len(live) <= (shape.most_requests or math.inf)
    blocks = sum(blocks_held(history, len(one.prompt) + one.max_tokens + AHEAD) for one in live)
    return tokens and requests and blocks <= (shape.pool_blocks or 0)


def first_admissions(steps: tuple[EngineStep, ...]) -> dict[int, tuple[float, int]]:
    """Return when each request was admitted first: the time, and its place among the admissions of that step."""
    found: dict[int, tuple[float, int]] = {}
    for step in steps:
        for place, one in enumerate(step.admitted):
            found.setdefault(int(one.request), (step.at, place))
    return found


def overtaking(first: Outcome, then: Outcome) -> Finding:
    """Return the finding about the request that waited."""
    sentence = (
        f"Request {then.request} was admitted while request {first.request} waited, which is more urgent, or as urgent "
        "and was sent before it."
    )
    return Finding(checker="order", failure_class=FailureClass.API, request=first.request, sentence=sentence)
