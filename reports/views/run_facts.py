"""Describes a run: its facts, and the properties that must be equal in comparable runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coldproof.harness.schema.results import Calibration, Results
from coldproof.reports.format.text import duration, number
from coldproof.reports.views import overview

# A smaller difference of budgets is normal: shares of the budget are reassigned during a run.
LARGE_FACTOR = 2.0
MACHINE = ("machine", "cpus", "memory")  # the parts of the environment that times depend on


def facts(runs: Sequence[Results]) -> list[tuple[str, list[str]]]:
    """Return the name of each property, and its value in each run as text; nothing without a run."""
    described = [run_description(results) for results in runs]
    names = described[0] if described else ()
    return [(name, [properties[name] for properties in described]) for name in names]


def budget(results: Results) -> float:
    """Return the seconds budgeted for generating examples."""
    return sum(cell.share for requirement in results.requirements for cell in requirement.cells)


def run_description(results: Results) -> dict[str, str]:
    """Return the properties of a run by their labels, without the verdicts."""
    marks = "".join(f"{mark}: " for mark in overview.banners(results))
    properties = traits(results)
    return {
        "Result": f"{marks}{overview.headline(results)}",
        "Engine": overview.engine_name(results),
        "Adapter": f"{properties['adapter']}, worker {properties['worker']}",
        "Profile": results.profile,
        "Oracle": properties["oracle"],
        "Rule": results.calibration.rule if results.calibration else properties["rule"],
        "Injected fault": properties["injected fault"],
        "Repairs": properties["repairs"],
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
    """Return the properties that must be equal in comparable runs, by name."""
    engine, calibration = results.engine, results.calibration
    return {
        "engine": engine.name if engine else "not reached",
        "adapter": engine.adapter if engine else "not reached",
        "worker": engine.worker if engine else "not reached",
        "profile": results.profile,
        "oracle": calibration.oracle if calibration else "not calibrated",
        "rule": _rule(calibration) if calibration else "not calibrated",
        "injected fault": results.fault.name if results.fault else "none",
        "repairs": ", ".join(one.name for one in results.repairs) or "none",
        "Coldproof": results.coldproof_version,
        "machine": ", ".join(f"{name} {results.environment.get(name, 'unknown')}" for name in MACHINE),
    }


def _rule(calibration: Calibration) -> str:
    """Return the kind of comparison rule."""
    if calibration.exact:
        return "token-exact"
    return "by scores" if calibration.band is not None else "by margin"


def run_problems(results: Results, which: str) -> Iterator[str]:
    """Yield why a run has no complete results. `which` names the run in the sentence."""
    if overview.failed_selftests(results):
        yield f"{which} is invalid because the detector self-test failed. Its verdicts are not used."
    if not results.complete:
        yield f"{which} is incomplete. Requirements that did not run are not verified."
