"""Folders for files that a process needs while it lives. What a killed process left is removed at the next start.

The process has locked a file in each of its folders, and the system releases the lock when the process ends in whatever
way. A folder without that file, or of another machine or user, is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
import weakref
from pathlib import Path

IN_USE = "in-use.lock"
PREFIX = "coldproof-"


class ScratchFolder:
    """A new folder of this process, in `parent` or the system's folder for temporary files."""

    def __init__(self, prefix: str = PREFIX, *, parent: Path | None = None) -> None:
        """Create the folder, and remove those that killed processes have left beside it. Raises OSError."""
        place = Path(tempfile.gettempdir()) if parent is None else parent
        remove_left(place, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self._owner = os.getpid()
        unlocked = self.path / f"{IN_USE}.new"
        handle = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._release = weakref.finalize(self, os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, machine())
        unlocked.rename(self.path / IN_USE)  # another process sees the file only when it is locked

    def remove(self) -> None:
        """Remove the folder. Safe to call twice, and without effect in a fork."""
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()


def remove_left(parent: Path, prefix: str) -> None:
    """Remove the folders with this prefix whose process has ended."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            if is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def is_left(folder: Path) -> bool:
    """Return whether a folder was made by a process of this user and machine that has ended."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return False
        handle = os.open(folder / IN_USE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.read(handle, 1024) == machine()
    except OSError:
        return False
    finally:
        os.close(handle)


def machine() -> bytes:
    """Return the name of this machine. A folder on a network may have files of several."""
    return platform.node().encode()
