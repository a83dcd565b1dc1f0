"""vLLM's connectors with the fingerprint worker, in this process: evicted and reset blocks come back unchanged."""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.nightly import with_samples
from support.ports import reserved_port

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.lost_files import Loss
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.vllm.cells.tiers import LMCACHE_ENVIRONMENT
from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.kv_tiers import TIERS
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.pressure.checks import check_concurrency, room_side_by_side
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
CACHED = generated_files()
Start = Callable[..., InprocEngine]
WITH_LMCACHE = pytest.mark.skipif(importlib.util.find_spec("lmcache") is None, reason="LMCache is not installed")
OWN_TIERS = ("offload", "offload-small", "simple", "multi", "kept", "example")
LMCACHE = [pytest.param(tier, marks=WITH_LMCACHE) for tier in ("lmcache", "lmcache-chunks", "lmcache-files")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts engines with a pool of 16 blocks of 32 tokens."""
    engines: list[InprocEngine] = []
    held = contextlib.ExitStack()

    def start_one(tier: str, *flags: str, prefix_caching: bool = True) -> InprocEngine:
        options = VllmOptions(
            model=str(tiny_model(CACHED)),
            log=tmp_path / f"engine-{len(engines)}.log",
            arguments=("--max-model-len", "512", "--num-gpu-blocks-override", "17", *flags),
            topology=FULL_ATTENTION,
            tier=TIERS[tier],
            tier_port=held.enter_context(reserved_port()),
            environment=LMCACHE_ENVIRONMENT,
            prefix_caching=prefix_caching,
        )
        engines.append(vllm_inproc.start(options))
        return engines[-1]

    with held:
        yield start_one
        for engine in engines:
            engine.stop()


def prompt(name: str, length: int) -> tuple[int, ...]:
    """Return tokens that follow from a name."""
    source = random.Random(name)
    return tuple(source.randint(32, 126) for _ in range(length))


def ask(engine: InprocEngine, tokens: tuple[int, ...], salt: str | None = None) -> tuple[list[int], int | None]:
    """Return the answer to a prompt and its cached tokens."""
    done = engine.complete(CompletionRequest(model=engine.base_model, prompt=tokens, max_tokens=6, cache_salt=salt))
    return [token.id for token in done.tokens], done.cached_tokens


@pytest.mark.parametrize("tier", with_samples([*OWN_TIERS, *LMCACHE], "simple", *LMCACHE))
def test_evicted_and_reset_blocks_come_back(start: Start, tier: str) -> None:
    """An engine without a tier runs in the same process, and must not get the other one's tier."""
    engine, cold = start(tier), start(tier, prefix_caching=False)
    first = ask(engine, prompt("first", 130))
    for other in ("second", "third"):
        ask(engine, prompt(other, 300))
    again = ask(engine, prompt("first", 130))
    assert engine.reset_cache()
    after_reset = ask(engine, prompt("first", 130))
    assert first[0] == again[0] == after_reset[0] == ask(cold, prompt("first", 130))[0]
    assert (first[1], again[1], after_reset[1]) == (0, 128, 128)
    counted = engine.metrics()
    assert (counted.external_hit_tokens, counted.hit_tokens, counted.pool_usage) == (256, 0, 0)
    assert engine.wrong_reads() == ()
    assert engine.capabilities[Capability.SECOND_TIER].present
    assert engine.capabilities[Capability.PAUSE_ABORT].present == (tier in OWN_TIERS)  # LMCache stores by itself
    assert not cold.capabilities[Capability.SECOND_TIER].present


@pytest.mark.parametrize("tier", ["offload", *LMCACHE])
def test_a_request_resumed_with_a_tiers_blocks_answers_as_cold(start: Start, tmp_path: Path, tier: str) -> None:
    """Two requests of two blocks + 2 with answers of two blocks + 3 run in a pool of seven blocks (LMCache#1969).

    vLLM keeps one of them. The other request takes a block of the preempted one's prompt, which the tier gives back.
    """
    growing = [
        Request(prompt=Prompt((Segment(name, 2 * 32 + 2 - NONCE_TOKENS),)), max_tokens=2 * 32 + 3) for name in "ab"
    ]
    workload = Workload((Burst(requests=tuple(growing)),))
    engine = start(tier, "--num-gpu-blocks-override", "7", "--max-model-len", "192")
    cold = start(tier, prefix_caching=False)
    warm, expected = (WorkloadRun(each, workload, "seven", {}, tmp_path).history() for each in (engine, cold))
    for answered, as_cold in zip(warm.outcomes, expected.outcomes, strict=True):
        assert [token.id for token in answered.tokens] == [token.id for token in as_cold.tokens]
    assert sum(outcome.preemptions or 0 for outcome in warm.outcomes) >= 1
    assert engine.metrics().resumed_hit_tokens
    assert engine.wrong_reads() == ()


def test_many_requests_that_wait_for_loads_are_no_lost_reuse(start: Start, tmp_path: Path) -> None:
    """The pool never serves the last block of a prompt of whole blocks, so each request loads it while the others
    wait.
    """
    request = Request(prompt=Prompt((Segment("crowd", 2 * 32 - NONCE_TOKENS),)), max_tokens=5)
    alone, others = (Burst(requests=(one,)) for one in (request, Request(prompt=Prompt((Segment("others", 480),)))))
    workload = Workload((alone, others, Burst(requests=(request,) * 60)))
    engine = start("offload", "--max-num-batched-tokens", "64")
    history = WorkloadRun(engine, workload, "waits", {}, tmp_path).history()
    loads = [step.after.external_hit_tokens for step in history.steps]
    assert loads == [0, 0, 61 * 32]
    room = room_side_by_side(history, history.steps[2])
    assert room is not None
    assert max(sample.running or 0 for sample in history.steps[2].queue if sample.waiting) < room // 2
    assert check_concurrency(history) == []


def test_an_engine_without_a_tier_counts_nothing_of_one(start: Start) -> None:
    """Unknown is not zero."""
    assert start("offload", prefix_caching=False).metrics().external_hit_tokens is None


@pytest.mark.parametrize("tier", with_samples(["failing", "failing-late"], "failing-late"))
@pytest.mark.parametrize("length", with_samples([129, 128, 130], 129))
def test_a_load_that_fails_is_computed_again(start: Start, tier: str, length: int) -> None:
    """The load may fail wholly, in part or not at all; the answer is the same."""
    engine = start(tier)
    first = ask(engine, prompt("first", length))
    assert engine.reset_cache()
    assert ask(engine, prompt("first", length))[0] == first[0]
    assert engine.metrics().failed_loads == (length != 130)


@pytest.mark.nightly
def test_a_load_that_fails_ends_its_request_where_it_is_to(start: Start) -> None:
    """The request ends with an error once, and the next one is answered."""
    engine = start("failing-ends")
    first = ask(engine, prompt("first", 129))
    assert engine.reset_cache()
    with pytest.raises(RequestRefused):
        ask(engine, prompt("first", 129))
    other = ask(engine, prompt("first", 130))
    assert first[0] == ask(start("kept"), prompt("first", 129))[0]
    assert other[0] == ask(start("kept"), prompt("first", 130))[0]


@pytest.mark.nightly
def test_the_example_connector_does_not_know_of_salts(start: Start) -> None:
    """This is vllm#53495, found by the counts. The test fails when it is fixed."""
    engine = start("example")
    ask(engine, prompt("first", 130))
    assert ask(engine, prompt("first", 130), salt="red")[1] == 128
    assert ask(start("kept"), prompt("first", 130), salt="red")[1] == 0


@pytest.mark.parametrize("loss", Loss)
def test_files_are_read_and_can_be_lost(start: Start, loss: Loss) -> None:
    """What host memory has no room for comes from files, and vLLM says so. Once they are lost, it is computed again."""
    engine = start("files")
    assert engine.capabilities[Capability.SLOW_TIER].present is True
    assert engine.capabilities[Capability.TIER_FILES].present is True
    asked = prompt("first", 130)

    def push_out() -> None:
        for other in ("second", "third"):
            ask(engine, prompt(other, 480))

    first = ask(engine, asked)
    push_out()
    assert ask(engine, asked) == (first[0], 128)
    assert engine.metrics().slow_hit_tokens == 128
    push_out()
    read = engine.metrics().slow_hit_tokens
    assert engine.lose_files(loss) > 0
    assert ask(engine, asked) == (first[0], 0)
    assert engine.metrics().slow_hit_tokens == read


def test_other_tiers_have_no_files_to_lose(start: Start) -> None:
    """Their capabilities say so."""
    engine = start("offload")
    assert engine.capabilities[Capability.TIER_FILES].present is False
    assert engine.capabilities[Capability.SLOW_TIER].present is False
    assert engine.metrics().slow_hit_tokens is None
    assert engine.lose_files(Loss.REMOVED) == 0
