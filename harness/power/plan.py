"""What to run against a fault: first the requirements that are about it, then all of them, shallow."""

from __future__ import annotations

from harness.cell import Cell
from harness.cells import CELLS
from harness.faults.fault import Fault
from harness.power.suites import Ask

WIDE_CELLS = ("default", "tight")
WIDE_PROFILE = "wide"


def fits(cell: Cell, worker: str) -> bool:
    """Whether a cell runs in process with a worker."""
    return cell.in_process and cell.installed and cell.is_for(worker == "fingerprint")


def cells_about(fault: Fault, worker: str) -> tuple[str, ...]:
    """Where the requirements about a fault are tested: the cells it names, else the plain ones that cover them."""
    named = [CELLS[name] for name in fault.cells] or [CELLS[name] for name in WIDE_CELLS]
    fitting = [cell for cell in named if fits(cell, worker)]
    covering = [cell for cell in fitting if any(cell.covers(requirement) for requirement in fault.about)]
    return tuple(cell.name for cell in covering or fitting)


def calibration(*, worker: str, seed: int) -> Ask:
    """The engine as it is in the plain cell, for as little as can be asked of it."""
    return Ask(worker=worker, seed=seed, seconds=1, cells=("default",), profile=WIDE_PROFILE, requirements=("REUSE-1",))


def aimed(fault: Fault, *, worker: str, seconds: float, seed: int) -> Ask:
    """The requirements that are about the fault, with their counterexamples minimised."""
    return Ask(
        worker=worker,
        seed=seed,
        seconds=seconds,
        cells=cells_about(fault, worker),
        profile="smoke",
        requirements=fault.about,
        fault=fault.name,
    )


def wide(fault: Fault, *, worker: str, seconds: float, seed: int) -> Ask:
    """All requirements in the plain cells and in the fault's own."""
    cells = dict.fromkeys((*WIDE_CELLS, *cells_about(fault, worker)))
    return Ask(worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile=WIDE_PROFILE, fault=fault.name)


def clean(faults: list[Fault], *, worker: str, seconds: float, seed: int) -> Ask:
    """All requirements in all cells of these faults, on the engine as it is."""
    cells = dict.fromkeys((*WIDE_CELLS, *(cell for fault in faults for cell in cells_about(fault, worker))))
    return Ask(worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile="smoke")
