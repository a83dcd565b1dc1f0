"""Checks the options of a run before anything expensive starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coldproof.adapters.common.score_noise import parse
from coldproof.adapters.common.weights_digest import WEIGHT_FILES
from coldproof.adapters.registry import ENGINES, default_engine, fault_of, started
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.weight_promise import POLICIES
from coldproof.harness.options import (
    COLD_ENGINE,
    DIAGNOSE_CHOICES,
    FINDINGS_CHOICES,
    INVALID_DURATION,
    ORACLES,
    PROFILES,
    PROPOSED_SUFFIX,
    SAME_ENGINE,
    Options,
    UsageError,
    parse_duration,
)
from coldproof.harness.schema.oracles import CLOSED_FORM, OTHER_ENGINE_PREFIX
from coldproof.harness.selection.select import check_choice
from coldproof.harness.selection.user_input import check_adapters, check_files, check_urls


def check_options(options: Options) -> None:
    """Raise UsageError for an option or a combination of options that cannot work."""
    check_urls(options)
    check_engine(options)
    check_oracle(options)
    check_values(options)
    check_weights(options)
    check_worker(options)
    check_fault(options)
    check_noise(options)
    check_adapters(options.adapters)
    check_files(options)
    check_proposals(options)


def check_engine(options: Options) -> None:
    """Raise UsageError for an unknown engine, or for options that it does not take."""
    check_choice("engine", options.engine, ENGINES)
    if options.attached and options.engine_url is None:
        raise UsageError(f"--engine {options.engine} requires --engine-url http://HOST:PORT")
    if options.engine_url is not None and not options.attached:
        raise UsageError(
            f"--engine {options.engine} starts its own server; remove --engine-url, or use --engine "
            f"{default_engine(attached=True).name}"
        )
    if options.attached and options.engine_args:
        raise UsageError(
            "--engine-args requires an engine that Coldproof starts; pass the flags to your own server instead"
        )
    if options.cold_url is not None and not options.attached:
        raise UsageError("--cold-url requires --engine-url; Coldproof starts the cold engine of its own engines")
    if options.prefill_apart and not options.attached:
        raise UsageError("--prefill-apart requires --engine-url; cell prefill-decode starts a pair of engines")
    if options.exclusive and not options.attached:
        raise UsageError("--exclusive requires --engine-url; an engine that Coldproof starts has no other clients")
    check_arguments = ENGINES[options.engine].check_arguments
    if check_arguments is not None:
        try:
            check_arguments(options.engine_args)
        except ValueError as problem:
            raise UsageError(f"--engine-args: {problem}") from problem


def check_values(options: Options) -> None:
    """Raise UsageError for an unknown profile or choice, an invalid duration, or a missing file."""
    check_choice("profile", options.profile, PROFILES)
    if options.budget is not None and not parse_duration(options.budget):
        raise UsageError(f"--budget {options.budget!r}: {INVALID_DURATION}")
    if options.calibration is not None and not options.calibration.is_file():
        raise UsageError(f"--calibration {options.calibration}: no such file; give the results.json of an earlier run")
    if options.calibration is not None and options.report_dir.resolve() in options.calibration.resolve().parents:
        raise UsageError(f"--calibration {options.calibration}: each run moves the report in its --report-dir; copy it")
    if options.shared_dir is not None and not options.shared_dir.is_dir():
        raise UsageError(f"--shared-dir {options.shared_dir}: no such folder; create it where the server can read it")
    check_choice("--diagnose value", options.diagnose, DIAGNOSE_CHOICES)
    check_choice("--findings value", options.findings, FINDINGS_CHOICES)


def check_weights(options: Options) -> None:
    """Raise UsageError for an unknown policy, and for folders without weights."""
    if options.weight_policy is not None:
        check_choice("--weight-policy value", options.weight_policy, POLICIES)
    for folder in options.weights:
        if not any(folder.glob(WEIGHT_FILES)):
            raise UsageError(f"--weights {folder}: no {WEIGHT_FILES} there; give another checkpoint of the model")


def check_worker(options: Options) -> None:
    """Raise UsageError for an unknown worker, or one that the engine does not have."""
    check_choice("worker", options.worker, dict.fromkeys(w for spec in ENGINES.values() for w in spec.workers))
    check_offered(options, f"--worker {options.worker}", lambda spec: options.worker in spec.workers)


def check_fault(options: Options) -> None:
    """Raise UsageError for an unknown fault, or an engine without that fault."""
    if options.fault is None:
        return
    check_offered(options, "--fault", lambda spec: spec.faults is not None)
    if fault_of(options.engine, options.fault) is None:
        raise UsageError(f"unknown fault {options.fault!r}; --fault list prints all faults")


def check_noise(options: Options) -> None:
    """Raise UsageError for invalid noise, or an engine without support for it."""
    if options.noise is None:
        return
    check_offered(options, "--noise", lambda spec: spec.noise is not None)
    if options.oracle == CLOSED_FORM:
        raise UsageError(
            "--noise changes scores, and --oracle closed-form does not model noise; remove --oracle closed-form"
        )
    try:
        parse(options.noise)
    except ValueError as problem:
        raise UsageError(f"--noise {problem}") from problem


def check_offered(options: Options, option: str, supports: Callable[[EngineSpec], bool]) -> None:
    """Raise UsageError for an option that the engine does not support. The message names the engines that do."""
    if supports(ENGINES[options.engine]):
        return
    if options.engine_url is not None:
        raise UsageError(f"{option} requires an engine that Coldproof starts; remove --engine-url")
    supporting = ", ".join(name for name, spec in ENGINES.items() if supports(spec))
    raise UsageError(f"--engine {options.engine} does not support {option}; engines that do: {supporting}")


def check_oracle(options: Options) -> None:
    """Raise UsageError for an unknown oracle, or one that does not work with this engine."""
    if options.other_engine is not None:
        check_other_engine(options, options.other_engine)
    elif options.oracle not in ORACLES:
        raise UsageError(
            f"unknown oracle {options.oracle!r}: choose one of {', '.join(ORACLES)} or {OTHER_ENGINE_PREFIX}NAME"
        )
    elif options.attached and options.oracle not in (SAME_ENGINE, *([COLD_ENGINE] if options.cold_url else [])):
        raise UsageError(
            f"--oracle {options.oracle} requires an engine that Coldproof starts; use --oracle same-engine"
            + (", or give --cold-url" if options.oracle == COLD_ENGINE else "")
        )
    elif options.oracle == CLOSED_FORM and not options.fingerprint:
        raise UsageError("--oracle closed-form requires --worker fingerprint")


def check_other_engine(options: Options, name: str) -> None:
    """Raise UsageError if the other engine cannot give the cold answers."""
    if name not in started():
        raise UsageError(
            f"--oracle {options.oracle}: Coldproof cannot start this engine; choose one of "
            f"{', '.join(OTHER_ENGINE_PREFIX + name for name in started())}"
        )
    if options.fingerprint:
        raise UsageError(
            f"--oracle {options.oracle} requires a model that both engines serve; --worker fingerprint has no model"
        )
    if options.attached and options.model is None:
        raise UsageError(
            f"--oracle {options.oracle} must serve the model of your server: add --model PATH, and --adapter PATH "
            "for each of your own adapters"
        )


def check_proposals(options: Options) -> None:
    """Raise UsageError if the run would overwrite a file, or remove the known-issues file that it uses."""
    if options.known_issues is not None and will_be_removed(options, options.known_issues):
        raise UsageError(
            f"--known-issues {options.known_issues}: each run moves the proposals (*{PROPOSED_SUFFIX}) out of "
            "its --report-dir; copy the entries that you accept into another file"
        )
    if options.proposals is None:
        return
    if options.proposals.suffix != ".toml":
        raise UsageError(
            f"--update-known-issues {options.proposals}: the file name must end in .toml; to write the proposals into "
            "--report-dir, give the option last and without a file"
        )
    folder = options.proposals.parent
    if not folder.is_dir() and folder.resolve() != options.report_dir.resolve():
        raise UsageError(f"--update-known-issues {options.proposals}: no such folder: {folder}")
    if options.proposals.exists() and not will_be_removed(options, options.proposals):
        raise UsageError(
            f"--update-known-issues {options.proposals}: file exists and will not be overwritten; choose another name"
        )


def will_be_removed(options: Options, path: Path) -> bool:
    """Return whether a run moves this file because it looks like an earlier run's proposals."""
    return path.name.endswith(PROPOSED_SUFFIX) and path.resolve().parent == options.report_dir.resolve()
