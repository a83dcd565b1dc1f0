"""Weight updates of a live Transformers model.

With and without adapters its answers are those of an engine started with the new weights. The prefix cache survives,
as documented.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.histories import read_config
from support.start_options import start_options

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.transformers import engine as transformers
from coldproof.adapters.transformers.engine import TransformersEngine
from coldproof.adapters.transformers.spec import CELLS
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import generate_adapter, tiny_model

CACHED = generated_files()
MISSING = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")
PROMPT = tuple(32 + (i * i * 7) % 95 for i in range(70))
Start = Callable[[Path], TransformersEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts engines with the weights of a folder."""
    engines: list[TransformersEngine] = []

    def start_one(model: Path) -> TransformersEngine:
        log = tmp_path / f"engine-{len(engines)}.log"
        engines.append(transformers.start(start_options(CELLS[0], model=str(model), log=log)))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.stop()


def answer(engine: TransformersEngine, model: str = "base") -> tuple[list[int], int | None]:
    """Return the tokens of an answer and the cached tokens of its prompt."""
    given = engine.complete(CompletionRequest(model=model, prompt=PROMPT, max_tokens=8))
    return [token.id for token in given.tokens], given.cached_tokens


def test_new_weights_answer_as_if_started_with_them(start: Start) -> None:
    """This holds after a reset; before it, old blocks still hit. Going back restores answers and checksum."""
    old, new = tiny_model(CACHED), tiny_model(CACHED, seed=1)
    engine, other = start(old), start(new)
    expected, before = answer(engine)[0], engine.weights_checksum()
    engine.update_weights(str(new), WeightRoute.IN_PLACE)
    assert engine.weights_checksum() == other.weights_checksum() != before
    stale, hit = answer(engine)
    assert hit
    assert engine.reset_cache()
    fresh = answer(other)[0]
    assert answer(engine) == (fresh, 0)
    assert stale != fresh != expected
    engine.update_weights(str(old), WeightRoute.IN_PLACE)
    assert engine.reset_cache()
    assert answer(engine) == (expected, 0)
    assert engine.weights_checksum() == before


def test_an_adapter_stays_over_an_update(start: Start) -> None:
    """An adapter's own weights are not part of the checkpoint."""
    old, new = tiny_model(CACHED), tiny_model(CACHED, seed=1)
    files = generate_adapter(CACHED, read_config(old), seed=1, rank=8)
    answers = []
    for engine in (start(old), start(new)):
        engine.load_adapter("lora", str(files.folder), in_place=False)
        engine.update_weights(str(new), WeightRoute.IN_PLACE)
        answers.append(answer(engine, "lora")[0])
    assert answers[0] == answers[1]


def test_weights_that_do_not_fit_are_refused(start: Start, tmp_path: Path) -> None:
    """The model keeps its own weights."""
    engine = start(tiny_model(CACHED))
    before = engine.weights_checksum()
    for folder, words in ((tmp_path, "has no"), (tiny_model(CACHED, layers=ModelLayers.WINDOW), "lack")):
        with pytest.raises(RequestRefused, match=words):
            engine.update_weights(str(folder), WeightRoute.IN_PLACE)
    assert engine.weights_checksum() == before
