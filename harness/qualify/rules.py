"""What a qualification may not be: a selection, a relaxed or a changed run. Each is one clear line before any engine.

What pytest collected counts, not only what it was told: whichever way a test was left out, it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.options import QUALIFY, UsageError
from harness.qualify.declared import declared, place
from harness.qualify.frozen import current, differences, not_run
from harness.selection import cells_of, requirement_of

# pytest's names of options, and how a user writes them.
FORBIDDEN = {
    "--cells": "--cells",
    "--requirements": "--requirements",
    "--replay": "--replay",
    "--fault": "--fault",
    "--noise": "--noise",
    "--calibration": "--calibration",
    "--examples-from": "--examples-from",
    "--allow-not-exercised": "--allow-not-exercised",
    "--allow-inconclusive": "--allow-inconclusive",
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
    """Whether this run is to end in a bundle."""
    return bool(config.getoption("--profile") == QUALIFY)


def check_given(config: pytest.Config) -> None:
    """Raise UsageError for an option that would make less of a qualification."""
    for name, written in FORBIDDEN.items():
        if config.getoption(name, None):
            raise UsageError(f"--profile qualify tests everything there is, as it is: leave out {written}")


def check_items(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Raise UsageError where the collected tests are not those of the frozen list in every cell that fits."""
    frozen, _ = current()
    own = [item for item in items if requirement_of(item) is not None]
    wanted = frozen.places(cells_of(config))
    missing = not_run(wanted, [place(item) for item in own])
    found = differences(frozen, declared(own, frozen.version))
    if len(own) < len(wanted) and missing and all(line.endswith(" is gone") for line in found):
        raise UsageError(
            f"--profile qualify tests everything there is, and {len(missing)} of {len(wanted)} tests are left out "
            f"(the first: {missing[0]}): give it `suites` and nothing that selects"
        )
    if found or missing or len(own) != len(wanted):
        what = found[0] if found else "another order of cells"
        raise UsageError(
            f"the suite is not what version {frozen.version} has frozen ({what}; {len(found)} differences in all): "
            "python -m harness.qualify.freeze --check lists them"
        )


def check_folder(folder: Path) -> None:
    """Raise UsageError where a bundle would hold what the run did not write."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"--report-dir {folder} is not empty, and a bundle holds nothing but its run: name a new folder"
        )
