"""The folders of one run: a cache that outlives it, and a scratch folder that is removed at its end."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.common.scratch import PREFIX, ScratchFolder
from coldproof.harness.execution.models.cache_folder import generated_files


class Workspace:
    """The folders of one run.

    `cache`: the folder for models and adapters; None for the default. `shared`: a folder of the user's that an attached
    server can read; scratch files are in a folder of our own there, which anybody may read.
    """

    def __init__(self, cache: Path | None, shared: Path | None) -> None:
        self.cache = generated_files(cache)
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        self._folder = ScratchFolder(PREFIX if shared else "work-", parent=shared or self.cache.parent)
        self.scratch = self._folder.path
        if shared is not None:
            self.scratch.chmod(0o755)
        self.runs = 0

    def folder(self) -> Path:
        """Return a new folder for one workload's adapter files. It does not exist yet."""
        self.runs += 1
        return self.scratch / f"run{self.runs}"

    def remove(self) -> None:
        """Remove the scratch folder."""
        self._folder.remove()
