"""Answers that diverged without a finding are counted, on hits and without, each question once."""

from __future__ import annotations

from typing import Any

import msgspec
from support.histories import history, outcome, tokens

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.evidence.divergences import Divergences
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, Answers, question

PROMPT, OTHER = range(100, 140), range(200, 240)
COLD, WARM = (1, 2, 3, 4), (1, 2, 9, 9)
ROUNDED = Rule(exact=True, rounding=1e-4)
COUNTERS = (
    (Divergences.COMPARED_HITS, Divergences.DIVERGED_HITS, Divergences.TOKENS_HITS),
    (Divergences.COMPARED_MISSES, Divergences.DIVERGED_MISSES, Divergences.TOKENS_MISSES),
)


def answered(number: int, prompt: range = PROMPT, ids: tuple[int, ...] = COLD, **more: Any) -> Outcome:
    """Return a request with an answer of four tokens, without a hit unless `more` says otherwise."""
    return outcome(number, prompt, COLD, **{"tokens": tokens(*ids, gap=None), **more})


def cold(*outcomes: Outcome, gap: float = 1e-5, again: tuple[tuple[int, ...], ...] = ()) -> Answers:
    """Return the cold engine's answers, with a small margin at every token."""
    return {question(one, one.identities[0]): Answer(tokens(*COLD, gap=gap), again=again) for one in outcomes}


def counted(*outcomes: Outcome, rule: Rule = ROUNDED, **facts: Any) -> tuple[list[float], list[float]]:
    """Return the counters of requests with a hit, and those of requests without a hit."""
    seen: History = history(*outcomes)
    evidence = judge_again(seen, cold(*outcomes, **facts), rule, exclusive=True).evidence
    hits, misses = ([evidence[name] for name in names] for names in COUNTERS)
    return hits, misses


def test_a_divergence_counts_with_the_tokens_up_to_it() -> None:
    """An answer that agrees counts with all its tokens."""
    right, wrong = answered(0), answered(1, OTHER, WARM, cached_tokens=32)
    assert counted(right, wrong) == ([1, 1, 3], [1, 0, 4])


def test_the_same_question_counts_once_on_hits_and_once_without() -> None:
    """One tie decides all answers to it."""
    hits = [answered(number, ids=WARM, cached_tokens=32) for number in (1, 2, 3)]
    assert counted(answered(0, ids=WARM), *hits) == ([1, 1, 3], [1, 1, 3])
    salted = msgspec.structs.replace(answered(1, ids=WARM), identities=answered(1, salt="red").identities)
    assert counted(answered(0), salted)[1] == [1, 0, 4]


def test_a_finding_is_not_counted_here() -> None:
    """A finding is a counterexample."""
    assert counted(answered(0), answered(1, OTHER, WARM, cached_tokens=32), gap=5.0) == ([0, 0, 0], [1, 0, 4])


def test_what_a_cold_start_answered_as_well_did_not_diverge() -> None:
    """The cold engine gave these tokens when it was queried again."""
    assert counted(answered(0, ids=WARM, cached_tokens=32), again=(WARM,)) == ([1, 0, 4], [0, 0, 0])


def test_without_reported_hits_a_possible_hit_counts() -> None:
    """A first request cannot hit."""
    unknown = [answered(number, ids=WARM, cached_tokens=None) for number in (0, 1)]
    assert counted(*unknown) == ([1, 1, 3], [1, 1, 3])


def test_unknown_rounding_counts_as_a_divergence() -> None:
    """Unknown rounding is no agreement."""
    one = answered(0, ids=WARM, cached_tokens=32)
    assert counted(one, rule=Rule(exact=True), gap=1e-6)[0] == [1, 1, 3]
