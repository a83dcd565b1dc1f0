"""Reads stored measurements, with which an interrupted measurement goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from coldproof.harness.options import UsageError
from coldproof.harness.schema.stored_files import read_json

Measured = TypeVar("Measured")


def stored_measurement(path: Path, kind: type[Measured]) -> Measured:
    """Return a stored measurement. Raises UsageError that names the file if it cannot be read."""
    try:
        return read_json(path, kind)
    except (OSError, msgspec.MsgspecError) as problem:
        raise UsageError(f"cannot read {path}: {problem}; delete it to measure this again") from problem
