"""OpenVINO GenAI: what its steps tell, how it is started, and that a run of the real engine is right and repeats."""

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
    """Follow requests that were all there from the start; a row of `came` has each one's tokens after a step."""
    made, live = StepAccounting(budget=budget, block=32), [Progress(prompt) for prompt in prompts]
    for counts in came:
        made.note(live, counts, usage=usage)
    return made, live


def test_one_token_a_step_tells_hits_exactly() -> None:
    """Of 100 prompt tokens four were computed, one after the other: 96 came from the cache."""
    _, (one,) = steps(1, [100], [[0], [0], [0], [1], [2]])
    assert one.hit == (96, 96)


def test_chunks_bound_the_hits() -> None:
    """Two chunks of 48 and at least a token of a third were computed, and at most three whole ones."""
    _, (one,) = steps(48, [300], [[0], [0], [1]])
    assert one.hit == (300 - 3 * 48, 300 - 2 * 48 - 1)


def test_who_came_first_is_served_first() -> None:
    """One token a step: while the first prompt is computed, and while it decodes, nothing is computed of the second."""
    _, (first, second) = steps(1, [5, 50], [[0, 0], [1, 0], [2, 0], [2, 0], [2, 1]])
    assert first.hit == (3, 3)
    assert second.hit[0] >= 47, "three steps at most were left to it"
    _, (first, second) = steps(1, [5, 50], [[0, 0], [1, 0], [2, 0]])
    assert (first.begun, second.begun) == (True, False)


def test_whoever_decodes_takes_a_token_of_the_budget() -> None:
    """One decodes beside a prompt of which each step computes three tokens of four."""
    _, (_, second) = steps(4, [4, 100], [[1, 0], [2, 0], [3, 0], [4, 1]])
    assert second.hit == (100 - 3 - 9, 100 - 7), "the first step may have left up to three tokens to it"


def test_a_pool_without_room_computes_less_than_the_budget() -> None:
    """Then nothing is known from above of what a prompt was given."""
    _, (one,) = steps(48, [300], [[0], [0], [1]], usage=100.0)
    assert one.hit == (300 - 3 * 48, 300)


def test_a_block_of_a_full_pool_was_somebody_elses() -> None:
    """The first one's 32 tokens fill a block, and the next one needs another, when no block is free."""
    made, (_, second) = steps(99, [31, 40], [[1, 1], [2, 2], [3, 2]], usage=100.0)
    assert made.preemptions == 1
    assert not second.steady


@pytest.mark.parametrize("full", [False, True])
def test_a_free_block_or_one_given_back_proves_no_preemption(full: bool) -> None:
    """The same in a pool with room, or where somebody has left since the step before."""
    made, live = steps(99, [31, 40], [[1, 1], [2, 2]], usage=100.0 if full else 90.0)
    made.gave_back()
    made.note(live, [3, 2], usage=100.0)
    assert made.preemptions == 0


def test_only_models_of_our_kind_are_written(tmp_path: Path) -> None:
    """Another one is refused in words, without any package."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    with pytest.raises(UnsupportedModel, match="gemma3_text"):
        write_model(tmp_path, tmp_path / "ir")


def test_weights_in_eight_bits_are_a_third_of_the_file(tmp_path: Path) -> None:
    """The products' weights as integers with a scale for each row; the embedding stays as it is."""
    pytest.importorskip("openvino")
    model = tiny_model(tmp_path)
    sizes = {}
    for int8 in (False, True):
        write_model(model, tmp_path / str(int8), int8=int8)
        sizes[int8] = (tmp_path / str(int8) / "openvino_model.bin").stat().st_size
    assert 0.3 < sizes[True] / sizes[False] < 0.36


def test_a_missing_package_is_one_clear_line(tmp_path: Path) -> None:
    """The worker says what it could not import, and the error which package that is; with neither a model to write."""
    with pytest.raises(EngineStartError, match=r"\(package openvino-genai\) did not start: \w+Error"):
        engine.start(start_options(CELLS[0], model=str(tmp_path), log=tmp_path / "engine.log"))


def fake_genai() -> Any:
    """As much of the package as its settings need."""
    fields = {"num_kv_blocks": 0, "dynamic_split_fuse": True, "enable_prefix_caching": False}
    return SimpleNamespace(SchedulerConfig=lambda: SimpleNamespace(**fields))


def test_words_are_the_schedulers_or_the_devices() -> None:
    """Small letters set fields by their kind, capitals are properties; exactness is the default and can be left."""
    words = ("num_kv_blocks=64", "dynamic_split_fuse=false", "KV_CACHE_PRECISION=u8", REGISTERED, INT8)
    scheduler, properties = settings(fake_genai(), words, caching=True)
    assert (scheduler.num_kv_blocks, scheduler.dynamic_split_fuse) == (64, False)
    assert scheduler.enable_prefix_caching is True
    assert properties == {"KV_CACHE_PRECISION": "u8", "INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize("word", ["num_gpu_blocks=4", "--num-kv-blocks", "kv_cache_precision=u8"])
def test_an_unknown_word_is_refused(word: str) -> None:
    """With an example of either kind."""
    with pytest.raises(ValueError, match="num_kv_blocks=64"):
        settings(fake_genai(), (word,), caching=True)


def live(abort: Abort | None, *, prompt: int = 100) -> OpenVinoRequest:
    """A request that is in the engine, without the engine."""
    request = CompletionRequest(model="base", prompt=(7,) * prompt, max_tokens=8, abort=abort)
    return OpenVinoRequest(request, 1, step=10)


def test_a_client_hangs_up_on_its_step() -> None:
    """By the engine's own time, ten milliseconds a step."""
    one = live(Abort(after_ms=30))
    assert [disconnects(one, step) for step in (12, 13)] == [False, True]
    one.take(Output(1, [5], [0.0], "NONE"), 11)
    assert disconnects(one, 13), "with a token before its time it hangs up at that"
    assert not disconnects(live(None), 10_000)


def test_a_client_that_waits_for_the_beginning_is_not_taken_from_the_queue() -> None:
    """Its time may be long over."""
    one = live(Abort(after_ms=30, at=Stage.PREFILL))
    assert not disconnects(one, 500)
    one.progress.low = one.progress.high = 1
    assert one.stage() is Stage.PREFILL
    assert [disconnects(one, step) for step in (12, 13)] == [False, True]


def test_how_far_an_aborted_request_had_come() -> None:
    """Queued, in prefill, while decoding; and unseen where the steps do not say."""
    one = live(Abort(after_ms=30))
    assert one.stage() is Stage.QUEUED
    one.progress.high = 5
    assert one.stage() is Stage.UNSEEN
    one.progress.low = 1
    assert one.stage() is Stage.PREFILL


def test_an_echoed_prompt_loses_no_score_silently() -> None:
    """The engine echoes the scores that it computed, and no others: how many came is what is told."""
    one = live(None, prompt=4)
    one.request = msgspec.structs.replace(one.request, surface=ResponseOptions(prompt_logprobs=True))
    one.take(Output(1, [7] * 4 + [5], [-2.0, -0.5], "LENGTH"), 11)
    assert (one.prompt_logprobs, one.count, one.finish_reason) == ((-2.0,), 1, "length")


def test_cells_say_how_a_pipeline_is_made() -> None:
    """Only the cell about adapters registers any, and it alone is for the requirements about them."""
    about_adapters = [cell.name for cell in CELLS if cell.covers("LORA-4")]
    assert about_adapters == [cell.name for cell in CELLS if REGISTERED in cell.arguments]
    assert {cell.engine for cell in CELLS} == {ENGINE.name}


@pytest.mark.parametrize(("words", "removes"), [((TIGHT,), {POOL}), ((ROOMY,), set()), ((TIGHT, "x"), {POOL})])
def test_controls_leave_out_what_a_cell_has(words: tuple[str, ...], removes: set[str]) -> None:
    """A roomy pool instead of a tight one; nothing where there is nothing to leave out."""
    cell = msgspec.structs.replace(CELLS[0], arguments=words)
    assert {variant.removes for variant in variants_of(cell, SHAPE, ())} == removes
    chunked = {variant.removes for variant in variants_of(CELLS[0], SHAPE, ())}
    assert chunked == {CHUNKS}


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("4", "4")])
def test_the_users_variables_reach_the_worker(given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is for those who say nothing, and our packages come behind theirs."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert environment()["OMP_NUM_THREADS"] == threads
    assert environment()["PYTHONPATH"].split(os.pathsep) == ["/theirs", str(IMPORT_ROOT)]
