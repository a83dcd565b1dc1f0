"""One engine of each kind for all contract tests, and others without their cache or adapters where those are cheap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import subjects
from contract.rules import can
from contract.subjects import StartSettings, Subject, SubjectEngines

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.options import UsageError
from coldproof.harness.schema.exit_codes import EXIT_USAGE


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the run in one line, before anything is collected, if a requested engine is not installed."""
    try:
        requested_subjects(session.config)
    except UsageError as problem:
        pytest.exit(f"coldproof: {problem}", EXIT_USAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each contract test on each engine. Tests of one engine run together, so that it starts once."""
    if "engines" in metafunc.fixturenames:
        found = [pytest.param(one, id=one.name) for one in requested_subjects(metafunc.config)]
        metafunc.parametrize("engines", found, indirect=True, scope="session")


def requested_subjects(config: pytest.Config) -> tuple[Subject, ...]:
    """Return the engines that the options select. Raises UsageError."""
    return subjects.subjects(config.getoption("--engine"), config.getoption("--engine-url"))


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubjectEngines]:
    """Yield the engines of one kind, and stop them after the last test."""
    subject: Subject = request.param
    keeper = SubjectEngines(subject, tmp_path_factory.mktemp("engine"))
    yield keeper
    keeper.stop()


@pytest.fixture
def engine(engines: SubjectEngines) -> CheckedEngine:
    """Return the engine with its cache on."""
    return engines.engine(StartSettings())


@pytest.fixture
def weights(engines: SubjectEngines, tmp_path: Path) -> tuple[Path, Path]:
    """Return the folder of the weights that the engine was started with, and the folder of others."""
    return engines.subject.weights(tmp_path / "weights")


@pytest.fixture
def stopped(engines: SubjectEngines) -> CheckedEngine:
    """Return the engine after it was stopped."""
    ended = engines.engine(StartSettings(), or_ended=True)
    if can(ended, Capability.SPAWNABLE):
        ended.stop()
    return ended


@pytest.fixture
def uncached(engines: SubjectEngines) -> CheckedEngine:
    """Return an engine without its cache. If there is no spare engine it is the usual one, which then gets new
    salts.
    """
    return engines.engine(StartSettings(caching=False))


@pytest.fixture
def bare(engines: SubjectEngines) -> CheckedEngine:
    """Return an engine without its cache and without any adapter."""
    return engines.engine(StartSettings(caching=False, adapters=False))


@pytest.fixture(scope="session")
def contents() -> dict[str, AdapterFiles]:
    """Return the adapter contents that the engines know from their start."""
    return subjects.contents()


@pytest.fixture(scope="session")
def unknown_adapter() -> AdapterFiles:
    """Return an adapter content that the engines do not know from their start."""
    return subjects.unknown_adapter()
