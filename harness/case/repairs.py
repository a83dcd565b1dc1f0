"""Finds the repairs of known findings: `repair.py` in a finding's folder. adapters/spec/repair.py says what one is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.repair import Repair, RepairError, read_repair
from coldproof.harness.case.finding_records import FOLDER
from coldproof.harness.options import UsageError

REPAIR = "repair.py"
NONE, KNOWN = "none", "known"  # beside names: no repair, and all that fit the release that is installed
WITHOUT = "-"  # before a name: none of the repairs that remove the case of this finding


def read_repairs(engine: str = "*", root: Path | None = None) -> dict[str, Repair]:
    """Return the repairs of an engine's findings by id, sorted. `engine`: the folder of its findings; all without it.

    Raises UsageError that names a faulty file.
    """
    try:
        found = (read_repair(path) for path in sorted((root or FOLDER).glob(f"{engine}/*/{REPAIR}")))
        return {repair.name: repair for repair in found}
    except RepairError as problem:
        raise UsageError(str(problem)) from problem


def repairing(name: str, repairs: Iterable[Repair]) -> Repair | None:
    """Return the repair of a finding: its own or, without one, another that removes its case as well."""
    return min((one for one in repairs if name in one.mends), key=lambda one: one.name != name, default=None)


def chosen_repairs(engine: str, text: str | None) -> tuple[Repair, ...]:
    """Return the repairs that --repairs chooses for an engine by its option --engine. Raises UsageError."""
    if text in (None, NONE):
        return ()
    spec = ENGINES.get(engine)
    if spec is None or spec.repairs is None:
        able = ", ".join(name for name, other in ENGINES.items() if other.repairs is not None)
        raise UsageError(f"--repairs is not supported for --engine {engine}; use --engine {able}")
    folder, release = spec.repairs.findings, installed_release(spec)
    repairs, words = read_repairs(folder), [word for word in (text or "").split(",") if word]
    without = {named(word[1:], folder) for word in words if word.startswith(WITHOUT)}
    names = [named(word, folder) for word in words if word != KNOWN and not word.startswith(WITHOUT)]
    chosen = known(repairs, release) if KNOWN in words else []
    if KNOWN in words and not chosen:
        raise UsageError(f"--repairs known: no repair was written for {folder} {release}")
    chosen += [named_repair(name, repairs, release) for name in names]
    for name in sorted(without):
        existing(name, repairs)
    if without and KNOWN not in words:
        raise UsageError(f"--repairs: leave {' and '.join(sorted(without))} out of {KNOWN}: {KNOWN},{WITHOUT}NAME,...")
    return tuple(dict.fromkeys(one for one in chosen if not without & set(one.mends)))


def named(word: str, folder: str) -> str:
    """Return the id of a finding whose engine's folder may be left out."""
    return word if "/" in word else f"{folder}/{word}"


def known(repairs: dict[str, Repair], release: str) -> list[Repair]:
    """Return all repairs for a release that can be planted here."""
    return [one for one in repairs.values() if one.is_for(release) and not one.absent]


def named_repair(name: str, repairs: dict[str, Repair], release: str) -> Repair:
    """Return the repair of a finding for a release. Raises UsageError if there is none."""
    found = existing(name, repairs)
    if not found.is_for(release):
        raise UsageError(f"--repairs: the repair of {found.name} is for {found.releases}, and {release} is installed")
    if found.absent:
        raise UsageError(f"--repairs: the repair of {found.name} needs {', '.join(found.absent)}, not installed")
    return found


def existing(name: str, repairs: dict[str, Repair]) -> Repair:
    """Return the repair of a finding. Raises UsageError if it has none."""
    found = repairing(name, repairs.values())
    if found is None:
        raise UsageError(f"--repairs: the finding {name!r} has no repair; `coldproof findings` lists the findings")
    return found


def installed_release(spec: EngineSpec) -> str:
    """Return the installed release of an engine. Raises UsageError if it is not installed."""
    try:
        return importlib.metadata.version(spec.packages[0])
    except importlib.metadata.PackageNotFoundError as problem:
        raise UsageError(f"--repairs: {spec.packages[0]} is not installed") from problem
