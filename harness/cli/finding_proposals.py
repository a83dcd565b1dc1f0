"""Proposes findings for `coldproof findings --collect`: the smallest case of each failure that no finding covers yet.

A proposal is no finding: its record has no title, cause, source or argument, and is refused without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.registry import ENGINES, layer_of
from coldproof.harness.case.finding_folder import write_case
from coldproof.harness.case.finding_records import RECORD, StoredFinding
from coldproof.harness.case.known_issues import is_alike
from coldproof.harness.case.load import load_case
from coldproof.harness.case.replay_command import worker_of
from coldproof.harness.cli.io import loaded, results_file, write
from coldproof.harness.judgement.verdict import verdict_of_case
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.workload.steps import Workload
from coldproof.reports.assemble.causes import fingerprint
from coldproof.reports.format.toml import literal

PROVEN = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


class Proposal(msgspec.Struct, frozen=True):
    """The smallest case of one failure, and the run that found it."""

    case: Case
    workload: Workload
    run: Results


def proposals(folders: Sequence[Path], known: Iterable[StoredFinding]) -> list[Proposal]:
    """Return the smallest case of each failure of these runs that no finding covers. Raises UsageError or Refusal."""
    covered = list(known)
    smallest: dict[tuple[str, str, str], Proposal] = {}
    for one in cases_of(folders):
        if is_covered(one.case, covered):
            continue
        key = (one.case.engine, one.case.requirement, one.case.signature)
        if key not in smallest or one.workload.size() < smallest[key].workload.size():
            smallest[key] = one
    return list(smallest.values())


def cases_of(folders: Sequence[Path]) -> Iterator[Proposal]:
    """Yield the proven cases of runs on unmodified engines."""
    for folder in folders:
        run = loaded(folder)
        if run.fault is not None or run.repairs:
            continue
        for found in run.cases:
            if verdict_of_case(found)[0] in PROVEN:
                yield Proposal(*load_case(results_file(folder).parent / "cases" / f"{found.id}.json"), run)


def is_covered(case: Case, known: Sequence[StoredFinding]) -> bool:
    """Return whether a finding covers a case: it belongs to it, or has its signature."""
    if case.attribution is not None and case.attribution.is_known:
        return any(one.id == case.attribution.finding for one in known)
    alike = (one.record for one in known if one.record.engine == folder_of(case.engine))
    return any(is_alike(record, case) for record in alike)


def written_proposal(one: Proposal, out: Path) -> Path:
    """Write the folder of a proposal, and return it. One that is there stays: its record may be complete by now.

    Raises OSError, and Refusal for the record.
    """
    case = one.case
    worker = worker_of(case.engine_config)
    identity = f"{folder_of(case.engine)}/{case.requirement.lower()}-{fingerprint(case.signature)}"
    folder = out / identity
    if (folder / RECORD).exists():
        return folder
    write_case(case, identity, folder)
    write(folder / RECORD, draft(one, worker=worker))
    return folder


def folder_of(engine: str) -> str:
    """Return the name of an engine's folder."""
    issues = ENGINES[engine].known_issues if engine in ENGINES else None
    return issues.parent.name if issues is not None else engine


def draft(one: Proposal, *, worker: str) -> str:
    """Return a record with what the run knows. What a person has to find out is empty, and an empty text is refused."""
    case, run = one.case, one.run
    result = next((found for found in run.requirements if found.id == case.requirement), None)
    cells = [cell for cell in result.cells if cell.cell == case.cell] if result is not None else []
    cell = next((cell for cell in cells if cell.layer == case.layer), next(iter(cells), None))
    packages = {"python", *(ENGINES[case.engine].packages if case.engine in ENGINES else ())}
    environment = {name: version for name, version in run.environment.items() if name in packages}
    version = case.engine_version or ""
    head: dict[str, str | list[str]] = {
        "title": "",
        "engine": folder_of(case.engine),
        "requirement": case.requirement,
        "failure_class": case.failure_class.value,
        "signature": case.signature,
        "severity": "",
        "status": "not searched",
        "first_release": version,
        "last_release": version,
        "cause": "",
        "source": [],
        "distinct": "",
    }
    found: dict[str, str | int | float] = {
        "adapter": case.engine,
        "worker": worker,
        "layer": case.layer or layer_of(case.engine, worker),
        "cell": case.cell,
        "requests": cell.requests if cell is not None else 0,
        "seconds": round(cell.drawn, 2) if cell is not None else 0.0,
    }
    versions = ", ".join(f"{literal(name)} = {literal(text)}" for name, text in environment.items())
    return "\n".join([*assignments(head), "", "[found]", *assignments(found), f"environment = {{ {versions} }}", ""])


def assignments(values: dict[str, str | list[str]] | dict[str, str | int | float]) -> Iterator[str]:
    """Yield the lines of a TOML table."""
    for name, value in values.items():
        yield f"{name} = {literal(value) if isinstance(value, str) else json.dumps(value)}"
