"""The model of a run and its adapter contents: the user's own or generated ones, as far as the engine accepts them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.models.lora import (
    AdapterError,
    AdapterFiles,
    generate_adapter,
    tiny_model,
    user_adapter,
)
from coldproof.harness.options import Options, UsageError

RECIPES = {"A": (1, 8), "B": (2, 8), "C": (3, 16), "D": (4, 4)}  # content -> (seed, rank); the ranks differ on purpose
USER_CONTENTS = "ABCDEFGH"
Contents = dict[str, AdapterFiles]


class ServedFiles:
    """The models that a run serves and the adapter contents for them: one set for each kind of model."""

    def __init__(self, options: Options, cache: Path) -> None:
        self.options, self.cache = options, cache
        self.contents: dict[bool, Contents] = {}  # by whether the model has sliding windows

    def model(self, cell: Cell) -> str:
        """Return the model to serve: the user's, or a generated one of the cell's kind. Raises UsageError."""
        if self.options.model is not None:
            return self.options.model
        return str(tiny_model(self.cache, sliding_window=self.has_window(cell)))

    def has_window(self, cell: Cell) -> bool:
        """Return whether a cell's model has sliding windows. With the fingerprint worker none has."""
        return cell.sliding_window and not self.options.fingerprint

    def contents_of(self, cell: Cell) -> Contents:
        """Return the adapter contents that fit a cell's model. Raises UsageError."""
        if self.has_window(cell) not in self.contents:
            self.make_for(self.model(cell), cell)
        return self.contents[self.has_window(cell)]

    def make_for(self, model: str | None, cell: Cell) -> None:
        """Make the contents for a model's folder; `model` is None if a server does not report it."""
        config = Path(model) / "config.json" if model else None
        self.contents[self.has_window(cell)] = make_contents(self.options.adapters, self.cache, config)

    def vet_contents(self, engine: Engine, cell: Cell, *, left_out: Callable[[str], None]) -> None:
        """Load every adapter content once and keep those that the engine accepts. Raises UsageError.

        `left_out` is called with a message for each other one.
        """
        given = bool(self.options.adapters)
        self.contents[self.has_window(cell)] = vetted(self.contents_of(cell), engine, given=given, left_out=left_out)


def make_contents(given: tuple[Path, ...], cache: Path, config: Path | None) -> Contents:
    """Return symbolic name -> files. Raises UsageError if adapters cannot be read or generated."""
    try:
        if given:
            return {name: user_adapter(folder) for name, folder in zip(USER_CONTENTS, given, strict=False)}
        if config is None or not config.is_file():
            return {}
        facts: dict[str, Any] = json.loads(config.read_text())
        return {name: generate_adapter(cache, facts, seed=seed, rank=rank) for name, (seed, rank) in RECIPES.items()}
    except (AdapterError, ValueError) as problem:
        raise UsageError(str(problem)) from problem


def vetted(contents: Contents, engine: Engine, *, given: bool, left_out: Callable[[str], None]) -> Contents:
    """Return the contents that the engine loads; call `left_out` with a message for each other one.

    Raises UsageError if it refuses one that the user gave, because the run would not test what the user requested.
    """
    support = engine.capabilities[Capability.ADAPTER_CHOICE]
    if support.present is not True:
        if given:
            raise UsageError(f"{engine.name} does not load {next(iter(contents.values())).folder}: {support.evidence}")
        return contents
    taken = {}
    for name, files in contents.items():
        served = f"vetted-{files.digest}-{secrets.token_hex(4)}"
        try:
            engine.load_adapter(served, str(files.folder.resolve()), in_place=False)
            engine.unload_adapter(served)
        except RequestRefused as refusal:
            if given:
                raise UsageError(f"{engine.name} does not load {files.folder}: {refusal}") from refusal
            left_out(f"adapter {name} {files.recipe} is left out: {engine.name} does not load it: {refusal}")
        else:
            taken[name] = files
    return taken
