"""Plans the runs for a fault: first the requirements about it, then all requirements with less depth."""

from __future__ import annotations

from coldproof.adapters.registry import CELLS, measured_engine
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.fault import Fault
from coldproof.harness.power.suite_run import RunPlan

WIDE_CELLS = ("default", "tight")
WIDE_PROFILE = "wide"


def cell_fits(cell: Cell, worker: str) -> bool:
    """Return whether the measured engine can be started in a cell with a worker."""
    return cell.installed and cell.fits(measured_engine().name, worker)


def fault_cells(fault: Fault, worker: str) -> tuple[str, ...]:
    """Return the cells for the requirements about a fault: the fault's own cells, else the default ones."""
    named = [CELLS[name] for name in fault.cells] or [CELLS[name] for name in WIDE_CELLS]
    fitting = [cell for cell in named if cell_fits(cell, worker)]
    covering = [cell for cell in fitting if any(cell.covers(requirement) for requirement in fault.about)]
    return tuple(cell.name for cell in covering or fitting)


def calibration_plan(*, worker: str, seed: int) -> RunPlan:
    """Plan a minimal run of the unmodified engine in the default cell, which finds the comparison rule."""
    return RunPlan(
        worker=worker, seed=seed, seconds=1, cells=("default",), profile=WIDE_PROFILE, requirements=("REUSE-1",)
    )


def aimed_plan(fault: Fault, *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of the requirements about a fault; counterexamples are minimised."""
    return RunPlan(
        worker=worker,
        seed=seed,
        seconds=seconds,
        cells=fault_cells(fault, worker),
        profile="smoke",
        requirements=fault.about,
        fault=fault.name,
    )


def wide_plan(fault: Fault, *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of all requirements in the default cells and the fault's own cells."""
    cells = dict.fromkeys((*WIDE_CELLS, *fault_cells(fault, worker)))
    return RunPlan(
        worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile=WIDE_PROFILE, fault=fault.name
    )


def clean_plan(faults: list[Fault], *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of all requirements in all cells of these faults, on the unmodified engine."""
    cells = dict.fromkeys((*WIDE_CELLS, *(cell for fault in faults for cell in fault_cells(fault, worker))))
    return RunPlan(worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile="smoke")
