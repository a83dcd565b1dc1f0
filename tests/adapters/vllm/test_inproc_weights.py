"""After a weight update in process by any route, the engine answers as one started with these weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.histories import read_config
from support.nightly import with_samples

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.adapters.vllm.weight_support import STAYS
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import generate_adapter, tiny_model

CACHED = generated_files()
START, OTHER = tiny_model(CACHED), tiny_model(CACHED, seed=1)
ADAPTER = generate_adapter(CACHED, read_config(START), seed=1, rank=8)
PROMPT = tuple(range(40, 112))
pytestmark = pytest.mark.engine


def started(model: Path, log: Path) -> InprocEngine:
    """Return an engine with these weights and one adapter."""
    engine = vllm_inproc.start(VllmOptions(model=str(model), log=log, weight_transfer=True))
    engine.load_adapter("tenant", str(ADAPTER.folder.resolve()), in_place=False)
    return engine


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InprocEngine, InprocEngine]]:
    """Yield an engine that changes its weights, and one that was started with the other weights."""
    folder = tmp_path_factory.mktemp("weights")
    pair = started(START, folder / "changing.log"), started(OTHER, folder / "other.log")
    yield pair
    for engine in pair:
        engine.stop()


def answers(engine: InprocEngine) -> list[list[int]]:
    """Return cold answers of the base model and of the adapter."""
    assert engine.reset_cache()
    requests = [CompletionRequest(model=model, prompt=PROMPT, max_tokens=16) for model in (engine.base_model, "tenant")]
    return [[token.id for token in engine.complete(request).tokens] for request in requests]


@pytest.mark.parametrize("route", with_samples(WeightRoute, WeightRoute.PATH))
def test_a_route_loads_all_weights(engines: tuple[InprocEngine, InprocEngine], route: WeightRoute) -> None:
    """The base model changes, also below an adapter. The cache is kept, and going back restores the answers."""
    engine, other = engines
    before, checksum = answers(engine), engine.weights_checksum()
    engine.update_weights(str(OTHER), route)
    stale = engine.complete(CompletionRequest(model=engine.base_model, prompt=PROMPT, max_tokens=1))
    assert stale.cached_tokens == 64
    assert answers(engine) == answers(other) != before
    assert engine.weights_checksum() == other.weights_checksum()
    engine.update_weights(str(START), route)
    assert answers(engine) == before
    assert engine.weights_checksum() == checksum


def test_a_sleep_on_a_cpu_keeps_the_weights(engines: tuple[InprocEngine, InprocEngine]) -> None:
    """Therefore a sleep that discards them is absent, with the reason, although vLLM accepts the level."""
    engine, _ = engines
    support = engine.capabilities[Capability.SLEEP_DISCARDS]
    assert (support.present, support.evidence) == (False, STAYS)
    before, checksum = answers(engine), engine.weights_checksum()
    engine.sleep(2)
    engine.wake()
    assert engine.weights_checksum() == checksum
    assert answers(engine) == before
