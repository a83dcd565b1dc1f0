"""Declares the options of a run, and reads them from pytest's configuration into one frozen value."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.registry import ENGINES, attached
from coldproof.adapters.spec.engine_spec import ATTACH, EngineSpec
from coldproof.harness.case.known_issue_proposals import proposed_file
from coldproof.harness.case.repairs import chosen_repairs
from coldproof.harness.options import CLOSED_FORM, COLD_ENGINE, FIRST, SAME_ENGINE, Options, UsageError
from coldproof.harness.selection.layers import joined_layers, layers_of
from coldproof.harness.selection.select import engine_name, is_fingerprint
from coldproof.harness.selection.shards import Shard, read_shard
from coldproof.reports.assemble.assemble import LEAST_SHOWN
from coldproof.reports.files.own_folder import REPLAY, SEAL

ALLOW_NOT_EXERCISED, USUAL = "--allow-not-exercised", "default"
REPORT = "coldproof-report"


def add_options(parser: pytest.Parser) -> None:
    """Add the options of a run to pytest's. Values are joined to `--engine-args` and `--allow-not-exercised`."""
    declare_options(parser.getgroup("coldproof", "prefix-cache conformance").addoption)
    parse = parser.parse

    def parse_joined(args: Sequence[str | os.PathLike[str]], namespace: argparse.Namespace | None = None) -> object:
        return parse(join_values(args), namespace)

    parser.parse = parse_joined  # type: ignore[method-assign, assignment]


def declare_options(add: Callable[..., object]) -> None:
    """Declare every option of a run with `add`: `addoption` of pytest, or `add_argument` of argparse."""

    def option(name: str, metavar: str, text: str, **settings: object) -> None:
        add(name, metavar=metavar, help=text, **settings)

    option(
        "--engine",
        "NAME",
        f"{', '.join(map(engine_help, ENGINES.values()))}; a replayed case uses the engine of the case",
    )
    option("--engine-url", "URL", "attach to a running server")
    option(
        "--cold-url",
        "URL",
        "with --engine-url: a second server of the same kind and model with prefix caching off, for cold answers",
    )
    add(
        "--prefill-apart",
        action="store_true",
        help="with --engine-url: the server is a router; one engine computes prompts and another one decodes",
    )
    option("--engine-args", "FLAGS", "more flags for an engine that Coldproof starts, as one string", default="")
    option("--worker", "NAME", "model (default), or fingerprint: vLLM without a neural network", default="model")
    option(
        "--layers",
        "NAME,...",
        "ways to run the requirements: exact (fingerprint worker in process), model (in process), server (over HTTP); "
        "default: all that the default engine has, or the one of --engine and --worker",
    )
    add("--joined", default="", help=argparse.SUPPRESS)  # all layers of the run of which this process is one
    option("--model", "PATH", "serve this model instead of the generated one")
    option(
        "--adapter",
        "PATH",
        "LoRA adapter (PEFT); give at least two, with different contents",
        action="append",
        default=[],
    )
    option(
        "--weights",
        "PATH",
        "another checkpoint of the model, of the same configuration, for requirements about updates of the weights",
        action="append",
        default=[],
    )
    option(
        "--weight-policy",
        "NAME",
        "what the engine must promise after an update of its weights: invalidates, on-reset or in-salt (default: what "
        "it documents)",
    )
    option("--cells", "NAME,...", "engine configurations; 'list' prints all (default: those of the profile)")
    option(
        "--profile",
        "NAME",
        "amount of testing: smoke (default), ci, release, qualify, soak or hardware",
        default="smoke",
    )
    option("--budget", "TIME", "time for drawing examples, for example 90s, 20m or 2h")
    option(
        "--oracle",
        "NAME",
        "source of cold answers: cold-engine, fresh-engine, same-engine, closed-form, or engine:NAME for another "
        "engine (default: the best one that the engine supports)",
    )
    option("--known-issues", "FILE", "TOML file with known issues, which waive violations")
    option(
        "--update-known-issues",
        "FILE",
        "propose known issues for the violations of this run, in a new file for review (default: in --report-dir)",
        nargs="?",
        const="",
    )
    option("--fault", "NAME", "inject a fault into the engines; 'list' prints all")
    option("--repairs", "NAME,...", "plant repairs of these findings into the engines, or of all that are 'known'")
    option("--noise", "KIND:NATS", "add noise to the scores of the engines, for example gaussian:0.05 or batch:0.05")
    option("--requirements", "ID,...", "test only these: ids such as LORA-3, or areas such as PRESS")
    option(
        "--diagnose",
        "WHICH",
        "run controls of cases, with one thing changed at a time: new (default: cases without a known issue), all "
        "or none",
        default="new",
    )
    option(
        "--findings",
        "WHICH",
        "known findings of the engine (coldproof findings): replay them first, before anything is drawn (default), "
        "only them, or off",
    )
    option("--calibration", "RESULTS.json", "use the comparison rule of an earlier run against the same engine")
    option("--replay", "CASE.json", "run one saved case again")
    option(
        "--examples-from",
        "OWNER/REPO",
        "first try the examples that failed in the CI of this GitHub repository (needs GITHUB_TOKEN)",
    )
    option("--shard", "I/N", "run part I of N; `coldproof merge` merges the reports")
    option(
        "--report-dir",
        "DIR",
        f"folder for the report: new, empty or with a report (default: {REPORT}; for a replay, beside its case)",
    )
    option("--json", "FILE", "write results.json to this file too, and print one line for each requirement at the end")
    option(
        "--cache-dir",
        "DIR",
        "folder for generated models and adapters (default: .coldproof in a checkout, else the user's cache)",
    )
    option("--shared-dir", "DIR", "folder for adapter files that an attached server can read")
    add(
        "--guided",
        action="store_true",
        help="also vary the drawn workloads, above all those that reached rare states of the engine, in this run or in "
        "an earlier one",
    )
    option(
        ALLOW_NOT_EXERCISED,
        "N",
        "do not fail the run for NOT EXERCISED if at least N requirements conform or are known issues; write =N "
        f"(default: {LEAST_SHOWN}, or all that the engine supports if these are fewer)",
        nargs="?",
        const=USUAL,
    )
    add("--allow-inconclusive", action="store_true", help="do not fail the run for INCONCLUSIVE")


def engine_help(spec: EngineSpec) -> str:
    """Return an engine's name, and the condition under which it is the default."""
    if not spec.default_for:
        return spec.name
    if spec is next(iter(ENGINES.values())):
        return f"{spec.name} (default)"
    return f"{spec.name} (default with {ATTACH if ATTACH in spec.default_for else f'--worker {spec.default_for[0]}'})"


def join_values(args: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Return the arguments with each `--engine-args VALUE` joined into one word with an equals sign.

    argparse would read a VALUE such as --no-enable-prefix-caching as another option. `--allow-not-exercised` takes its
    number only with an equals sign: argparse would take the word behind it, such as the path of a test.
    """
    joined: list[str | os.PathLike[str]] = []
    words = iter(args)
    for word in words:
        if word == "--engine-args" and (value := next(words, None)) is not None:
            word = f"{word}={value}"
        joined.append(f"{word}={USUAL}" if word == ALLOW_NOT_EXERCISED else word)
    return joined


def read_floor(text: str | None) -> int | None:
    """Return the number in --allow-not-exercised; None without one. Raises UsageError."""
    if text in (None, USUAL):
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"{ALLOW_NOT_EXERCISED}={text}: give the number of requirements to show, at least 1")
    return int(text)


def read_options(config: pytest.Config, cells: tuple[str, ...]) -> Options:
    """Return the options of the run from pytest's. `cells`: names of the chosen cells. Raises UsageError."""
    url, engine = config.getoption("--engine-url"), engine_name(config)
    known_issues, report_dir = optional_path(config, "--known-issues"), report_folder(config)
    cache_dir = optional_path(config, "--cache-dir")
    exact = is_fingerprint(config) and config.getoption("--noise") is None
    plain = ("model", "profile", "budget", "diagnose", "allow_inconclusive", "worker", "guided")
    return Options(
        engine=engine,
        engine_url=url,
        cold_url=config.getoption("--cold-url"),
        engine_args=split_arguments(config.getoption("--engine-args")),
        adapters=tuple(Path(p) for p in config.getoption("--adapter")),
        weights=tuple(Path(p) for p in config.getoption("--weights")),
        cells=cells,
        layers=layers_of(config),
        oracle=config.getoption("--oracle")
        or default_oracle(engine, url, exact, cold_url=config.getoption("--cold-url")),
        known_issues=known_issues,
        findings=config.getoption("--findings") or FIRST,
        proposals=proposed_file(config.getoption("--update-known-issues"), known_issues, report_dir),
        replay=optional_path(config, "--replay"),
        report_dir=report_dir,
        json=optional_path(config, "--json"),
        shared_dir=optional_path(config, "--shared-dir"),
        cache_dir=cache_dir.absolute() if cache_dir else None,
        calibration=optional_path(config, "--calibration"),
        command=redacted(shlex.join(["pytest", *config.invocation_params.args])),
        seed=str(config.option.hypothesis_seed),
        shard=str(shard_of(config) or ""),
        weight_policy=config.getoption("--weight-policy"),
        noise=config.getoption("--noise"),
        fault=config.getoption("--fault"),
        repairs=chosen_repairs(engine, config.getoption("--repairs")),
        prefill_apart=config.getoption("--prefill-apart"),
        joined=joined_layers(config),
        allow_not_exercised=config.getoption(ALLOW_NOT_EXERCISED) is not None,
        least_shown=read_floor(config.getoption(ALLOW_NOT_EXERCISED)),
        **{name: config.getoption(name) for name in plain},
    )


def report_folder(config: pytest.Config) -> Path:
    """Return the folder of the report. That of a replay is beside its case, so that the case's own report stays.

    Of a bundle, which must stay as it is, it is beside the bundle.
    """
    given, case = optional_path(config, "--report-dir"), optional_path(config, "--replay")
    if given is not None or case is None:
        return given or Path(REPORT)
    bundle = case.absolute().parent.parent
    return (bundle if (bundle / SEAL).is_file() else case).with_name(f"{case.stem}{REPLAY}")


def optional_path(config: pytest.Config, option: str) -> Path | None:
    """Return the path in an option; None without the option."""
    text = config.getoption(option)
    return Path(text) if text else None


def shard_of(config: pytest.Config) -> Shard | None:
    """Return the shard in --shard; None without the option. Raises UsageError."""
    text = config.getoption("--shard")
    return read_shard(text) if text is not None else None


def default_oracle(engine: str, url: str | None, exact: bool, *, cold_url: str | None = None) -> str:
    """Return the best oracle that an engine supports. `exact`: its answers can be computed without running it."""
    if attached(engine, url) is not None:
        return SAME_ENGINE if cold_url is None else COLD_ENGINE
    return CLOSED_FORM if exact else COLD_ENGINE


def split_arguments(text: str) -> tuple[str, ...]:
    """Split --engine-args as a shell would. Raises UsageError for an unclosed quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--engine-args {text!r}: {problem}") from problem
