"""The rows of a case: its steps, its requests and the answer that failed, as a report draws them.

Pure functions of a judged history. All times are seconds since the workload began.
"""

from __future__ import annotations

from harness.case_prompts import segment_rows
from harness.checkers.counts import writer_before_a_reset
from harness.checkers.finding import Finding
from harness.checkers.tokens import agrees, closest, foreign_source
from harness.history import History, Identity, Outcome
from harness.judge import Judgement
from harness.oracle.base import Answers
from harness.provenance import number_of
from harness.reference_cache import Bounds, bounds
from harness.tokens_computed import common_prefix, computed
from harness.workload import Burst, Request, describe
from reports.schema import RequestRow, StepRow, TokenRow

CONTEXT_TOKENS = 16  # around the first difference; an answer is seldom longer than this suite's 130 tokens


def step_rows(history: History) -> list[StepRow]:
    """The workload in words, as it ran."""
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
        first += len(step.requests) if isinstance(step, Burst) else 0
    return rows


def request_rows(judgement: Judgement) -> list[RequestRow]:
    """Every request with its bounds, whether it was right, and what became of it when."""
    limits = bounds(judgement.history)
    asked = {number: request for number, _, request in judgement.history.workload.requests()}
    wrong = {f.request: f for f in judgement.findings if f.checker == "tokens"}
    return [
        request_row(o, asked, limits[o.request], wrong.get(o.request), judgement) for o in judgement.history.outcomes
    ]


def request_row(
    o: Outcome, asked: dict[int, Request], limit: Bounds, wrong: Finding | None, judgement: Judgement
) -> RequestRow:
    """One request. `wrong`: what the comparison of its tokens found."""
    history = judgement.history
    shared_tokens, shared_with = shared(o, history)
    at = wrong.position if wrong is not None else None
    return RequestRow(
        request=o.request,
        step=o.step,
        model=o.model,
        identity=" or ".join(name_identity(i, history) for i in o.identities),
        prompt_in_words=str(asked[o.request].prompt),
        prompt_tokens=len(o.prompt),
        output_tokens=len(o.tokens),
        cached_tokens=o.cached_tokens,
        cached_at_least=limit.at_least,
        cached_at_most=limit.at_most,
        sent=o.sent,
        finished=o.finished,
        correct=None if o.error else wrong is None,
        answers_as=answers_as(o, judgement.answers, history),
        error=o.error or "",
        answer=list(o.token_ids),
        answer_text=o.text,
        adapter=o.residence.name or "",
        first_token=token_time(o, 0),
        wrong_token=at,
        wrong_token_at=None if at is None else token_time(o, at),
        preempted_at=[since_start(o, at) for at in o.preempted_at],
        resumed_at=[resumed(o, at) for at in o.preempted_at],
        aborted=o.aborted.value if o.aborted is not None else "",
        segments=segment_rows(o, asked, history),
        shared_tokens=shared_tokens,
        shared_with=shared_with,
        written_by=written_by(o, limit, wrong, history),
        wrong_kv=wrong_kv(o, history),
    )


def since_start(outcome: Outcome, after: float) -> float:
    """A time after a request was sent, as one since the workload began."""
    return round(outcome.sent + after, 6)


def token_time(outcome: Outcome, position: int) -> float | None:
    """When a token of the answer came; None where there is no such token."""
    return since_start(outcome, outcome.tokens[position].at) if position < len(outcome.tokens) else None


def resumed(outcome: Outcome, preempted: float) -> float:
    """When the first token after a preemption came, or the end where none did."""
    later = (token.at for token in outcome.tokens if token.at > preempted)
    after = min(later, default=None)
    return outcome.finished if after is None else since_start(outcome, after)


def shared(outcome: Outcome, history: History) -> tuple[int, int | None]:
    """How much of a prompt's beginning an earlier request had computed at most, and which one first."""
    best, whose = 0, None
    for other in history.outcomes:
        length = common_prefix(computed(other), outcome.prompt)
        if other.request < outcome.request and length > best:
            best, whose = length, other.request
    return best, whose


def written_by(outcome: Outcome, limit: Bounds, wrong: Finding | None, history: History) -> int | None:
    """Who wrote what a request wrongly read: as the engine's own digests tell, or as the tokens that it hit allow."""
    for read in history.wrong_reads:
        if number_of(read.request, history) == outcome.request and read.writer is not None:
            writer = number_of(read.writer.request, history)
            return None if writer == outcome.request else writer
    cached = outcome.cached_tokens or 0
    if wrong is None and cached <= limit.at_most:
        return None
    source = foreign_source(history, outcome)
    if source is None and cached > limit.at_most:
        source = writer_before_a_reset(history, outcome, cached)
    return None if source is None else source.request


def wrong_kv(outcome: Outcome, history: History) -> list[int]:
    """The first positions whose KV was wrong, from and to, where the engine can tell."""
    reads = (read for read in history.wrong_reads if number_of(read.request, history) == outcome.request)
    first = next(reads, None)
    return [] if first is None else [first.first, first.last]


def in_names(sentence: str, history: History) -> str:
    """A sentence with the adapters' names of the steps instead of their digests."""
    for name, digest in history.contents.items():
        sentence = sentence.replace(f"adapter content {digest}", f"adapter {name}")
    return sentence


def name_identity(identity: Identity, history: History) -> str:
    """An identity with the content's symbolic name, which the steps use too."""
    names = {digest: name for name, digest in history.contents.items()}
    adapter = "base model" if identity.adapter is None else f"adapter {names[identity.adapter]}"
    return adapter if identity.salt is None else f"{adapter}, salt {identity.salt!r}"


def answers_as(outcome: Outcome, answers: Answers, history: History) -> str:
    """Whose cold answer this one equals, or where its client hung up, begins."""
    if not outcome.tokens:
        return ""
    equal = [
        name_identity(Identity(asked.adapter, None), history)
        for asked, answer in answers.items()
        if asked.prompt == outcome.prompt and asked.max_tokens == outcome.max_tokens and agrees(outcome, answer)
    ]
    return " and ".join(dict.fromkeys(equal)) or ("" if outcome.error else "no known cold answer")


def token_rows(outcome: Outcome, answers: Answers, finding: Finding) -> list[TokenRow]:
    """Cold and observed tokens side by side, around the first difference."""
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
    """A token of the byte vocabulary as text; ids above it have no text here."""
    return bytes([token]).decode("latin-1") if token < 256 else ""
