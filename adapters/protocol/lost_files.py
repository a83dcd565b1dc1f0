"""Files of a tier that are lost while an engine runs, as a disk, a cleaner or another process loses them."""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable


class Loss(enum.StrEnum):
    """What happens to the files of a tier."""

    REMOVED = "removed"
    CUT = "cut in half"  # as a write that a full disk or a power failure ended


@runtime_checkable
class LosesFiles(Protocol):
    """Engines whose tier keeps KV in files that Coldproof made room for, and may damage."""

    def lose_files(self, loss: Loss) -> int:
        """Remove or cut all files with KV, and return their number. The engine is not told."""
