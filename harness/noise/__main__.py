"""`python -m harness.noise`: what noise costs. Measurements are kept in `--out`, and go on where they stopped.

`clean` puts requests to an engine without a fault, `faults` the catalogue to one whose scores waver as much, and `draw`
makes curve.json and index.html of all that is there.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from adapters.base import EngineError
from adapters.noise import parse
from harness.cells import CELLS
from harness.environment import coldproof_version
from harness.noise import clean, faults
from harness.noise.curve import curves
from harness.options import UsageError
from harness.oracle.base import OracleError
from harness.power.__main__ import chosen, engine, seconds
from reports.noise import headline, render_noise
from reports.noise_schema import CleanLevel, FaultLevel, NoiseResults
from reports.schema import encode
from reports.write import write_text

ROOT = Path(__file__).resolve().parent.parent.parent
EXIT_ALARM, EXIT_HARNESS, EXIT_USAGE, EXIT_INTERRUPTED = 1, 3, 4, 130


class Parser(argparse.ArgumentParser):
    """One line for what is wrong, and the exit code for usage."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m harness.noise", description="False alarms against caught faults under noise.")
    made.add_argument("what", choices=("clean", "faults", "draw"))
    made.add_argument("--worker", choices=("fingerprint", "model"), default="fingerprint")
    made.add_argument("--noise", default=None, metavar="KIND:NATS", help="or none: what the cell has of itself")
    made.add_argument("--cell", default="default", help="for clean requests")
    made.add_argument("--requests", type=int, default=100_000, metavar="N", help="clean ones, in all")
    made.add_argument("--faults", default=None, metavar="NAME,...", help="faults or mechanisms; default: all")
    made.add_argument("--missed", action="store_true", help="measure again what was not caught, with a larger --budget")
    made.add_argument("--budget", default="8s", metavar="TIME", help="of drawing for each fault")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--out", type=Path, default=Path("reports/out/noise"), metavar="DIR")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Measure, or draw. 1 where an engine without a fault was accused."""
    made = parser()
    given = made.parse_args(arguments)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        match given.what:
            case "clean":
                return measure_clean(given)
            case "faults":
                return measure_faults(given)
        return draw(given.out)
    except (UsageError, ValueError, OSError) as problem:
        made.error(str(problem))
    except (EngineError, OracleError) as problem:
        made.exit(EXIT_HARNESS, f"{made.prog}: {problem}\n")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def measure_clean(given: argparse.Namespace) -> int:
    """Requests to an engine without a fault."""
    if given.cell not in CELLS:
        raise UsageError(f"unknown cell {given.cell!r}: `pytest suites --cells list` prints them")
    noise = None if given.noise in (None, faults.WITHOUT) else str(parse(given.noise))
    level = clean.Level(worker=given.worker, noise=noise, cell=given.cell, requests=given.requests)
    found = clean.measure(level, root=ROOT, out=given.out.resolve(), seed=given.seed, say=say)
    (given.out / "clean" / f"{level.name}.level.json").write_bytes(msgspec.json.encode(found))
    say(f"{level.name}: {found.alarms} accused in {found.requests:,} requests. {found.rule}")
    return EXIT_ALARM if found.alarms else 0


def measure_faults(given: argparse.Namespace) -> int:
    """The catalogue."""
    if given.noise is None:
        raise UsageError("say how much the scores are to waver, or none: --noise gaussian:0.05")
    noise = None if given.noise == faults.WITHOUT else str(parse(given.noise))
    level = faults.Level(worker=given.worker, noise=noise, budget=seconds(given.budget), seed=given.seed)
    measured = chosen(given.faults, given.worker)
    file = given.out / "faults" / f"{level.name}.level.json"
    try:
        faults.measure_all(level, measured, out=given.out.resolve(), say=say, missed=given.missed)
    finally:
        found = faults.known(level, chosen(None, given.worker), given.out.resolve())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(found))
    say(f"{level.name}: {sum(row.caught for row in found.faults)} of {len(found.faults)} caught, of {found.of} in all")
    return 0


def draw(out: Path) -> int:
    """curve.json and index.html, of all levels that were measured to the end or in part."""
    levels = [msgspec.json.decode(f.read_bytes(), type=CleanLevel) for f in sorted(out.glob("clean/*.level.json"))]
    hurt = [msgspec.json.decode(f.read_bytes(), type=FaultLevel) for f in sorted(out.glob("faults/*.level.json"))]
    if not levels and not hurt:
        raise UsageError(f"nothing was measured in {out}: `python -m harness.noise clean` and `faults` come first")
    results = NoiseResults(
        coldproof_version=coldproof_version(),
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        engine=engine(),
        clean=levels,
        faults=hurt,
        curves=curves(levels, hurt),
    )
    write_text(out / "curve.json", encode(results).decode())
    write_text(out / "index.html", render_noise(results))
    say(f"{headline(results)}\n{out / 'index.html'}")
    return 0


def say(words: str) -> None:
    """A line at once, also into a pipe."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
