"""Hypothesis draws the same examples in every run of the push set, which has to report on the current change.

COLDPROOF_TEST_SEED=random, as `tox run -e nightly` sets it, draws new ones; the seed is printed, and
COLDPROOF_TEST_SEED=NUMBER draws them again.
"""

from __future__ import annotations

import gc
import os
import random

import pytest
from hypothesis import core, settings
from support.shared_fork_server import share_fork_server, use_shared_fork_server
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SEED = "COLDPROOF_TEST_SEED"
CONTRACT = "tests/contract"


class ContractAndFiles(LoadFileScheduling):
    """Gives one worker all tests of the contract, so that each engine starts once for them, and the others by file."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what a test is given to a worker with."""
        return CONTRACT if nodeid.startswith(f"{CONTRACT}/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ContractAndFiles | None:
    """Use that for --dist loadfile, in the order of the collection."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would begin with the files that have most tests, not the slowest ones
    return ContractAndFiles(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share one process that has the engines imported with all workers, before they are started."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        share_fork_server(session)
    else:
        use_shared_fork_server()
        gc.disable()  # until all tests are collected: nothing of that is garbage


def pytest_collection_finish() -> None:
    """Collect garbage among what tests make, and not among all that was imported: a million objects take seconds."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Load the settings of the tests, after the plugin has loaded those of a conformance run."""
    if os.environ.get(SEED) == "random":
        os.environ[SEED] = str(random.SystemRandom().randrange(2**32))  # the workers of pytest-xdist inherit it
    seed = int(os.environ[SEED]) if SEED in os.environ else None
    core.global_force_seed = seed  # what --hypothesis-seed sets
    settings.register_profile("tests", settings.default, database=None, deadline=None, derandomize=seed is None)
    settings.load_profile("tests")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed of new examples, whatever the verbosity."""
    if SEED in os.environ:
        terminalreporter.write_line(f"The examples of this run were drawn with {SEED}={os.environ[SEED]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the tests with the marker nightly. An expression of -m would apply to conformance
    runs, too.
    """
    parser.addoption("--nightly", action="store_true", help="run the tests with the marker nightly as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the nightly tests out, and begin with tests on real engines: they take longest, so none is left to one
    worker at the end.
    """
    nightly = {item for item in items if item.get_closest_marker("nightly")}
    if nightly and not config.getoption("nightly"):
        config.hook.pytest_deselected(items=[item for item in items if item in nightly])
        items[:] = [item for item in items if item not in nightly]
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)
