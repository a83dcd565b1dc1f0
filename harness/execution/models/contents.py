"""The model of a run and its adapter contents: the user's own or generated ones, as far as the engine accepts them."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldproof.adapters.common.model_folder import CONFIG, model_folder
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.harness.execution.models.lora import (
    AdapterError,
    AdapterFiles,
    generate_adapter,
    is_generated,
    tiny_model,
    user_adapter,
)
from coldproof.harness.execution.models.trained import is_trained, model_path
from coldproof.harness.execution.models.versions import Versions, generated_versions, with_digests
from coldproof.harness.execution.models.weights import projection_spread
from coldproof.harness.options import Options, UsageError

RECIPES = {"A": (1, 8), "B": (2, 8), "C": (3, 16), "D": (4, 4)}  # content -> (seed, rank); the ranks differ on purpose
USER_CONTENTS = "ABCDEFGH"
# How far a generated adapter moves the weights of a trained model, as a share of their standard deviation. SmolLM2's
# best token then changes at a third of the positions, and its perplexity rises from 67 to 91; with 0.05 at a tenth,
# with 0.2 the perplexity is 440 (docs/noise.md).
ADAPTER_STRENGTH = 0.1
Contents = dict[str, AdapterFiles]
OTHER_VERSIONS = "ABCDEFGH"  # the symbolic names of the versions that the user gives


class ServedFiles:
    """The models that a run serves and the adapter contents for them: one set for each kind of model."""

    def __init__(self, options: Options, cache: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.options, self.cache, self.say = options, cache, say
        self.contents: dict[ModelLayers, Contents] = {}
        self.versions: dict[ModelLayers, Versions] = {}

    def model(self, cell: Cell) -> str:
        """Return the model to serve: the user's, or a generated one of the cell's kind. Raises UsageError."""
        if self.options.model is not None and is_trained(self.options.model):
            return str(model_path(self.options.model, self.cache, self.say))
        if self.options.model is not None:
            return self.options.model
        return str(tiny_model(self.cache, layers=self.layers(cell)))

    def layers(self, cell: Cell) -> ModelLayers:
        """Return the layers of the model that is generated for a cell. A user's model is one for all cells, and the
        fingerprint worker uses no layers of a model.
        """
        generated = self.options.model is None and not self.options.fingerprint
        return cell.model if generated else ModelLayers.FULL

    def contents_of(self, cell: Cell) -> Contents:
        """Return the adapter contents that fit a cell's model. Raises UsageError."""
        if self.layers(cell) not in self.contents:
            self.make_for(self.model(cell), cell)
        return self.contents[self.layers(cell)]

    def versions_of(self, cell: Cell) -> Versions:
        """Return the versions of a cell's weights: the user's (`--weights`), or generated ones of a generated model.

        Empty if there is none beside that of the start. Raises UsageError.
        """
        layers = self.layers(cell)
        if layers not in self.versions:
            self.versions[layers] = self.make_versions(Path(self.model(cell)), layers)
        return self.versions[layers]

    def folder_of(self, cell: Cell, weights: str) -> str:
        """Return the folder of a version by the digest of its weights. Raises KeyError for an unknown one."""
        return {files.digest: str(files.folder) for files in self.versions_of(cell).values()}[weights]

    def make_versions(self, start: Path, layers: ModelLayers) -> Versions:
        """Return the versions for the weights in a folder. Raises UsageError."""
        if self.options.attached and self.options.model is None:
            return {}  # the folder of the weights to return to is unknown
        try:
            if self.options.weights:
                return with_digests(start, dict(zip(OTHER_VERSIONS, self.options.weights, strict=False)))
            if is_generated(start, self.cache):
                return generated_versions(start, self.cache, layers=layers)
        except OSError as problem:
            raise UsageError(f"--weights needs folders with safetensors files: {problem}") from problem
        return {}

    def make_for(self, model: str | None, cell: Cell) -> None:
        """Make the contents for a model's folder; `model` is None if a server does not report it."""
        folder = model_folder(model) if model else None
        layers = self.layers(cell)
        # Generated adapters change the projections of a plain decoder, which other models do not have by these names.
        plain = layers not in (ModelLayers.STATE, ModelLayers.IMAGES)
        self.contents[layers] = make_contents(self.options.adapters, self.cache, folder) if plain else {}

    def vet_contents(self, engine: Engine, cell: Cell, *, left_out: Callable[[str], None]) -> None:
        """Load every adapter content once and keep those that the engine accepts. Raises UsageError.

        `left_out` is called with a message for each other one.
        """
        given = bool(self.options.adapters)
        self.contents[self.layers(cell)] = vetted(self.contents_of(cell), engine, given=given, left_out=left_out)


def make_contents(given: tuple[Path, ...], cache: Path, model: Path | None) -> Contents:
    """Return symbolic name -> files. Raises UsageError if adapters cannot be read or generated.

    `model`: the folder of config.json, if it is known.
    """
    try:
        if given:
            return {name: user_adapter(folder) for name, folder in zip(USER_CONTENTS, given, strict=False)}
        if model is None or not (model / CONFIG).is_file():
            return {}
        facts: dict[str, Any] = json.loads((model / CONFIG).read_text())
        weights = None if is_generated(model, cache) else projection_spread(model)
        return {
            name: generate_adapter(cache, facts, seed=seed, rank=rank, spread=adapter_spread(weights, rank))
            for name, (seed, rank) in RECIPES.items()
        }
    except (AdapterError, ValueError) as problem:
        raise UsageError(str(problem)) from problem


def adapter_spread(weights: float | None, rank: int) -> float | None:
    """Return the standard deviation of an adapter's weights; None if that of the model's is unknown.

    The product of two random matrices of this rank has the standard deviation `spread**2 * sqrt(rank)`.
    """
    return None if weights is None else float(f"{math.sqrt(ADAPTER_STRENGTH * weights / math.sqrt(rank)):.3g}")


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
