"""What a run is, in words, and every reason not to take the difference of two for a change of the engine.

A doubt is a warning and never changes a finding: whoever reads decides whether the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from reports import overview
from reports.schema import Calibration, Results
from reports.text import duration, number

# Shares of a budget are dealt out anew during a run, so that equal budgets give sums that differ a little.
MUCH = 2.0
MACHINE = ("machine", "cpus", "memory")  # of the environment: what times depend on

# What has to be alike, and what follows where it is not.
CONSEQUENCE = {
    "engine": "This is no history of one engine.",
    "adapter": "The engine was reached in another way, so other things were possible and seen.",
    "worker": "The model and the fingerprint worker show different faults.",
    "profile": "Cells and depth may differ.",
    "oracle": "Cold answers came from elsewhere.",
    "rule": "What counts as a difference is not the same.",
    "injected fault": "The engines were broken on purpose, and not alike.",
    "Coldproof": "What is newly violated may be newly looked for.",
    "machine": "Times cannot be compared.",
}


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about both runs, in words."""

    name: str
    before: str
    now: str


def facts(old: Results, new: Results) -> list[Fact]:
    """The two runs side by side."""
    return [
        Fact(name=name, before=before, now=now)
        for (name, before), now in zip(described(old).items(), described(new).values(), strict=True)
    ]


def doubts(old: Results, new: Results) -> list[str]:
    """Why the two may not be comparable, a sentence or two each; none where they are."""
    return [
        *states(old, "The earlier run"),
        *states(new, "The later run"),
        *_unlike(old, new),
        *_selected(old, new),
        *_budgets(old, new),
        *_order(old, new),
    ]


def budget(results: Results) -> float:
    """Seconds that were given for drawing examples; 0 where the run did not record it."""
    return sum(cell.share for requirement in results.requirements for cell in requirement.cells)


def described(results: Results) -> dict[str, str]:
    """All that one asks of a run before its verdicts."""
    marks = "".join(f"{mark}: " for mark in overview.marks(results))
    found = traits(results)
    return {
        "Result": f"{marks}{overview.headline(results)}",
        "Engine": overview.engine_name(results),
        "Adapter": f"{found['adapter']}, worker {found['worker']}",
        "Profile": results.profile,
        "Oracle": found["oracle"],
        "Rule": results.calibration.rule if results.calibration else found["rule"],
        "Injected fault": found["injected fault"],
        "Budget": duration(budget(results) or None),
        "Requests": number(results.totals.get("requests")),
        "Started": results.started,
        "First verdict after": duration(results.timing.command_to_first_verdict),
        "Duration": duration(results.duration_s),
        "Seed": results.seed,
        "Coldproof": results.coldproof_version,
        "Command": results.command,
    }


def traits(results: Results) -> dict[str, str]:
    """What has to be alike in two runs, by the names in CONSEQUENCE."""
    engine, calibration = results.engine, results.calibration
    return {
        "engine": engine.name if engine else "not reached",
        "adapter": engine.adapter if engine else "not reached",
        "worker": engine.worker if engine else "not reached",
        "profile": results.profile,
        "oracle": calibration.oracle if calibration else "not calibrated",
        "rule": _rule(calibration) if calibration else "not calibrated",
        "injected fault": results.fault.name if results.fault else "none",
        "Coldproof": results.coldproof_version,
        "machine": ", ".join(f"{name} {results.environment.get(name, 'unknown')}" for name in MACHINE),
    }


def _rule(calibration: Calibration) -> str:
    """What kind of rule answers were compared by."""
    if calibration.exact:
        return "token-exact"
    return "by scores" if calibration.band is not None else "by margin"


def states(results: Results, which: str) -> Iterator[str]:
    """Why a run taken by itself is no whole one."""
    if overview.missed(results):
        yield f"{which} is invalid, its detector failed the self-test: none of its verdicts is used."
    if not results.complete:
        yield f"{which} is incomplete: what it had not reached is not shown there."


def _unlike(old: Results, new: Results) -> Iterator[str]:
    before, now = traits(old), traits(new)
    for name, consequence in CONSEQUENCE.items():
        if before[name] != now[name]:
            yield f"Other {name}: before “{before[name]}”, now “{now[name]}”. {consequence}"


def _selected(old: Results, new: Results) -> Iterator[str]:
    """What only one of the runs was asked to do."""
    for what, before, now in zip(("requirements", "cells"), _selection(old), _selection(new), strict=True):
        only = {"before": sorted(before - now), "now": sorted(now - before)}
        words = [f"only {when} {', '.join(names)}" for when, names in only.items() if names]
        if words:
            yield f"Other {what}: {'; '.join(words)}."


def _selection(results: Results) -> tuple[set[str], set[str]]:
    requirements = results.requirements
    return {r.id for r in requirements}, {cell.cell for r in requirements for cell in r.cells}


def _budgets(old: Results, new: Results) -> Iterator[str]:
    before, now = budget(old), budget(new)
    if not before or not now:
        return
    figures = f"{duration(before)} of drawing examples before, {duration(now)} now"
    if before >= MUCH * now:
        yield f"Much smaller budget: {figures}. What is fixed or conforms was looked for less."
    elif now >= MUCH * before:
        yield f"Much larger budget: {figures}. What is newly violated may have been there before."


def _order(old: Results, new: Results) -> Iterator[str]:
    before, now = _started(old), _started(new)
    if before is not None and now is not None and now < before:
        yield "The later run started before the earlier one: they may be the wrong way round."


def _started(results: Results) -> datetime | None:
    """When a run began; None where the file says it in no way that can be compared."""
    try:
        moment = datetime.fromisoformat(results.started)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
