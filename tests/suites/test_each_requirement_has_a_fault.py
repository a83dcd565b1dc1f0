"""On each push, one fault is injected for each requirement that has a fault in the catalogue."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path

from support.faulty_runs import PUSHED, requirement_of

from coldproof import suites
from coldproof.adapters.registry import ENGINES, catalogue
from coldproof.adapters.vllm.faults.catalogue import FAULTS


def requirements() -> set[str]:
    """Return the ids of all requirements of the suites."""
    modules = [
        importlib.import_module(f"{suites.__name__}.{found.name}") for found in pkgutil.iter_modules(suites.__path__)
    ]
    tests = [one for module in modules for name, one in vars(module).items() if name.startswith("test_")]
    return {requirement_of(test).id for test in tests}


def test_each_requirement_has_a_fault_on_each_push() -> None:
    """A requirement that is missing in the tables of this folder has no fault."""
    for path in sorted(Path(__file__).parent.glob("test_*_can_fail.py")):
        spec = importlib.util.spec_from_file_location(f"table_of_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    about = {requirement for fault in FAULTS.values() for requirement in fault.about}
    missing = (requirements() & about) - PUSHED.keys()
    assert not missing, f"add a row for {sorted(missing)} to a table in tests/suites/test_*_can_fail.py"


def test_each_fault_is_about_requirements_that_exist() -> None:
    """`coldproof power` would run nothing against another one, in each engine's catalogue."""
    known = requirements()
    faults = [fault for name, spec in ENGINES.items() if spec.faults for fault in catalogue(name).faults.values()]
    assert faults
    strangers = [(fault.name, set(fault.about) - known) for fault in faults]
    assert [(name, ids) for name, ids in strangers if ids] == []
