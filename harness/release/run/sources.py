"""The sources that a run was made with: a digest of all files of Coldproof's packages, and the git commit, if any.

The digest is the same in every checkout and installation of one commit. Any changed line changes it.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from coldproof import harness
from coldproof.harness.options import UsageError

# The folder that has the packages: the checkout, or an installation's. Links are followed, because git has the files
# where the links lead.
ROOT = Path(harness.__file__).resolve().parent.parent
PACKAGES = ("adapters", "findings", "harness", "reports", "suites")
BYTECODE = "__pycache__"
SHOWN = 3  # changed files named in a message


def sources_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 of the names and contents of all files of the packages."""
    total = hashlib.sha256()
    for path in sorted(source_files(root)):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def source_files(root: Path) -> Iterator[Path]:
    """Yield every file of the packages: code, and what code reads.

    Bytecode is left out, and so are hidden files and folders, which editors and type checkers leave behind.
    """
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            parts = path.relative_to(root).parts
            if path.is_file() and not any(part == BYTECODE or part.startswith(".") for part in parts):
                yield path


def source_commit(root: Path = ROOT) -> str | None:
    """Return the commit of the sources; None where git does not keep them (an installation, an archive).

    Raises UsageError where a file of the packages is not as it was committed.
    """
    if not git(root, "ls-files", "harness/__init__.py"):
        return None
    changed = git(root, "status", "--porcelain", "--untracked-files=all", "--", *PACKAGES).splitlines()
    if changed:
        named = ", ".join(line[3:] for line in changed[:SHOWN]) + (", ..." if len(changed) > SHOWN else "")
        raise UsageError(
            f"--profile qualify needs committed sources, but {len(changed)} files have uncommitted changes "
            f"({named}): commit or restore them"
        )
    return git(root, "rev-parse", "HEAD") or None


def git(root: Path, *words: str) -> str:
    """Return git's standard output; "" where git is missing, fails or finds no repository."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.rstrip("\n")
