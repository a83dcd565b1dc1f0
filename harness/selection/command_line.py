"""Adds the options of a run to pytest's, and reads them from its configuration into one frozen value."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.registry import attached
from coldproof.harness.case.known_issue_proposals import proposed_file
from coldproof.harness.case.known_issues import named_issues
from coldproof.harness.case.repairs import chosen_repairs
from coldproof.harness.option_table import OPTIONS, REPORT
from coldproof.harness.option_words import ALLOW_NOT_EXERCISED, USUAL, join_values
from coldproof.harness.options import COLD_ENGINE, FIRST, SAME_ENGINE, Options, UsageError
from coldproof.harness.schema.oracles import CLOSED_FORM
from coldproof.harness.selection.layers import joined_layers, layers_of
from coldproof.harness.selection.select import engine_name, is_fingerprint
from coldproof.harness.selection.shards import Shard, read_shard
from coldproof.reports.files.own_folder import REPLAY, SEAL

# Options that are fields under the same name, as they are given or as paths.
AS_GIVEN = (
    *("model", "profile", "budget", "diagnose", "allow_inconclusive", "worker", "guided", "weight_policy", "noise"),
    *("fault", "prefill_apart", "exclusive"),
)
PATHS = ("replay", "prove", "json", "shared_dir", "calibration")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of a run to pytest's. Values are joined to `--engine-args` and `--allow-not-exercised`."""
    group = parser.getgroup("coldproof", "prefix-cache conformance")
    for name, settings in OPTIONS.items():
        group.addoption(name, **settings)
    parse = parser.parse

    def parse_joined(args: Sequence[str | os.PathLike[str]], namespace: argparse.Namespace | None = None) -> object:
        return parse(join_values(args), namespace)

    parser.parse = parse_joined  # type: ignore[method-assign, assignment]


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
    issues, report_dir = config.getoption("--known-issues"), report_folder(config)
    known_issues = named_issues(issues) if issues else None
    cache_dir, cold_url = optional_path(config, "--cache-dir"), config.getoption("--cold-url")
    exact = is_fingerprint(config) and config.getoption("--noise") is None
    given: dict[str, Any] = {name: config.getoption(name) for name in AS_GIVEN}
    given |= {name: optional_path(config, name) for name in PATHS}
    return Options(
        engine=engine,
        engine_url=url,
        cold_url=cold_url,
        engine_args=split_arguments(config.getoption("--engine-args")),
        adapters=tuple(map(Path, config.getoption("--adapter"))),
        weights=tuple(map(Path, config.getoption("--weights"))),
        cells=cells,
        layers=layers_of(config),
        oracle=config.getoption("--oracle") or default_oracle(engine, url, exact, cold_url=cold_url),
        known_issues=known_issues,
        findings=config.getoption("--findings") or FIRST,
        proposals=proposed_file(config.getoption("--update-known-issues"), known_issues, report_dir),
        report_dir=report_dir,
        cache_dir=cache_dir.absolute() if cache_dir else None,
        command=redacted(shlex.join(["pytest", *config.invocation_params.args])),
        seed=str(config.option.hypothesis_seed),
        shard=str(shard_of(config) or ""),
        repairs=chosen_repairs(engine, config.getoption("--repairs")),
        joined=joined_layers(config),
        allow_not_exercised=config.getoption(ALLOW_NOT_EXERCISED) is not None,
        least_shown=read_floor(config.getoption(ALLOW_NOT_EXERCISED)),
        **given,
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
