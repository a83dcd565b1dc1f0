"""What a reproducer has to know of an engine's language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec

from harness.cells import CELLS
from reports.schema import Case

HERE = Path(__file__).parent
FILES = "coldproof-files"  # where a reproducer writes


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The template of a script's class `Server`, the packages that it imports, and files whose source it carries.

    `command`: what starts the server; an engine `in_process` is started by the script itself.
    """

    template: str
    command: Callable[[Case], str]
    packages: tuple[str, ...] = ("requests",)
    carries: tuple[Path, ...] = ()
    in_process: bool = False

    @property
    def needs(self) -> str:
        """What to install, in words."""
        return " and ".join(f"`{package}`" for package in self.packages)


def source_of(module: ModuleType) -> Path:
    """A module's file."""
    return Path(str(module.__file__))


def made_on_the_spot(case: Case) -> bool:
    """Whether the served model was the tiny one that the script can make itself."""
    served = case.engine_config.get("model") or case.engine_config.get("command", "")
    return "/models/" in served and all("seed" in r for r in case.recipes.values())


def is_sliding(case: Case) -> bool:
    """Whether the case's cell serves the tiny model with sliding windows."""
    return case.cell in CELLS and CELLS[case.cell].sliding_window


def script_alone(case: Case) -> str:
    """For an engine that the script starts in its own process."""
    return f"python {case.id}.py"
