"""Puts a history before the oracle and the checkers.

The only impure thing here is asking the oracle; what follows from its answers is computed by pure functions, so that a
stored history with its answers can be judged again without an engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.checkers.counts import check_accounting, check_bounds
from harness.checkers.events import check_events
from harness.checkers.finding import Finding, Rule
from harness.checkers.hashes import check_hashes
from harness.checkers.liveness import check_liveness
from harness.checkers.noisy import beyond_chance, measured
from harness.checkers.order import check_order
from harness.checkers.pool import check_concurrency, check_conservation, check_gauge
from harness.checkers.surface import check_surface
from harness.checkers.tokens import check_tokens
from harness.evidence import evidence, older_identities
from harness.history import History, Identity
from harness.oracle.base import Answers, Oracle, Question, question, questions, scores_wanted, telling

ORDER = (
    "liveness",
    "tokens",
    "surface",
    "bounds",
    "accounting",
    "concurrency",
    "order",
    "conservation",
    "events",
    "hashes",
)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A history with its cold answers, what is wrong with it, what counts only as noise or as what a lossy mode may
    change (`permitted`), and what it showed.

    `rule` and `exclusive` are what it was judged by, so that it can be judged again.
    """

    history: History
    answers: Answers
    findings: tuple[Finding, ...]
    noise: tuple[Finding, ...]
    permitted: tuple[Finding, ...] = ()
    evidence: dict[str, float]
    rule: Rule = Rule(exact=True)
    exclusive: bool = True

    def without_overlapped(self) -> Judgement:
        """The same without the wrong answers of requests that an adapter change overlapped."""
        overlapped = {o.request for o in self.history.outcomes if o.overlapped}
        kept = tuple(f for f in self.findings if f.checker != "tokens" or f.request not in overlapped)
        return msgspec.structs.replace(self, findings=kept)

    def without_hashes(self) -> Judgement:
        """The same without block hashes that do not follow from their events: no other requirement's matter."""
        return msgspec.structs.replace(self, findings=tuple(f for f in self.findings if f.checker != "hashes"))

    def limited(self, *, overlapped_too: bool, hashes_too: bool) -> Judgement:
        """The same without what is another requirement's matter."""
        kept = self if overlapped_too else self.without_overlapped()
        return kept if hashes_too else kept.without_hashes()

    def worst(self) -> Finding:
        """The finding to speak of first: a wrong answer before a wrong count, the first request before later ones."""
        return min(self.findings, key=lambda f: (ORDER.index(f.checker), f.request if f.request is not None else -1))


def wanted(history: History, rule: Rule) -> Iterator[Question]:
    """What has to be known of any history before it can be judged."""
    yield from questions(history)
    if rule.band is not None:
        yield from scores_wanted(history)
    for outcome, identity in older_identities(history):
        yield telling(outcome, identity)


def judge(history: History, oracle: Oracle, rule: Rule, *, exclusive: bool) -> Judgement:
    """Ask what is needed, check, and if an answer is wrong ask whose it might be. Raises OracleError."""
    answers = {asked: oracle.ask(asked) for asked in wanted(history, rule)}
    suspects = {f.request for f in check_tokens(history, answers, rule) if worth_explaining(history, f, answers, rule)}
    for outcome in history.outcomes:
        if outcome.request in suspects:
            for digest in (None, *history.contents.values()):
                asked = question(outcome, Identity(digest, None))
                answers[asked] = oracle.ask(asked)
    return judge_again(history, answers, rule, exclusive=exclusive)


def worth_explaining(history: History, found: Finding, answers: Answers, rule: Rule) -> bool:
    """Whether it matters whose answer a wrong one might be. One that noise explains at every token can be nobody's."""
    outcome = next(o for o in history.outcomes if o.request == found.request)
    one = None if rule.band is None else measured(history, outcome, answers, rule.band)
    return not found.explained or rule.band is None or (one is not None and beyond_chance(one, rule.band))


def judge_again(history: History, answers: Answers, rule: Rule, *, exclusive: bool) -> Judgement:
    """The pure half: the same history and answers always give the same judgement."""
    found = [
        *check_liveness(history),
        *check_tokens(history, answers, rule),
        *check_surface(history, answers, rule),
        *check_bounds(history),
        *check_accounting(history, exclusive=exclusive),
        *check_concurrency(history),
        *check_order(history),
        *check_conservation(history, exclusive=exclusive),
        *check_gauge(history),
        *check_events(history),
        *check_hashes(history),
    ]
    return Judgement(
        history=history,
        answers=answers,
        findings=tuple(f for f in found if not f.noise and not f.permitted),
        noise=tuple(f for f in found if f.noise),
        permitted=tuple(f for f in found if f.permitted),
        evidence=evidence(history, answers),
        rule=rule,
        exclusive=exclusive,
    )
