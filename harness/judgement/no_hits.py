"""Names wrong answers without a hit. The prefix cache did not give them, unless the engine's count is wrong.

An adapter change that never took effect, for example, gives the old adapter's answers without a cache. Whether such an
answer violates the requirement does not change: only its class and its sentence do.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coldproof.adapters.protocol.metrics import Metrics, increase
from coldproof.harness.history.provenance import request_number, wrong_reads_of
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.criteria import OF_ANSWERS, WITHOUT_CACHE
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass

NO_HIT = " The engine reports no cached token for it, so that the prefix cache is not the cause."
WRONG_COUNT = " It reported no cached token for it, but is right with prefix caching off: the count is wrong."


def without_hit(history: History, found: Finding) -> Finding:
    """Return the finding; of an answer that equals another identity's but had no hit, as `not the cache`."""
    if found.failure_class is not FailureClass.STALE_STATE or found.checker not in OF_ANSWERS:
        return found
    outcome = next(o for o in history.outcomes if o.request == found.request)
    if shows_a_hit(history, outcome):
        return found
    return msgspec.structs.replace(
        found, failure_class=FailureClass.NOT_THE_CACHE, sentence=f"{found.sentence}{NO_HIT}"
    )


def with_wrong_count(found: Finding) -> Finding:
    """Return the finding about an answer without a hit that needs the cache: the engine's count is what is wrong."""
    sentence = f"{found.sentence.removesuffix(NO_HIT)}{WRONG_COUNT}"
    return msgspec.structs.replace(found, failure_class=FailureClass.ACCOUNTING, sentence=sentence)


def had_no_hit(found: Finding) -> bool:
    """Return whether `without_hit` named this finding."""
    return found.failure_class is FailureClass.NOT_THE_CACHE and found.checker in OF_ANSWERS


def only_reused_kv(history: History, findings: Iterable[Finding]) -> bool:
    """Return whether all that failed with prefix caching off are wrong answers with cached tokens: KV that the engine
    keeps all the same, as SGLang does for a streaming session. Such a run does not show what happens without.
    """
    hits = {one.request for one in history.outcomes if one.cached_tokens}
    failed = [one for one in findings if one.checker in WITHOUT_CACHE]
    return bool(failed) and all(one.checker in OF_ANSWERS and one.request in hits for one in failed)


def shows_a_hit(history: History, outcome: Outcome) -> bool:
    """Return whether a request may have read cached KV, for all that the engine reports. An unknown count is no zero.

    A count is that of one lookup. It says nothing about a lookup after a preemption or a change, about what a session
    holds or another engine computed, and about each of several answers.
    """
    if outcome.cached_tokens != 0 or outcome.hit_at_least or outcome.options.answers > 1:
        return True
    if outcome.preemptions or outcome.session or outcome.overlapped or history.shape.fetches_prompts:
        return True
    return read_from_others(history, outcome) or counted_more(history, outcome)


def read_from_others(history: History, outcome: Outcome) -> bool:
    """Return whether the engine recorded that a request read KV that another request wrote."""
    writers = [read.writer for read in wrong_reads_of(history, outcome.request) if read.writer is not None]
    return any(request_number(writer.request, history) != outcome.request for writer in writers)


def counted_more(history: History, outcome: Outcome) -> bool:
    """Return whether the engine's own counter grew by more hits in the request's step than its requests report."""
    record = next((one for one in history.steps if one.step == outcome.step), None)
    if record is None:
        return False
    counted = increase(all_hits(record.before), all_hits(record.after))
    reported = sum(other.cached_tokens or 0 for other in history.outcomes if other.step == outcome.step)
    return counted is not None and counted > reported


def all_hits(metrics: Metrics) -> float | None:
    """Return the hit tokens so far, with those of a second tier if it counts them; None if unknown."""
    return None if metrics.hit_tokens is None else metrics.hit_tokens + (metrics.external_hit_tokens or 0)
