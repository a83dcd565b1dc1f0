"""Folders that Coldproof writes into. A file in each lists what we wrote there. Nothing else is changed or deleted.

A file is listed before it is created, so that a killed process leaves no file of ours that is not listed. The lock of
the list shows whether a process still writes into the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MARKER = "coldproof-written.txt"
HEAD = b"# The files of this folder that Coldproof wrote. It never changes, moves or deletes another one.\n"
SEAL = "manifest.json"  # of a bundle, which no later run may move
REPLAY = "-replay"  # is behind the name of a case in that of the folder of its replay
KEPT = 3  # earlier reports that are kept beside the folder
CLOCK_SECONDS = 2.0  # by which the times of two files may be wrong: those of some file systems have no fractions
NOT_OURS = "it exists, and Coldproof did not write it"


class FolderRefused(Exception):
    """A folder is not ours, or a run writes into it. The message is one line that says what to do."""


class OwnFolder:
    """A folder that this process writes into. Until it is closed, no other run can begin there.

    Every process of a run has opened it: the first one with `begin`, the others with `join`.
    """

    def __init__(self, path: Path, *, lock: int) -> None:
        """Open and lock the list. Raises FolderRefused if another run has locked it, and OSError."""
        self.path = path
        self._handle = os.open(path / MARKER, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._close = weakref.finalize(self, os.close, self._handle)
        try:
            fcntl.flock(self._handle, lock | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise FolderRefused(f"{path}: another run is writing into this folder; choose another one") from None
        if not is_marked(path):
            self._close()
            raise FolderRefused(f"{path / MARKER} is no list of Coldproof's; choose another folder")
        if os.fstat(self._handle).st_size < len(HEAD):  # new, or cut short by a full disk
            os.ftruncate(self._handle, 0)
            os.write(self._handle, HEAD)

    @classmethod
    def begin(cls, path: Path) -> OwnFolder:
        """Create or open a folder for a new run, or for a command that goes on with what is there.

        Raises FolderRefused if it has files of somebody else but no list, or if a run writes into it, and OSError.
        """
        refuse_foreign(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path.resolve(), lock=fcntl.LOCK_EX)

    @classmethod
    def enter(cls, path: Path) -> OwnFolder:
        """Open a folder that may have files of anybody, to add files of ours. Raises FolderRefused and OSError."""
        path.mkdir(parents=True, exist_ok=True)
        return cls(path.resolve(), lock=fcntl.LOCK_EX)

    @classmethod
    def join(cls, path: Path) -> OwnFolder:
        """Open the folder of a run in another process of the same run. Raises FolderRefused and OSError."""
        path.mkdir(parents=True, exist_ok=True)
        return cls(path.resolve(), lock=fcntl.LOCK_SH)

    def share(self) -> None:
        """Let the other processes of this run join. Raises FolderRefused if another run was faster, and OSError."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderRefused(f"{self.path}: another run has begun in this folder; choose another one") from None

    def keep_earlier(self) -> Path | None:
        """Move the files of an earlier run into a folder beside this one; return that folder, None without such files.

        Only the newest KEPT of these folders stay. Raises FolderRefused for a bundle, and OSError.
        """
        names = sorted(listed(self.path) & set(present(self.path)))
        if SEAL in names:
            raise FolderRefused(f"{self.path} is the bundle of a qualification; choose another folder")
        if not names:
            os.ftruncate(self._handle, len(HEAD))
            return None
        numbers = numbered(self.path)
        kept = self.path.with_name(f"{self.path.name}.{max(numbers, default=0) + 1}")
        kept.mkdir()
        try:
            (kept / MARKER).write_bytes(HEAD + b"".join(map(_line, names)))
            os.utime(kept / MARKER, ns=(0, os.fstat(self._handle).st_mtime_ns))
        except OSError:
            (kept / MARKER).unlink(missing_ok=True)
            kept.rmdir()
            raise
        for name in (*names, *replays(self.path, names)):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).rename(kept / name)
        os.ftruncate(self._handle, len(HEAD))
        remove_empty(self.path, names)
        for number in sorted(numbers)[: -KEPT + 1]:
            with contextlib.suppress(OSError):  # the report stays; a run needs nothing of it
                remove_report(numbers[number])
        return kept

    def close(self) -> None:
        """Release the folder. Safe to call twice.

        What is written later is not ours: the time of the list is that of the last writing.
        """
        if self._close.alive:
            with contextlib.suppress(OSError):
                os.utime(self._handle)
        self._close()


def mark(folder: Path) -> None:
    """Give a folder a list, if it has none. Its files stay somebody else's. Raises OSError."""
    if not is_marked(folder):
        OwnFolder.join(folder).close()


def adopt(folder: Path) -> None:
    """List every file in a folder that this process has made. Raises OSError."""
    mark(folder)
    for name in sorted(set(present(folder)) - listed(folder)):
        append(folder / MARKER, _line(name))


def refuse_foreign(folder: Path) -> None:
    """Raise FolderRefused if a folder has files but no list. Files in folders of ours in it are no obstacle."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise FolderRefused(f"{folder} is not a folder")
    if is_marked(folder):
        return
    found = next(present(folder), None)
    if found is not None:
        raise FolderRefused(
            f"{folder} has files that Coldproof did not write, such as {found!r}; choose a new or empty folder"
        )


def is_marked(folder: Path) -> bool:
    """Return whether a folder has a list of ours; a list that a full disk cut short is one too."""
    with contextlib.suppress(OSError), open(os.open(folder / MARKER, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return HEAD.startswith(file.read(len(HEAD)))
    return False


def listed(folder: Path) -> set[str]:
    """Return the names on a folder's list, with slashes. A line that leads out of the folder is none of ours."""
    names = set()
    for line in (folder / MARKER).read_bytes().splitlines() if is_marked(folder) else ():
        with contextlib.suppress(ValueError):
            name = json.loads(line)
            if isinstance(name, str) and name != MARKER and is_inside(name):
                names.add(name)
    return names


def is_inside(name: str) -> bool:
    """Return whether a name stays in its folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name


def present(folder: Path) -> Iterator[str]:
    """Yield the name of every file in a folder but its list. A link is a file; folders with lists are left out."""
    list_of_ours = folder / MARKER if is_marked(folder) else None
    for place, folders, files in os.walk(folder):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and not is_marked(here / name)]
        for name in (*files, *links):
            if here / name != list_of_ours:
                yield (here / name).relative_to(folder).as_posix()


def nested(folder: Path) -> list[Path]:
    """Return the folders with lists of their own in a folder, without those in them."""
    found = []
    for place, folders, _ in os.walk(folder):
        inner = [name for name in folders if not Path(place, name).is_symlink() and is_marked(Path(place, name))]
        folders[:] = [name for name in folders if name not in inner]
        found += [Path(place, name) for name in inner]
    return found


def is_ours_alone(folder: Path) -> bool:
    """Return whether we wrote every file in a folder and in the folders of ours in it, and none is a bundle."""
    found = set(present(folder))
    return found <= listed(folder) and SEAL not in found and all(map(is_ours_alone, nested(folder)))


def replays(folder: Path, names: list[str]) -> list[str]:
    """Return the folders of replays beside the cases among these files."""
    found = []
    for one in nested(folder):
        case = one.with_name(f"{one.name.partition(REPLAY)[0]}.json").relative_to(folder).as_posix()
        if REPLAY in one.name and case in names and is_ours_alone(one):
            found.append(one.relative_to(folder).as_posix())
    return found


def claim(path: Path) -> Path:
    """List a file in the nearest folder of ours, before it is created. Outside of such a folder, do nothing.

    Raises FileExistsError if somebody else's file is there, or a link leads elsewhere, and OSError.
    """
    whole = Path(os.path.abspath(path))
    folder = next((one for one in whole.parents if is_marked(one)), None)
    if folder is None:
        return path
    name = whole.relative_to(folder).as_posix()
    own = listed(folder)
    for one in (whole, *whole.parents):
        if one == folder:
            break
        if one.is_symlink():
            raise FileExistsError(errno.EEXIST, "a symbolic link leads elsewhere", str(one))
    if name not in own and os.path.lexists(whole):
        raise FileExistsError(errno.EEXIST, NOT_OURS, str(path))
    if name not in own:
        append(folder / MARKER, _line(name))
    return path


def make_sub_folder(folder: Path) -> None:
    """Create a folder in one of ours, if it is not there. Raises FileExistsError for a file or a link, and OSError."""
    if folder.is_symlink():
        raise FileExistsError(errno.EEXIST, "a symbolic link leads elsewhere", str(folder))
    folder.mkdir(exist_ok=True)


def append(path: Path, line: bytes) -> None:
    """Append a line with one write, so that several processes can do so. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def remove_listed(folder: Path, under: str = "") -> None:
    """Delete the files of ours in a folder, or those below one of its sub-folders. Raises OSError."""
    names = [name for name in sorted(listed(folder) & set(present(folder))) if name.startswith(under)]
    for name in names:
        (folder / name).unlink()
    remove_empty(folder, names)


def changed_later(folder: Path) -> bool:
    """Return whether a file of ours was changed since we last wrote into its folder: it is somebody's work."""
    last = (folder / MARKER).stat().st_mtime
    return any((folder / name).stat().st_mtime > last + CLOCK_SECONDS for name in listed(folder) & set(present(folder)))


def remove_report(folder: Path) -> None:
    """Delete a folder of ours, unless a file that we did not write or that was changed, a bundle, or a writing process
    is there. A link is left, and what it leads to. Raises OSError."""
    if folder.is_symlink() or (is_marked(folder) and changed_later(folder)):
        return
    try:
        own = OwnFolder.begin(folder)
    except FolderRefused:
        return
    if is_ours_alone(folder):
        for inner in nested(folder):
            remove_report(inner)
        remove_listed(folder)
        if [one.name for one in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()
    own.close()


def remove_empty(folder: Path, names: list[str]) -> None:
    """Delete the folders of these files that are empty now."""
    for parent in sorted({one for name in names for one in PurePosixPath(name).parents}, reverse=True):
        if parent.parts:
            with contextlib.suppress(OSError):
                (folder / parent).rmdir()


def numbered(folder: Path) -> dict[int, Path]:
    """Return what lies beside a folder under its name and a number: the earlier reports, the oldest first."""
    found = {}
    for path in folder.parent.iterdir():
        name, _, number = path.name.rpartition(".")
        if name == folder.name and number.isascii() and number.isdigit():
            found[int(number)] = path
    return found


def _line(name: str) -> bytes:
    return json.dumps(name).encode() + b"\n"
