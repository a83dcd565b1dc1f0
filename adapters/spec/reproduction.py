"""How a stand-alone reproducer script uses an engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coldproof.adapters.spec.cell import Cell, ModelLayers

FILES = "coldproof-files"  # the folder to which a script writes


class RecordedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a case, as the case records it.

    `contents`: the names of the adapter contents. `generated_model`: the case used the tiny model, which a script can
    generate itself. `model`: its config.json. `cell`: None if this version has no such cell.
    """

    name: str
    version: str | None
    config: Mapping[str, str]
    contents: tuple[str, ...]
    generated_model: bool
    cell: Cell | None
    model: Mapping[str, Any] = {}


def usual_layers(cell: Cell | None) -> ModelLayers:
    """Return the layers of the generated model of a cell."""
    return ModelLayers.FULL if cell is None else cell.model


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """How a script uses an engine. `client`: the module and the class of its client (see `script/client.py`).

    `packages`: the packages that the script imports. `settings`: returns the values that the client needs, by their
    names in `script/given.py`. `command`: returns how the engine is started, as text for a report.
    `in_process`: the script runs the engine itself. `together`: one call serves several requests. `steps`: the script
    can also step the engine; it does so for the features `steps_for`, too. `counts`: answers have a count of cached
    tokens without steps.
    `started`: returns whether the script can start the server. `dies_with_it`: a crash of the engine ends the script.
    `note`: returns a sentence about other things that the script needs.
    `layers`: returns those of the generated model of a cell. `parts`: returns the classes that the engine looks for in
    the script, with their modules.
    `modes`: returns functions of modules by the word with which the script calls itself to run them.
    `left_out`: variables of the command that a short report leaves out, because they change no answer.
    `suits`: whether this is the client of a recorded engine. Of one that it does not suit, the default engine's is.
    `lacks`: the features of `script/given.py` that this client has not. A case that uses one gets what `otherwise`
    returns.
    """

    client: str
    command: Callable[[RecordedEngine], str]
    settings: Callable[[RecordedEngine], Mapping[str, object]]
    packages: tuple[str, ...] = ()
    in_process: bool = False
    together: bool = False
    steps: bool = False
    steps_for: tuple[str, ...] = ()
    counts: bool = True
    dies_with_it: bool = False
    started: Callable[[RecordedEngine], bool] = lambda _engine: False
    note: Callable[[RecordedEngine], str] = lambda _engine: ""
    layers: Callable[[Cell | None], ModelLayers] = usual_layers
    parts: Callable[[RecordedEngine], Mapping[str, str]] = lambda _engine: {}
    modes: Callable[[RecordedEngine], Mapping[str, str]] = lambda _engine: {}
    left_out: tuple[str, ...] = ()
    suits: Callable[[RecordedEngine], bool] = lambda _engine: True
    lacks: tuple[str, ...] = ()
    otherwise: Callable[[], Reproduction] | None = None

    @property
    def needs(self) -> str:
        """Return the packages to install, as text for a report; empty without any."""
        return " and ".join(f"`{package}`" for package in self.packages)


def own_command(engine: RecordedEngine, program: re.Pattern[str]) -> str:
    """Return the command of a server of this program with the script's own files; empty if the case has none."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config.get("command", ""))
    if engine.generated_model:
        words = re.sub(r"--(model|model-path|draft-model) \S+", rf"--\1 {FILES}/model", words)
    return words if program.match(words) else ""


def attached_command(engine: RecordedEngine) -> str:
    """Return a comment with the URL of an attached server, instead of a command."""
    return f"# your server at {engine.config.get('url', 'its URL')}"
