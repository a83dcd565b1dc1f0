"""Fixtures for the tests of adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fake_server import FakeServer, serving

from coldproof.adapters.common.redact import KEY_VARIABLE


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's own API key from the environment."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    """Run a stand-in server with the behaviour that the test is parametrized with."""
    with serving(getattr(request, "param", None)) as server:
        yield server
