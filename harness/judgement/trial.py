"""The state of one requirement in one cell while it runs: evidence so far, and the counterexamples found."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from coldproof.harness.judgement.counters import Trait
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.leads import Leads
from coldproof.harness.judgement.requirement import Absent, Requirement
from coldproof.harness.schema.attribution import Attribution
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.divergences import divergence_rates, exceeds
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.workload.steps import Workload

KEPT_DIVERGING = 3
KEPT_ALIKE = 12  # examples that failed like one that was put aside: a dozen take a second with a repair
# The checker that reported a failure, and its class: what a later search of a trial is about.
Kind = tuple[str, FailureClass]


class Violation(AssertionError):
    """A workload broke the requirement under test."""


class Ran(msgspec.Struct, frozen=True):
    """A workload that an engine has run, with its nonce and its duration."""

    workload: Workload
    nonce: str
    seconds: float


class Failing(msgspec.Struct, frozen=True):
    """A counterexample, how often it failed in how many tries, and the prior workloads of its engine."""

    workload: Workload
    judgement: Judgement
    failed: int
    tries: int
    earlier: tuple[Ran, ...] = ()


class Counterexamples(msgspec.Struct, frozen=True, kw_only=True):
    """The first and the smallest counterexample of a search.

    `replayed`: it is a saved case that fails again. `minimised`: on the engine that found it. `waivable`: a known issue
    may waive it, so that less effort is spent on it. `waived_at_once`: without a replay on a fresh engine. `causes`:
    the signatures of the counterexamples that the run has confirmed and minimised before.
    """

    requirement: Requirement
    first: Failing
    smallest: Failing
    replayed: bool = False
    minimised: bool = False
    waivable: bool = False
    waived_at_once: bool = False
    causes: frozenset[str] = frozenset()


class Mark(msgspec.Struct, frozen=True):
    """What tells the failures of a trial apart: the signature, and the known issue that waives it ("": none)."""

    signature: str
    known_issue: str = ""


class PutAside(msgspec.Struct, frozen=True):
    """A counterexample of a trial that was proved, and behind which the trial went on. `case`: None if the proof broke
    off. `marks`: of what was put aside with it: a failure may have another class before its controls have run.
    """

    verdict: Verdict
    reason: str
    case: Case | None = None
    marks: frozenset[Mark] = frozenset()

    def supersedes(self, earlier: PutAside) -> bool:
        """Return whether this proves what was seen before and failed in no replay."""
        if self.case is None or earlier.case is None or earlier.verdict is not Verdict.INCONCLUSIVE:
            return False
        return self.verdict is not Verdict.INCONCLUSIVE and self.case.signature == earlier.case.signature


class Search:
    """One search of a trial for a counterexample: from its first draw until that is put aside."""

    def __init__(self) -> None:
        self.first: Failing | None = None  # the first counterexample
        self.best: Failing | None = None  # the smallest counterexample
        self.failed: set[bytes] = set()  # workloads that have run since the first counterexample
        self.passed: set[bytes] = set()
        self.since: float | None = None  # when the first counterexample was found
        self.proved: Judgement | None = None  # what is left of the counterexample, and its case shows
        self.minimised = False  # on the engine that found it
        self.kind: Kind | None = None  # of what the search is about, if other failures are put aside
        self.saved = False  # the counterexample is a saved case, which is minimal already
        self.regression = ""  # the counterexample is of a finding that is recorded as fixed
        self.cause: Attribution | None = None  # what is known of its cause before it is proved
        self.with_repair = (0, 0)  # replays that failed on an engine with the repair of that, and all of them
        self.case: Case | None = None  # which was saved of it

    def keep(self, failing: Failing) -> None:
        """Keep a counterexample if it is the first or the smallest one."""
        self.since = time.monotonic() if self.since is None else self.since
        self.first = self.first or failing
        if self.best is None or failing.workload.size() < self.best.workload.size():
            self.best = failing


class Trial:
    """The state of one requirement in one cell while it runs."""

    def __init__(self, requirement: Requirement, cell: str, statement: str, test: str) -> None:
        self.requirement, self.cell, self.statement, self.test = requirement, cell, statement, test
        self.started = time.monotonic()
        self.evidence: Counter[str] = Counter()
        self.leads = Leads(self.evidence)
        self.examples = self.requests = self.noise = self.permitted = self.failing = 0
        self.explained = 0  # differences that are noise according to the scores of both sides
        self.search = Search()
        self.aside: list[PutAside] = []  # the counterexamples behind which it went on
        self.marks: Counter[Mark] = Counter()  # of what was put aside or replayed, with the examples that failed so
        self.repeated = 0  # examples that failed only in ways that were put aside
        self.alike: dict[Mark, list[Failing]] = {}  # some of them, by the mark of what each failed in
        self.seen_alike: Counter[Mark] = Counter()  # how many there were
        self.looked_behind = 0  # of these, replayed with the repair of what was put aside, and passed
        self.not_behind = ""  # why some were not replayed
        self.minimising_examples = self.minimising_requests = 0  # of the examples, those that repeat a failure
        self.proving = self.proving_further = 0.0  # seconds spent on what was found; those after the first one
        self.attributing = self.attributing_further = 0.0  # of these, seconds spent on finding causes
        self.share = self.drawn = 0.0  # seconds allowed for drawing examples, and seconds used
        self.least_examples, self.least_requests = 0, 0.0  # with fewer of both it may exceed its share
        self.enough = math.inf  # examples with which it ends if it lacks nothing
        self.replaying = False  # it replays a saved case in place of drawing
        self.waivable = False  # a known issue may waive its counterexample
        self.waived_at_once = False  # without a replay on a fresh engine
        self.problem: Exception | None = None  # why no more examples can run, if it is no finding
        self.exhausted = False  # there are no other examples: more time would find none
        self.causes: frozenset[str] = frozenset()  # signatures of what the run has confirmed before
        self.hurried = False  # the run has spent much of its time on proofs: a counterexample gets less of it
        self.may_wait = self.waits = False  # the proof of its counterexample may be put off, and is
        self.returns = False  # it may end with its floor, because its cell is visited again
        self.is_brief = False  # its first visit ends with its share, also without its floor
        self.settled = 0.0  # of `drawn`, seconds that its budget has counted; likewise the next
        self.settled_examples = self.settled_requests = 0
        self.out_of_time = ""  # why not even one example was drawn
        self.obstacle = ""  # why nothing can be compared in its cell
        # Of replayed findings that fail, and that a known issue waives; and of all that showed a remark.
        self.known: list[Case] = []
        self.accepted_remarks: list[str] = []  # the known issues that accept the remarks that it showed
        self.remark = ""  # an observation for the reason of the verdict, besides the evidence
        self.hints: dict[Trait, str] = {}  # what would show evidence with a trait, or why nothing does
        self.out_of_reach = False  # no workload here can show what is missing
        self.lossy = ""  # what the cell's mode may change in answers by design
        self.cold = ColdAnswers()  # by the rule that compared its answers
        self.diverging: list[Workload] = []  # some examples whose answers on a hit diverged and were explained
        self.narrowed: list[DroppedKind] = []  # kinds of requests that were drawn or are needed, and were not sent
        self.absent: list[Absent] = []  # what it needs and the engine is not known to have

    def seconds(self) -> float:
        """Return the seconds since the trial began."""
        return round(time.monotonic() - self.started, 3)

    def add(self, judgement: Judgement) -> None:
        """Add an example's evidence to the counters."""
        self.examples += 1
        self.failing += bool(judgement.findings)
        self.requests += len(judgement.history.outcomes)
        if self.search.since is not None:
            self.minimising_examples += 1
            self.minimising_requests += len(judgement.history.outcomes)
        self.noise += sum(not found.explained for found in judgement.noise)
        self.explained += sum(found.explained for found in judgement.noise)
        self.permitted += len(judgement.permitted)
        self.lossy = judgement.rule.lossy
        self.cold = larger_sample(self.cold, judgement.rule.cold)
        self.evidence.update(judgement.evidence)
        if judgement.evidence.get(ReportedEvidence.DIVERGED_HITS) and len(self.diverging) < KEPT_DIVERGING:
            self.diverging.append(judgement.history.workload)

    def take(self, failing: Failing, *, regression: str = "") -> None:
        """Make the failure of a saved case the counterexample: it is minimal already."""
        self.search.keep(failing)
        self.search.saved, self.search.regression = True, regression

    def take_beside(self, failing: Failing, cause: Attribution, failed: int, tries: int) -> None:
        """Make what fails like a known cause the counterexample. It failed in so many replays with its repair, too."""
        self.take(failing)
        self.search.cause, self.search.with_repair = cause, (failed, tries)

    def keep_alike(self, mark: Mark, failing: Failing) -> None:
        """Keep an example that failed like one that was put aside. Of many, each is kept with the same probability.

        A fault that needs a state of the engine that only later examples reach would not be among the first ones.
        """
        kept = self.alike.setdefault(mark, [])
        self.seen_alike[mark] += 1
        if len(kept) < KEPT_ALIKE:
            kept.append(failing)
            return
        place = random.Random(self.seen_alike[mark]).randrange(self.seen_alike[mark])
        if place < KEPT_ALIKE:
            kept[place] = failing

    def drawing(self) -> float:
        """Return the seconds in which the trial has drawn examples."""
        return (self.search.since or time.monotonic()) - self.started - self.proving

    def next_search(self, put: PutAside | None, marks: Iterable[Mark]) -> None:
        """Begin the next search. `put`: what is put aside; None: it was before. `marks`: those of what was found."""
        marks = set(marks)
        if put is not None:
            put = msgspec.structs.replace(put, marks=frozenset(marks))
            self.aside = [*(one for one in self.aside if not put.supersedes(one)), put]
        if self.search.since is not None:
            spent = time.monotonic() - self.search.since
            self.proving_further += spent if self.marks or self.proving else 0.0
            self.proving += spent
        self.marks.update(marks)
        self.search = Search()

    def set_remarks_apart(self) -> None:
        """Leave the cases that show remarks out of what was put aside: they decide no verdict."""
        shown = [one.case for one in self.aside if one.verdict is Verdict.CONFORMS and one.case is not None]
        self.known += shown
        self.aside = [one for one in self.aside if one.case is None or one.verdict is not Verdict.CONFORMS]

    def spend_on_causes(self, seconds: float) -> None:
        """Leave the time in which the cause of a failure was found out of the time for drawing and for proofs."""
        if self.search.since is None:  # a replay of a known finding failed
            self.started += seconds
            return
        self.attributing += seconds
        self.attributing_further += seconds if self.marks or self.proving else 0.0

    def narrow(self, dropped: Iterable[DroppedKind]) -> None:
        """Record kinds of requests that this trial does not send."""
        self.narrowed += [one for one in dropped if one.kind not in {known.kind for known in self.narrowed}]

    def counterexamples(self) -> Counterexamples | None:
        """Return the counterexamples found so far, or None if nothing failed."""
        search = self.search
        if search.first is None or search.best is None:
            return None
        return Counterexamples(
            requirement=self.requirement,
            first=search.first,
            smallest=search.best,
            replayed=self.replaying or search.saved,
            minimised=search.minimised,
            waivable=self.waivable,
            waived_at_once=self.waived_at_once and not search.saved,
            causes=self.causes,
        )

    @property
    def discriminating_examples(self) -> int:
        """Return the number of examples whose cold answers could have shown a wrong block."""
        return self.examples - round(self.evidence[ReportedEvidence.INSENSITIVE])

    @property
    def has_failed(self) -> bool:
        """Return whether a drawn example failed: the trial goes on behind a counterexample."""
        return self.repeated > 0 or self.proving > 0

    @property
    def drawn_examples(self) -> int:
        """Return the number of these examples that were drawn, and do not repeat a failure to minimise it."""
        return self.discriminating_examples - self.minimising_examples

    @property
    def drawn_requests(self) -> int:
        """Return the number of requests of the examples that were drawn."""
        return self.requests - self.minimising_requests

    @property
    def exceeds(self) -> bool:
        """Return whether more answers diverged than measured causes explain."""
        return exceeds(*divergence_rates(self.evidence), self.cold.rate)

    @property
    def unknown_behind(self) -> str:
        """Return why it is not known whether something else failed like what was put aside; "" if it is known."""
        if self.problem is not None:
            return f"it could not be tested further: {type(self.problem).__name__}: {self.problem}"
        return self.not_behind

    def missing(self) -> list[str]:
        """Return the required evidence that stayed at zero."""
        return [name for name in self.requirement.shows if not self.evidence[name]]


def larger_sample(one: ColdAnswers, other: ColdAnswers) -> ColdAnswers:
    """Return the facts that rest on more cold answers: a later measurement contains the earlier one."""
    return other if other.rate.tokens >= one.rate.tokens else one
