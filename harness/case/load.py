"""Reads a saved case. A case may come from anybody: no path in it may lead outside its own folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import SCHEMA_VERSION, TRACE, Case, read_case
from coldproof.harness.workload.steps import Workload, adapter_changes
from coldproof.harness.workload.validity import is_valid


def load_case(path: Path, *, follow: bool = False) -> tuple[Case, Workload]:
    """Read a case and its workload. `follow`: the file may be a link. Raises UsageError that says what is wrong."""
    if path.name.endswith(TRACE):
        raise UsageError(f"{path} is the trace of a case; give {path.name.removesuffix(TRACE)}.json")
    try:
        case = read_case(path, follow=follow)
        workload = msgspec.convert(case.workload, Workload)
    except OSError as problem:
        raise UsageError(f"cannot read the case {path}: {problem.strerror}") from problem
    except msgspec.MsgspecError as problem:
        raise UsageError(f"{path} is not a case file of this version: {problem}") from problem
    if case.schema_version != SCHEMA_VERSION:
        raise UsageError(f"{path} has schema version {case.schema_version}; this version reads {SCHEMA_VERSION}")
    used = adapter_changes(workload)
    if not is_valid(workload) or not all(change.content in case.contents for change in used):
        raise UsageError(f"{path} has a workload that cannot be run; it may have been edited by hand")
    if not all(stays_inside(change.path) for change in used):
        raise UsageError(f"{path} refers to adapter files outside its own folder; Coldproof did not write this file")
    return case, workload


def stays_inside(path: str) -> bool:
    """Return whether a relative path stays inside the folder that it is appended to."""
    return path.isprintable() and all(part and ".." not in part and part != "." for part in path.split("/"))
