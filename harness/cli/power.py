"""`coldproof power` and `coldproof noise`: measure what the suites detect, without and under score noise.

`power` runs the suites against every injected fault and the unmodified engine, and draws the kill matrix. Faults are
measured in parallel as far as memory allows. `noise clean` measures false positives on an engine without a fault,
`noise faults` which faults of the catalogue are detected with the same noise, and `noise draw` writes curve.json and
index.html from all measurements in the folder. Measurements are kept in `--out` and can be resumed.
"""

from __future__ import annotations

import argparse
import datetime
import math
from pathlib import Path

import msgspec

from coldproof.adapters.common.score_noise import parse
from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.registry import CELLS, measured_engine
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.cli.io import FAILED, Refusal, Subcommand, argument, at_least, out_folder, own_folder, say
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.options import FINGERPRINT, INVALID_DURATION, SMOKE, UsageError, parse_duration
from coldproof.harness.power.measure import Measurement, installed_engine, measure_power, select_faults
from coldproof.harness.power.noise import with_faults, without_faults
from coldproof.harness.power.noise.curve import detection_curves
from coldproof.harness.power.stored import stored_measurement
from coldproof.harness.power.suite_run import Served
from coldproof.harness.schema.noise import CleanLevel, FaultLevel, NoiseResults
from coldproof.harness.schema.results import encode
from coldproof.harness.session.environment import coldproof_version
from coldproof.harness.session.user_references import check_model
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import claim, remove_listed
from coldproof.reports.kill_matrix import kill_matrix
from coldproof.reports.noise_curve import noise_curve

EXIT_FALSE_POSITIVE, EXIT_INTERRUPTED = 1, 130
MODEL_WORKER = "model"
WORKERS = (FINGERPRINT, MODEL_WORKER)
PROFILE_RUNS = (SMOKE, "ci")


def run_power(options: argparse.Namespace) -> int:
    """Measure, write power.json and index.html, and return the exit code. Raises UsageError.

    The exit code is 1 if the unmodified engine failed a requirement, or if a run against it did not complete.
    """
    faults = select_faults(options.faults, worker_of(options))
    measurement = measurement_of(options)
    with own_folder(measurement.out):
        if options.again:
            remove_listed(measurement.out, "rows/")
        results = measure_power(
            measurement, faults, clean_runs=options.clean_runs, jobs=options.jobs, command=options.command_line, say=say
        )
        write_text(measurement.out / "power.json", encode(results).decode())
        write_text(measurement.out / "index.html", kill_matrix.render_power(results))
    say(f"{kill_matrix.headline(results)}\n{measurement.out / 'index.html'}")
    if not results.complete:
        return EXIT_INTERRUPTED
    return EXIT_FALSE_POSITIVE if any(run.detections or run.problem for run in results.clean) else 0


WORKER = argument("--worker", choices=WORKERS, help="default: fingerprint, with --model: model")
MODEL = argument("--model", metavar="NAME", help="serve this model instead of the generated one, for example smollm2")
ENGINE_ARGS = argument("--engine-args", metavar='"..."', default="", help="more flags for the engine")
POWER = Subcommand(
    "measure which injected faults the suites detect",
    run_power,
    WORKER,
    MODEL,
    ENGINE_ARGS,
    argument("--faults", metavar="NAME,...", help="faults or mechanisms (default: all)"),
    argument(
        "--budget",
        default="15s",
        metavar="TIME",
        help="time for the requirements that should detect the fault (default: 15s)",
    ),
    argument(
        "--wide-budget",
        default="30s",
        metavar="TIME",
        help="time for all requirements, with few examples each (default: 30s)",
    ),
    argument(
        "--wide",
        choices=("always", "missed", "never", *PROFILE_RUNS),
        default="always",
        help="when to run all requirements against a fault: always (default), only if it was missed, or never; "
        "smoke, ci: instead of both runs, what this profile runs in process, to the first confirmed violation",
    ),
    argument(
        "--clean-runs", type=at_least(0), default=3, metavar="N", help="runs against the unmodified engine (default: 3)"
    ),
    argument("--no-literal", action="store_true", help="do not run the scripts of the upstream bug reports"),
    argument(
        "--jobs", type=at_least(1), metavar="N", help="number of parallel runs (default: as many as memory allows)"
    ),
    argument("--seed", type=int, default=1, help="seed of all runs (default: 1)"),
    out_folder("coldproof-report/power"),
    argument("--guided", action="store_true", help="guide all runs by the engine states that they reach"),
    argument("--again", action="store_true", help="discard the measurements in DIR and start again"),
)


def measurement_of(options: argparse.Namespace) -> Measurement:
    """Return the measurement that the options describe. Raises UsageError."""
    return Measurement(
        worker=worker_of(options),
        seed=options.seed,
        aimed_seconds=time_span(options.budget),
        wide_seconds=time_span(options.wide_budget),
        out=options.out.resolve() / served(options).slug,
        wide=options.wide,
        scripts=not options.no_literal,
        served=served(options),
        guided=options.guided,
    )


def served(options: argparse.Namespace) -> Served:
    """Return the model and the flags that the options choose. A path becomes absolute: runs have their own folders.

    Raises UsageError for a path without a model.
    """
    model: str | None = options.model
    check_model(model)
    path = Path(model) if model is not None and Path(model).exists() else None
    return Served(model=str(path.resolve()) if path else model, engine_args=options.engine_args)


def worker_of(options: argparse.Namespace) -> str:
    """Return the chosen worker; a model needs the one with a neural network. Raises UsageError."""
    if options.model is not None and options.worker == FINGERPRINT:
        raise UsageError("--worker fingerprint runs no model: leave it out, or --model")
    return options.worker or (FINGERPRINT if options.model is None else MODEL_WORKER)


def worker_in(cell: Cell, options: argparse.Namespace) -> str:
    """Return the chosen worker; an engine that faults are not measured on has a model. Raises UsageError."""
    worker = worker_of(options)
    return worker if cell.fits(measured_engine().name, worker) else MODEL_WORKER


def run_noise(options: argparse.Namespace) -> int:
    """Measure or draw, and return the exit code: 1 if there was a false positive. Raises Refusal or UsageError."""
    try:
        with own_folder(options.out):
            match options.what:
                case "clean":
                    return measure_clean(options)
                case "faults":
                    return measure_faults(options)
            return draw(options.out)
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    except (EngineError, OracleError) as problem:
        raise Refusal(FAILED, str(problem)) from problem
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


NOISE = Subcommand(
    "measure false positives and detected faults under score noise",
    run_noise,
    argument(
        "what",
        choices=("clean", "faults", "draw"),
        help="measure false positives, measure detected faults, or write the page",
    ),
    WORKER,
    MODEL,
    ENGINE_ARGS,
    argument(
        "--noise",
        metavar="KIND:NATS",
        help="noise to add, for example gaussian:0.05; none: only the noise that the engine has without it",
    ),
    argument(
        "--cell",
        default=measured_engine().cells[0].name,
        metavar="NAME",
        help=f"with clean: the engine configuration (default: {measured_engine().cells[0].name})",
    ),
    argument(
        "--requests",
        type=at_least(1),
        default=100_000,
        metavar="N",
        help="with clean: number of requests (default: 100000)",
    ),
    argument(
        "--time",
        metavar="TIME",
        help="with clean: end after this time, with fewer requests (default: no limit)",
    ),
    argument(
        "--tails",
        type=at_least(1),
        default=without_faults.TAILS,
        metavar="N",
        help="with clean: prompts behind each shared prelude, of which a burst has twice as many (default: 6)",
    ),
    argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="with clean: take the comparison rule from the results.json of an earlier run in that cell",
    ),
    argument("--faults", metavar="NAME,...", help="with faults: faults or mechanisms (default: all)"),
    argument("--missed", action="store_true", help="with faults: measure missed faults again; use a larger --budget"),
    argument(
        "--budget",
        default="8s",
        metavar="TIME",
        help="with faults: time for drawing examples, for each fault (default: 8s)",
    ),
    argument("--seed", type=int, default=1, help="seed of all measurements (default: 1)"),
    out_folder("coldproof-report/noise"),
)


def measure_clean(options: argparse.Namespace) -> int:
    """Measure false positives on an engine without a fault, and return the exit code."""
    if options.cell not in CELLS:
        raise UsageError(f"unknown cell {options.cell!r}; `coldproof cells` prints all cells")
    noise = None if options.noise in (None, with_faults.NO_NOISE) else str(parse(options.noise))
    level = without_faults.Level(
        worker=worker_in(CELLS[options.cell], options),
        noise=noise,
        cell=options.cell,
        requests=options.requests,
        seconds=math.inf if options.time is None else time_span(options.time),
        served=served(options),
        tails=options.tails,
        calibration=options.calibration,
    )
    found = without_faults.measure(level, out=options.out.resolve(), seed=options.seed, say=say)
    claim(options.out / "clean" / f"{level.name}.level.json").write_bytes(msgspec.json.encode(found))
    say(f"{level.name}: {found.alarms} false positives in {found.requests:,} requests. {found.rule}")
    return EXIT_FALSE_POSITIVE if found.alarms else 0


def measure_faults(options: argparse.Namespace) -> int:
    """Measure which faults are detected, and return the exit code."""
    if options.noise is None:
        raise UsageError("faults requires --noise, for example --noise gaussian:0.05, or --noise none")
    noise = None if options.noise == with_faults.NO_NOISE else str(parse(options.noise))
    level = with_faults.Level(
        worker=worker_of(options),
        noise=noise,
        budget=time_span(options.budget),
        seed=options.seed,
        served=served(options),
    )
    measured = select_faults(options.faults, level.worker)
    file = options.out / "faults" / f"{level.name}.level.json"
    try:
        with_faults.measure_all(level, measured, out=options.out.resolve(), say=say, missed=options.missed)
    finally:
        found = with_faults.measured_so_far(level, select_faults(None, level.worker), options.out.resolve())
        file.parent.mkdir(parents=True, exist_ok=True)
        claim(file).write_bytes(msgspec.json.encode(found))
    say(
        f"{level.name}: {sum(row.caught for row in found.faults)} of {len(found.faults)} measured faults detected "
        f"({found.of} faults in all)"
    )
    return 0


def draw(out: Path) -> int:
    """Write curve.json and index.html from all complete and partial measurements, and return the exit code."""
    levels = [stored_measurement(f, CleanLevel) for f in sorted(out.glob("clean/*.level.json"))]
    faults = [stored_measurement(f, FaultLevel) for f in sorted(out.glob("faults/*.level.json"))]
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
    write_text(out / "index.html", noise_curve.render_noise(results))
    say(f"{noise_curve.headline(results)}\n{out / 'index.html'}")
    return 0


def time_span(text: str) -> float:
    """Return the seconds of an argument such as 90s. Raises UsageError."""
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"{text!r}: {INVALID_DURATION}")
    return seconds
