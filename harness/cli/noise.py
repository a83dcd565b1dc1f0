"""`coldproof noise`: measure the effect of score noise. Measurements are kept in `--out` and can be resumed.

`clean` measures false positives on an engine without a fault. `faults` measures which faults of the catalogue are
detected with the same noise. `draw` writes curve.json and index.html from all measurements in the folder.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import msgspec

from coldproof.adapters.common.score_noise import parse
from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.registry import CELLS
from coldproof.harness.cli.io import FAILED, Refusal, say, time_span
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.options import UsageError
from coldproof.harness.power.measure import installed_engine, select_faults
from coldproof.harness.power.noise import with_faults, without_faults
from coldproof.harness.power.noise.curve import detection_curves
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.exports.write import write_text
from coldproof.reports.noise_curve.noise_curve import headline, render_noise
from coldproof.reports.schema.noise import CleanLevel, FaultLevel, NoiseResults
from coldproof.reports.schema.results import encode

PURPOSE = "measure false positives and detected faults under score noise"
EXIT_ALARM, EXIT_INTERRUPTED = 1, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what",
        choices=("clean", "faults", "draw"),
        help="measure false positives, measure detected faults, or write the page",
    )
    parser.add_argument("--worker", choices=("fingerprint", "model"), default="fingerprint")
    parser.add_argument(
        "--noise",
        default=None,
        metavar="KIND:NATS",
        help="noise to add, for example gaussian:0.05; none: only the noise that the engine has without it",
    )
    parser.add_argument(
        "--cell", default="default", metavar="NAME", help="with clean: the engine configuration (default: default)"
    )
    parser.add_argument(
        "--requests", type=int, default=100_000, metavar="N", help="with clean: number of requests (default: 100000)"
    )
    parser.add_argument(
        "--faults", default=None, metavar="NAME,...", help="with faults: faults or mechanisms (default: all)"
    )
    parser.add_argument(
        "--missed", action="store_true", help="with faults: measure missed faults again; use a larger --budget"
    )
    parser.add_argument(
        "--budget",
        default="8s",
        metavar="TIME",
        help="with faults: time for drawing examples, for each fault (default: 8s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all measurements (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("coldproof-report/noise"),
        metavar="DIR",
        help="folder for the results (default: coldproof-report/noise)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure or draw, and return the exit code: 1 if there was a false positive. Raises Refusal or UsageError."""
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        match options.what:
            case "clean":
                return measure_clean(options)
            case "faults":
                return measure_faults(options)
        return draw(options.out)
    except (ValueError, OSError) as problem:
        raise UsageError(str(problem)) from problem
    except (EngineError, OracleError) as problem:
        raise Refusal(FAILED, str(problem)) from problem
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def measure_clean(options: argparse.Namespace) -> int:
    """Measure false positives on an engine without a fault, and return the exit code."""
    if options.cell not in CELLS:
        raise UsageError(f"unknown cell {options.cell!r}; `coldproof cells` prints all cells")
    noise = None if options.noise in (None, with_faults.NO_NOISE) else str(parse(options.noise))
    level = without_faults.Level(worker=options.worker, noise=noise, cell=options.cell, requests=options.requests)
    found = without_faults.measure(level, out=options.out.resolve(), seed=options.seed, say=say)
    (options.out / "clean" / f"{level.name}.level.json").write_bytes(msgspec.json.encode(found))
    say(f"{level.name}: {found.alarms} false positives in {found.requests:,} requests. {found.rule}")
    return EXIT_ALARM if found.alarms else 0


def measure_faults(options: argparse.Namespace) -> int:
    """Measure which faults are detected, and return the exit code."""
    if options.noise is None:
        raise UsageError("faults requires --noise, for example --noise gaussian:0.05, or --noise none")
    noise = None if options.noise == with_faults.NO_NOISE else str(parse(options.noise))
    level = with_faults.Level(worker=options.worker, noise=noise, budget=time_span(options.budget), seed=options.seed)
    measured = select_faults(options.faults, options.worker)
    file = options.out / "faults" / f"{level.name}.level.json"
    try:
        with_faults.measure_all(level, measured, out=options.out.resolve(), say=say, missed=options.missed)
    finally:
        found = with_faults.measured_so_far(level, select_faults(None, options.worker), options.out.resolve())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(found))
    say(
        f"{level.name}: {sum(row.caught for row in found.faults)} of {len(found.faults)} measured faults detected "
        f"({found.of} faults in all)"
    )
    return 0


def draw(out: Path) -> int:
    """Write curve.json and index.html from all complete and partial measurements, and return the exit code."""
    levels = [msgspec.json.decode(f.read_bytes(), type=CleanLevel) for f in sorted(out.glob("clean/*.level.json"))]
    faults = [msgspec.json.decode(f.read_bytes(), type=FaultLevel) for f in sorted(out.glob("faults/*.level.json"))]
    if not levels and not faults:
        raise UsageError(f"no measurements in {out}; run `coldproof noise clean` or `coldproof noise faults` first")
    results = NoiseResults(
        coldproof_version=coldproof_version(),
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        engine=installed_engine(),
        clean=levels,
        faults=faults,
        curves=detection_curves(levels, faults),
    )
    write_text(out / "curve.json", encode(results).decode())
    write_text(out / "index.html", render_noise(results))
    say(f"{headline(results)}\n{out / 'index.html'}")
    return 0
