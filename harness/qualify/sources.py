"""Which sources a run was made with: a digest of every file of the suite's packages, and git's word on them.

The digest is the same in every checkout and installation of one commit; who changes a line has another one, whatever
git is told.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.options import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("adapters", "harness", "reports", "suites")
ALSO = ("harness/*.j2", "reports/templates/*", "harness/qualify/lists/*.json")  # what code reads beside code
SHOWN = 3  # changed files named in a message


def sources_digest(root: Path = ROOT) -> str:
    """SHA-256 over the names and contents of all files of the packages."""
    total = hashlib.sha256()
    for path in sorted(files(root)):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def files(root: Path) -> Iterator[Path]:
    """Every file that belongs to a package; what runs wrote into a folder beside them does not."""
    for package in PACKAGES:
        yield from modules(root / package)
    for pattern in ALSO:
        yield from (path for path in root.glob(pattern) if path.is_file())


def modules(folder: Path) -> Iterator[Path]:
    """The modules of a package and of the packages in it."""
    if (folder / "__init__.py").is_file():
        yield from folder.glob("*.py")
        for inner in folder.iterdir():
            if inner.is_dir():
                yield from modules(inner)


def committed(root: Path = ROOT) -> str | None:
    """The commit that the sources are of; None where git does not keep them (an installation, an archive).

    Raises UsageError where a file of the packages is not as it was committed.
    """
    if not git(root, "ls-files", "harness/qualify/sources.py"):
        return None
    changed = git(root, "status", "--porcelain", "--untracked-files=all", "--", *PACKAGES).splitlines()
    if changed:
        named = ", ".join(line[3:] for line in changed[:SHOWN]) + (", ..." if len(changed) > SHOWN else "")
        raise UsageError(
            f"--profile qualify wants the suite as it was committed, and {len(changed)} of its files are not "
            f"({named}): commit or restore them"
        )
    return git(root, "rev-parse", "HEAD") or None


def git(root: Path, *words: str) -> str:
    """What git says; nothing where there is no git, no repository or no such thing."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.rstrip("\n")
