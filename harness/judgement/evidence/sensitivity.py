"""Evidence that the cold answers of an example could have shown a wrong block. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answers
from coldproof.harness.judgement.sensitivity import asked_about, depends, pair_of
from coldproof.harness.schema.evidence import ReportedEvidence


class Examples(Evidence):
    """Examples whose cold answers could have shown a wrong block, and others."""

    SENSITIVE = ReportedEvidence.SENSITIVE.value
    INSENSITIVE = ReportedEvidence.INSENSITIVE.value
    INSENSITIVE_REQUESTS = ReportedEvidence.INSENSITIVE_REQUESTS.value


@computes(Examples, order=230)
def sensitivity_facts(history: History, answers: Answers, rule: Rule) -> dict[str, float]:
    """Return the counters of examples, and of their requests, whose cold answers depend on the cached tokens or not.

    All are 0 where the question was not asked.
    """
    pair, requests = pair_of(history), sum(outcome.error is None for outcome in history.outcomes)
    asked, shown = asked_about(pair, history, answers, rule), list[bool]()
    if pair is not None and asked is not None and asked in answers:
        shown.append(depends(answers[pair.asked], answers[asked], rule, length=len(pair.asked.prompt)))
    return {
        Examples.SENSITIVE: sum(shown),
        Examples.INSENSITIVE: sum(not one for one in shown),
        Examples.INSENSITIVE_REQUESTS: requests * (shown == [False]),
    }
