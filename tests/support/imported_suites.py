"""What forked runs have in common besides their engines: the suites, the findings, and the caches of Hypothesis."""

from __future__ import annotations

import importlib
import pkgutil

from hypothesis import given, settings
from hypothesis import strategies as st

from coldproof import suites
from coldproof.harness.case.finding_records import read_records


def import_suites() -> None:
    """Import the suites, and draw examples: at the first random one, Hypothesis reads the source of all modules."""
    for one in pkgutil.iter_modules(suites.__path__, f"{suites.__name__}."):
        importlib.import_module(one.name)
    read_records()
    settings(database=None, max_examples=10)(given(st.integers())(lambda _: None))()
