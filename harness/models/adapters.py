"""The adapter contents that a run plays with: made once, known by digest, copied to where a workload wants them.

A content's digest is over the files' bytes: it is the adapter's half of a request's identity, and it must change
whenever anything changes that the engine reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import msgspec

from adapters.lora_files import ADAPTER_FILES, content_digest
from harness.models import forge


class AdapterError(Exception):
    """An adapter cannot be made or used; the message says what to do."""


class AdapterFiles(msgspec.Struct, frozen=True):
    """One adapter content on disk, with the recipe that makes it again (or the path that the user gave)."""

    folder: Path
    digest: str
    recipe: dict[str, Any]


def digest_of(folder: Path) -> str:
    """Twelve hex digits over the adapter's files. Raises AdapterError when one of them is missing."""
    try:
        return content_digest(folder)
    except OSError as problem:
        raise AdapterError(
            f"{folder} is no PEFT LoRA adapter: cannot read {Path(problem.filename).name} ({problem.strerror}). "
            f"--adapter wants a folder with {' and '.join(ADAPTER_FILES)}."
        ) from problem


def forge_adapter(cache: Path, config: dict[str, Any], *, seed: int, rank: int) -> AdapterFiles:
    """A random adapter for the model of `config`, from the cache folder when it was made before.

    Raises AdapterError when adapters cannot be forged for such a model.
    """
    sizes = {key: config.get(key) for key in sorted(config) if isinstance(config.get(key), int)}
    source = Path(forge.__file__).read_bytes()
    key = hashlib.sha256(json.dumps([sizes, seed, rank]).encode() + source).hexdigest()[:16]
    folder = cache / "adapters" / key
    if not folder.exists():
        scratch = folder.with_name(f"{key}.{secrets.token_hex(4)}")
        try:
            forge.make_adapter(scratch, config, seed=seed, rank=rank)
        except KeyError as problem:
            raise AdapterError(
                f"cannot forge adapters for this model: its config.json has no usable {problem}. "
                "Give two of your own with --adapter PATH --adapter PATH."
            ) from problem
        publish(scratch, folder)
    return AdapterFiles(folder, digest_of(folder), {"seed": seed, "rank": rank})


def user_adapter(folder: Path) -> AdapterFiles:
    """An adapter that the user brought. Raises AdapterError when it is not one."""
    return AdapterFiles(folder, digest_of(folder), {"path": str(folder)})


def tiny_model(cache: Path, *, sliding_window: bool = False) -> Path:
    """The default model's folder, made on the first call in seconds and without a network."""
    kind = b"sliding window" if sliding_window else b""
    key = hashlib.sha256(Path(forge.__file__).read_bytes() + kind).hexdigest()[:16]
    folder = cache / "models" / key
    if not folder.exists():
        scratch = folder.with_name(f"{key}.{secrets.token_hex(4)}")
        (forge.make_sliding_window_model if sliding_window else forge.make_model)(scratch)
        publish(scratch, folder)
    return folder


def publish(scratch: Path, folder: Path) -> None:
    """Move a finished folder into place; another process that was faster has made the same bytes."""
    try:
        os.replace(scratch, folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(scratch)


def place(files: AdapterFiles, target: Path) -> Path:
    """Make `target` hold this content, replacing the files of whatever content was there, and return it."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ADAPTER_FILES:
        scratch = target / f".{name}.new"
        shutil.copyfile(files.folder / name, scratch)
        os.replace(scratch, target / name)
    return target.resolve()
