"""`coldproof schema`: print the JSON Schema of results.json."""

from __future__ import annotations

import argparse
import json

import msgspec

from coldproof.harness.cli.io import write_stdout
from coldproof.reports.schema.results import Results

PURPOSE = "print the JSON Schema of results.json"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare nothing: the command has no arguments."""


def run(_options: argparse.Namespace) -> int:
    """Print the schema and return the exit code. Raises Refusal."""
    write_stdout(json.dumps(msgspec.json.schema(Results), indent=2, sort_keys=True) + "\n")
    return 0
