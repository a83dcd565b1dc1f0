"""An exception of our own code in vLLM's process ends as ERROR, in every part of the worker and its connectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.faulty_runs import Bench, open_bench
from support.nightly import with_samples

from coldproof import IMPORT_ROOT
from coldproof.adapters.protocol.checked import AdapterError, CheckedEngine
from coldproof.adapters.protocol.own_code import OWN_CODE
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm import server
from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION, topology_flags
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.schema.verdict import Verdict
from coldproof.suites import test_lora_reload as reload
from coldproof.suites import test_preemption as preemption
from coldproof.suites import test_reuse as reuse
from coldproof.suites import test_tiers as tiers

pytestmark = pytest.mark.engine
FATAL_LENGTH = 47  # tokens of a prompt; no probe has it
HERE = "coldproof.adapters.vllm.fingerprint"
OWN_FILE = f"{IMPORT_ROOT}/coldproof/adapters/vllm/fingerprint/planted.py"
LOADED = tiers.test_evicted_to_the_second_tier_and_loaded_back
PARTS: list[tuple[str, Callable[..., None], str]] = [
    ("worker.FingerprintWorker.execute_model", reuse.test_a_prompt_sent_again, "default"),
    ("worker.FingerprintWorker.sample_tokens", reuse.test_a_prompt_sent_again, "default"),
    ("worker.FingerprintWorker.take_wrong_reads", reuse.test_a_prompt_sent_again, "default"),
    ("worker.FingerprintWorker.add_lora", reload.test_in_place_reload_from_another_path, "default"),
    ("lora.Loras.add", reload.test_in_place_reload_from_another_path, "default"),
    ("model_step.Runner.update_requests", reuse.test_a_prompt_sent_again, "default"),
    ("model_step.Runner.prepare", reuse.test_a_prompt_sent_again, "default"),
    ("model_step.Runner.compute", reuse.test_a_prompt_sent_again, "default"),
    ("sequences.Sequence.update", preemption.test_preempted_and_resumed, "tight"),
    ("sequences.Sequence.expected", preemption.test_preempted_and_resumed, "runner-v2"),
    ("kv_slots.LayerSlots.read", reuse.test_a_prompt_sent_again, "default"),
    ("kv_slots.LayerSlots.write", reuse.test_a_prompt_sent_again, "default"),
    ("sampler.Scores.sample", reuse.test_a_prompt_sent_again, "default"),
    ("connectors.failing.FailingConnector.get_num_new_matched_tokens", tiers.test_loads_that_fail, "tier-failing"),
    ("connectors.failing.TransferPlanner.step_transfers", tiers.test_loads_that_fail, "tier-failing"),
    ("connectors.failing.BlockStore.load", tiers.test_loads_that_fail, "tier-failing-late"),
    ("connectors.offloading.HostOffloadingWorker.submit_store", LOADED, "tier-offload"),
    ("connectors.offloading.HostOffloadingWorker.copy", LOADED, "tier-offload"),
    ("connectors.simple_offload.DeferredCopyBackend.launch_copy", LOADED, "tier-simple"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run without a model."""
    with open_bench(tmp_path_factory.mktemp("own") / "report", "fingerprint") as made:
        yield made


def mistake() -> Callable[..., None]:
    """Return a function that raises, as if it were in a file of the worker's folder."""
    made: dict[str, Any] = {}
    exec(compile("def planted(*_, **__):\n    raise TypeError('a mistake of ours')\n", OWN_FILE, "exec"), made)
    return cast(Callable[..., None], made["planted"])


@pytest.mark.parametrize(("part", "test", "cell"), with_samples(PARTS, PARTS[0], PARTS[5], PARTS[13]))
def test_a_mistake_in_any_part_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str, test: Callable[..., None], cell: str
) -> None:
    """The error is injected after the calibration. The engine is not blamed, and no case is written."""

    def plant() -> None:
        monkeypatch.setattr(f"{HERE}.{part}", mistake())

    verdict, reason, cases = bench.verdict(test, CELLS[cell], examples=12, after_start=plant)
    assert verdict is Verdict.ERROR, reason
    assert "a mistake of ours" in reason
    assert (OWN_CODE in reason and "planted.py:2" in reason) or "raised TypeError in wrong_reads" in reason
    assert not cases


@pytest.mark.nightly
def test_over_http_the_log_shows_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lacks a part, on which its own code fails."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("COLDPROOF_TEST_FATAL_LENGTH", str(FATAL_LENGTH))  # that module would import vLLM here
    options = VllmOptions(
        model=str(tiny_model(generated_files())),
        arguments=(*topology_flags(FULL_ATTENTION), "--worker-cls", "support.broken_worker.BrokenWorker"),
        log=tmp_path / "engine.log",
        topology=FULL_ATTENTION,
    )
    engine = CheckedEngine(server.spawn(options, on_process=lambda _: None))
    try:
        with pytest.raises(AdapterError, match=rf"{OWN_CODE}, in adapters/vllm/fingerprint/model_step.py:\d+"):
            engine.complete(CompletionRequest(model="base", prompt=tuple(range(40, 40 + FATAL_LENGTH)), max_tokens=4))
    finally:
        engine.stop()
