"""Runs the controls of a confirmed case and draws the conclusion."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.spec.cell import CACHING, EngineVariant
from coldproof.harness.history.provenance import follows_another_prompt
from coldproof.harness.judgement.checkers.tokens import closest
from coldproof.harness.judgement.criteria import BOUNDS, IMPLEMENTATIONS, OF_ANSWERS
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import OracleError, comparable_outcomes
from coldproof.harness.proof.confirm.confirm import Confirmed, Observe
from coldproof.harness.proof.diagnose.conclusion import ControlFacts, conclude, runs_needed
from coldproof.harness.proof.diagnose.control_engines import ControlEngines
from coldproof.harness.proof.diagnose.controls import Control
from coldproof.harness.schema.case import ControlRow, Diagnosis
from coldproof.harness.workload.halves import half_of
from coldproof.harness.workload.steps import Workload

NO_TIME, NO_HITS = "no time was left", "the engine does not report hits in this configuration"
OF_TWINS = (BOUNDS, IMPLEMENTATIONS)
CONTROL_OFF = "prefix caching off"


def diagnose(
    confirmed: Confirmed,
    *,
    controls: Iterable[Control],
    variants: Iterable[EngineVariant],
    engines: ControlEngines,
    observe: Observe,
    seconds: float,
) -> Diagnosis:
    """Run each control as often as needed for a result, and conclude. A control without a run says why.

    `seconds` limits the time for all runs. The time to start engines does not count, up to the same number of seconds.
    """
    limit = TimeLimit(seconds)
    judgement, finding = confirmed.judgement, confirmed.judgement.worst()
    times = sum(failed(one, finding.checker) for one in confirmed.replays)
    replays = runs_needed(times, len(confirmed.replays))
    off = confirmed.caching_off
    rows = [row(CONTROL_OFF, CACHING, off, finding.checker, finding.request)] if off else []

    def run_control(control: Control, start: Callable[[], CheckedEngine]) -> ControlRow:
        name, removes = control.name, control.removes
        if limit.is_over():
            return ControlRow(name=name, removes=removes, not_run=NO_TIME)
        try:
            with limit.waiting():
                engine = start()
            ran = list(runs(observe, engine, control.workload, replays, limit))
        except (EngineError, OracleError) as problem:
            said = str(problem).splitlines() or [type(problem).__name__]
            return ControlRow(name=name, removes=removes, not_run=said[0])
        if finding.checker == BOUNDS and not all(reports_hits(one, control.request) for one in ran):
            return ControlRow(name=name, removes=removes, not_run=NO_HITS)
        return row(name, removes, ran, finding.checker, control.request, strict=control.about_one)

    rows += [run_control(control, engines.next) for control in controls]
    for variant in variants:
        same = Control(
            name=variant.name,
            removes=variant.removes,
            workload=judgement.history.workload,
            request=finding.request,
        )
        rows.append(run_control(same, functools.partial(engines.variant, variant)))
    preemptions = judgement.history.steps[-1].after.preemptions if judgement.history.steps else None
    facts = ControlFacts(
        failure_class=confirmed.failure_class,
        failed=times,
        tries=len(confirmed.replays),
        wrong_tokens=finding.checker in OF_ANSWERS,
        preempted=bool(preemptions),
        twins=finding.checker in OF_TWINS and half_of(judgement.history.workload) is not None,
        other_tokens=follows_another_prompt(judgement.history, finding.request),
    )
    return conclude(rows, facts)


class TimeLimit:
    """A time limit in seconds. Waiting times extend it, at most to twice its length."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.latest = self.until + seconds

    def is_over(self) -> bool:
        """Return whether the time is used up."""
        return time.monotonic() > self.until

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count the time that the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.until = min(self.latest, self.until + time.monotonic() - began)


def runs(
    observe: Observe, engine: CheckedEngine, workload: Workload, times: int, limit: TimeLimit
) -> Iterator[Judgement]:
    """Run a control on one engine under new nonces, until the engine is lost or time is up.

    Raises EngineError or OracleError.
    """
    for _ in range(times):
        ran = observe(engine, workload)
        yield ran
        if ran.history.engine_lost is not None or limit.is_over():
            return


def failed(judgement: Judgement, checker: str, only: int | None = None) -> bool:
    """Return whether a run failed by the case's checker; with `only`, in that request."""
    return any(f.checker == checker and only in (None, f.request) for f in judgement.findings)


def reports_hits(judgement: Judgement, request: int | None) -> bool:
    """Return whether the hits of a request (None: of all) are known or bounded. If not, no count can be wrong."""
    answered = [o for o in judgement.history.outcomes if request in (None, o.request) and o.answered]
    return all(o.hit_at_most is not None and o.hit_at_most - o.hit_at_least < len(o.prompt) - 1 for o in answered)


def row(
    name: str, removes: str, ran: Sequence[Judgement], checker: str, request: int | None, *, strict: bool = False
) -> ControlRow:
    """Return the row of a control. Its tokens are those of the last run that failed, or else of the last run.

    `strict`: only failures of the given request count.
    """
    same = [one for one in ran if failed(one, checker, request if strict else None)]
    shown = same[-1] if same else ran[-1]
    number = next((f.request for f in shown.findings if f.checker == checker), request) if same else request
    outcome = next((o for o in shown.history.outcomes if o.request == number), None)
    compared = next((o for o in comparable_outcomes(shown.history) if o.request == number), None)
    return ControlRow(
        name=name,
        removes=removes,
        tries=len(ran),
        failed=len(same),
        otherwise=sum(bool(one.findings) for one in ran if one not in same),
        observed=list(outcome.token_ids) if outcome is not None else [],
        cold=list(closest(compared, shown.answers).ids) if compared is not None else [],
        cached_tokens=outcome.cached_tokens if outcome is not None else None,
    )
