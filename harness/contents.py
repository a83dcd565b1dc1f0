"""The adapter contents of a run: the user's own, or forged for the model that is served; only what the engine takes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.base import Capability, Engine, RequestRefused
from harness.models.adapters import AdapterError, AdapterFiles, forge_adapter, user_adapter
from harness.options import UsageError

RECIPES = {"A": (1, 8), "B": (2, 8), "C": (3, 16), "D": (4, 4)}  # content -> (seed, rank): ranks differ on purpose
USER_CONTENTS = "ABCDEFGH"
Contents = dict[str, AdapterFiles]


def make_contents(given: tuple[Path, ...], cache: Path, config: Path | None) -> Contents:
    """Symbolic name -> files. Raises UsageError where adapters cannot be read or forged."""
    try:
        if given:
            return {name: user_adapter(folder) for name, folder in zip(USER_CONTENTS, given, strict=False)}
        if config is None or not config.is_file():
            return {}
        facts: dict[str, Any] = json.loads(config.read_text())
        return {name: forge_adapter(cache, facts, seed=seed, rank=rank) for name, (seed, rank) in RECIPES.items()}
    except (AdapterError, ValueError) as problem:
        raise UsageError(str(problem)) from problem


def vetted(contents: Contents, engine: Engine, *, given: bool, left_out: Callable[[str], None]) -> Contents:
    """The contents that the engine loads; `left_out` is told of each other one.

    Raises UsageError when it refuses one that the user gave: a run without it would not be what was asked for.
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
            left_out(f"adapter {name} {files.recipe} is left out, for {engine.name} does not load it: {refusal}")
        else:
            taken[name] = files
    return taken
