"""Packs what the steps wrote into a few small files: what is too large is left out, most important files last.

The folder of results has at most eight files: `kit.json` and one archive for each group of steps. Each is replaced as a
whole, so that a run which is cut off leaves what it had.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kit_plan import Step

MOST_BYTES = 15_500_000  # of one file
LOG_BYTES = 64 * 1024  # kept of the end of a log
PRESET = 2  # of xz: packing takes time of the steps that still run
# Most important first: the last ones of a group give way.
KEPT = (
    "output.log",
    "*.json",
    "report*/results.json",
    "report*/summary.md",
    "report*/index.html",
    "report*/*.log",
    "report*/cases/*",
    "report*/*/results.json",
    "report*/*/summary.md",
    "report*/*/index.html",
    "report*/junit.xml",
    "*.log",
)


@dataclass(frozen=True)
class Kept:
    """A file that comes back. `rank`: 0 is the most important."""

    name: str
    path: Path
    rank: int

    def content(self) -> bytes:
        """Return the file's content; of a log, its end."""
        with self.path.open("rb") as source:
            if self.path.suffix == ".log":
                source.seek(max(0, self.path.stat().st_size - LOG_BYTES))
            return source.read()


def kept_files(folder: Path, step: Step) -> Iterator[Kept]:
    """Yield the files of a step that come back."""
    patterns = (*KEPT, *step.keep)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        rank = next((i for i, pattern in enumerate(patterns) if matches(name, pattern)), None)
        if rank is not None and path.is_file() and not path.is_symlink():
            yield Kept(f"{step.name}/{name}", path, rank)


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, folder by folder."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(fnmatch(*pair) for pair in zip(parts, wanted, strict=True))


def archive(files: Iterable[Kept]) -> bytes:
    """Return a tar.xz of the files."""
    target = io.BytesIO()
    with lzma.open(target, "w", preset=PRESET) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for one in files:
            content = one.content()
            entry = tarfile.TarInfo(one.name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def pack_group(files: Sequence[Kept], target: Path, *, most: int = MOST_BYTES) -> list[str]:
    """Write the archive of a group, at most `most` bytes, and return the names of the files that were left out.

    The largest file of the least important kind gives way first.
    """
    kept, left_out = sorted(files, key=lambda one: (one.rank, one.path.stat().st_size)), []
    while len(packed := archive(kept)) > most and kept:
        excess = len(packed) - most
        while kept and excess > 0:
            last = kept.pop()
            excess -= len(archive([last]))
            left_out.append(last.name)
    replace(target, packed)
    return left_out


def replace(target: Path, content: bytes) -> None:
    """Write a file as a whole."""
    beside = target.with_name(f".{target.name}.new")
    beside.write_bytes(content)
    os.replace(beside, target)


def write_json(target: Path, value: Any) -> None:
    """Write a value as JSON, as a whole."""
    replace(target, json.dumps(value, indent=1, default=str).encode())


def headline(folder: Path) -> str:
    """Return the first bold line of a step's summary; empty without one."""
    return next(filter(None, map(bold_line, sorted(folder.glob("report*/summary.md")))), "")


def bold_line(summary: Path) -> str:
    """Return the first line in bold of a Markdown file."""
    lines = (line.strip() for line in summary.read_text(errors="replace").splitlines())
    return next((line.replace("**", "") for line in lines if line.startswith("**")), "")


@dataclass(kw_only=True)
class Packer:
    """Keeps the folder of results up to date. `facts`: what `kit.json` says beside the steps."""

    out: Path
    work: Path
    steps: Sequence[Step]
    facts: dict[str, Any]
    results: Callable[[], Sequence[Any]]

    def ended(self, group: str) -> None:
        """Pack the group of a step that has ended, with what its other steps have written so far, and `kit.json`."""
        files = [
            one
            for step in self.steps
            if step.group == group and (self.work / step.name).is_dir()
            for one in kept_files(self.work / step.name, step)
        ]
        left_out = self.facts.setdefault("left_out", {})
        left_out[group] = pack_group(files, self.out / f"{group}.tar.xz") if files else []
        self.write()

    def write(self) -> None:
        """Write `kit.json`."""
        rows = [self.row(one) for one in self.results()]
        write_json(self.out / "kit.json", self.facts | {"steps": rows})

    def row(self, one: Any) -> dict[str, Any]:
        """Return a result as plain data, with the first line of its report."""
        found = {name: round(value, 1) if isinstance(value, float) else value for name, value in vars(one).items()}
        return found | {"state": one.state.value, "headline": headline(self.work / one.name)}
