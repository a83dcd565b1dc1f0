"""The installed OpenVINO GenAI answers correctly, and a run repeats step by step."""

from __future__ import annotations

import importlib.util
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support.qwen2 import greedy
from support.start_options import start_options

from coldproof.adapters.openvino import engine as openvino
from coldproof.adapters.openvino.engine import OpenVinoEngine
from coldproof.adapters.openvino.setup import INT8, REGISTERED
from coldproof.adapters.openvino.spec import CELLS, FLOAT_ACTIVATIONS, ROOMY, TIGHT
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused, Served
from coldproof.adapters.protocol.requests import (
    Abort,
    Arrival,
    Completion,
    CompletionRequest,
    ResponseOptions,
    Stage,
)
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import AdapterFiles, generate_adapter, tiny_model

CACHED = generated_files()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("openvino_genai") is None, reason="openvino-genai is not installed"),
]
Start = Callable[..., OpenVinoEngine]


@pytest.fixture(scope="module")
def adapter(start: Start) -> AdapterFiles:
    """Return an adapter that changes every answer."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return generate_adapter(CACHED, config, seed=1, rank=8)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Yield a function that starts engines, which are stopped after the tests of this file."""
    engines: list[OpenVinoEngine] = []

    def start_one(*words: str, prefix_caching: bool = True, adapters: tuple[Path, ...] = ()) -> OpenVinoEngine:
        log = tmp_path_factory.mktemp("engine") / "engine.log"
        model = str(tiny_model(CACHED))
        made = start_options(CELLS[0], *words, model=model, caching=prefix_caching, adapters=adapters, log=log)
        engines.append(openvino.start(made))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.stop()


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Return a random prompt."""
    return tuple(random.Random(seed).choices(range(256), k=length))


def ask(
    tokens: tuple[int, ...], *, model: str = "base", count: int = 8, abort: Abort | None = None
) -> CompletionRequest:
    """Return a request."""
    return CompletionRequest(model=model, prompt=tokens, max_tokens=count, abort=abort)


def serve(engine: OpenVinoEngine, *requests: CompletionRequest) -> list[Served]:
    """Serve all requests at once."""
    return engine.serve([Arrival(request) for request in requests], lambda _number, _count: None, lambda: None)


def other_adapter() -> Path:
    """Return the folder of another adapter."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return generate_adapter(CACHED, config, seed=2, rank=16).folder


def test_the_model_is_the_one_that_was_written(start: Start, adapter: AdapterFiles) -> None:
    """With and without an adapter the answers are those of plain arithmetic in double precision."""
    engine = start(REGISTERED, prefix_caching=False, adapters=(adapter.folder,))
    engine.load_adapter("a", str(adapter.folder), in_place=False)
    model = tiny_model(CACHED)
    for name, folder in (("base", None), ("a", adapter.folder), ("base", None)):
        answer = engine.complete(ask(prompt(1, 40), model=name))
        assert [token.id for token in answer.tokens] == greedy(model, prompt(1, 40), 8, folder)


def test_hits_are_counted_with_one_token_a_step(start: Start) -> None:
    """A repeated prompt hits every whole block. With larger steps the true count lies between the reported bounds."""
    exact, chunked = start(ROOMY, "max_num_batched_tokens=1"), start(ROOMY, "max_num_batched_tokens=48")
    for expected in (0, 192):
        (one,), (other,) = serve(exact, ask(prompt(2, 200))), serve(chunked, ask(prompt(2, 200)))
        assert isinstance(one.result, Completion)
        assert isinstance(other.result, Completion)
        assert one.result.cached_tokens == expected
        assert other.result.cached_tokens is None
        low, high = other.result.cached_between or (math.inf, 0)
        assert low <= expected <= high


def test_blocks_have_the_reported_size(start: Start) -> None:
    """A prompt of two blocks and one token uses three blocks of the pool."""
    engine, seen = start("num_kv_blocks=30"), []
    engine.serve([Arrival(ask(prompt(3, 65), count=2))], lambda _n, _c: None, lambda: seen.append(engine.metrics()))
    assert seen[0].pool_usage == pytest.approx(3 / 30)
    assert engine.shape.block_size == 32
    assert engine.metrics().pool_usage == 0.0, "and gives them back"


def test_a_run_repeats_to_the_step(start: Start) -> None:
    """The same bursts on two engines give the same tokens, times, stages and counts."""
    crowd = [ask(prompt(seed, 120), count=40) for seed in range(5)]
    crowd.append(ask(prompt(9, 300), abort=Abort(after_ms=30)))
    runs = [[serve(engine, *crowd), engine.metrics()] for engine in (start(TIGHT), start(TIGHT))]
    assert runs[0] == runs[1]


def test_a_request_that_outgrows_the_pool_preempts_another(start: Start) -> None:
    """Two requests that fit together only at their start are both answered, and one is preempted."""
    engine = start("num_kv_blocks=8", "max_num_batched_tokens=256")
    served = serve(engine, *(ask(prompt(seed, 100), count=80) for seed in (1, 2)))
    assert [isinstance(one.result, Completion) for one in served] == [True, True]
    assert engine.metrics().preemptions


def test_the_stage_of_disconnected_requests(start: Start) -> None:
    """With one token per step the first request is in prefill after 30 ms, and the second one is still queued."""
    engine = start(ROOMY, "max_num_batched_tokens=1")
    served = serve(engine, *(ask(prompt(seed, 100), abort=Abort(after_ms=30)) for seed in (1, 2)))
    stages = [one.result.aborted for one in served if isinstance(one.result, Completion)]
    assert stages == [Stage.PREFILL, Stage.QUEUED]
    assert engine.metrics().running == 0


def test_a_prompt_that_can_never_fit_is_refused(start: Start) -> None:
    """The next request is served."""
    engine = start("num_kv_blocks=4")
    (refused,) = serve(engine, ask(prompt(1, 400)))
    assert isinstance(refused.result, RequestRefused)
    assert engine.complete(ask(prompt(1, 40))).finish_reason == "length"


def test_adapters_are_chosen_by_their_files(start: Start, adapter: AdapterFiles) -> None:
    """An unregistered folder, a second load under a name and an unknown name are refused."""
    engine = start(REGISTERED, prefix_caching=False, adapters=(adapter.folder,))
    with pytest.raises(RequestRefused, match="not registered"):
        engine.load_adapter("b", str(other_adapter()), in_place=False)
    engine.load_adapter("a", str(adapter.folder), in_place=False)
    with pytest.raises(RequestRefused, match="cannot replace an adapter"):
        engine.load_adapter("a", str(adapter.folder), in_place=True)
    same = ask(prompt(4, 40))
    served = serve(engine, same, msgspec.structs.replace(same, model="a"), msgspec.structs.replace(same, model="b"))
    first, second, third = (one.result for one in served)
    assert isinstance(first, Completion)
    assert isinstance(second, Completion)
    assert first.tokens != second.tokens
    assert served[1].sent >= served[0].finished, "one adapter at a time"
    assert isinstance(third, RequestRefused)


def test_a_crashed_engine_is_reported(start: Start) -> None:
    """When the worker process ends, a request gets its exit code, and the test process continues."""
    engine = start()
    engine.client.process.stop()
    with pytest.raises(EngineDied, match="exit code"):
        engine.complete(ask(prompt(1, 40)))
    assert not engine.alive()


def test_with_weights_in_eight_bits_decode_and_prefill_agree(start: Start) -> None:
    """With 8-bit activations the scores of decode and prefill differ by up to 0.04 nats, so the cell would not be
    exact.
    """
    (words,) = (cell.arguments for cell in CELLS if {INT8, FLOAT_ACTIVATIONS} <= set(cell.arguments))
    engine, apart = start(*words, prefix_caching=False), []
    for seed in range(20):
        tokens = prompt(seed, 60 + 5 * seed)
        answer = only(serve(engine, scored(tokens, 40, ResponseOptions(logprobs=True))))
        whole = (*tokens, *(token.id for token in answer.tokens))
        forced = only(serve(engine, scored(whole, 1, ResponseOptions(prompt_logprobs=True)))).prompt_logprobs
        assert forced is not None
        for token, score in zip(answer.tokens, forced[len(tokens) :], strict=True):
            assert token.logprob is not None
            assert score is not None
            apart.append(abs(token.logprob - score))
    assert max(apart) < 1e-3


def scored(tokens: tuple[int, ...], count: int, response_options: ResponseOptions) -> CompletionRequest:
    """Return a request for scores."""
    return msgspec.structs.replace(ask(tokens, count=count), options=response_options)


def only(served: list[Served]) -> Completion:
    """Return the only answer."""
    (one,) = served
    assert isinstance(one.result, Completion)
    return one.result
