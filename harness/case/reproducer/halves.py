"""The part that a script plays of a case whose workload runs on two implementations: the half on the tested engine."""

from __future__ import annotations

import msgspec

from coldproof.harness.case.reproducer.features import CACHED_COUNT_FAILURES
from coldproof.harness.schema.case import Case, RequestRow
from coldproof.harness.workload.halves import count_of, half_of
from coldproof.harness.workload.steps import Workload


def half_on_the_tested_engine(case: Case) -> Case:
    """Return a case with the half of its workload that ran on the engine under test; unchanged if it has no halves.

    What the other implementation hit stands in the rows, as the least that requests should hit. A failure of the other
    half, or one that no count of a request shows, is in no request of this one: then a script cannot tell.
    """
    half = half_of(msgspec.convert(case.workload, Workload))
    if half is None:
        return case
    count, before = count_of(half), len(half.steps) + 1
    rows = [
        msgspec.structs.replace(row, request=row.request - count, step=row.step - before)
        for row in case.requests
        if row.request >= count
    ]
    failing = None if case.failing_request is None else case.failing_request - count
    shown = next((row for row in rows if row.request == failing), None)
    if shown is None or (case.failure_class in CACHED_COUNT_FAILURES and is_within_bounds(shown)):
        failing = None
    return msgspec.structs.replace(case, workload=msgspec.to_builtins(half), requests=rows, failing_request=failing)


def is_within_bounds(row: RequestRow) -> bool:
    """Return whether the count of a request's cached tokens is one that it may have."""
    most = row.prompt_tokens if row.cached_at_most is None else row.cached_at_most
    return (row.cached_at_least or 0) <= (row.cached_tokens or 0) <= most
