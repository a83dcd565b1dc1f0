"""Refuses a qualification that would run only a part of the suite, a relaxed suite or a changed suite.

The checks run before any engine starts. They use the tests that pytest collected, so that they find a test that was
left out by any means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from coldproof.adapters.registry import ATTACHED, OWN_CELLS
from coldproof.harness.options import QUALIFY, UsageError
from coldproof.harness.release.requirements.collected import collected_list, place_of
from coldproof.harness.release.requirements.frozen import Change, current_list, differences
from coldproof.harness.selection.select import requirement_of, selected_cells

# Options that would make a qualification weaker: ours, and pytest's names of its own with how a user writes them.
OURS = (
    *("--cells", "--requirements", "--weight-policy", "--replay", "--fault", "--repairs", "--noise", "--calibration"),
    *("--examples-from", "--findings"),
    "--guided",  # it depends on earlier runs
    *("--allow-not-exercised", "--allow-inconclusive"),
)
FORBIDDEN = {
    **dict(zip(OURS, OURS, strict=True)),
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "maxfail": "-x and --maxfail",
    "lf": "--last-failed",
    "stepwise": "--stepwise",
    "hypothesis_profile": "--hypothesis-profile",
}


def is_qualification(config: pytest.Config) -> bool:
    """Return whether this run is a qualification, which ends with a bundle."""
    return bool(config.getoption("--profile") == QUALIFY)


def check_qualify_options(config: pytest.Config) -> None:
    """Raise UsageError for an option that would make a qualification weaker."""
    for name, written in FORBIDDEN.items():
        if config.getoption(name, None):
            raise UsageError(f"--profile qualify runs the whole suite unchanged: leave out {written}")


def check_items(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Raise UsageError if the collected tests are not exactly those of the frozen list in the engine's cells."""
    frozen, _ = current_list()
    own = [item for item in items if requirement_of(item) is not None]
    cells = selected_cells(config)
    if foreign := [cell.name for cell in cells if cell.name not in (*OWN_CELLS, ATTACHED.name)]:
        raise UsageError(
            f"--profile qualify supports Coldproof's own engines: cell {foreign[0]!r} is of another distribution and "
            "not in the frozen list"
        )
    wanted = frozen.places(cells)
    collected = {place_of(item) for item in own}
    missing = [place for place in wanted if place not in collected]
    found = differences(frozen, collected_list(own, frozen.version))
    if len(own) < len(wanted) and missing and all(one.change is Change.REMOVED for one in found):
        raise UsageError(
            f"--profile qualify runs the whole suite, but {len(missing)} of {len(wanted)} tests were not collected "
            f"(the first: {missing[0]}): pass the folder `suites` and no option that selects tests"
        )
    if found or missing or len(own) != len(wanted):
        what = f"{found[0]}; {len(found)} differences" if found else "the cells are not the same"
        raise UsageError(
            f"the suites differ from the frozen list of version {frozen.version} ({what}): check out that release, or "
            "raise the version, run `coldproof freeze` and commit the list"
        )


def check_folder(folder: Path) -> None:
    """Raise UsageError if the report folder has files already: they would become part of the bundle."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"--report-dir {folder} is not empty; a bundle must contain only its own run: choose a new folder"
        )
