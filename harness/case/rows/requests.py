"""Rows of a case that reports show: steps, requests, and the tokens of the wrong answer.

Pure functions of a judged history. All times are in seconds since the start of the workload.
"""

from __future__ import annotations

from coldproof.harness.case.rows.prompts import segment_rows
from coldproof.harness.history.provenance import request_number, wrong_reads_of
from coldproof.harness.history.records import History, Outcome, common_prefix, written_tokens
from coldproof.harness.judgement.checkers.cached_tokens import writer_before_a_reset
from coldproof.harness.judgement.checkers.tokens import agrees, closest, foreign_source
from coldproof.harness.judgement.criteria import OF_ANSWERS
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import Answers, question
from coldproof.harness.judgement.reference_cache import Bounds, bounds
from coldproof.harness.schema.case import RequestRow, StepRow, TokenRow
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import Request

CONTEXT_TOKENS = 16  # tokens shown before and after the first difference


def step_rows(history: History) -> list[StepRow]:
    """Return the steps of the workload with descriptions, times and errors."""
    rows, first = [], 0
    times = {record.step: record for record in history.steps}
    for number, step in enumerate(history.workload.steps):
        record = times.get(number)
        rows.append(
            StepRow(
                step=number,
                words=describe(step, first),
                started=record.started if record else 0.0,
                finished=record.finished if record else 0.0,
                error=(record.error or "") if record else "not reached",
            )
        )
        first += len(step.requests)
    return rows


def request_rows(judgement: Judgement) -> list[RequestRow]:
    """Return every request with its cache bounds, correctness, times and outcome."""
    limits = bounds(judgement.history)
    asked = {number: request for number, _, request in judgement.history.workload.requests()}
    wrong = {f.request: f for f in judgement.findings if f.checker in OF_ANSWERS}
    return [
        request_row(o, asked, limits[o.request], wrong.get(o.request), judgement) for o in judgement.history.outcomes
    ]


def request_row(
    o: Outcome, asked: dict[int, Request], limit: Bounds, wrong: Finding | None, judgement: Judgement
) -> RequestRow:
    """Return the row of one request. `wrong`: the finding about its tokens, if any."""
    history = judgement.history
    shared_tokens, shared_with = longest_shared_prefix(o, history)
    at = wrong.position if wrong is not None and o.options.pooled is None else None
    skipped = wrong is None and o.overlapped and not matches_an_adapter_version(o, judgement.answers)
    return RequestRow(
        request=o.request,
        step=o.step,
        model=o.model,
        identity=" or ".join(history.describe_identity(i) for i in o.identities),
        prompt_in_words=str(asked[o.request].prompt),
        prompt_tokens=len(o.prompt),
        output_tokens=len(o.tokens),
        cached_tokens=o.cached_tokens,
        cached_at_least=limit.at_least,
        cached_at_most=limit.at_most,
        sent=o.sent,
        finished=o.finished,
        correct=None if o.error or skipped else wrong is None,
        overlaps_change=o.overlapped,
        answers_as="" if skipped else matching_cold_answers(o, judgement.answers, history),
        error=o.error or "",
        answer=list(o.token_ids),
        answer_text=o.text,
        adapter=o.partition.name or "",
        first_token=token_time(o, 0),
        wrong_token=at,
        wrong_token_at=None if at is None else token_time(o, at),
        preempted_at=[o.since_start(at) for at in o.preempted_at],
        resumed_at=[resume_time(o, at) for at in o.preempted_at],
        aborted=o.aborted.value if o.aborted is not None else "",
        segments=segment_rows(o, asked, history),
        shared_tokens=shared_tokens,
        shared_with=shared_with,
        written_by=writer_of_wrong_read(o, limit, wrong, history),
        wrong_kv=first_wrong_positions(o, history),
    )


def matches_an_adapter_version(outcome: Outcome, answers: Answers) -> bool:
    """Return whether an answer equals the cold answer of an adapter version in force; False if that is unknown."""
    known = (answers.get(question(outcome, identity)) for identity in outcome.identities)
    return any(answer is not None and agrees(outcome, answer) for answer in known)


def token_time(outcome: Outcome, position: int) -> float | None:
    """Return the time of a token of the answer; None if there is no such token."""
    return outcome.since_start(outcome.tokens[position].at) if position < len(outcome.tokens) else None


def resume_time(outcome: Outcome, preempted: float) -> float:
    """Return the time of the first token after a preemption, or the end of the request if there is none."""
    later = (outcome.since_start(token.at) for token in outcome.tokens if token.at > preempted)
    return min(later, default=outcome.finished)


def longest_shared_prefix(outcome: Outcome, history: History) -> tuple[int, int | None]:
    """Return the longest prefix in tokens that an earlier request computed, and the first such request."""
    best, whose = 0, None
    for other in history.outcomes:
        length = common_prefix(written_tokens(other), outcome.prompt)
        if other.request < outcome.request and length > best:
            best, whose = length, other.request
    return best, whose


def writer_of_wrong_read(outcome: Outcome, limit: Bounds, wrong: Finding | None, history: History) -> int | None:
    """Return the request that wrote wrongly read blocks, by the engine's digests or by the tokens; None if unknown."""
    for read in history.wrong_reads:
        if request_number(read.request, history) == outcome.request and read.writer is not None:
            writer = request_number(read.writer.request, history)
            return None if writer == outcome.request else writer
    cached = outcome.cached_tokens or 0
    if wrong is None and cached <= limit.at_most:
        return None
    source = foreign_source(history, outcome)
    if source is None and cached > limit.at_most:
        source = writer_before_a_reset(history, outcome, cached)
    return None if source is None else source.request


def first_wrong_positions(outcome: Outcome, history: History) -> list[int]:
    """Return the first and last position of the first wrong read; empty if the engine does not report it."""
    first = next(iter(wrong_reads_of(history, outcome.request)), None)
    return [] if first is None else [first.first, first.last]


def matching_cold_answers(outcome: Outcome, answers: Answers, history: History) -> str:
    """Return whose cold answer this answer equals. An aborted answer is compared as far as it goes."""
    if not outcome.tokens:
        return ""
    equal = [
        history.describe_adapter(asked.adapter)
        for asked, answer in answers.items()
        if asked.prompt == outcome.prompt and asked.max_tokens == outcome.max_tokens and agrees(outcome, answer)
    ]
    return " and ".join(dict.fromkeys(equal)) or ("" if outcome.error else "no known cold answer")


def token_rows(outcome: Outcome, answers: Answers, finding: Finding) -> list[TokenRow]:
    """Return cold and observed tokens around the first difference."""
    if outcome.error is not None:
        return []
    expected = closest(outcome, answers)
    last = max(len(expected.tokens), len(outcome.tokens))
    middle = finding.position or 0
    rows = []
    for i in range(max(0, middle - CONTEXT_TOKENS), min(last, middle + CONTEXT_TOKENS)):
        cold = expected.tokens[i] if i < len(expected.tokens) else None
        warm = outcome.tokens[i] if i < len(outcome.tokens) else None
        rows.append(
            TokenRow(
                position=i,
                expected=cold.id if cold else None,
                observed=warm.id if warm else None,
                expected_text=text(cold.id) if cold else "",
                observed_text=text(warm.id) if warm else "",
                expected_gap=cold.gap if cold else None,
                observed_gap=warm.gap if warm else None,
            )
        )
    return rows


def text(token: int) -> str:
    """Return the text of a byte token; empty for other ids."""
    return bytes([token]).decode("latin-1") if token < 256 else ""
