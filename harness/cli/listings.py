"""`coldproof cells`, `faults` and `schema` print the engine configurations, the faults and the schema of results."""

from __future__ import annotations

import argparse
import json

import msgspec

from coldproof.adapters.registry import fault_listing
from coldproof.harness.cli.io import Subcommand, argument, write_stdout
from coldproof.harness.schema.results import Results
from coldproof.harness.selection.select import format_cells


def print_cells(options: argparse.Namespace) -> int:
    """Print the cells and return the exit code."""
    write_stdout(format_cells(options.engine) + "\n")
    return 0


def print_faults(_options: argparse.Namespace) -> int:
    """Print the faults and return the exit code."""
    write_stdout(fault_listing() + "\n")
    return 0


def print_schema(_options: argparse.Namespace) -> int:
    """Print the JSON Schema and return the exit code."""
    write_stdout(json.dumps(msgspec.json.schema(Results), indent=2, sort_keys=True) + "\n")
    return 0


CELLS = Subcommand(
    "print the engine configurations that --cells takes",
    print_cells,
    argument("--engine", metavar="NAME", help="only the configurations of this engine"),
)
FAULTS = Subcommand("print the faults that --fault injects", print_faults)
SCHEMA = Subcommand("print the JSON Schema of results.json", print_schema)
