"""The adapter contents of a run: generated once, identified by digest, copied to the paths that a workload uses.

A content's digest covers the files' bytes. It is the adapter's part of a request's identity, so it must change if
anything changes that the engine reads.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.common import tiny_model as forge
from coldproof.adapters.common.lora_digest import ADAPTER_FILES, content_digest
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.generated_models import MAKERS

MODELS = "models"  # the generated models' folder in the cache


class AdapterError(Exception):
    """An adapter cannot be generated or used; the message says what to do."""


class AdapterFiles(msgspec.Struct, frozen=True):
    """One adapter content on disk, with the recipe that generates it (or the path that the user gave)."""

    folder: Path
    digest: str
    recipe: dict[str, Any]


def digest_of(folder: Path) -> str:
    """Return the digest of the adapter's files, twelve hex digits. Raises AdapterError if a file is missing."""
    try:
        return content_digest(folder)
    except OSError as problem:
        raise AdapterError(
            f"{folder} is not a PEFT LoRA adapter: cannot read {Path(problem.filename).name} ({problem.strerror}). "
            f"--adapter needs a folder with {' and '.join(ADAPTER_FILES)}."
        ) from problem


def generate_adapter(
    cache: Path, config: dict[str, Any], *, seed: int, rank: int, spread: float | None = None
) -> AdapterFiles:
    """Return a random adapter for the model of `config`, from the cache folder if it exists there.

    `spread`: standard deviation of its weights; None for the one that suits the generated models. Raises
    AdapterError if adapters cannot be generated for such a model.
    """
    sizes = {key: config.get(key) for key in sorted(config) if isinstance(config.get(key), int)}
    source = Path(forge.__file__).read_bytes()
    recipe: dict[str, Any] = {"seed": seed, "rank": rank} | ({} if spread is None else {"spread": spread})
    key = hashlib.sha256(json.dumps([sizes, recipe]).encode() + source).hexdigest()[:16]
    folder = cache / "adapters" / key
    if not folder.exists():
        scratch = folder.with_name(f"{key}.{secrets.token_hex(4)}")
        try:
            forge.make_adapter(scratch, config, **recipe)
        except KeyError as problem:
            raise AdapterError(
                f"cannot generate adapters for this model: its config.json has no usable {problem}. "
                "Give two of your own with --adapter PATH --adapter PATH."
            ) from problem
        publish(scratch, folder)
    return AdapterFiles(folder, digest_of(folder), recipe)


def user_adapter(folder: Path) -> AdapterFiles:
    """Return the user's adapter. Raises AdapterError if the folder is not an adapter."""
    return AdapterFiles(folder, digest_of(folder), {"path": str(folder)})


def tiny_model(cache: Path, *, layers: ModelLayers = ModelLayers.FULL, seed: int = 0) -> Path:
    """Return the folder of a generated model. The first call generates it in seconds, without a network.

    `seed`: that of its weights; 0 for those with which engines are started.
    """
    make = MAKERS[layers]
    sources = b"".join(Path(file).read_bytes() for file in sorted({forge.__file__, inspect.getfile(make)}))
    key = hashlib.sha256(sources + f"{layers.value} {seed}".encode()).hexdigest()[:16]
    folder = cache / MODELS / key
    if not folder.exists():
        scratch = folder.with_name(f"{key}.{secrets.token_hex(4)}")
        make(scratch, seed=seed)
        publish(scratch, folder)
    return folder


def is_generated(model: Path, cache: Path) -> bool:
    """Return whether Coldproof has generated a model."""
    return model.resolve().parent == (cache / MODELS).resolve()


def publish(scratch: Path, folder: Path) -> None:
    """Move a finished folder into place. If another process was faster, keep its folder, which has the same bytes."""
    try:
        os.replace(scratch, folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(scratch)


def place(files: AdapterFiles, target: Path) -> Path:
    """Copy a content to `target`, replace other files there, and return the path."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ADAPTER_FILES:
        scratch = target / f".{name}.new"
        shutil.copyfile(files.folder / name, scratch)
        os.replace(scratch, target / name)
    return target.resolve()
