"""Checks answers over an update of the weights, what a pause does with requests, and that an update has an effect."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.requests import PLAIN
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.history.records import (
    History,
    Identity,
    Outcome,
    PauseRecord,
    common_prefix,
)
from coldproof.harness.history.weights import CLOCK_ERROR, Cut, cuts, starts_clean
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import Answers, Question, continuation, question
from coldproof.harness.schema.verdict import FailureClass

# A client reads over HTTP what the engine sent before it confirmed a pause. vLLM itself waits 20 ms for that.
SLACK_SECONDS = 0.5


def continuation_questions(history: History) -> Iterator[Question]:
    """Yield the questions about the parts of each answer over an update."""
    if not history.updates:
        return
    for outcome in crossing(history):
        yield question(outcome, outcome.identities[0])
        for cut in clear_cuts(history, outcome):
            for after in range(cut.low, cut.high + 1):
                if after < len(outcome.tokens):
                    yield continuation(outcome, of_weights(outcome, cut.weights), after)


@check(
    "weights",
    order=60,
    fails=(
        "An answer over an update of the weights that is not the cold continuation of its own tokens under the new "
        "weights, where the engine discarded its KV. A request that a pause did not end or wait for as its mode says, "
        "or that went on during the pause. A confirmed update after which the engine's checksum is that of other "
        "weights."
    ),
    asks=continuation_questions,
)
def check_weights(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Return a finding for each answer over an update that neither version explains, each request that a pause should
    have ended or waited for, tokens during a pause, and updates that changed nothing.
    """
    if not history.updates and not history.pauses:
        return []
    found = [*unchanged_weights(history)]
    for pause in history.pauses:
        if pause.error is None:
            found += [one for outcome in history.outcomes for one in check_pause(outcome, pause)]
    if rule.exact:
        for outcome in crossing(history):
            found += check_answer(history, outcome, answers)
    return found


def crossing(history: History) -> list[Outcome]:
    """Return the plain requests that were in flight over an update, and that started with what they were promised."""
    longest = history.shape.max_model_tokens
    return [
        o
        for o in history.outcomes
        if o.error is None
        and o.tokens
        and msgspec.structs.replace(o.options, logprobs=False) == PLAIN
        and len(o.prompt) + o.max_tokens <= longest
        and cuts(history, o)
        and starts_clean(history, o)
    ]


def clear_cuts(history: History, outcome: Outcome) -> list[Cut]:
    """Return the cuts up to the first one that kept old KV: nothing is promised about what follows it."""
    return list(itertools.takewhile(lambda cut: cut.clear, cuts(history, outcome)))


def of_weights(outcome: Outcome, weights: str | None) -> Identity:
    """Return the identity of a request with a version of the weights."""
    first = outcome.identities[0]
    return Identity(first.adapter, first.salt, weights)


def check_answer(history: History, outcome: Outcome, answers: Answers) -> list[Finding]:
    """Check the parts of one answer: each must be the cold continuation of what is before it, under its weights."""
    every = cuts(history, outcome)
    clear = clear_cuts(history, outcome)
    judged = len(outcome.tokens) if len(clear) == len(every) else every[len(clear)].low
    ids = outcome.token_ids

    def explained(after: int, part: int) -> int:
        """Return how many tokens the parts from `part` on explain, if it begins after `after` tokens."""
        identity = of_weights(outcome, outcome.identities[0].weights if part == 0 else clear[part - 1].weights)
        asked = question(outcome, identity) if part == 0 else continuation(outcome, identity, after)
        if after >= judged or asked not in answers:
            return after
        agreed = after + common_prefix(answers[asked].ids, ids[after:])
        if part == len(clear):
            return agreed
        places = range(max(after, clear[part].low), min(agreed, clear[part].high) + 1)
        return max((explained(place, part + 1) for place in places), default=agreed)

    end = explained(0, 0)
    if end >= judged:
        return []
    old = answers[question(outcome, outcome.identities[0])]
    stale = bool(clear) and old.ids == ids
    words = f"Request {outcome.request} was in flight over an update of the weights: its answer diverges at token {end}"
    words += " from every cold answer that continues its tokens"
    words += "; it equals the answer of the old weights." if stale else "."
    failure_class = FailureClass.STALE_STATE if stale else FailureClass.CORRUPT
    return [finding(words, failure_class, outcome.request, position=end)]


def check_pause(outcome: Outcome, pause: PauseRecord) -> Iterator[Finding]:
    """Yield what is wrong with one request over one pause. It counts only if the client had a token of it before."""
    slack = SLACK_SECONDS if pause.ended > pause.began else CLOCK_ERROR  # the clock of an engine that is stepped stands
    arrivals = [outcome.sent + token.at for token in outcome.tokens]
    began = any(at <= pause.began + CLOCK_ERROR for at in arrivals)
    over = outcome.finished > pause.ended + slack
    during = f"the pause with mode {pause.mode.value}" if pause.level is None else f"sleep at level {pause.level}"
    if began and over and outcome.aborted is None and pause.mode is not PauseMode.KEEP:
        did = "did not end" if pause.mode is PauseMode.ABORT else "did not wait for"
        words = f"{during.capitalize()} {did} request {outcome.request}, which was in flight."
        yield finding(words, FailureClass.API, outcome.request)
    resumed = pause.resumed
    if resumed is not None and any(pause.ended + slack < at < resumed - CLOCK_ERROR for at in arrivals):
        words = f"Request {outcome.request} got tokens during {during}, after the engine had confirmed it."
        yield finding(words, FailureClass.API, outcome.request)


def unchanged_weights(history: History) -> Iterator[Finding]:
    """Yield a finding for each confirmed update after which the engine's checksum does not follow the content."""
    known: dict[str | None, str | None] = {None: history.start_checksum}
    for update in history.updates:
        if update.error is not None or update.checksum is None:
            continue
        others = {checksum for weights, checksum in known.items() if weights != update.weights}
        if update.checksum in others or known.get(update.weights, update.checksum) != update.checksum:
            words = f"The update to weights {update.version!r} ({update.route.value}) was confirmed, but the engine's "
            words += f"checksum {update.checksum[:12]} is not that of these weights."
            yield finding(words, FailureClass.STALE_STATE)
        else:
            known[update.weights] = update.checksum


def finding(
    words: str, failure_class: FailureClass, request: int | None = None, position: int | None = None
) -> Finding:
    """Return a finding."""
    return Finding(checker="weights", failure_class=failure_class, request=request, position=position, sentence=words)
