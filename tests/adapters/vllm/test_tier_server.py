"""A second tier with its own process next to an engine in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.ports import reserved_port

from coldproof.adapters.common.process import port_is_taken
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm.inproc import tier_server
from coldproof.adapters.vllm.inproc.tier_server import keeps_own_time, restarted_server, started_server, step_in_time
from coldproof.adapters.vllm.kv_tiers import TIERS, Tier, given_tier
from coldproof.adapters.vllm.server import VllmOptions


def options(tier: Tier | None, tmp_path: Path, *, caching: bool = True) -> VllmOptions:
    """Return the options of an engine with this tier."""
    return VllmOptions(model="m", log=tmp_path / "engine.log", tier=tier, tier_port=1, prefix_caching=caching)


def launching(*words: str) -> SimpleNamespace:
    """Return a stand-in for LMCache's launcher, whose server runs this Python code."""
    config = SimpleNamespace(command=lambda: [sys.executable, "-c", *words])
    return SimpleNamespace(MPServerAutostartConfig=SimpleNamespace(from_extra_config=lambda *_: config))


class SlowTier:
    """An engine whose one request waits for `answers` steps; each step takes a millisecond of its own clock."""

    def __init__(self, answers: int) -> None:
        self.answers, self.steps = answers, 0
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self))

    def step(self) -> list[str]:
        """Return no output."""
        self.steps += 1
        return []

    def get_request_counts(self) -> tuple[int, int]:
        """Return the numbers of running and waiting requests."""
        return (0, 1) if self.steps < self.answers else (1, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a clock that advances only while a thread sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(tier_server, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("answers", "taken"), [(1, 1), (4, 4), (1000, 11)])
def test_a_step_that_only_waits_takes_its_time(answers: int, taken: int) -> None:
    """It polls every millisecond until a request runs, or until the ten milliseconds of a step are over."""
    engine = SlowTier(answers)
    assert step_in_time(engine) == []
    assert engine.steps == taken


def test_connectors_with_their_own_time(tmp_path: Path) -> None:
    """LMCache and unknown connectors have their own time. Steps of the others repeat exactly."""
    assert keeps_own_time(TIERS["lmcache"])
    assert keeps_own_time(given_tier('{"kv_connector": "MyConnector"}'))
    assert not any(keeps_own_time(tier) for tier in (None, TIERS["offload"], TIERS["failing-late"]))


@pytest.mark.parametrize("tier", [None, TIERS["offload"]])
def test_no_server_without_lmcache(tier: Tier | None, tmp_path: Path) -> None:
    """The engine that answers cold has no server either."""
    assert started_server(options(tier, tmp_path)) is None
    assert started_server(options(TIERS["lmcache"], tmp_path, caching=False)) is None


def test_a_server_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has the end of the server's output."""
    fails: Any = launching("raise SystemExit('no room')")
    monkeypatch.setattr(tier_server.importlib, "import_module", lambda _: fails)
    monkeypatch.setattr(tier_server, "is_cpu_build", lambda: False)
    with pytest.raises(EngineStartError, match="no room"):
        started_server(options(TIERS["lmcache"], tmp_path))


@pytest.fixture
def held_port() -> Iterator[int]:
    """Yield a port that no other process is given."""
    with reserved_port() as port:
        yield port


def test_a_restarted_server_is_another_process_on_the_same_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held_port: int
) -> None:
    """The first server has ended before the second one starts."""
    port = held_port
    listening: Any = launching(
        f"import socket, time; kept = socket.create_server(('127.0.0.1', {port})); time.sleep(3600)"
    )
    monkeypatch.setattr(tier_server.importlib, "import_module", lambda _: listening)
    monkeypatch.setattr(tier_server, "DOWN_SECONDS", 0)
    monkeypatch.setattr(tier_server, "is_cpu_build", lambda: False)
    of_port = msgspec.structs.replace(options(TIERS["lmcache"], tmp_path), tier_port=port)
    first = started_server(of_port)
    assert first is not None
    (before,) = first.processes()
    following = restarted_server(of_port, first)
    try:
        assert not before.is_running()
        assert port_is_taken(port)
        assert following.processes() != [before]
    finally:
        following.stop()
