"""Evidence about blocks: hits, evictions, preemptions, resets and aborts. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.requests import Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.history.records import History, Outcome, ResetRecord, common_prefix, written_tokens
from coldproof.harness.judgement.counters import Evidence, Trait, computes
from coldproof.harness.judgement.reference_cache import bounds, lost_tokens
from coldproof.harness.judgement.request_sizes import least_blocks, never_fits
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.workload.steps import Idle

LONG_BLOCKS = 2  # blocks of a prompt that is long enough to share
MOST_OF_POOL = 0.75
DEFAULT_BLOCK = 16


class Reuse(Evidence):
    """Hits by their kind."""

    CHATS = "chat requests"
    SHARED_HITS = "hits on a prefix of another prompt", Trait.HIT_COUNTS
    DECODE_HITS = "hits on blocks written by decode", Trait.HIT_COUNTS
    REPEAT_HITS = "hits of a prompt repeated immediately"
    RETURN_HITS = "hits of a prompt repeated after others"
    EXPECTED = "requests with a minimum expected hit"
    COUNTED = "hits counted per request and by the metrics", Trait.EXCLUSIVE


@computes(Reuse, order=40)
def reuse_facts(history: History) -> dict[str, float]:
    """Return the counters of hits by their kind."""
    hits = [o for o in history.outcomes if o.hit_at_least]
    chats = {number for number, _, request in history.workload.requests() if request.chat}
    counters = bool(history.steps) and history.steps[-1].after.hit_tokens is not None
    return {
        Reuse.CHATS: sum(o.request in chats for o in history.outcomes if o.error is None),
        Reuse.SHARED_HITS: sum(any(diverges_from(p, o) for p in prior(history, o)) for o in hits),
        Reuse.DECODE_HITS: sum(any(decoded_for(p, o) for p in prior(history, o)) for o in hits),
        Reuse.REPEAT_HITS: sum(sent_before(history, o) and not others_between(history, o) for o in hits),
        Reuse.RETURN_HITS: sum(sent_before(history, o) and others_between(history, o) for o in hits),
        Reuse.EXPECTED: sum(bool(limits.at_least) for limits in bounds(history).values()),
        Reuse.COUNTED: len(hits) if counters else 0,
    }


class Pressure(Evidence):
    """A pool that is too small, and gaps in which it must be empty."""

    EVICTED = ReportedEvidence.EVICTED.value, Trait.SMALL_POOL, Trait.HIT_COUNTS
    PREEMPTIONS = ReportedEvidence.PREEMPTIONS.value, Trait.SMALL_POOL
    AFTER_PREEMPTION = "hits after a preemption", Trait.HIT_COUNTS
    IDENTICAL = "concurrent identical long prompts"
    WAITED = "queue samples with requests waiting", Trait.SMALL_POOL
    REFUSED = "prompts refused because they can never fit"
    BESIDE_REFUSED = "requests answered with or after a refused one"
    FULL_POOL = "requests that need most of the pool", Trait.SMALL_POOL
    IDLE_LOOKS = "idle gaps after which pool usage was sampled"
    IDLE_COMPARED = "idle gaps after which pool usage was compared with that before", Trait.EXCLUSIVE


@computes(Pressure, order=50)
def pressure_facts(history: History) -> dict[str, float]:
    """Return the counters of a pool that is too small: evictions, preemptions, waiting and refused requests."""
    refused = [o for o in history.outcomes if o.refused and never_fits(history, o)]
    first_refused = min((o.sent for o in refused), default=None)
    steps = history.workload.steps
    idle = sum(isinstance(steps[r.step], Idle) and r.after.pool_usage is not None for r in history.steps)
    preempted = [r for r in history.steps if (r.after.preemptions or 0) > (r.before.preemptions or 0)]
    return {
        Pressure.EVICTED: sum(lost_tokens(history, o) for o in history.outcomes),
        Pressure.PREEMPTIONS: history.steps[-1].after.preemptions or 0 if history.steps else 0,
        Pressure.AFTER_PREEMPTION: sum(
            o.hit_at_least > 0 and any(r.finished <= o.sent for r in preempted) for o in history.outcomes
        ),
        Pressure.IDENTICAL: sum(identical(history, o) for o in history.outcomes),
        Pressure.WAITED: sum(bool(sample.waiting) for r in history.steps for sample in r.queue),
        Pressure.REFUSED: len(refused),
        Pressure.BESIDE_REFUSED: sum(
            o.answered and first_refused is not None and o.finished > first_refused for o in history.outcomes
        ),
        Pressure.FULL_POOL: sum(o.answered and fills_pool(history, o) for o in history.outcomes),
        Pressure.IDLE_LOOKS: idle,
        Pressure.IDLE_COMPARED: idle,
    }


class Control(Evidence):
    """Resets and aborts, and the requests after them."""

    RESETS = "cache resets that reported success", Trait.OF_RESETS
    RESETS_UNDER_LOAD = "cache resets under load"
    AFTER_RESET = "requests that could have hit what a reset removed"
    RESETS_OF_RUNNING = "resets of running requests that reported success", Trait.OF_RESETS
    RESETS_OF_TIER = "resets of the second tier", Trait.OF_RESETS
    AFTER_TIER_RESET = "requests that could have loaded what a reset of the second tier had to remove"
    ABORTED_QUEUED = "requests aborted in the queue"
    ABORTED_PREFILL = "requests aborted in prefill"
    ABORTED_DECODE = "requests aborted while decoding"
    AFTER_ABORT = "requests that share a prefix with an aborted one before them"


@computes(Control, order=60)
def control_facts(history: History) -> dict[str, float]:
    """Return the counters of resets and aborts, and of the requests after them."""
    stages = [o.aborted for o in history.outcomes]
    done = [r for r in history.resets if r.success]
    of_tier = [r for r in history.resets if ResetScope.SECOND_TIER in r.scope]
    return {
        Control.RESETS: len(done),
        Control.RESETS_UNDER_LOAD: sum(
            any(o.sent < r.began < o.finished for o in history.outcomes) for r in history.resets
        ),
        Control.AFTER_RESET: sum(after_reset(history, o, done) for o in history.outcomes),
        Control.RESETS_OF_RUNNING: sum(
            ResetScope.RUNNING in r.scope and any(o.sent < r.began < o.finished for o in history.outcomes) for r in done
        ),
        Control.RESETS_OF_TIER: len(of_tier),
        Control.AFTER_TIER_RESET: sum(after_reset(history, o, of_tier) for o in history.outcomes),
        Control.ABORTED_QUEUED: stages.count(Stage.QUEUED),
        Control.ABORTED_PREFILL: stages.count(Stage.PREFILL),
        Control.ABORTED_DECODE: stages.count(Stage.DECODE),
        Control.AFTER_ABORT: sum(
            o.answered and any(p.aborted and shares(history, p, o) for p in prior(history, o)) for o in history.outcomes
        ),
    }


class Options(Evidence):
    """Response options on a cached prefix."""

    SCORED_PROMPTS = "prompt logprobs of a cached prompt"
    SEVERAL = "several answers on a hit", Trait.HIT_COUNTS
    STOPPED = "answers ended by a stop string on a hit", Trait.HIT_COUNTS
    PATTERNED = "structured outputs on a hit", Trait.HIT_COUNTS


@computes(Options, order=70)
def response_option_facts(history: History) -> dict[str, float]:
    """Return the counters of response options on a cached prefix."""
    answered = [o for o in history.outcomes if o.answered]
    hits = [o for o in answered if o.hit_at_least]
    return {
        Options.SCORED_PROMPTS: sum(
            o.options.prompt_logprobs and any(shares(history, p, o) for p in prior(history, o)) for o in answered
        ),
        Options.SEVERAL: sum(o.options.answers > 1 for o in hits),
        Options.STOPPED: sum(bool(o.options.stop) and o.finish_reason == "stop" for o in hits),
        Options.PATTERNED: sum(o.options.pattern is not None for o in hits),
    }


def prior(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the requests of the same identity that were sent before this one."""
    return [
        p
        for p in history.outcomes
        if p.request != outcome.request and p.sent < outcome.sent and set(p.identities) & set(outcome.identities)
    ]


def shares(history: History, earlier: Outcome, outcome: Outcome) -> bool:
    """Return whether this request's prompt shares at least one block with an earlier request."""
    return common_prefix(written_tokens(earlier), outcome.prompt) >= (history.shape.block_size or DEFAULT_BLOCK)


def diverges_from(earlier: Outcome, outcome: Outcome) -> bool:
    """Return whether a request hit the prefix of another prompt that continues differently."""
    shared = common_prefix(written_tokens(earlier), outcome.prompt)
    parted = shared < len(outcome.prompt) and shared < len(earlier.prompt)
    return parted and shared >= outcome.hit_at_least > 0


def decoded_for(earlier: Outcome, outcome: Outcome) -> bool:
    """Return whether a hit extends beyond an earlier prompt into its answer."""
    return len(earlier.prompt) < outcome.hit_at_least <= common_prefix(written_tokens(earlier), outcome.prompt)


def sent_before(history: History, outcome: Outcome) -> bool:
    """Return whether the same prompt was sent before under the same identity."""
    return any(p.prompt == outcome.prompt for p in prior(history, outcome))


def others_between(history: History, outcome: Outcome) -> bool:
    """Return whether another prompt was sent between this one and the previous request with the same prompt."""
    latest = max(p.sent for p in prior(history, outcome) if p.prompt == outcome.prompt)
    return any(latest < p.sent < outcome.sent and p.prompt != outcome.prompt for p in history.outcomes)


def identical(history: History, outcome: Outcome) -> bool:
    """Return whether the request was answered and has a long prompt that another request of its burst has as well."""
    long = len(outcome.prompt) >= LONG_BLOCKS * (history.shape.block_size or DEFAULT_BLOCK)
    beside = (o for o in history.outcomes if o.step == outcome.step and o.request != outcome.request)
    return long and outcome.answered and any(o.prompt == outcome.prompt for o in beside)


def fills_pool(history: History, outcome: Outcome) -> bool:
    """Return whether a request needs most of the pool, together with the requests of its burst that share no block."""
    pool = history.shape.pool_blocks
    if pool is None or history.shape.block_size is None or not outcome.answered:
        return False
    apart: list[Outcome] = []
    for beside in (outcome, *(o for o in history.outcomes if o.step == outcome.step and o is not outcome)):
        if beside.answered and not any(shares(history, known, beside) for known in apart):
            apart.append(beside)
    needed = sum(least_blocks(history, len(o.prompt) + o.max_tokens) for o in apart)
    return needed >= MOST_OF_POOL * pool


def after_reset(history: History, outcome: Outcome, resets: list[ResetRecord]) -> bool:
    """Return whether a prefix of the prompt was computed before the last of these resets, and not since."""
    before = [r.ended for r in resets if r.ended <= outcome.sent]
    if not before or not outcome.answered:
        return False
    last = max(before)
    shared = [p for p in prior(history, outcome) if shares(history, p, outcome)]
    return bool(shared) and all(p.finished <= last for p in shared)
