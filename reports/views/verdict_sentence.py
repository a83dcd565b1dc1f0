"""The verdict of a run in a few sentences that can be quoted without knowing Coldproof. All numbers are requirements
or causes of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldproof.harness.schema.findings import Severity
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import many, number, one_line
from coldproof.reports.views import overview
from coldproof.reports.views.cause_view import CauseView, State
from coldproof.reports.views.causes import requirements_of

EFFECT = {
    Severity.FOREIGN_DATA: "requests that use the cached data of another request, adapter or tenant",
    Severity.WRONG_ANSWER: "wrong answers",
    Severity.CRASH_OR_HANG: "crashes or hangs",
    Severity.LOST_REUSE: "cache hits that are lost",
    Severity.WRONG_COUNT: "wrong counts or events",
    Severity.API: "calls that do not do what they document",
    Severity.REMARK: "behaviour that no contract forbids",
}
_REST = {
    Verdict.CONFORMS: "conform",
    Verdict.KNOWN_ISSUE: "have only causes that were accepted before",
    Verdict.NOT_EXERCISED: "were not tested enough",
    Verdict.INCONCLUSIVE: "could not be decided",
    Verdict.ERROR: "ended with an error",
    Verdict.UNSUPPORTED: "cannot be tested here",
}
_OPEN = (Verdict.NOT_EXERCISED, Verdict.INCONCLUSIVE, Verdict.ERROR)  # verdicts that decide nothing
_REST_OF_ONE = {
    Verdict.CONFORMS: "conforms",
    Verdict.KNOWN_ISSUE: "has only causes that were accepted before",
    Verdict.NOT_EXERCISED: "was not tested enough",
    Verdict.INCONCLUSIVE: "could not be decided",
    Verdict.ERROR: "ended with an error",
    Verdict.UNSUPPORTED: "cannot be tested here",
}


@dataclass(frozen=True, slots=True)
class VerdictSentence:
    """The verdict as text. `lead`: what can be quoted alone. `more`: what else is known, and what was not tested."""

    lead: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.lead} {self.more}".strip()


def verdict_sentence(results: Results, causes: Sequence[CauseView]) -> VerdictSentence:
    """Return what the run showed about the engine: the violations by their worst effect, then how many of each rest."""
    invalid = overview.invalid_sentence(results)
    if invalid:
        return VerdictSentence(invalid)
    lead, *more = _sentences(results, causes)
    return VerdictSentence(lead, " ".join(more))


def _sentences(results: Results, causes: Sequence[CauseView]) -> Iterator[str]:
    count = {verdict: number for verdict, number in overview.counts(results) if number}
    total = many(len(results.requirements), "requirement")
    all_of = f"all {total}" if len(results.requirements) > 1 else "the requirement that was tested"
    failing = [cause for cause in causes if cause.breaks]
    unconfirmed = [cause for cause in causes if not cause.is_confirmed]
    waived = [cause for cause in causes if cause.is_waived]
    remarks = [cause for cause in causes if cause.is_remark]
    subject = tested_engine(results)
    if not results.requirements:
        yield f"Nothing was tested on {subject}, so nothing is verified."
        return
    if count.get(Verdict.VIOLATED):
        what = _numbered(failing)
        yield f"{subject} does not conform: {what} broke {count[Verdict.VIOLATED]} of {total}. {worst(failing)}"
    elif results.exit_code == 0 and set(count) == {Verdict.CONFORMS}:
        yield f"{subject} conforms to {all_of}."
        yield from _remarks(remarks)
        return
    elif results.exit_code == 0:
        yield f"{subject} shows no new violation of {total}."
    else:
        open_ones = sum(count.get(verdict, 0) for verdict in _OPEN)
        what = f"{open_ones or 'none'} of {total} {'was' if open_ones == 1 else 'were'}"
        lacking = f"{what} not decided" if open_ones else "too few requirements were shown to conform"
        yield f"{subject} is not shown to conform: no new violation was found, but {lacking}."
    if unconfirmed:
        yield _not_confirmed(unconfirmed, beside=bool(failing))
    if waived:
        known = many(len(waived), "cause")
        named = "" if failing else f" {worst(waived)}"  # beside a new one, it would draw the eye
        yield f"{known} {'is' if len(waived) == 1 else 'are'} known and accepted.{named}"
    yield from _remarks(remarks, named=not failing)
    rest = [f"{n} {(_REST_OF_ONE if n == 1 else _REST)[v]}" for v, n in count.items() if v in _REST]
    rest.reverse()  # what conforms comes first
    if rest:
        yield f"Of {'the others' if count.get(Verdict.VIOLATED) else total}, {'; '.join(rest)}."


def _not_confirmed(causes: Sequence[CauseView], *, beside: bool) -> str:
    """Return a sentence about failures that no replay has shown again. `beside`: others have been confirmed."""
    names = requirements_of(causes)
    if len(causes) == 1:
        them = "Another failure" if beside else "A failure"
        return f"{them} ({names}) was seen and is not confirmed by a replay: it does not count."
    them = f"{len(causes)} {'other ' if beside else ''}failures"
    return f"{them} ({names}) were seen and are not confirmed by a replay: they do not count."


def _remarks(remarks: Sequence[CauseView], *, named: bool = True) -> Iterator[str]:
    """Yield a sentence about the remarks, which it may name; nothing without any."""
    if remarks:
        all_of = "; ".join(f"{one_line(one.title, 120).rstrip('.')} ({', '.join(one.requirements)})" for one in remarks)
        yield f"{many(len(remarks), 'remark')} about what no contract forbids{f': {all_of}' if named else ''}."


def worst(causes: Sequence[CauseView]) -> str:
    """Return a sentence about the first cause, which is the worst one; "" without one."""
    if not causes:
        return ""
    first = causes[0]
    unnamed = first.best is not None and first.title == first.best.sentence
    which = "The effect is" if len(causes) == 1 else "The worst effect is"
    return f"{which} {EFFECT[first.severity]} ({first.broke if unnamed else one_line(first.title, 120)})."


def tested_engine(results: Results) -> str:
    """Return the engine that was tested, with what makes it another one than the engine as it is shipped."""
    name = overview.engine_name(results)
    if results.fault is not None:
        never = "" if results.fault.acted else ", which never acted"
        name += f" with the injected fault '{results.fault.name}'{never}"
    if results.repairs:
        name += f" with {many(len(results.repairs), 'repair')} of known causes"
    return f"{name} (part {results.shard} of a run)" if results.shard else name


def _numbered(causes: Sequence[CauseView]) -> str:
    """Return how many causes there are, by what is known of them."""
    states = [cause.state for cause in causes]
    words = {
        State.NEW: ("new cause", "new causes"),
        State.REGRESSION: ("cause that was fixed before", "causes that were fixed before"),
        State.UNDECIDED: ("cause that may be known", "causes that may be known"),
        State.KNOWN: ("known cause", "known causes"),
    }
    counts = [(states.count(state), one, several) for state, (one, several) in words.items()]
    said = [f"{number(count)} {one if count == 1 else several}" for count, one, several in counts if count]
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1]))) if said else "a failure without a saved case"
