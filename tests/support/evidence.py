"""The evidence of a history by itself, as far as a test is about one counter."""

from __future__ import annotations

from coldproof.harness.history.records import History
from coldproof.harness.judgement import collect
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.oracle import Answers
from coldproof.harness.judgement.registry import Example


def evidence(history: History, answers: Answers) -> dict[str, float]:
    """Return all counters of a history on an engine that nobody else uses, where answers are exact."""
    return collect.evidence(Example(history=history, answers=answers, rule=EXACT, exclusive=True))
