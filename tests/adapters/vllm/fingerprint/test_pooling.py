"""Pooled vectors of the fingerprint worker are those of the closed form, for any cache state and chunk size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineStartError, RequestRefused
from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.vllm.fingerprint.digest import pooled_rows
from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.execution.oracles.closed_form import ClosedForm, computed, same
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.oracle import Answer, OracleError, Question

pytestmark = pytest.mark.engine
EMBED = ("--runner", "pooling", "--convert", "embed", "--max-num-batched-tokens", "24", "--max-num-seqs", "8")


def start(folder: Path, *arguments: str, prefix_caching: bool = True) -> InprocEngine:
    """Return an engine with this worker."""
    model, log = str(tiny_model(generated_files())), folder / "engine.log"
    options = VllmOptions(
        model=model, arguments=arguments, log=log, topology=FULL_ATTENTION, prefix_caching=prefix_caching
    )
    return vllm_inproc.start(options)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InprocEngine]:
    """Yield an embedding engine with small chunks."""
    made = start(tmp_path_factory.mktemp("pooling"), *EMBED)
    yield made
    made.stop()


def new_request(length: int, task: Task = Task.EMBED, *, name: str = "prompt", **more: Any) -> CompletionRequest:
    """Return a request whose prompt is a prefix of all longer prompts of the same name."""
    prompt = tuple(random.Random(name).choices(range(32, 127), k=length))
    return CompletionRequest(model="base", prompt=prompt, max_tokens=0, options=ResponseOptions(pooled=task), **more)


def expected(request: CompletionRequest) -> Any:
    """Return the vectors of the closed form."""
    return computed(Question(request.prompt, None, 0, request.options)).pooled


@pytest.mark.parametrize("task", [Task.EMBED, Task.TOKEN_EMBED])
def test_vectors_are_those_of_the_closed_form(engine: InprocEngine, task: Task) -> None:
    """Vectors agree cold and warm, at the ends of blocks and chunks, alone and in bursts."""
    hits = 0
    for length in (1, 23, 24, 25, 31, 32, 33, 64, 65, 129, 200, 200):
        request = new_request(length, task, name=task)
        answer = engine.complete(request)
        assert answer.pooled == expected(request)
        assert (answer.tokens, answer.finish_reason) == ((), None)
        hits += answer.cached_tokens or 0
    assert (hits > 0) is not task.of_each_token  # vLLM does not look up a prompt of which each token has a vector
    requests = [new_request(length, task, name=name) for length, name in ((90, "a"), (70, "b"), (100, task))]
    counts: list[tuple[int, int]] = []
    served = engine.serve([Arrival(one) for one in requests], lambda *one: counts.append(one), lambda: None)
    for one, request in zip(served, requests, strict=True):
        assert isinstance(one.result, Completion)
        assert one.result.pooled == expected(request)
    assert sorted(counts) == [(0, 1), (1, 1), (2, 1)]


def test_salts_separate_vectors(engine: InprocEngine) -> None:
    """Under another salt the vector is the same but is computed again."""
    plain, salted = new_request(100, name="salts"), new_request(100, name="salts", cache_salt="red")
    first, again, other = (engine.complete(one) for one in (plain, plain, salted))
    assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 96, 0)
    assert first.pooled == again.pooled == other.pooled


def test_a_pooling_engine_generates_nothing(engine: InprocEngine) -> None:
    """A pooling engine refuses to generate, and refuses tasks that it lacks."""
    present = {capability for capability, support in engine.capabilities.items() if support.present}
    assert present >= {Capability.POOLING, Capability.EMBEDDINGS, Capability.TOKEN_EMBEDDINGS, Capability.TOKEN_PROMPTS}
    assert not present & {Capability.TOKEN_OUTPUTS, Capability.CLASSIFICATIONS, Capability.CHAT, Capability.LOGPROBS}
    with pytest.raises(RequestRefused):
        engine.complete(msgspec.structs.replace(new_request(40), max_tokens=4, options=ResponseOptions()))
    with pytest.raises(RequestRefused):
        engine.complete(new_request(40, Task.CLASSIFY))
    assert engine.complete(new_request(40)).pooled == expected(new_request(40))


def test_a_wrong_slot_changes_the_vector(engine: InprocEngine) -> None:
    """The vector of the prompt that reads the slot changes."""
    engine.complete(new_request(70, name="poisoned"))
    assert engine._parts is not None
    engine._parts.core.model_executor.driver_worker.worker.poison()
    answer = engine.complete(new_request(70, name="poisoned"))
    assert answer.cached_tokens == 64
    assert answer.pooled != expected(new_request(70, name="poisoned"))
    assert engine.wrong_reads()
    assert engine.reset_cache()


def test_classes_are_other_values_than_embeddings() -> None:
    """Embeddings and classes differ, so that an engine which confuses the tasks is detected.

    Float32 represents all values exactly. A class has one value, as scores need.
    """
    states = np.arange(3, dtype=np.uint64)
    embedding, classes = (pooled_rows(states, task) for task in ("embed", "classify"))
    assert (embedding.shape, classes.shape) == ((3, 8), (3, 1))
    assert len({tuple(row) for row in embedding}) == len(set(classes[:, 0].tolist())) == 3
    assert (classes == np.floor(classes)).all()
    assert (embedding * 256 == np.floor(embedding * 256)).all()
    assert (pooled_rows(states[1:2], "embed") == embedding[1]).all()


@pytest.mark.parametrize(
    ("task", "further", "equal"),
    [
        (Task.EMBED, 0.0, True),
        (Task.EMBED, 1e-6, False),
        (Task.COSINE, 1e-6, True),
        (Task.COSINE, 1e-2, False),
    ],
)
def test_only_a_cosine_is_compared_up_to_rounding(task: Task, further: float, equal: bool) -> None:
    """All other vectors of the worker are exact."""
    question = Question((40, 41), None, 0, ResponseOptions(pooled=task))
    left, right = (Answer(tokens=(), pooled=((0.5 + more,),)) for more in (0.0, further))
    assert same(question, left, right) is equal
    assert not same(question, left, Answer(tokens=()))


def test_a_worker_that_pools_differently_is_refused(tmp_path: Path) -> None:
    """The closed form is compared with a cold engine first."""
    cold = start(tmp_path, *EMBED, prefix_caching=False)
    try:
        oracle = EngineOracle("cold-engine", cold, [], memo={})
        ClosedForm(oracle).verify([], (Task.EMBED, Task.TOKEN_EMBED))

        class Other(EngineOracle):
            def ask(self, question: Question) -> Answer:
                return msgspec.structs.replace(super().ask(question), pooled=((0.5,) * 8,))

        with pytest.raises(OracleError, match="disagree"):
            ClosedForm(Other("cold-engine", cold, [], memo={})).verify([], (Task.EMBED,))
    finally:
        cold.stop()


@pytest.mark.nightly
def test_a_model_that_pools_in_another_way_is_refused(tmp_path: Path) -> None:
    """The engine refuses it at its start, in one line."""
    with pytest.raises(EngineStartError, match="pools with --convert embed or classify only"):
        start(
            tmp_path,
            "--runner",
            "pooling",
            "--hf-overrides",
            '{"architectures":["Qwen2ForRewardModel"]}',
        )
