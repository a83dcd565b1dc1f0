"""The versions of the weights that a run serves: those of the start, and others of the same configuration."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import msgspec

from coldproof.adapters.common.weights_digest import WEIGHT_FILES, weights_digest
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.workload.steps import START_WEIGHTS

GENERATED = ("A", "B")  # symbolic names of the generated versions; their seeds are 1 and 2


class WeightFiles(msgspec.Struct, frozen=True):
    """One version of the weights: a model's folder, and the digest of its weights."""

    folder: Path
    digest: str


Versions = dict[str, WeightFiles]  # symbolic name -> files; with those of the start, if there are any others


def generated_versions(start: Path, cache: Path, *, layers: ModelLayers) -> Versions:
    """Return the versions for a generated model. The first call generates them in seconds."""
    others = {name: tiny_model(cache, layers=layers, seed=seed) for seed, name in enumerate(GENERATED, 1)}
    return with_digests(start, others)


def with_digests(start: Path, others: dict[str, Path]) -> Versions:
    """Return the versions with their digests: those of the start first."""
    folders = {START_WEIGHTS: start, **others}
    return {name: WeightFiles(folder, weights_digest(folder)) for name, folder in folders.items()}


def place_version(files: WeightFiles, target: Path) -> Path:
    """Copy a version to `target`, replace other weights there, and return the path."""
    target.mkdir(parents=True, exist_ok=True)
    names = {source.name for source in files.folder.iterdir() if source.is_file()}
    for name in sorted(names):
        scratch = target / f".{name}.{secrets.token_hex(4)}"
        shutil.copyfile(files.folder / name, scratch)
        os.replace(scratch, target / name)
    for stale in target.glob(WEIGHT_FILES):  # of a version that has more files
        if stale.name not in names:
            stale.unlink()
    return target.resolve()
