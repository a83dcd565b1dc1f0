"""Runs the controls of a confirmed case and draws the conclusion."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from adapters.base import EngineError
from adapters.checked import CheckedEngine
from harness.checkers.tokens import closest
from harness.confirm import Confirmed, Observe
from harness.diagnosis.conclusion import Facts, conclude, runs_needed
from harness.diagnosis.controls import Control
from harness.judge import Judgement
from harness.oracle.base import OracleError, judged
from harness.variant import CACHING, Variant
from harness.workload import Workload
from reports.schema import ControlRow, Diagnosis

NO_TIME, UNTOLD = "no time was left", "such an engine does not tell what is hit"
CONTROL_OFF = "prefix caching off"


class Engines(Protocol):
    """Where controls run. Both raise EngineError with the reason when there is no engine."""

    def next(self) -> CheckedEngine:
        """The engine for a changed workload."""

    def variant(self, variant: Variant) -> CheckedEngine:
        """The engine of another configuration."""


def diagnose(
    confirmed: Confirmed,
    *,
    controls: Iterable[Control],
    variants: Iterable[Variant],
    engines: Engines,
    observe: Observe,
    seconds: float,
) -> Diagnosis:
    """Run each control as often as tells something, for as long as there are seconds left; what did not run says so.

    Starting engines is not counted, unless it takes longer than all the rest.
    """
    patience = Patience(seconds)
    judgement, finding = confirmed.judgement, confirmed.judgement.worst()
    times = sum(failed(one, finding.checker) for one in confirmed.again)
    replays = runs_needed(times, len(confirmed.again))
    rows = []
    if confirmed.off:
        rows.append(row(CONTROL_OFF, CACHING, confirmed.off, finding.checker, finding.request))

    def measured(control: Control, start: Callable[[], CheckedEngine]) -> ControlRow:
        name, removes = control.name, control.removes
        if patience.is_over():
            return ControlRow(name=name, removes=removes, not_run=NO_TIME)
        try:
            with patience.waiting():
                engine = start()
            ran = list(runs(observe, engine, control.workload, replays, patience))
        except (EngineError, OracleError) as problem:
            return ControlRow(name=name, removes=removes, not_run=first_line(problem))
        if finding.checker == "bounds" and not all(tells_hits(one, control.request) for one in ran):
            return ControlRow(name=name, removes=removes, not_run=UNTOLD)
        return row(name, removes, ran, finding.checker, control.request, strict=control.about_one)

    rows += [measured(control, engines.next) for control in controls]
    for variant in variants:
        same = Control(
            name=variant.name,
            removes=variant.removes,
            workload=judgement.history.workload,
            request=finding.request,
            about_one=False,
        )
        rows.append(measured(same, functools.partial(engines.variant, variant)))
    preemptions = judgement.history.steps[-1].after.preemptions if judgement.history.steps else None
    facts = Facts(
        failure_class=confirmed.failure_class,
        failed=times,
        tries=len(confirmed.again),
        wrong_tokens=finding.checker == "tokens",
        preempted=bool(preemptions),
    )
    return conclude(rows, facts)


class Patience:
    """Seconds for a purpose; what is waited for on the way is given back, up to as many seconds again."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.latest = self.until + seconds

    def is_over(self) -> bool:
        """Whether they are used up."""
        return time.monotonic() > self.until

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in the block does not count."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.until = min(self.latest, self.until + time.monotonic() - began)


def runs(
    observe: Observe, engine: CheckedEngine, workload: Workload, times: int, patience: Patience
) -> Iterator[Judgement]:
    """A control, several times on one engine under new nonces, until it is lost. Raises EngineError, OracleError."""
    for _ in range(times):
        ran = observe(engine, workload)
        yield ran
        if ran.history.engine_lost is not None or patience.is_over():
            return


def failed(judgement: Judgement, checker: str, only: int | None = None) -> bool:
    """Whether a run failed as the case does: by the same checker, and where it is about one request, in that one."""
    return any(f.checker == checker and only in (None, f.request) for f in judgement.findings)


def tells_hits(judgement: Judgement, request: int | None) -> bool:
    """Whether anything is known of what a request hit; where nothing is, no count can be wrong."""
    asked = [o for o in judgement.history.outcomes if request in (None, o.request) and o.answered]
    return all(o.hit_at_most is not None and o.hit_at_most - o.hit_at_least < len(o.prompt) - 1 for o in asked)


def row(
    name: str, removes: str, ran: Sequence[Judgement], checker: str, request: int | None, *, strict: bool = False
) -> ControlRow:
    """What a control's runs came to; the tokens are of the last one that failed, or else of the last.

    `strict`: only the given request may fail.
    """
    same = [one for one in ran if failed(one, checker, request if strict else None)]
    shown = same[-1] if same else ran[-1]
    number = next((f.request for f in shown.findings if f.checker == checker), request) if same else request
    outcome = next((o for o in shown.history.outcomes if o.request == number), None)
    compared = next((o for o in judged(shown.history) if o.request == number), None)
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


def first_line(problem: Exception) -> str:
    """Why an engine did not come, in one line."""
    return (str(problem).splitlines() or [type(problem).__name__])[0]
