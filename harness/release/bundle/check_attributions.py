"""Checks what can be checked of the causes that a bundle's cases are said to have, without an engine.

An attribution makes a violation a known issue, or no violation at all. It has to agree with the record of its finding,
and with the replays that the run recorded. That these replays were made, and ended so, is taken from the bundle.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from packaging.version import InvalidVersion, Version

from coldproof.adapters.registry import ATTACHED, layer_of
from coldproof.adapters.spec.layer import SERVER_LAYER
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.known_issues import describes, is_alike, may_be_of, shows
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.case.replay_command import worker_of
from coldproof.harness.case.tested_engine import family_of
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.reports.format.text import many


def check_attribution(case: Case) -> Iterator[str]:
    """Yield what is wrong with the cause that a case is said to have, as a clause about the case."""
    found = case.attribution
    if found is not None and found.basis is Basis.SIGNATURE and not found.finding and found.candidates:
        for name in found.candidates:
            alone = msgspec.structs.replace(found, finding=name, candidates=[])
            yield from check_attribution(msgspec.structs.replace(case, attribution=alone))
        return
    if found is None or not (found.finding or found.remark):
        return
    records = [read_records().get(name) for name in found.findings] or [None]
    known = [one for one in records if one is not None]
    if len(known) < len(records):
        yield f"is attributed to {' and '.join(found.findings) or 'no finding'}, which no record describes"
        return
    for record in known:
        if record.engine != family_of(case):
            yield f"is attributed to {record.id}, which is about another engine"
        if not may_be_of(record, case):
            needed = [*record.only_with, *(["earlier blocks"] if record.needs_earlier_blocks else [])]
            yield f"is attributed to {record.id}, which acts only with {', '.join(needed)}"
    repairs = [fitting_repairs(record, case) for record in known]
    if found.is_by_replay:
        yield from check_replays(case, found, repairs)
    else:
        yield from check_signature(case, known[0], repairs[0])
    if found.remark and (found.with_findings or not may_be_remark(case, found, known[0], repairs[0])):
        yield f"counts as a remark, and {found.finding} is none, or its record does not say that it shows itself so"


def check_replays(case: Case, found: Attribution, repairs: Sequence[Sequence[Repair]]) -> Iterator[str]:
    """Yield why the replays that were recorded do not show the causes of a case. `repairs`: those of each cause."""
    failed = found.basis is Basis.REPAIR and case.reproduction.failed_again
    named = " and ".join(found.findings)
    if not all(repairs):
        yield f"is attributed {found.basis.value} to {named}, which has no repair for its release"
    elif not any(found.is_shown_by([one.name for one in some], failed=failed) for some in itertools.product(*repairs)):
        yield f"is attributed {found.basis.value} to {named}, and its replays do not show that"


def check_signature(case: Case, record: FindingRecord, repairs: Sequence[Repair]) -> Iterator[str]:
    """Yield why a case cannot be attributed to a finding by its signature."""
    if not is_alike(record, case):
        yield f"is attributed to {record.id} by its signature, which is another one"
    if repairs and in_process(case):
        yield f"is attributed to {record.id} by its signature, although its repair decides on this engine"


def may_be_remark(case: Case, found: Attribution, record: FindingRecord, repairs: Sequence[Repair]) -> bool:
    """Return whether a case with this cause may count as a remark."""
    if not found.is_by_replay:
        return not record.is_root_cause and any(shows(one, case) for one in record.shows)
    records = read_records()
    causes = [name for one in repairs for name in one.mends if records[name].is_root_cause]
    told = {one.repairs[0] for one in found.replays if one.number == 1 and one.result is ReplayResult.FAILS}
    return not record.is_root_cause and set(causes) <= told and describes(record, case)


def fitting_repairs(record: FindingRecord, case: Case) -> list[Repair]:
    """Return the repairs that remove a finding from the engine's release of a case."""
    try:
        release = str(Version(case.engine_version or ""))
    except InvalidVersion:
        return []
    return [one for one in repairs_of(record.engine) if record.id in one.mends and one.is_for(release)]


@functools.cache
def repairs_of(engine: str) -> tuple[Repair, ...]:
    """Return the repairs of the findings about an engine."""
    return tuple(read_repairs(engine).values())


def in_process(case: Case) -> bool:
    """Return whether a case is of an engine in the process of its run, where repairs can be tried."""
    return case.cell != ATTACHED.name and layer_of(case.engine, worker_of(case.engine_config)) != SERVER_LAYER


def on_trust(cases: Iterable[Case]) -> list[str]:
    """Return lines that say for which cases the cause is taken from the bundle."""
    lines = []
    for case in cases:
        found = case.attribution
        if found is None or not (case.known_issue or case.is_remark):
            continue
        named = " and ".join(found.findings) or " or ".join(found.candidates)
        how = f"{named}, {found.basis.value}" if named else "no finding"
        made = f", {many(len(found.replays), 'replay')} recorded" if found.replays else ""
        lines.append(f"on trust: the cause of {case.id} ({how}{made}); `coldproof attribute` replays the case")
    return lines
