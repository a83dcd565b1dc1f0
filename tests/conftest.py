"""Hypothesis draws the same examples in every run of the tests: CI has to say something about the change in hand.

COLDPROOF_RANDOM_TESTS=1 looks for new ones.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """After the plugin has loaded the settings of a conformance run."""
    repeats = "COLDPROOF_RANDOM_TESTS" not in os.environ
    settings.register_profile("tests", settings.default, database=None, deadline=None, derandomize=repeats)
    settings.load_profile("tests")
