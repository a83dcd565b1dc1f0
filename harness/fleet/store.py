"""The units of a fleet in its folder: their reports and records.

units/ID/       the report folder of a run, as its node wrote it
units/ID.json   the record of the unit, written last: a unit is finished if this file exists
units/ID.log    the end of pytest's output
earlier/ID.N/   reports of earlier runs that somebody changed, or bundles: they are not deleted
"""

from __future__ import annotations

import io
import itertools
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

import msgspec

from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.node import Ended
from coldproof.harness.options import UsageError
from coldproof.harness.schema.exit_codes import CONCLUDED, EXIT_HARNESS
from coldproof.harness.schema.results import encode, results_in
from coldproof.harness.schema.stored_files import MEGABYTE, MOST_FILES, read_json
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import adopt, claim, make_sub_folder, remove_report
from coldproof.reports.format.text import one_line, storable

MOST_BYTES = 8192 * MEGABYTE  # of the files of one run
UNITS, EARLIER = "units", "earlier"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a unit. `began` is in the driver's clock; `lost`: attempts that were lost with their node."""

    unit: str
    digest: str
    exit_code: int = EXIT_HARNESS
    began: float
    seconds: float = 0.0
    node: str = ""
    lost: int = 0
    problem: str = ""


class Store:
    """The folder of one fleet, which this process has locked."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError for the folder of another report, and OSError."""
        self.folder, self.units = folder, folder / UNITS
        if (folder / "results.json").exists() and not self.units.is_dir():
            raise UsageError(f"--out {folder} has a report that is not a fleet's; choose a new folder")
        make_sub_folder(self.units)

    def report(self, unit: str) -> Path:
        """Return the report folder of a unit."""
        return self.units / unit

    def record(self, unit: Unit, sources: str) -> Record | None:
        """Return the record of a unit with its current definition and these sources; None if there is none."""
        try:
            record = read_json(self.units / f"{unit.id}.json", Record)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.digest == unit.digest(sources) else None

    def is_done(self, unit: Unit, sources: str) -> bool:
        """Return whether a unit is finished: its run has verdicts, and its results are complete."""
        record = self.record(unit, sources)
        if record is None or record.exit_code not in CONCLUDED:
            return False
        results = results_in(self.report(unit.id))
        return results is not None and results.complete

    def remove(self, unit: str) -> None:
        """Remove the record and the report of an earlier run. Raises OSError."""
        claim(self.units / f"{unit}.json").unlink(missing_ok=True)
        report = self.report(unit)
        if report.exists():
            remove_report(report)
        if report.exists():
            make_sub_folder(self.folder / EARLIER)
            names = (self.folder / EARLIER / f"{unit}.{number}" for number in itertools.count(1))
            report.rename(next(name for name in names if not name.exists()))

    def keep(self, unit: str, digest: str, ended: Ended | str) -> Record:
        """Store how a unit ended, and return its record. Raises OSError."""
        record = Record(unit=unit, digest=digest, began=round(time.time(), 3))
        if isinstance(ended, str):
            record = msgspec.structs.replace(record, problem=ended)
        else:
            problem = self.unpack(unit, ended)
            write_text(self.units / f"{unit}.log", str(storable(ended.log)))
            record = msgspec.structs.replace(
                record,
                exit_code=ended.code,
                began=round(record.began - ended.seconds, 3),
                seconds=ended.seconds,
                node=ended.node,
                lost=ended.lost,
                problem=one_line(problem or problem_of(self.report(unit), ended)),
            )
        self.write(record)
        return record

    def write(self, record: Record) -> None:
        """Write a unit's record. This is the last step: the unit is finished then. Raises OSError."""
        write_text(self.units / f"{record.unit}.json", encode(record).decode())

    def unpack(self, unit: str, ended: Ended) -> str:
        """Store a run's files. Return why they are refused, "" if they are not."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".unpacking-") as folder:
            coming = Path(folder) / unit
            coming.mkdir()
            refused = unpack(ended.files, coming)
            adopt(coming)
            coming.rename(self.report(unit))
        return refused


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


def problem_of(folder: Path, ended: Ended) -> str:
    """Return why a run has no complete result; "" if it has one."""
    results = results_in(folder)
    if results is None:
        said = [line for line in ended.log.splitlines() if line.strip()]
        line = next((line for line in said if "coldproof: " in line), said[-1] if said else "no output")
        return f"no report, exit code {ended.code}: {line.strip()}"
    if ended.code in CONCLUDED:
        return "" if results.complete else results.problem or f"the run is incomplete, exit code {ended.code}"
    return results.problem or f"exit code {ended.code} ({results.headline})"
