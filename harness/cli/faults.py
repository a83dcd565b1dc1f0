"""`coldproof faults`: print the faults that can be injected into an engine."""

from __future__ import annotations

import argparse

from coldproof.adapters.registry import fault_listing
from coldproof.harness.cli.io import write_stdout

PURPOSE = "print the faults that --fault injects"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare nothing: the command has no arguments."""


def run(_options: argparse.Namespace) -> int:
    """Print the faults and return the exit code. Raises Refusal."""
    write_stdout(fault_listing() + "\n")
    return 0
