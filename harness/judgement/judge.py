"""Judges a history with the oracle's answers and the checkers.

Only the queries to the oracle are impure. Everything else is computed by pure functions, so that a stored history with
its answers can be judged again without an engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.judgement.checkers.noise_tolerance import beyond_chance, measure_deviation
from coldproof.harness.judgement.checkers.sampled_answers import differing_answers, sampled_question
from coldproof.harness.judgement.checkers.tokens import check_tokens, closest, preference, tie_questions
from coldproof.harness.judgement.collect import FUNCTIONS, evidence
from coldproof.harness.judgement.criteria import BOUNDS, CHECKS, CRITERIA, HASHES, OF_ANSWERS
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.no_hits import without_hit
from coldproof.harness.judgement.oracle import (
    Answers,
    Oracle,
    Question,
    question,
    questions,
    scoring_questions,
)
from coldproof.harness.judgement.registry import Example
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.sensitivity import sensitivity_questions
from coldproof.harness.schema.verdict import FailureClass

# Two tokens of an exact engine, whose scores repeat within 0.001 nats, swap only if their scores are about as close on
# both sides. The cold engine is not asked again about others.
CLOSE_NATS = 4e-3


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A history with its cold answers, the findings of the checkers and the evidence.

    `noise`: findings that do not count by the rule. `permitted`: differences that a lossy mode may cause.
    `rule` and `exclusive` are the arguments of the judgement, so that the history can be judged again.
    """

    history: History
    answers: Answers
    findings: tuple[Finding, ...]
    noise: tuple[Finding, ...]
    permitted: tuple[Finding, ...] = ()
    evidence: dict[str, float]
    rule: Rule = Rule(exact=True)
    exclusive: bool = True

    def limited(self, requirement: Requirement) -> Judgement:
        """Return the judgement without the findings that only another requirement judges.

        See `Requirement`: wrong answers of requests that an adapter change overlapped, wrong block hashes, and, on an
        engine that others may use, misses.
        """
        overlapped = {o.request for o in self.history.outcomes if o.overlapped and not requirement.overlapped_too}
        misses_too = self.exclusive or requirement.expects_hits
        kept = (
            finding
            for finding in self.findings
            if not (finding.checker in OF_ANSWERS and finding.request in overlapped)
            and (requirement.hashes_too or finding.checker != HASHES)
            and (misses_too or (finding.checker, finding.failure_class) != (BOUNDS, FailureClass.LOST_REUSE))
        )
        return msgspec.structs.replace(self, findings=tuple(kept))

    def worst(self) -> Finding:
        """Return the gravest finding: by the order of the checkers, then the first request."""
        gravest_first = list(CRITERIA)
        return min(
            self.findings, key=lambda f: (gravest_first.index(f.checker), -1 if f.request is None else f.request)
        )


def needed_questions(history: History, rule: Rule) -> Iterator[Question]:
    """Yield the questions whose answers every judgement of this history needs."""
    yield from questions(history)
    for check in CHECKS:
        yield from check.asks(history)
    if rule.band is not None:
        yield from scoring_questions(history)
    for counting in FUNCTIONS:
        yield from counting.asks(history)


def judge(history: History, oracle: Oracle, rule: Rule, *, exclusive: bool) -> Judgement:
    """Judge with the oracle, which is also asked whose answers the wrong ones may be. Raises OracleError.

    No answer is called wrong because of a batch: all questions are then asked again, one by one.
    """
    answers = oracle.ask_all(needed_questions(history, rule))
    example = Example(history=history, answers=answers, rule=rule, exclusive=exclusive)
    if any(check.result(example) for check in CHECKS if "answers" in check.takes):
        answers = {asked: oracle.ask(asked) for asked in answers}
    answers |= tie_answers(history, oracle, answers, rule)
    answers |= repeated_answers(history, oracle, answers, rule)
    if oracle.takes_more:
        answers |= {one: oracle.ask(one) for one in sensitivity_questions(history, answers, rule)}
    example = msgspec.structs.replace(example, answers=answers)
    wrong = [found for check in CHECKS if check.of_answers for found in check.result(example)]
    suspects = {found.request for found in wrong if needs_explanation(history, found, answers, rule)}
    for outcome in history.outcomes:
        if outcome.request in suspects:
            for identity in other_sources(history, outcome):
                asked = question(outcome, identity)
                if asked not in answers:
                    answers[asked] = oracle.ask(asked)
    return judge_again(history, answers, rule, exclusive=exclusive)


def other_sources(history: History, outcome: Outcome) -> Iterator[Identity]:
    """Yield the identities whose answer a wrong one may be: of each adapter, and of each version of the weights."""
    own = outcome.identities[-1]
    yield from (Identity(digest, None, own.weights) for digest in (None, *history.contents.values()))
    versions = dict.fromkeys(update.weights for update in history.updates)
    yield from (Identity(own.adapter, None, weights) for weights in (None, *versions) if history.updates)


def tie_answers(history: History, oracle: Oracle, answers: Answers, rule: Rule) -> Answers:
    """Return the cold scores of the tokens at which answers first differ, where no answer shows them."""
    if not (rule.exact and oracle.scores_prompts):
        return {}
    longest = history.shape.max_model_tokens
    wrong = {f.request: f.position or 0 for f in check_tokens(history, answers, rule)}
    unknown = [
        outcome
        for outcome in history.outcomes
        if outcome.request in wrong and preference(outcome, closest(outcome, answers), answers, longest=longest) is None
    ]
    asked = (tie_questions(outcome, wrong[outcome.request], longest=longest) for outcome in unknown)
    sampled = (sampled_questions(outcome, answers, longest) for outcome in history.outcomes if rule.cold.step)
    return {one: oracle.ask(one) for one in itertools.chain(*asked, *sampled)}


def sampled_questions(outcome: Outcome, answers: Answers, longest: int) -> list[Question]:
    """Return the questions for the cold scores of the tokens at which a request's sampled answers first differ."""
    if outcome.options.answers == 1 or question(outcome, outcome.identities[-1]) not in answers:
        return []
    differing = differing_answers(outcome, closest(outcome, answers))
    asked = (sampled_question(outcome, one, longest=longest) for one in differing)
    return [one for one in asked if one is not None]


def repeated_answers(history: History, oracle: Oracle, answers: Answers, rule: Rule) -> Answers:
    """Return the cold answers to the requests that diverge between two close tokens, with what the cold engine answers
    when it is asked again: alone, and in a batch.
    """
    if not rule.exact:
        return {}
    longest = history.shape.max_model_tokens
    wrong = {f.request for f in check_tokens(history, answers, rule) if f.failure_class is FailureClass.CORRUPT}
    found: Answers = {}
    for outcome in history.outcomes:
        if outcome.request not in wrong:
            continue
        apart = preference(outcome, closest(outcome, answers), answers, longest=longest)
        for identity in outcome.identities if apart is not None and apart <= CLOSE_NATS else ():
            asked = question(outcome, identity)
            found[asked] = msgspec.structs.replace(answers[asked], again=oracle.ask_again(asked))
    return found


def needs_explanation(history: History, found: Finding, answers: Answers, rule: Rule) -> bool:
    """Return whether to find out whose answer a wrong one is. Noise that explains every token needs no other source."""
    if not found.explained or rule.band is None:
        return True
    outcome = next(o for o in history.outcomes if o.request == found.request)
    one = measure_deviation(history, outcome, answers, rule.band)
    return one is not None and beyond_chance(one, rule.band)


def judge_again(history: History, answers: Answers, rule: Rule, *, exclusive: bool) -> Judgement:
    """Judge a history with known answers. Pure: the same arguments always give the same judgement."""
    example = Example(history=history, answers=answers, rule=rule, exclusive=exclusive)
    found = tuple(without_hit(history, one) for check in CHECKS for one in check.result(example))
    return Judgement(
        history=history,
        answers=answers,
        findings=tuple(f for f in found if not f.noise and not f.permitted),
        noise=tuple(f for f in found if f.noise),
        permitted=tuple(f for f in found if f.permitted),
        evidence=evidence(msgspec.structs.replace(example, found=found)),
        rule=rule,
        exclusive=exclusive,
    )
