"""Parts of the OpenVINO GenAI adapter: what follows from its steps, and how the engine is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.start_options import start_options

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.stepping import disconnects
from coldproof.adapters.openvino import engine
from coldproof.adapters.openvino.ir_model import UnsupportedModel, write_model
from coldproof.adapters.openvino.request import OpenVinoRequest
from coldproof.adapters.openvino.setup import INT8, REGISTERED, Output, settings
from coldproof.adapters.openvino.spec import CELLS, ENGINE, ROOMY, TIGHT
from coldproof.adapters.openvino.step_counts import Progress, StepAccounting
from coldproof.adapters.openvino.worker_client import environment
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.requests import Abort, CompletionRequest, ResponseOptions, Stage
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.registry import variants_of
from coldproof.adapters.spec.cell import CHUNKS, POOL
from coldproof.harness.execution.models.lora import tiny_model

SHAPE = EngineShape(block_size=16, pool_blocks=24, max_model_tokens=512, adapter_slots=0, prefix_caching=True)


def steps(
    budget: int, prompts: list[int], came: list[list[int]], *, usage: float = 10.0
) -> tuple[StepAccounting, list[Progress]]:
    """Account for requests that were all present from the start. A row of `came` has each one's tokens after a step."""
    made, live = StepAccounting(budget=budget, block=32), [Progress(prompt) for prompt in prompts]
    for counts in came:
        made.note(live, counts, usage=usage)
    return made, live


def test_one_token_a_step_gives_exact_hits() -> None:
    """Four of 100 prompt tokens were computed, one per step, so 96 came from the cache."""
    _, (one,) = steps(1, [100], [[0], [0], [0], [1], [2]])
    assert one.hit == (96, 96)


def test_chunks_bound_the_hits() -> None:
    """Two chunks of 48 and at least one token of a third chunk were computed, and at most three whole chunks."""
    _, (one,) = steps(48, [300], [[0], [0], [1]])
    assert one.hit == (300 - 3 * 48, 300 - 2 * 48 - 1)


def test_requests_are_served_in_order_of_arrival() -> None:
    """With one token per step, nothing of the second prompt is computed while the first one is computed or decodes."""
    _, (first, second) = steps(1, [5, 50], [[0, 0], [1, 0], [2, 0], [2, 0], [2, 1]])
    assert first.hit == (3, 3)
    assert second.hit[0] >= 47, "three steps at most were left to it"
    _, (first, second) = steps(1, [5, 50], [[0, 0], [1, 0], [2, 0]])
    assert (first.begun, second.begun) == (True, False)


def test_a_decoding_request_takes_a_token_of_the_budget() -> None:
    """A request decodes beside a prompt, so each step computes three prompt tokens of a budget of four."""
    _, (_, second) = steps(4, [4, 100], [[1, 0], [2, 0], [3, 0], [4, 1]])
    assert second.hit == (100 - 3 - 9, 100 - 7), "the first step may have left up to three tokens to it"


def test_a_pool_without_room_computes_less_than_the_budget() -> None:
    """A pool without room may compute fewer tokens than the budget, so there is no upper bound on the hit."""
    _, (one,) = steps(48, [300], [[0], [0], [1]], usage=100.0)
    assert one.hit == (300 - 3 * 48, 300)


def test_a_new_block_of_a_full_pool_is_a_preemption() -> None:
    """The first request fills its block and needs another one when no block is free, so another request lost one."""
    made, (_, second) = steps(99, [31, 40], [[1, 1], [2, 2], [3, 2]], usage=100.0)
    assert made.preemptions == 1
    assert not second.steady


@pytest.mark.parametrize("full", [False, True])
def test_a_free_block_or_one_given_back_proves_no_preemption(full: bool) -> None:
    """Nothing was preempted if the pool has a free block, or if a request ended since the step before."""
    made, live = steps(99, [31, 40], [[1, 1], [2, 2]], usage=100.0 if full else 90.0)
    made.gave_back()
    made.note(live, [3, 2], usage=100.0)
    assert made.preemptions == 0


def test_only_supported_models_are_written(tmp_path: Path) -> None:
    """Other models are refused with a message, without any package."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    with pytest.raises(UnsupportedModel, match="gemma3_text"):
        write_model(tmp_path, tmp_path / "ir")


def test_weights_in_eight_bits_are_a_third_of_the_file(tmp_path: Path) -> None:
    """The weights of the products are integers with a scale per row; the embedding stays unchanged."""
    pytest.importorskip("openvino")
    model = tiny_model(tmp_path)
    sizes = {}
    for int8 in (False, True):
        write_model(model, tmp_path / str(int8), int8=int8)
        sizes[int8] = (tmp_path / str(int8) / "openvino_model.bin").stat().st_size
    assert 0.3 < sizes[True] / sizes[False] < 0.36


def test_a_missing_package_is_one_clear_line(tmp_path: Path) -> None:
    """The error names the package and what could not be imported."""
    with pytest.raises(EngineStartError, match=r"\(package openvino-genai\) did not start: \w+Error"):
        engine.start(start_options(CELLS[0], model=str(tmp_path), log=tmp_path / "engine.log"))


def fake_genai() -> Any:
    """Return the parts of the package that its settings need."""
    fields = {"num_kv_blocks": 0, "dynamic_split_fuse": True, "enable_prefix_caching": False}
    return SimpleNamespace(SchedulerConfig=lambda: SimpleNamespace(**fields))


def test_words_are_the_schedulers_or_the_devices() -> None:
    """Lower-case words set scheduler fields by type, capitals are device properties. Exactness is a default that can
    change.
    """
    words = ("num_kv_blocks=64", "dynamic_split_fuse=false", "KV_CACHE_PRECISION=u8", REGISTERED, INT8)
    scheduler, properties = settings(fake_genai(), words, caching=True)
    assert (scheduler.num_kv_blocks, scheduler.dynamic_split_fuse) == (64, False)
    assert scheduler.enable_prefix_caching is True
    assert properties == {"KV_CACHE_PRECISION": "u8", "INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize("word", ["num_gpu_blocks=4", "--num-kv-blocks", "kv_cache_precision=u8"])
def test_an_unknown_word_is_refused(word: str) -> None:
    """The message has an example of either kind."""
    with pytest.raises(ValueError, match="num_kv_blocks=64"):
        settings(fake_genai(), (word,), caching=True)


def live(abort: Abort | None, *, prompt: int = 100) -> OpenVinoRequest:
    """Return a running request without an engine."""
    request = CompletionRequest(model="base", prompt=(7,) * prompt, max_tokens=8, abort=abort)
    return OpenVinoRequest(request, 1, step=10)


def test_a_client_disconnects_on_its_step() -> None:
    """Disconnects follow the engine's own time of ten milliseconds per step."""
    one = live(Abort(after_ms=30))
    assert [disconnects(one, step) for step in (12, 13)] == [False, True]
    one.take(Output(1, [5], [0.0], "NONE"), 11)
    assert disconnects(one, 13), "with a token before its time it hangs up at that"
    assert not disconnects(live(None), 10_000)


def test_a_disconnect_in_prefill_does_not_happen_while_queued() -> None:
    """A disconnect in prefill does not happen in the queue, even if its time is over."""
    one = live(Abort(after_ms=30, at=Stage.PREFILL))
    assert not disconnects(one, 500)
    one.progress.low = one.progress.high = 1
    assert one.stage() is Stage.PREFILL
    assert [disconnects(one, step) for step in (12, 13)] == [False, True]


def test_the_stage_of_an_aborted_request() -> None:
    """The stage is queued, prefill or decode, and unseen where the steps do not show it."""
    one = live(Abort(after_ms=30))
    assert one.stage() is Stage.QUEUED
    one.progress.high = 5
    assert one.stage() is Stage.UNSEEN
    one.progress.low = 1
    assert one.stage() is Stage.PREFILL


def test_an_echoed_prompt_loses_no_score_silently() -> None:
    """The engine echoes only the scores that it computed, so the number of scores is reported."""
    one = live(None, prompt=4)
    one.request = msgspec.structs.replace(one.request, options=ResponseOptions(prompt_logprobs=True))
    one.take(Output(1, [7] * 4 + [5], [-2.0, -0.5], "LENGTH"), 11)
    assert (one.prompt_logprobs, one.count, one.finish_reason) == ((-2.0,), 1, "length")


def test_cells_and_requirements_about_adapters() -> None:
    """Only the cell about adapters registers any, and only it covers their requirements."""
    about_adapters = [cell.name for cell in CELLS if cell.suits((CellTrait.ADAPTER_CHOICE,))]
    assert about_adapters == [cell.name for cell in CELLS if REGISTERED in cell.arguments]
    assert {cell.engine for cell in CELLS} == {ENGINE.name}


@pytest.mark.parametrize(("words", "removes"), [((TIGHT,), {POOL}), ((ROOMY,), set()), ((TIGHT, "x"), {POOL})])
def test_controls_leave_out_what_a_cell_has(words: tuple[str, ...], removes: set[str]) -> None:
    """A control replaces a small pool by a large one. A cell without such a feature has no control."""
    cell = msgspec.structs.replace(CELLS[0], arguments=words)
    assert {variant.removes for variant in variants_of(cell, SHAPE, ())} == removes
    chunked = {variant.removes for variant in variants_of(CELLS[0], SHAPE, ())}
    assert chunked == {CHUNKS}


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("4", "4")])
def test_the_users_variables_reach_the_worker(given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is the default, and our packages come after the user's path."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert environment()["OMP_NUM_THREADS"] == threads
    assert environment()["PYTHONPATH"].split(os.pathsep) == ["/theirs", str(IMPORT_ROOT)]
