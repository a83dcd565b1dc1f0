"""`coldproof connector MODULE:CLASS`: tests a KV connector class of a user as the engine's second tier.

The exit codes are those of a run. See docs/connectors.md.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import msgspec

from coldproof.adapters.protocol.cell_traits import meet
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import ConnectorRuns
from coldproof.harness.cli.io import Parser, Subcommand, argument
from coldproof.harness.cli.run import run_options, run_pytest, words_for_pytest
from coldproof.harness.option_table import option_value, option_words
from coldproof.harness.options import UsageError
from coldproof.harness.release.requirements.suites import declared

DEFAULT_BUDGET = "2m"


def run_connector(options: argparse.Namespace) -> int:
    """Replace this process by the run. Raises UsageError."""
    own, words = own_parser().parse_known_args(options.words)
    try:
        tested = connector_runs()(
            options.connector,
            connector_options(own.config),
            load_failures=own.load_failures,
            events=own.events,
            engine_args=own.engine_args,
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    chosen = option_words(
        engine=tested.engine,
        worker=tested.worker,
        cells=tested.cells,
        engine_args=tested.engine_args,
        requirements=tuple(name for name, one in declared().items() if meet(tested.traits, one.suits)),
        budget=DEFAULT_BUDGET if option_value("--budget", words) is None else None,
    )
    return run_pytest([*chosen, *words])


def own_parser() -> Parser:
    """Return the parser of the options that are not pytest's."""
    parser = Parser(prog="coldproof connector", add_help=False, allow_abbrev=False)
    for declare in OPTIONS:
        declare(parser)
    return parser


def connector_runs() -> ConnectorRuns:
    """Return how the engine whose connectors users can write is run. Raises UsageError if there is none."""
    found = next((spec.connector for spec in ENGINES.values() if spec.connector is not None), None)
    if found is None:
        raise UsageError("no engine here has connectors that users can write")
    return found


def connector_options(text: str) -> dict[str, Any]:
    """Return the connector's own options. Raises UsageError if they are no JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as problem:
        raise UsageError(
            f"--config: expected a JSON object, for example '{{\"capacity\": 100}}' ({problem})"
        ) from problem


OPTIONS = (
    argument(
        "--config",
        default="{}",
        metavar="JSON",
        help="the connector's options (kv_connector_extra_config); {folder} becomes a folder of one engine",
    ),
    argument(
        "--load-failures",
        choices=("recompute", "fail"),
        help="test loads that fail too: their requests are recomputed, or end with an error (default: no load fails)",
    ),
    argument("--events", action="store_true", help="the connector publishes KV events: test these too"),
    argument("--engine-args", metavar='"..."', default="", help="more flags for the engine"),
)
CONNECTOR = Subcommand(
    "test a KV connector class as a second tier",
    run_connector,
    argument("connector", metavar="MODULE:CLASS", help="the class, or the name of a connector of the engine"),
    *OPTIONS[:-1],  # the last one is an option of a run too
    functools.partial(words_for_pytest, usage="MODULE:CLASS [OPTION ...]"),
    described=[run_options],
)
