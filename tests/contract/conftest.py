"""One engine of each kind for all contract tests, and a second one without its cache where that costs little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import subjects
from contract.rules import can
from contract.subjects import Held, Subject, Wanted

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.options import UsageError
from coldproof.reports.schema.exit_codes import EXIT_USAGE


def pytest_sessionstart(session: pytest.Session) -> None:
    """What was asked for and is not here ends the run in one line, before anything is collected."""
    try:
        asked_for(session.config)
    except UsageError as problem:
        pytest.exit(f"coldproof: {problem}", EXIT_USAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each contract test on each engine; those of one engine run together, so that it starts once."""
    if "held" in metafunc.fixturenames:
        found = [pytest.param(one, id=one.name) for one in asked_for(metafunc.config)]
        metafunc.parametrize("held", found, indirect=True, scope="session")


def asked_for(config: pytest.Config) -> tuple[Subject, ...]:
    """The engines that the options mean. Raises UsageError."""
    return subjects.subjects(config.getoption("--engine"), config.getoption("--engine-url"))


@pytest.fixture(scope="session")
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """The engines of one kind."""
    subject: Subject = request.param
    keeper = Held(subject, tmp_path_factory.mktemp("engine"))
    yield keeper
    keeper.stop()


@pytest.fixture
def engine(held: Held) -> CheckedEngine:
    """The engine, its cache on."""
    return held.engine(Wanted())


@pytest.fixture
def weights(held: Held, tmp_path: Path) -> tuple[Path, Path]:
    """Where the weights are that the engine was started with, and others."""
    return held.subject.weights(tmp_path / "weights")


@pytest.fixture
def stopped(held: Held) -> CheckedEngine:
    """The engine after its end."""
    ended = held.engine(Wanted(), dead_too=True)
    if can(ended, Capability.SPAWNABLE):
        ended.stop()
    return ended


@pytest.fixture
def uncached(held: Held) -> CheckedEngine:
    """The same without its cache; where there is none to spare, the same engine, which is asked under salts."""
    return held.engine(Wanted(caching=False))


@pytest.fixture
def bare(held: Held) -> CheckedEngine:
    """The same without its cache and without any adapter."""
    return held.engine(Wanted(caching=False, adapters=False))


@pytest.fixture(scope="session")
def contents() -> dict[str, AdapterFiles]:
    """Adapter contents that the engines were told of at their start."""
    return subjects.contents()


@pytest.fixture(scope="session")
def stranger() -> AdapterFiles:
    """An adapter content that they were not told of."""
    return subjects.stranger()
