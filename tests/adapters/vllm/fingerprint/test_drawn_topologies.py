"""Any groups of layers that vLLM accepts: answers equal the closed form, repeated prompts hit, and no read is wrong."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from hypothesis import strategies as st

from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.adapters.vllm.fingerprint.topology import LayerKind, Layers, Topology
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.execution.oracles.closed_form import computed
from coldproof.harness.judgement.oracle import Question

CACHED = generated_files()
pytestmark = pytest.mark.engine
NAMES = itertools.count()
LEAST_STARTED = 6


@st.composite
def layers(draw: st.DrawFn) -> Layers:
    """Draw one row: full or sliding-window attention in blocks of 4 to 256 tokens, or a state."""
    kind = draw(st.sampled_from(list(LayerKind)))
    window = draw(st.sampled_from((16, 64, 100, 128))) if kind in (LayerKind.WINDOW, LayerKind.WINDOW_MLA) else None
    block = None if kind is LayerKind.STATE else draw(st.sampled_from((None, 4, 8, 16, 64, 128, 256)))
    return Layers(kind=kind, layers=draw(st.integers(1, 4)), block=block, window=window)


def copies_fail(topology: Topology) -> bool:
    """Return whether vLLM 0.32.0 copies parts of blocks wrongly. See GROUP-1 in adapters/vllm/known_issues.toml."""
    return any(row.kind is LayerKind.STATE for row in topology) and any(row.block is not None for row in topology)


@pytest.mark.nightly
def test_any_topology_that_vllm_accepts(tmp_path: Path) -> None:
    """vLLM refuses unsupported topologies at its start, and accepts most of the drawn ones."""
    started: list[Topology] = []

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # an engine for each example: too slow to minimise
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    @given(topology=st.lists(layers(), min_size=2, max_size=5).map(tuple).filter(lambda rows: not copies_fail(rows)))
    def check(topology: Topology) -> None:
        log = tmp_path / f"engine-{next(NAMES)}.log"
        options = VllmOptions(
            model=str(tiny_model(CACHED)), arguments=("--max-num-batched-tokens", "96"), log=log, topology=topology
        )
        try:
            engine = vllm_inproc.start(options)
        except EngineStartError:
            event("refused")
            reject()
        started.append(topology)
        event(f"{len(engine.shape.groups)} groups")
        try:
            answers_by_the_closed_form(engine)
        finally:
            engine.stop()

    check()
    assert len(started) >= LEAST_STARTED


def answers_by_the_closed_form(engine: InprocEngine) -> None:
    """Send prompts A, A, B, A, each in three lengths side by side, and check answers, hits and reads."""
    prompts = [tuple(random.Random(name).choices(range(32, 127), k=600)) for name in "ab"]
    for number in (0, 0, 1, 0):
        ask = [CompletionRequest(model="base", prompt=prompts[number][:n], max_tokens=40) for n in (600, 333, 64)]
        served = engine.serve([Arrival(one) for one in ask], lambda *_: None, lambda: None)
        for one, request in zip(served, ask, strict=True):
            assert isinstance(one.result, Completion)
            assert tuple(t.id for t in one.result.tokens) == computed(Question(request.prompt, None, 40)).ids
    assert engine.wrong_reads() == ()
    assert (engine.metrics().hit_tokens or 0) > 0
