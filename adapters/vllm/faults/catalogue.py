"""All faults, by name. Each names the public report, or the class of reports, that it reproduces."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from coldproof.adapters.spec.fault import Fault

HERE = __name__.rpartition(".")[0]


def mechanisms() -> list[ModuleType]:
    """Return the files of faults: all that are in a folder beside this file, in the order of their names."""
    found = pkgutil.walk_packages(importlib.import_module(HERE).__path__, f"{HERE}.")
    inner = sorted(one.name for one in found if not one.ispkg and one.name.count(".") > HERE.count(".") + 1)
    return [importlib.import_module(name) for name in inner]


MECHANISMS = mechanisms()
FAULTS: dict[str, Fault] = {name: fault for mechanism in MECHANISMS for name, fault in mechanism.FAULTS.items()}
if len(FAULTS) < sum(len(mechanism.FAULTS) for mechanism in MECHANISMS):
    raise ValueError("two mechanisms have a fault of one name")


def format_faults() -> str:
    """Return a text with one line for each fault, grouped by mechanism."""
    width = max(len(name) for name in FAULTS)
    lines = []
    for mechanism in MECHANISMS:
        lines += ["", f"{(mechanism.__doc__ or '').strip()}"]
        lines += [f"  {name:<{width}}  {fault.summary}" for name, fault in mechanism.FAULTS.items()]
    return "\n".join(lines[1:])
