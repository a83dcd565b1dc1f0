"""A repair as a unified diff of the installed engine's source, for whoever maintains the engine.

The diff is made by planting the repair into this process and reading what it changed. A repair that replaces functions
from outside changes no text, so there is none.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections import defaultdict
from pathlib import Path
from types import FunctionType

from coldproof.adapters.spec import repair as planted
from coldproof.adapters.spec.repair import Repair, RepairError


def patch_of(repair: Repair) -> str:
    """Return the repair as a diff that `patch -p1` applies in the folder of the engine's package.

    Raises RepairError if it does not fit the installed engine, or replaces functions from outside.
    """
    before = len(planted.edited), len(planted.wrapped)
    planted.plant([repair.path])
    edited, wrapped = list(planted.edited)[before[0] :], planted.wrapped[before[1] :]
    if wrapped:
        names = ", ".join(wrapped)
        raise RepairError(
            f"the repair {repair.name} replaces {names} from outside, which is no diff: see {repair.path}"
        )
    by_file: dict[Path, list[FunctionType]] = defaultdict(list)
    for function in edited:
        by_file[Path(inspect.getfile(function))].append(function)
    return "".join(diff_of(file, functions) for file, functions in sorted(by_file.items()))


def diff_of(file: Path, functions: list[FunctionType]) -> str:
    """Return the diff of one file, with the functions in it that were edited."""
    before = file.read_text(encoding="utf-8").splitlines(keepends=True)
    after = list(before)
    for function in sorted(functions, key=planted.edited.__getitem__, reverse=True):  # from the end: places stay right
        start = planted.edited[function] - 1
        shipped = planted.shipped_source(function).splitlines()
        margin = before[start][: len(before[start]) - len(before[start].lstrip())]
        repaired = textwrap.indent(getattr(function, planted.REPAIRED), margin)
        after[start : start + len(shipped)] = repaired.splitlines(keepends=True)
    name = place_of(file, functions[0].__module__)
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))


def place_of(file: Path, module: str) -> str:
    """Return the path of a module's file from the folder that has its package, whose folders may lack `__init__.py`."""
    depth = len(module.split(".")) + (file.name == "__init__.py")
    return "/".join(file.parts[-depth:])
