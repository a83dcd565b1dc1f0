"""The folders of one run: a cache that outlives it, and a scratch folder that is removed at its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from coldproof.harness.execution.models.cache_folder import generated_files


class Workspace:
    """The folders of one run.

    `cache`: the folder for models and adapters; None for the default. `shared`: a folder that an attached server can
    read, used for scratch files.
    """

    def __init__(self, cache: Path | None, shared: Path | None) -> None:
        self.cache = generated_files(cache)
        parent = shared or self.cache.parent
        parent.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="work-", dir=parent))
        self.runs = 0

    def folder(self) -> Path:
        """Return a new folder for one workload's adapter files. It does not exist yet."""
        self.runs += 1
        return self.scratch / f"run{self.runs}"

    def remove(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)
