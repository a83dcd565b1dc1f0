"""The fleet's folder: finished units, running units, and lost attempts.

units/ID/       the report folder of a finished run, as its node wrote it
units/ID.json   the record of the unit, written last: a unit is finished if this file exists
units/ID.log    the end of pytest's output
running/ID/     the events of a running unit
lost/ID.N/      the events of lost attempts; they count for nothing
"""

from __future__ import annotations

import fcntl
import io
import tarfile
import time
import zlib
from pathlib import Path

import msgspec

from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.node import EVENTS, RunEnded
from coldproof.harness.options import UsageError
from coldproof.harness.schema.exit_codes import CONCLUDED, EXIT_HARNESS
from coldproof.harness.schema.results import encode, read_results
from coldproof.harness.schema.stored_files import MEGABYTE, MOST_FILES, read_json
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import adopt, claim, make_sub_folder, mark, remove_report
from coldproof.reports.format.text import one_line, storable

MOST_BYTES = 8192 * MEGABYTE  # of the files of one run, without its events
UNITS, RUNNING, LOST, LOCK = "units", "running", "lost", "fleet.lock"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a unit. `began` is in the driver's clock; `lost` has the reason of each lost attempt."""

    unit: str
    digest: str
    exit_code: int
    began: float
    seconds: float
    node: str
    lost: list[str] = []
    problem: str = ""

    @property
    def concluded(self) -> bool:
        """Whether the suites finished with verdicts. Such a unit is never run again."""
        return self.exit_code in CONCLUDED


class Store:
    """The folder of one fleet. Only one driver uses it at a time."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises OSError, and UsageError if it is not a fleet's or another driver uses it."""
        self.folder = folder
        if folder.exists() and not (folder / LOCK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"--out {folder} exists and is not a fleet's folder; choose a new folder")
        mark(folder)
        for name in (UNITS, RUNNING, LOST):
            make_sub_folder(folder / name)
        claim(folder / LOCK)
        self.lock = (folder / LOCK).open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self.lock.close()
            raise UsageError(f"another fleet is running in --out {folder}") from problem
        for left in (folder / RUNNING).iterdir():  # left by a driver that was killed
            self.keep_lost(left)

    def report(self, unit: str) -> Path:
        """Return the report folder of a unit."""
        return self.folder / UNITS / unit

    def record(self, unit: Unit, sources: str) -> Record | None:
        """Return the record of a unit with its current definition and these sources; None if there is none."""
        try:
            record = read_json(self.folder / UNITS / f"{unit.id}.json", Record)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.digest == unit.digest(sources) else None

    def is_done(self, unit: Unit, sources: str) -> bool:
        """Return whether a unit is finished: its run has verdicts, and its results are complete."""
        record = self.record(unit, sources)
        return record is not None and record.concluded and is_complete(self.report(unit.id))

    def begin(self, unit: str) -> None:
        """Start an attempt. Remove what an earlier attempt left."""
        claim(self.folder / UNITS / f"{unit}.json").unlink(missing_ok=True)
        if self.report(unit).exists():
            remove_report(self.report(unit))
        # A report that has files of somebody else is still there.
        for left in (self.report(unit), self.folder / RUNNING / unit):
            if left.exists():
                self.keep_lost(left)
        (self.folder / RUNNING / unit).mkdir()

    def add(self, unit: str, lines: bytes) -> None:
        """Append events to the unit's event log."""
        with (self.folder / RUNNING / unit / EVENTS).open("ab") as file:
            file.write(lines)

    def put_aside(self, unit: str) -> None:
        """Move the events of a lost attempt to lost/."""
        self.keep_lost(self.folder / RUNNING / unit)

    def keep_lost(self, folder: Path) -> None:
        """Move a folder to lost/, under its name and a number."""
        number = 1
        while (kept := self.folder / LOST / f"{folder.name}.{number}").exists():
            number += 1
        folder.rename(kept)

    def end(self, unit: str, ended: RunEnded) -> str:
        """Store a run's files. Return the problem of the run as text, "" if it has a valid report."""
        coming, there = self.folder / RUNNING / unit, self.report(unit)
        refused = unpack(ended.files, coming)
        adopt(coming)
        coming.rename(there)
        write_text(there.with_name(f"{unit}.log"), str(storable(ended.log)))
        return refused or problem_of(there, ended)

    def keep(self, record: Record) -> None:
        """Store a unit's record. This is the last step: the unit is finished then."""
        write_text(self.folder / UNITS / f"{record.unit}.json", encode(record).decode())

    def close(self) -> None:
        """Release the folder."""
        self.lock.close()


def unpack(files: bytes, folder: Path) -> str:
    """Unpack the files of a run. Return why they are refused, "" if they are not: then none of them is written."""
    size = count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            for member in archive:
                size, count = size + member.size, count + 1
                if not (member.isreg() or member.isdir()):
                    return f"its node sent {one_line(member.name, 100)!r}, which is not a regular file"
                if size > MOST_BYTES or count > MOST_FILES:
                    return f"its node sent more than {MOST_BYTES // MEGABYTE} MB or {MOST_FILES:,} files"
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as problem:
        return f"its node sent files that cannot be unpacked: {one_line(str(problem), 200)}"
    return ""


def is_complete(folder: Path) -> bool:
    """Return whether a report folder has the results of a complete run."""
    try:
        return read_results(folder / "results.json").complete
    except (OSError, msgspec.MsgspecError):
        return False


def problem_of(folder: Path, ended: RunEnded) -> str:
    """Return why a run has no complete result; "" if it has one."""
    try:
        results = read_results(folder / "results.json")
    except (OSError, msgspec.MsgspecError):
        said = [line for line in ended.log.splitlines() if line.strip()]
        line = next((line for line in said if "coldproof: " in line), said[-1] if said else "no output")
        return f"no report, exit code {ended.code}: {line.strip()}"
    if ended.code in CONCLUDED:
        return "" if results.complete else results.problem or f"the run is incomplete, exit code {ended.code}"
    return results.problem or f"exit code {ended.code} ({results.headline})"


def failed_record(unit: str, digest: str, reason: str, lost: list[str]) -> Record:
    """Return the record of a unit without a result."""
    return Record(
        unit=unit,
        digest=digest,
        exit_code=EXIT_HARNESS,
        began=time.time(),
        seconds=0.0,
        node="",
        lost=lost,
        problem=reason,
    )
