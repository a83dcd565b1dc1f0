"""What an earlier run put aside and had no time for: the counterexamples that `coldproof prove` goes on with."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from coldproof.harness.case.load import load_case
from coldproof.harness.judgement.trial import PutAside
from coldproof.harness.judgement.verdict import verdict_of_case
from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import Case, Unfinished
from coldproof.harness.schema.results import read_results
from coldproof.harness.workload.steps import Workload

RESULTS, CASES = "results.json", "cases"


class Place(NamedTuple):
    """A test of a requirement in a cell."""

    requirement: str
    cell: str
    test: str


class OpenCase(NamedTuple):
    """A case that is not finished, and its workload."""

    case: Case
    workload: Workload

    @property
    def gravity(self) -> tuple[bool, int]:
        """Return its place among others: what is not confirmed comes first, and the gravest of it."""
        classes = list(type(self.case.failure_class))
        return self.case.unfinished is not Unfinished.PROOF, classes.index(self.case.failure_class)

    def not_reproduced(self, tries: int) -> PutAside | None:
        """Return what is put aside of a case that failed in no replay; None if it was confirmed before."""
        if self.case.unfinished is not Unfinished.PROOF:
            return None
        seen = msgspec.structs.replace(self.case.reproduction, running_failed=0, running_tries=tries)
        case = msgspec.structs.replace(self.case, reproduction=seen, unfinished=None)
        return PutAside(*verdict_of_case(case), case)


def open_cases(report: Path, layer: str = "") -> dict[Place, list[OpenCase]]:
    """Return the unfinished cases of a report by their tests, those of a layer if it had several; the gravest first.

    Raises UsageError.
    """
    try:
        results = read_results(report / RESULTS)
    except (OSError, msgspec.MsgspecError) as problem:
        raise UsageError(f"{report} has no results of this version that can be read: {problem}") from problem
    left = [one for one in results.cases if one.unfinished is not None and one.layer in ("", layer)]
    found = [OpenCase(*load_case(report / CASES / f"{one.id}.json")) for one in left]
    places: dict[Place, list[OpenCase]] = defaultdict(list)
    for one in sorted(found, key=lambda one: one.gravity):
        places[Place(one.case.requirement, one.case.cell, one.case.test)].append(one)
    return dict(places)
