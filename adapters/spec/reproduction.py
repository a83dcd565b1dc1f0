"""How a stand-alone reproducer script uses an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from coldproof.adapters.spec.cell import Cell

FILES = "coldproof-files"  # the folder to which a script writes


class RecordedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a case, as the case records it.

    `contents`: the names of the adapter contents. `generated_model`: the case used the tiny model, which a script can
    generate itself. `cell`: None if this version has no such cell.
    """

    name: str
    version: str | None
    config: Mapping[str, str]
    contents: tuple[str, ...]
    generated_model: bool
    cell: Cell | None


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """How a script uses an engine. `template`: the template of the script's class `Server`.

    `packages`: the packages that the script imports. `carries`: the files whose source it contains.
    `command`: returns the command that starts the server. `in_process`: the script starts the engine itself.
    `only_script`: the script sends what no short command can, such as images: there are no commands for curl.
    `launcher`: returns a file that the command runs, which the script writes to FILES; None if the command needs none.
    `note`: returns a sentence about other things that the script needs.
    """

    template: Path
    command: Callable[[RecordedEngine], str]
    packages: tuple[str, ...] = ("requests",)
    carries: tuple[Path, ...] = ()
    in_process: bool = False
    only_script: bool = False
    launcher: Callable[[RecordedEngine], Path | None] = lambda _engine: None
    note: Callable[[RecordedEngine], str] = lambda _engine: ""
    with_content: Reproduction | None = None  # for embedding rows, images and sessions; None: the same

    @property
    def needs(self) -> str:
        """Return the packages to install, as text for a report."""
        return " and ".join(f"`{package}`" for package in self.packages)


def template_beside(module: str) -> Path:
    """Return the path of the template beside a module's file, with the same name."""
    return Path(module).with_suffix(".py.j2")


def attached_command(engine: RecordedEngine) -> str:
    """Return a comment with the URL of an attached server, instead of a command."""
    return f"# your server at {engine.config.get('url', 'its URL')}"


def source_of(module: ModuleType) -> Path:
    """Return the path of a module's source file."""
    return Path(str(module.__file__))
