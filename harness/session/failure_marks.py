"""Tells new failures of a trial from those that it has put aside, so that it can draw on behind a counterexample.

A failure is known by its signature and by the known issue that waives it. Of each request only the gravest failure
counts, because the others follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.case.known_issues import Issue, Seen
from coldproof.harness.case.signature import needs_all_of, signature
from coldproof.harness.judgement.criteria import CRITERIA
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.trial import Failing, Kind, Mark, Trial
from coldproof.harness.proof.confirm.confirm import Observe
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

Waive = Callable[[Seen], Issue | None]


class FailureMarks:
    """The marks of one trial's failures. `waive`: returns the known issue that waives a failure, or None."""

    def __init__(self, trial: Trial, waive: Waive = lambda _: None) -> None:
        self.trial, self.waive = trial, waive
        self.masked = 0  # replays that failed only in ways that were put aside

    def mark(self, judgement: Judgement, finding: Finding) -> Mark:
        """Return the mark of a failure as it was seen, before any replay."""
        trial, history = self.trial, judgement.history
        cold = trial.requirement.without_cache
        failure_class = FailureClass.NOT_THE_CACHE if cold else finding.failure_class
        seen = Seen(
            requirement=trial.requirement.id,
            cell=trial.cell,
            signature=signature(history, failure_class, finding.request),
            sentence=finding.sentence,
            log_tail=history.log_tail,
        )
        issue = self.waive(seen)
        return Mark(seen.signature, "" if issue is None else str(issue))

    def of(self, failing: Failing) -> Mark:
        """Return the mark of a counterexample."""
        return self.mark(failing.judgement, failing.judgement.worst())

    def of_search(self) -> set[Mark]:
        """Return the marks of the counterexample that was found: as it was proved or minimised, and as it was drawn if
        that is a failure of the same kind. Otherwise minimising has come upon another failure, and the drawn one is
        still open.
        """
        search = self.trial.search
        found = [one.judgement for one in (search.best, search.first) if one is not None]
        found = [search.proved, *found] if search.proved is not None else found
        kinds = [kind_of(one.worst()) for one in found]
        return {self.mark(one, one.worst()) for one, kind in zip(found, kinds, strict=True) if kind == kinds[0]}

    def is_put_aside(self, mark: Mark) -> bool:
        """Return whether a minimal failure is one that was put aside, or is waived by the same known issue, or is a
        wrong answer that needs all that a wrong answer needs which was put aside.
        """
        return any(
            mark == one
            or (mark.known_issue != "" and one.known_issue == mark.known_issue)
            or (mark.signature != one.signature and needs_all_of(mark.signature, one.signature))
            for one in self.trial.marks
        )

    def shows_what_was_put_aside(self, case: Case) -> bool:
        """Return whether a case shows what was put aside, or its replays did, and nothing else."""
        return self.is_put_aside(mark_of_case(case)) or (self.masked > 0 and not case.reproduction.failed_again)

    def counting(self, judgement: Judgement) -> Judgement:
        """Return a judgement with the findings that count in the current search.

        In a trial that has put nothing aside, all of them count. Later, an example counts for its gravest new failure,
        and its variants for failures of that kind.
        """
        if not self.trial.marks or not judgement.findings:
            return judgement
        kind = self.trial.search.kind
        if kind is not None:
            return with_findings(judgement, (one for one in judgement.findings if kind_of(one) == kind))
        new = [one for one in gravest(judgement) if self.mark(judgement, one) not in self.trial.marks]
        return with_findings(judgement, (one for one in new if kind_of(one) == kind_of(new[0])))

    def without_put_aside(self, judgement: Judgement) -> Judgement:
        """Return a judgement without the findings that were put aside. What is proved beside them fails like them."""
        if not self.trial.marks or not judgement.findings or self.trial.search.cause is not None:
            return judgement
        new = [one for one in judgement.findings if self.mark(judgement, one) not in self.trial.marks]
        self.masked += not new
        return with_findings(judgement, new)

    def count(self, judgement: Judgement) -> None:
        """Count an example that fails only in ways that were put aside."""
        self.trial.repeated += 1
        failed_in = {self.mark(judgement, one) for one in gravest(judgement)}
        self.trial.marks.update(failed_in)
        for mark in failed_in:
            self.trial.keep_alike(mark, Failing(judgement.history.workload, judgement, failed=1, tries=1))


def mark_of_case(case: Case) -> Mark:
    """Return the mark of a case."""
    return Mark(case.signature, case.known_issue or "")


def kind_of(finding: Finding) -> Kind:
    """Return the checker that reported a failure, and its class."""
    return finding.checker, finding.failure_class


def gravest(judgement: Judgement) -> list[Finding]:
    """Return the gravest finding of each request, and of each kind about no request; the gravest first."""
    order = list(CRITERIA)
    found: dict[object, Finding] = {}
    for one in sorted(judgement.findings, key=lambda one: order.index(one.checker)):
        found.setdefault(kind_of(one) if one.request is None else one.request, one)
    return list(found.values())


def with_findings(judgement: Judgement, findings: Iterator[Finding] | list[Finding]) -> Judgement:
    """Return a judgement with these findings only."""
    return msgspec.structs.replace(judgement, findings=tuple(findings))


def filtered(observe: Observe, counting: Callable[[Judgement], Judgement]) -> Observe:
    """Return `observe`, whose judgements have only the findings that count."""

    def observed(engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        return counting(observe(engine, workload, nonce))

    return observed
