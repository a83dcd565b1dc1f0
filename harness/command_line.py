"""The command line: what it takes, and what pytest read of it as one frozen value."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.redact import redacted
from harness.engines.kinds import KINDS, attached
from harness.options import Options
from harness.proposals import proposed_file
from harness.selection import engine_of
from harness.session import split_arguments
from harness.shards import Shard, read_shard


def add_options(parser: pytest.Parser) -> None:
    """The command line of DESIGN.md."""
    parse = parser.parse

    def parse_joined(args: Sequence[str | os.PathLike[str]], namespace: argparse.Namespace | None = None) -> object:
        return parse(joined(args), namespace)

    parser.parse = parse_joined  # type: ignore[method-assign, assignment]
    group = parser.getgroup("coldproof", "prefix-cache conformance")
    group.addoption(
        "--engine",
        default=None,
        help="adapter: vllm (default), vllm-inproc (default with --worker fingerprint), endpoint (default with "
        f"--engine-url), {', '.join(KINDS)}; a replayed case has its own",
    )
    group.addoption("--engine-url", default=None, metavar="URL", help="attach to a running server")
    group.addoption("--engine-args", default="", help="more flags for a spawned engine, in one quoted string")
    group.addoption(
        "--worker", default="model", help="model (default), or fingerprint: the engine without a neural network"
    )
    group.addoption("--model", default=None, metavar="PATH", help="serve this model instead of the tiny one")
    group.addoption(
        "--adapter", action="append", default=[], metavar="PATH", help="a PEFT LoRA adapter; give two or more"
    )
    group.addoption(
        "--cells",
        default=None,
        metavar="NAME,...",
        help="engine configurations; 'list' prints them (default: the profile's)",
    )
    group.addoption("--profile", default="smoke", help="how much is generated: smoke, ci, release, qualify, or soak")
    group.addoption("--budget", default=None, metavar="TIME", help="time for drawing examples, such as 90s, 20m or 2h")
    group.addoption(
        "--oracle",
        default=None,
        help="cold-engine (default), fresh-engine, same-engine, closed-form, or engine:NAME for another engine",
    )
    group.addoption("--known-issues", default=None, metavar="FILE", help="waivers (TOML)")
    group.addoption(
        "--update-known-issues",
        nargs="?",
        const="",
        default=None,
        metavar="FILE",
        help="propose waivers for what this run finds, in a new file for you to review (default: in --report-dir)",
    )
    group.addoption(
        "--fault", default=None, metavar="NAME", help="start the engines with an injected bug; 'list' prints all"
    )
    group.addoption(
        "--noise",
        default=None,
        metavar="KIND:NATS",
        help="have the engines' scores waver, such as gaussian:0.05 or batch:0.05, to see what is still caught",
    )
    group.addoption(
        "--requirements",
        default=None,
        metavar="ID,...",
        help="test only these, such as LORA-3 or PRESS (all whose ids begin so)",
    )
    group.addoption(
        "--diagnose",
        default="new",
        help="rerun cases with one thing changed at a time: new (default; those that nothing waives), all or none",
    )
    group.addoption(
        "--calibration",
        default=None,
        metavar="RESULTS.json",
        help="take the comparison rule from an earlier run against the same engine",
    )
    group.addoption("--replay", default=None, metavar="CASE.json", help="run one saved case")
    group.addoption(
        "--examples-from",
        default=None,
        metavar="OWNER/REPO",
        help="try also what failed in that repository's CI: its artifact hypothesis-example-db (needs GITHUB_TOKEN)",
    )
    group.addoption(
        "--shard", default=None, metavar="I/N", help="run the Ith of N parts; `python -m reports merge` joins them"
    )
    group.addoption("--report-dir", default="reports/out", metavar="DIR", help="where reports go")
    group.addoption(
        "--shared-dir", default=None, metavar="DIR", help="folder that an attached server can read adapters from"
    )
    group.addoption("--allow-not-exercised", action="store_true", help="NOT EXERCISED does not fail the run")
    group.addoption("--allow-inconclusive", action="store_true", help="INCONCLUSIVE does not fail the run")


def joined(args: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Arguments with `--engine-args VALUE` as one word.

    argparse takes a value like --no-enable-prefix-caching, one word with a dash in front, for another option; and
    that is just what a value of --engine-args looks like.
    """
    words = list(args)
    for i, word in enumerate(words[:-1]):
        if word == "--engine-args":
            return [*words[:i], f"--engine-args={words[i + 1]}", *joined(words[i + 2 :])]
    return words


def read_options(config: pytest.Config, cells: tuple[str, ...]) -> Options:
    """Options from pytest's. Raises UsageError."""
    url, engine = config.getoption("--engine-url"), engine_of(config)
    path = {name: config.getoption(name) for name in ("--known-issues", "--replay", "--shared-dir", "--calibration")}
    known_issues = Path(path["--known-issues"]) if path["--known-issues"] else None
    report_dir = Path(config.getoption("--report-dir"))
    exact = config.getoption("--worker") == "fingerprint" and config.getoption("--noise") is None
    return Options(
        engine=engine,
        engine_url=url,
        engine_args=split_arguments(config.getoption("--engine-args")),
        model=config.getoption("--model"),
        adapters=tuple(Path(p) for p in config.getoption("--adapter")),
        cells=cells,
        profile=config.getoption("--profile"),
        budget=config.getoption("--budget"),
        oracle=config.getoption("--oracle") or default_oracle(engine, url, exact),
        known_issues=known_issues,
        proposals=proposed_file(config.getoption("--update-known-issues"), known_issues, report_dir),
        replay=Path(path["--replay"]) if path["--replay"] else None,
        report_dir=report_dir,
        shared_dir=Path(path["--shared-dir"]) if path["--shared-dir"] else None,
        diagnose=config.getoption("--diagnose"),
        calibration=Path(path["--calibration"]) if path["--calibration"] else None,
        allow_not_exercised=config.getoption("--allow-not-exercised"),
        allow_inconclusive=config.getoption("--allow-inconclusive"),
        command=redacted(shlex.join(["pytest", *config.invocation_params.args])),
        seed=str(config.option.hypothesis_seed),
        shard=str(shard_of(config) or ""),
        worker=config.getoption("--worker"),
        fault=config.getoption("--fault"),
        noise=config.getoption("--noise"),
    )


def shard_of(config: pytest.Config) -> Shard | None:
    """The part that this run is, where it is one. Raises UsageError."""
    given = config.getoption("--shard")
    return read_shard(given) if given is not None else None


def default_oracle(engine: str, url: str | None, exact: bool) -> str:
    """The best one that an engine allows. `exact`: its answers can be computed without it."""
    if attached(engine, url) is not None:
        return "same-engine"
    return "closed-form" if exact else "cold-engine"
