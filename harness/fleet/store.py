"""The fleet's folder: what is done, run by run, and what was lost, kept aside.

units/ID/       the report folder of a run that ended, as its node wrote it
units/ID.json   what became of it: written last, so that a run is done when this is there
units/ID.log    the end of what pytest wrote
running/ID/     events as they come in
lost/ID.N/      events of runs whose node went: they count for nothing
"""

from __future__ import annotations

import fcntl
import io
import shutil
import tarfile
import time
from pathlib import Path

import msgspec

from harness.fleet.remote import EVENTS, Ended
from harness.fleet.units import Unit
from harness.options import UsageError
from reports.assemble import EXIT_FAILED, EXIT_HARNESS, EXIT_OK
from reports.schema import encode, read_results
from reports.text import storable
from reports.write import write_text

UNITS, RUNNING, LOST, LOCK = "units", "running", "lost", "fleet.lock"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a unit. `began` is by the driver's clock; `lost`: why earlier tries count for nothing."""

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
        """Whether the suites had their say: a verdict, whichever it is, is never asked for again."""
        return self.exit_code in (EXIT_OK, EXIT_FAILED)


class Store:
    """One folder, of one driver at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, UsageError where the folder is somebody else's or another driver is at work in it."""
        self.folder = folder
        if folder.exists() and not (folder / LOCK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"--out {folder} is there already and is no fleet's: name a new folder")
        for name in (UNITS, RUNNING, LOST):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.lock = (folder / LOCK).open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self.lock.close()
            raise UsageError(f"another fleet is at work in --out {folder}") from problem
        for left in (folder / RUNNING).iterdir():  # by a driver that was killed
            self.put_aside(left.name)

    def report(self, unit: str) -> Path:
        """The report folder of a unit."""
        return self.folder / UNITS / unit

    def record(self, unit: Unit, sources: str) -> Record | None:
        """What became of a unit as it is defined now and by these sources; None: nothing yet."""
        try:
            record = msgspec.json.decode((self.folder / UNITS / f"{unit.id}.json").read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.digest == unit.digest(sources) else None

    def is_done(self, unit: Unit, sources: str) -> bool:
        """Whether nothing is left to do for a unit: its run came to a verdict, and its results are whole."""
        record = self.record(unit, sources)
        return record is not None and record.concluded and is_complete(self.report(unit.id))

    def begin(self, unit: str) -> None:
        """A new try, and what another one had left under that name, failed or of other sources, is gone."""
        (self.folder / UNITS / f"{unit}.json").unlink(missing_ok=True)
        if self.report(unit).exists():
            shutil.rmtree(self.report(unit))
        if (self.folder / RUNNING / unit).exists():
            self.put_aside(unit)
        (self.folder / RUNNING / unit).mkdir()

    def add(self, unit: str, lines: bytes) -> None:
        """Events, at once on the disk."""
        with (self.folder / RUNNING / unit / EVENTS).open("ab") as file:
            file.write(lines)

    def put_aside(self, unit: str) -> None:
        """Keep what a lost try had told, where nothing counts it."""
        number = 1
        while (kept := self.folder / LOST / f"{unit}.{number}").exists():
            number += 1
        (self.folder / RUNNING / unit).rename(kept)

    def end(self, unit: str, ended: Ended) -> str:
        """Keep a run's files; what is wrong with them in words, "" for a report."""
        coming, there = self.folder / RUNNING / unit, self.report(unit)
        with tarfile.open(fileobj=io.BytesIO(ended.files)) as archive:
            archive.extractall(coming, filter="data")
        coming.rename(there)
        write_text(there.with_name(f"{unit}.log"), str(storable(ended.log)))
        return problem_of(there, ended)

    def keep(self, record: Record) -> None:
        """The last step: from here on the unit is done."""
        write_text(self.folder / UNITS / f"{record.unit}.json", encode(record).decode())

    def close(self) -> None:
        """Let others have the folder."""
        self.lock.close()


def is_complete(folder: Path) -> bool:
    """Whether a report folder holds the results of a whole run."""
    try:
        return read_results(folder / "results.json").complete
    except (OSError, msgspec.MsgspecError):
        return False


def problem_of(folder: Path, ended: Ended) -> str:
    """Why a run came to no verdict; "" where it did."""
    try:
        results = read_results(folder / "results.json")
    except (OSError, msgspec.MsgspecError):
        said = [line for line in ended.log.splitlines() if line.strip()]
        told = next((line for line in said if "coldproof: " in line), said[-1] if said else "it wrote nothing")
        return f"it left no report, exit code {ended.code}: {told.strip()}"
    if ended.code in (EXIT_OK, EXIT_FAILED):
        return "" if results.complete else results.problem or f"its run is incomplete, exit code {ended.code}"
    return results.problem or f"exit code {ended.code} ({results.headline})"


def unreached(unit: str, digest: str, reason: str, lost: list[str]) -> Record:
    """The record of a unit that no run came of."""
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
