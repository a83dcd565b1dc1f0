"""How a fault gets into an engine: vLLM calls `plant_chosen` in each of its processes, as it does all general plugins.

The entry point is registered in a folder of the run's own, on the path of the engines that this run starts and of no
other: whoever has Coldproof installed must not find its faults in their own engines.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.faults.patching import MARKS, mark
from harness.faults.registered import registered

CHOSEN = "COLDPROOF_FAULT"
PLANT = "harness.faults.plugin:plant_chosen"
_planted: list[str] = []


class ForGood:
    """Sets attributes and leaves them so: an engine process ends with its fault."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        """As the builtin does."""
        setattr(target, name, value)


def plant_chosen() -> None:
    """Break this process's vLLM as the environment says, once. Raises KeyError for a fault that does not exist, and
    what a patch raises that does not fit this vLLM: such an engine does not come up.
    """
    name = os.environ.get(CHOSEN)
    if name and name not in _planted:
        from harness.faults.catalogue import FAULTS  # here, for an engine without a fault has no need of them

        FAULTS[name].plant(ForGood())
        _planted.append(name)
        mark("planted")


@contextlib.contextmanager
def chosen(name: str, folder: Path) -> Iterator[None]:
    """Have every engine that starts inside be born with a fault; their marks are left in `folder`."""
    with registered(folder, "coldproof_fault", PLANT, {CHOSEN: name, MARKS: str(folder)}):
        yield


def marks(folder: Path, kind: str) -> int:
    """How many processes have left a mark of a kind."""
    return len(list(folder.glob(f"{kind}-*")))
