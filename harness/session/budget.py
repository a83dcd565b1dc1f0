"""Divides the time of a run over its trials by weight. A trial that lacks evidence may take more than its share.

A budget ends the drawing of examples; it never interrupts an example. The starts of engines are beside it. All else is
within it, or within half as much more: calibrations, the confirmation of counterexamples, the search for their causes
(`RunClock`, `ProofTime`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator

from coldproof.harness.judgement.trial import Trial

PATIENCE_FACTOR = 10  # maximum shares of a trial while evidence or examples are missing: some cells are far slower
SLOW_PATIENCE = 2  # the same with a slow model, of which few trials have more than they need
LEAST_DRAWN = 10  # drawn even after its shares, as long as the run has time: one example may take longer than all
GRACE_SECONDS = 10.0  # of a trial with too few examples, however small its share is
PACE_RESERVE = 2  # times what the trials to come need at the pace so far: not for a trial's least examples
PATIENT_EXAMPLES = 40  # maximum examples of a small profile's trial while evidence is missing
# Fraction of the initial share that each trial always gets, even if long examples of earlier trials used up the time.
# The run may then end a little late, but every trial has drawn examples.
RESERVED = 0.6
# A run with a budget of the user's takes so much more of it, less the seconds for its report, or at least so many
# seconds. With what is in flight then, it ends within one and a half times the budget.
ENDING = 4.0
EXTRA, LEAST_EXTRA = 0.4, 8.0
# The same for a run without one: its profile's budget is an estimate for a small model on an idle machine.
PATIENT_RUN = 5
# Examples of a trial at its first visit, however many its requirement has in other cells, and of one that cannot have
# its evidence.
FEW = 5
# After the end of the run, for the requests of the example in flight. Then requests to an attached server are cut off:
# it may be wrong or hostile, and a request that is cut off is no finding.
CUT_SECONDS = 20.0
# Seconds of a proof, as long as none was made, or so many times those in which a cell opens, if that is more. It counts
# as so many proofs, because the first ones are the longest: those of crashes.
USUAL_PROOF, OPENINGS_OF_A_PROOF, USUAL_PROOFS = 4.0, 8, 5
# At least for the proofs and causes of a run without a budget of the user's, behind its end if need be. What looks like
# a known cause and is not tried counts as VIOLATED, and a replay with a model takes a minute on a busy machine.
LEAST_PROOFS = 900.0
OUT_OF_TIME = "the time of the run was over before its turn: it needs a longer --budget"


class RunClock:
    """The time of a run as a whole, apart from the starts of its engines. `starts`: the seconds of these so far."""

    def __init__(
        self,
        seconds: float,
        *,
        strict: bool,
        starts: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin now. `seconds`: the budget. `strict`: the user chose it."""
        self.seconds, self.strict = seconds, strict
        self.extra = max(EXTRA * seconds - ENDING, LEAST_EXTRA) if strict else (PATIENT_RUN - 1) * seconds
        self._starts, self._clock = starts, clock
        self._began = clock()

    def elapsed(self) -> float:
        """Return the seconds so far, without those of engine starts."""
        return self._clock() - self._began - self._starts()

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.seconds + self.extra - self.elapsed())

    def left_for_drawing(self) -> float:
        """Return the seconds until no example is drawn any more: what was found by then has to be proved as well."""
        return max(0.0, self.left() - (self.extra / 2 if self.strict else 0.0))

    def left_of_budget(self) -> float:
        """Return what is left of a budget of the user's, at least 0. A profile's is for drawing examples alone."""
        return max(0.0, self.seconds - self.elapsed()) if self.strict else math.inf

    def until_cut(self) -> float:
        """Return the seconds until requests that are still in flight are cut off; 0 or less after that."""
        return self.seconds + self.extra + CUT_SECONDS - self.elapsed()


class ProofTime:
    """The time for proofs: to minimise and confirm counterexamples, to run their controls and to find their causes.

    With a budget of the user's it is a part of that, and no proof begins when it is used up.
    """

    def __init__(self, clock: Callable[[], RunClock], *, alone: bool = False) -> None:
        """`alone`: the run makes proofs and draws nothing, so that they have its whole budget."""
        self.clock, self.alone = clock, alone
        self.spent = 0.0
        self.proofs = 0  # those that were made; the search for the cause of a known finding that fails is one
        # Seconds in which a cell opens, as far as known, where replays open it: those of a server's cases do not.
        self.opening: Callable[[], float] = lambda: 0.0
        self._running = False

    def left(self) -> float:
        """Return the seconds that are left for proofs, at least 0."""
        clock = self.clock()
        if clock.strict:
            return max(0.0, min(clock.left(), self.part() - self.spent))
        return max(0.0, clock.left(), LEAST_PROOFS - self.spent)

    def until_cut(self) -> float:
        """Return the seconds until requests that are still in flight are cut off. Proofs have theirs before that."""
        clock = self.clock()
        return clock.until_cut() if clock.strict else max(clock.until_cut(), self.left() + CUT_SECONDS)

    def is_over(self) -> bool:
        """Return whether no proof begins any more. Without a budget of the user's, each one is made, in a hurry."""
        return self.clock().strict and not self.left()

    def is_short(self) -> bool:
        """Return whether half of the time that a user's budget has for proofs is used up."""
        clock = self.clock()
        return clock.strict and self.left() < self.part() / 2

    def part(self) -> float:
        """Return the seconds of the run's budget that proofs have: half of the time that the run may take.

        They come after the floor of all trials and before further examples: what is not confirmed is no verdict.
        """
        clock = self.clock()
        return clock.seconds if self.alone else (clock.seconds + clock.extra) / 2

    @contextlib.contextmanager
    def taken(self, *, proofs: int = 1) -> Iterator[None]:
        """Count the time that the block takes, without engine starts, and its proofs. One in another counts once."""
        if self._running:
            yield
            return
        clock, self._running = self.clock(), True
        began = clock.elapsed()
        try:
            yield
        finally:
            self.spent += max(0.0, clock.elapsed() - began)
            self.proofs += proofs
            self._running = False

    def expected(self, waiting: float) -> float:
        """Return the seconds that so many proofs will take, as far as known."""
        usual = max(USUAL_PROOF, OPENINGS_OF_A_PROOF * self.opening())
        each = (self.spent + USUAL_PROOFS * usual) / (self.proofs + USUAL_PROOFS)
        return min(self.left(), waiting * each)


class OutOfTime(Exception):
    """A cell was not opened because the time of the run was over."""


class TrialEnded(BaseException):
    """Ends a trial whose time is used up, or that cannot run more examples.

    Not an Exception, which hypothesis would take for a counterexample.
    """


class Budget:
    """The seconds left for drawing examples, and the total weight of the trials that have not begun.

    `slow`: one example may take longer than a share. Then each trial gets its part of the time until the run has to
    end, and no trial takes more than twice that, so that all have a turn; but a trial with too few examples also gets
    what the others leave over.
    """

    def __init__(
        self,
        seconds: float,
        weight: float,
        time_left: Callable[[], float] = lambda: math.inf,
        *,
        of_budget: Callable[[], float] = lambda: math.inf,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """Divide `seconds`. `time_left`: the seconds until no example is drawn any more. `of_budget`: those that are
        left of a budget which is for more than drawing. `grace`: seconds of a trial with too few examples.
        """
        self.time_left, self.of_budget, self.grace = time_left, of_budget, grace
        self.total, self.left, self.weight = seconds, seconds, weight
        self.at_first = seconds / weight if weight else seconds  # seconds for a weight of 1
        self.share = self.longest = self.patience = 0.0
        self.spent = self.begun = 0.0  # seconds used, and the weight of the trials that used them
        self.slow = False
        self.shown: set[tuple[str, str]] = set()  # cells, and evidence that one of their trials has
        self.later = self.later_seconds = 0.0  # weight of the trials that return, and seconds to their last examples
        # Seconds of the proofs that wait, times how many of them there will be, and those to open cells.
        self.proofs_expected: Callable[[float], float] = lambda _: 0.0
        self.openings_expected: Callable[[], float] = lambda: 0.0

    def remaining(self) -> float:
        """Return the seconds that are left for drawing, at least 0."""
        return max(0.0, min(self.left, self.of_budget()))

    def drop(self, weight: float) -> None:
        """Remove trials with this total weight: they will not run."""
        self.weight = max(0.0, self.weight - weight)
        self.at_first = max(self.at_first, self.left / self.weight) if self.weight else self.at_first

    def begin(self, weight: float) -> float:
        """Begin a trial and return its share in seconds. Time that earlier trials did not use is divided again."""
        of_rest = weight / max(weight, self.weight)
        fair = self.remaining() * of_rest
        self.share = max(fair, RESERVED * self.at_first * weight)
        self.weight = max(0.0, self.weight - weight)
        unneeded = self.unneeded()
        self.begun += weight
        if self.slow:  # an equal part of the time that the run has left, which is all that there is
            self.share = self.time_left() * of_rest
            self.longest, self.patience = SLOW_PATIENCE * self.share, unneeded
            return self.share
        spare = self.remaining() - RESERVED * self.at_first * self.weight
        self.longest = max(self.share, min(PATIENCE_FACTOR * self.share, spare))
        self.patience = max(self.longest, self.grace, self.time_left() * of_rest, unneeded)
        return self.share

    def resume(self, share: float) -> None:
        """Go on with a trial that has drawn its examples: it gets the rest of its share, and no more."""
        self.share = self.longest = share
        self.patience = 0.0

    def put_off(self, trial: Trial) -> None:
        """Count a trial that has its floor, and returns for more examples if time is left."""
        self.later += trial.requirement.weight
        self.later_seconds += seconds_to_enough(trial)

    def resume_later(self, trial: Trial) -> float:
        """Go on with a trial that has its floor. Return the seconds that it gets: its part of what is left."""
        self.weight, self.later = self.weight + self.later, 0.0
        self.later_seconds = max(0.0, self.later_seconds - seconds_to_enough(trial))
        more = self.remaining() * trial.requirement.weight / max(trial.requirement.weight, self.weight)
        self.weight = max(0.0, self.weight - trial.requirement.weight)
        self.resume(trial.drawing() + more)
        # To its floor it has the time that the run has: on a busy machine, first visits take all of a profile.
        self.patience = trial.drawing() + self.time_left()
        return more

    def unneeded(self) -> float:
        """Return the seconds until the run has to end that the trials to come will hardly need; 0 if unknown.

        They serve a trial's least examples: on a busy machine a run takes longer rather than end without a verdict.
        """
        if not self.begun:
            return 0.0
        return max(0.0, self.time_left() - PACE_RESERVE * self.weight * self.spent / self.begun)

    def settle(self, seconds: float) -> None:
        """Subtract the seconds in which a trial has drawn its examples."""
        self.left -= seconds
        self.spent += seconds

    def note_evidence(self, trial: Trial) -> None:
        """Remember what a trial has shown: the others of its cell can show it as well."""
        self.shown |= {(trial.cell, name) for name, number in trial.evidence.items() if number}

    def is_reachable(self, trial: Trial, missing: Iterable[str]) -> bool:
        """Return whether other trials of the cell have all the evidence that a trial lacks: it only takes luck."""
        return all((trial.cell, name) in self.shown for name in missing)

    def expected(self) -> float:
        """Return the seconds until the run ends, as expected by what it has done so far.

        The trials to come need what those before them needed to their floor, and find as much, as far as the run has
        time: what is left for drawing is no bound for their least examples. Then come the proofs that wait, and at last
        further examples, until there are enough or the budget is used up.
        """
        if self.slow:
            return self.time_left()
        pace = self.spent / self.begun if self.begun else self.at_first
        needed, left = pace * self.weight, min(self.of_budget(), self.time_left())
        turns = min(1.0, left / needed) if needed else 1.0  # part of the trials to come that will have a turn
        # Trials, in parts of those that have begun.
        to_come = 1 + turns * self.weight / self.begun if self.begun else 1.0
        first = turns * needed
        last = min(self.later_seconds * (to_come if self.later else 1.0), max(0.0, self.remaining() - first))
        return min(self.time_left(), first + last) + self.proofs_expected(to_come) + turns * self.openings_expected()

    def is_spent(self, trial: Trial) -> bool:
        """Return whether a trial should end: after its share if it has its evidence and least examples, else later."""
        used = trial.drawing()
        if not self.time_left():
            return True
        if trial.has_failed:  # its verdict no longer depends on its evidence, so that it gets its share and no more
            return used > self.share or trial.drawn_examples >= trial.enough
        missing = trial.missing()
        few = trial.drawn_examples < trial.least_examples and trial.drawn_requests < trial.least_requests
        if self.slow:
            enough = not missing and trial.drawn_examples >= trial.enough
            most = max(self.longest if missing else self.share, self.patience if few else 0.0)
            return trial.examples > 0 and (enough or used > most)
        first = not (missing or few) or (trial.is_brief and used > self.share)
        if trial.returns and trial.drawn_examples >= FEW and first:
            return True  # the floor, or a first share: it goes on when the others have theirs
        if missing and trial.out_of_reach and trial.drawn_examples >= FEW:
            return True  # they may still find a counterexample; more of them change no verdict
        hopeful = self.is_reachable(trial, missing) or trial.leads.is_trying(missing)
        most = PATIENT_EXAMPLES if hopeful else LEAST_DRAWN
        short = few or (bool(missing) and trial.examples < most)
        if not trial.examples or (short and used <= self.patience):
            return False
        if missing:
            return used > self.longest
        return trial.drawn_examples >= trial.enough or used > self.share


def seconds_to_enough(trial: Trial) -> float:
    """Return how long a trial will take to draw all of its examples, at its pace so far."""
    drawn = trial.drawn_examples
    if drawn <= 0 or not math.isfinite(trial.enough):
        return 0.0
    return trial.drawing() / drawn * max(0.0, trial.enough - drawn)
