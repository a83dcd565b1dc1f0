"""Keeps pytest's own report of a run's tests from the terminal: the run prints each verdict, its causes and its report.

A requirement that was not exercised is no error of a test, and pytest's text of a failure has nothing that the report
has not. With -v, pytest prints all of it. A failure to collect the tests is always printed.
"""

from __future__ import annotations

import pytest

from coldproof.harness.session.autoload import names_our_suites

QUIETEST = -2  # pytest prints no header, no count of tests, and no last line


def is_quiet(config: pytest.Config) -> bool:
    """Return whether this session runs our suites only, and was not asked for everything."""
    own = bool(config.args) and all(names_our_suites([word]) for word in config.args)
    return own and config.option.verbose <= 0 and not config.option.collectonly


def quieten(config: pytest.Config) -> None:
    """Leave out pytest's header and last line."""
    config.option.verbose = QUIETEST


def leave_out_test_reports(config: pytest.Config) -> None:
    """Leave out pytest's texts of failed tests, for tests that were collected without a failure.

    Where other processes run the tests, pytest's letters stay: nothing else shows that they go on.
    """
    config.option.no_summary = True
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(NoLetters())


class NoLetters:
    """A pytest plugin: tests have no letter, and are not counted."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Return no status for a test."""
        return ("", "", "") if isinstance(report, pytest.TestReport) else None
