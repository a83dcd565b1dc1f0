"""Collects the wheels that a target lacks. A distribution that the target has in a fitting version is not brought.

Requirements are followed from wheel to wheel, with markers evaluated for the target. Versions are not resolved across
distributions: pin in the plan what must fit.
"""

from __future__ import annotations

import email
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import kit_device_code
from kit_plan import normal

ROOMS = ("adapters", "findings", "harness", "reports", "src", "suites", "LICENSE", "README.md", "pyproject.toml")
OLDEST_GLIBC, NEWEST_GLIBC = 5, 39


class WheelsError(RuntimeError):
    """A wheel cannot be built or found, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the target has. `packages`: version by normalised name; None for an unknown version, which fits always."""

    python: str = "3.12"
    machine: str = "x86_64"
    glibc: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """Return the version of Python without its last number."""
        return ".".join(self.python.split(".")[:2])

    def platforms(self) -> list[str]:
        """Return the platform tags of wheels that fit, newest first."""
        newest = int(self.glibc.split(".")[1]) if self.glibc.startswith("2.") else NEWEST_GLIBC
        numbered = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
        older = [f"manylinux{year}_{self.machine}" for year in ("2014", "2010", "1")]
        return [*numbered, *older, f"linux_{self.machine}"]

    def markers(self) -> dict[str, str]:
        """Return the environment in which markers are evaluated."""
        full = self.python if self.python.count(".") > 1 else f"{self.python}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": self.short,
            "sys_platform": "linux",
        }


def target_of(inventory: Mapping[str, Any]) -> Target:
    """Return the target that an inventory describes. A package may have the version null: unknown."""
    return Target(
        python=inventory.get("python", "3.12"),
        machine=inventory.get("machine", "x86_64"),
        glibc=inventory.get("libc", ""),
        packages={normal(name): version for name, version in inventory.get("packages", {}).items()},
    )


def build_own(root: Path, folder: Path) -> Path:
    """Build the wheel of a checkout, from a copy: nothing of earlier builds gets into it. Raises WheelsError."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "checkout")
        copy.mkdir()
        for name in ROOMS:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, copy / name)
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(copy))
    (wheel,) = folder.glob("coldproof-*.whl")
    return wheel


def pip(*words: str) -> None:
    """Run pip. Raises WheelsError with what it said."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise WheelsError(f"pip {words[0]} failed: {said[-1] if said else 'no message'}")


def fetcher(target: Target, near: Sequence[Path]) -> Callable[[str, Path], Path]:
    """Return a function that downloads the wheel of a requirement for the target. `near`: folders looked at as well."""
    tags = [word for tag in target.platforms() for word in ("--platform", tag)]
    links = [word for folder in near for word in ("--find-links", str(folder))]

    def fetch(requirement: str, folder: Path) -> Path:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            words = ["--no-deps", "--only-binary", ":all:", "--python-version", target.short, "--implementation", "cp"]
            pip("download", *words, *tags, *links, "--dest", scratch, requirement)
            (wheel,) = Path(scratch).glob("*.whl")
            return Path(shutil.move(wheel, folder / wheel.name))

    return fetch


def collect(
    own: Path,
    requires: Sequence[str],
    *,
    target: Target,
    skip: Sequence[str],
    follow: bool,
    folder: Path,
    fetch: Callable[[str, Path], Path],
    say: Callable[[str], None],
) -> list[Path]:
    """Return the wheels to bring beside `own`: what `requires` and its wheel name, and what those require in turn.

    With `follow` False, `requires` is all that is brought for the engine; what Coldproof requires is brought always.
    """
    from packaging.requirements import Requirement  # of the machine that packs, not of the target

    never = {normal(name) for name in skip} | {"coldproof"}
    queue: deque[tuple[Requirement, bool]] = deque((Requirement(one), follow) for one in requires)
    queue.extend((one, True) for one in required_by(own, frozenset(), target))
    brought: dict[str, tuple[Path, set[str]]] = {}
    while queue:
        wanted, further = queue.popleft()
        name = normal(wanted.name)
        if name in never or (name not in brought and has(target, wanted)):
            continue
        if name not in brought:
            say(f"fetching {wanted}")
            brought[name] = (fetch(f"{wanted.name}{wanted.specifier}", folder), set())
            new = frozenset({"", *wanted.extras})
        else:
            new = frozenset(wanted.extras - brought[name][1])
        if further and new:
            queue.extend((one, True) for one in required_by(brought[name][0], new, target))
        brought[name][1].update(wanted.extras)
    return [path for path, _ in brought.values()]


def has(target: Target, wanted: Any) -> bool:
    """Return whether the target has a fitting distribution."""
    name = normal(wanted.name)
    if name not in target.packages:
        return False
    version = target.packages[name]
    return version is None or wanted.specifier.contains(version, prereleases=True)


def required_by(wheel: Path, extras: frozenset[str], target: Target) -> list[Any]:
    """Return what a wheel requires on the target, with these extras ("": without one)."""
    from packaging.requirements import Requirement

    found = []
    for line in metadata(wheel).get_all("Requires-Dist") or []:
        one = Requirement(line)
        environments = [{**target.markers(), "extra": extra} for extra in extras or {""}]
        if one.marker is None or any(one.marker.evaluate(environment) for environment in environments):
            found.append(one)
    return found


def metadata(wheel: Path) -> Any:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def slim(wheel: Path, drop: Sequence[str], target: Path, *, gpu: int | None = None) -> list[str]:
    """Write a wheel again without the files that match, and uncompressed, since the kit is compressed as a whole.

    `gpu`: the only kind of GPU for which its libraries keep code; pip does not compare their digests. Return the names
    that were left out. Raises WheelsError for a pattern that matches nothing.
    """
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as slimmed:
        names = source.namelist()
        if idle := [pattern for pattern in drop if not any(fnmatch(name, pattern) for name in names)]:
            raise WheelsError(f"{wheel.name} has no {', '.join(idle)}")
        gone = [name for name in names if any(fnmatch(name, pattern) for pattern in drop)]
        for entry in source.infolist():
            if entry.filename in gone or entry.is_dir():
                continue
            content = source.read(entry)
            if entry.filename.endswith(".dist-info/RECORD") and gone:
                content = without(content, set(gone))
            elif gpu is not None and kit_device_code.is_cuda_library(content):
                content = kit_device_code.only_for(content, gpu)
            copy = zipfile.ZipInfo(entry.filename, entry.date_time)
            copy.external_attr = entry.external_attr
            slimmed.writestr(copy, content)
    return gone


def without(record: bytes, gone: set[str]) -> bytes:
    """Return a RECORD without the lines of these files."""
    lines = io.StringIO(record.decode()).readlines()
    return "".join(line for line in lines if line.rsplit(",", 2)[0].strip('"') not in gone).encode()
