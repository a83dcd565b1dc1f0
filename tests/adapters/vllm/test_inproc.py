"""vLLM stepped in this process: it answers correctly, and a run repeats step by step."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY
from support.weights import VLLM_CONTROLS

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineStartError, RequestRefused, Served
from coldproof.adapters.protocol.requests import (
    Abort,
    Arrival,
    Completion,
    CompletionRequest,
    ResponseOptions,
    Stage,
)
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.inproc.process import limit_threads, vllm_module
from coldproof.adapters.vllm.inproc.setup import described
from coldproof.adapters.vllm.server import VllmOptions, added_environment
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import AdapterFiles, generate_adapter, tiny_model

CACHED = generated_files()
BEFORE = dict(os.environ)
engine_tests = pytest.mark.engine
needs_engine = pytest.mark.usefixtures("warm")
Start = Callable[..., InprocEngine]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Yield a function that starts engines, which are stopped after the tests of this file."""
    engines: list[InprocEngine] = []

    def start_one(*flags: str, prefix_caching: bool = True) -> InprocEngine:
        log = tmp_path_factory.mktemp("engine") / "engine.log"
        arguments = ("--max-model-len", "512", *flags)
        options = VllmOptions(
            model=str(tiny_model(CACHED)), prefix_caching=prefix_caching, arguments=arguments, log=log
        )
        engines.append(vllm_inproc.start(options))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def cold(start: Start) -> InprocEngine:
    """Return an engine without a cache and with room for everything."""
    return start("--num-gpu-blocks-override", "200", prefix_caching=False)


@pytest.fixture(scope="module")
def warm(start: Start, cold: InprocEngine) -> InprocEngine:
    """Return an engine with 16 usable blocks of 32 tokens and four requests at a time."""
    return start("--num-gpu-blocks-override", "17", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def ranked(start: Start, warm: InprocEngine) -> InprocEngine:
    """Return an engine with priorities, as many blocks and 64 tokens per step. vLLM's own logger publishes its
    metrics too.
    """
    chunks = ("--enable-chunked-prefill", "--max-num-batched-tokens", "64")
    engine = start("--num-gpu-blocks-override", "17", "--scheduling-policy", "priority", *chunks)
    with engine.entered() as parts:
        own = vllm_module("v1.metrics.loggers").PrometheusStatLogger(parts.engine.vllm_config, [0])
        parts.engine.logger_manager.stat_loggers.append(own)
    return engine


@pytest.fixture(autouse=True)
def empty_caches(request: pytest.FixtureRequest) -> None:
    """Clear the caches before each test."""
    for name in {"warm", "ranked"} & set(request.fixturenames):
        assert request.getfixturevalue(name).reset_cache()


def adapter(seed: int) -> AdapterFiles:
    """Return a generated adapter for the tiny model."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return generate_adapter(CACHED, config, seed=seed, rank=8)


def new_request(seed: int, length: int, tokens: int, **more: object) -> CompletionRequest:
    """Return a request with a random prompt."""
    prompt = tuple(random.Random(seed).choices(range(33, 127), k=length))
    fields: dict[str, object] = {"model": "base", "prompt": prompt, "max_tokens": tokens, **more}
    return CompletionRequest(**fields)  # type: ignore[arg-type]


def serve(engine: InprocEngine, *arrivals: Arrival, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Serve these requests without reading their token counts."""
    return engine.serve(arrivals, lambda _number, _count: None, between)


def results(served: list[Served]) -> list[Completion | EngineError]:
    """Return the results without the times."""
    return [one.result for one in served]


def completed(served: list[Served]) -> list[Completion]:
    """Return the answers of a burst in which every request was answered."""
    answers = [result for result in results(served) if isinstance(result, Completion)]
    assert len(answers) == len(served), results(served)
    return answers


def ids(answer: Completion) -> list[int]:
    """Return the token ids of an answer."""
    return [token.id for token in answer.tokens]


def published(name: str) -> float:
    """Return a counter of vLLM's Prometheus metrics. In one process it belongs to the engine that started last."""
    value = REGISTRY.get_sample_value(f"vllm:{name}_total", {"engine": "0", "model_name": "base"})
    assert value is not None
    return value


def too_many_requests() -> list[Arrival]:
    """Return three requests that need 960 tokens in the end, for a pool of 512."""
    return [Arrival(new_request(seed, 170, 150), offset_ms=15 * seed) for seed in range(3)]


@needs_engine
class TestServed:
    """Tests of an engine with a small pool, compared with an engine without a cache."""

    pytestmark = engine_tests

    def test_warm_answers_equal_cold_answers(self, warm: InprocEngine, cold: InprocEngine) -> None:
        """The second answer comes from the cache and has the same tokens. Time is counted in steps."""
        request = new_request(1, 100, 12)
        first, again, alone = warm.complete(request), warm.complete(request), cold.complete(request)
        assert (first.cached_tokens, again.cached_tokens, alone.cached_tokens) == (0, 96, 0)
        assert ids(first) == ids(again) == ids(alone)
        assert len(first.tokens) == 12
        assert first.prompt == request.prompt
        assert first.text == bytes(ids(first)).decode()
        assert [token.at for token in first.tokens] == [(i + 1) / 100 for i in range(12)]

    def test_a_small_pool_preempts(self, warm: InprocEngine, cold: InprocEngine) -> None:
        """Preemptions are counted per request and in total, and no answer changes."""
        before = warm.metrics()
        answers = completed(serve(warm, *too_many_requests()))
        preemptions = [answer.preemptions for answer in answers]
        after = warm.metrics().since(before)
        assert sum(count or 0 for count in preemptions) > 0
        assert after.preemptions == sum(count or 0 for count in preemptions)
        assert after.queried_tokens == 3 * 170
        assert [ids(answer) for answer in answers] == [ids(cold.complete(one.request)) for one in too_many_requests()]

    def test_a_run_repeats_exactly(self, ranked: InprocEngine) -> None:
        """Tokens, times, cached tokens and preemptions are equal in five runs with aborts and a pattern."""
        arrivals = [
            *too_many_requests(),
            Arrival(new_request(5, 60, 50, priority=-1, abort=Abort(after_tokens=7)), offset_ms=30),
            Arrival(new_request(5, 60, 50, priority=-1, options=ResponseOptions(logprobs=True)), offset_ms=80),
            Arrival(new_request(6, 60, 20, options=ResponseOptions(pattern="[a-d]{9,12}")), offset_ms=30),
        ]
        runs = []
        for _ in range(5):
            assert ranked.reset_cache()
            runs.append(results(serve(ranked, *arrivals)))
        assert runs[0] == runs[1] == runs[2] == runs[3] == runs[4]
        answers = [result for result in runs[0] if isinstance(result, Completion)]
        assert len(answers) == len(arrivals)
        assert any(answer.preemptions for answer in answers)
        assert any(answer.cached_tokens for answer in answers)
        assert [answer.aborted is None for answer in answers] == [True, True, True, False, True, True]

    def test_offsets_fall_on_steps(self, warm: InprocEngine) -> None:
        """A request with an offset of 30 ms is sent before the burst's fourth step; one of 31 ms before the fifth."""
        began, counts = warm.clock(), list[tuple[int, int]]()
        arrivals = [
            Arrival(new_request(1, 20, 6)),
            Arrival(new_request(2, 20, 1), 31),
            Arrival(new_request(3, 20, 1), 30),
        ]
        served = warm.serve(arrivals, lambda number, count: counts.append((number, count)), lambda: None)
        assert [round(one.sent - began, 3) for one in served] == [0.0, 0.04, 0.03]
        assert [round(one.finished - began, 3) for one in served] == [0.06, 0.05, 0.04]
        assert counts == [(0, 1), (0, 2), (0, 3), (0, 4), (2, 1), (0, 5), (1, 1), (0, 6)]

    def test_an_idle_engine_keeps_its_clock(self, warm: InprocEngine) -> None:
        """Steps without work count, so that time passes for waiting requests."""
        began, looks = warm.clock(), list[float]()
        serve(warm, Arrival(new_request(1, 20, 1), offset_ms=200), between=lambda: looks.append(warm.clock()))
        assert looks == pytest.approx([began + (i + 1) / 100 for i in range(21)])

    @pytest.mark.parametrize(
        ("abort", "stage", "tokens"),
        [
            (Abort(), Stage.QUEUED, 0),
            (Abort(at=Stage.PREFILL), Stage.PREFILL, 0),
            (Abort(after_ms=20, at=Stage.QUEUED), Stage.DECODE, 1),
            (Abort(after_ms=20), Stage.PREFILL, 0),
            (Abort(after_ms=500), Stage.DECODE, 1),
            (Abort(after_tokens=3), Stage.DECODE, 3),
            (Abort(after_tokens=9), None, 9),
        ],
    )
    def test_an_abort_reports_its_stage(
        self, ranked: InprocEngine, abort: Abort, stage: Stage | None, tokens: int
    ) -> None:
        """The prompt takes four steps. The ninth token is the last, so there is nothing left to abort."""
        answer = ranked.complete(new_request(4, 200, 9, abort=abort))
        assert (answer.aborted, len(answer.tokens)) == (stage, tokens)
        assert answer.finish_reason == (None if stage else "length")
        assert (ranked.metrics().running, ranked.metrics().waiting, ranked.metrics().pool_usage) == (0, 0, 0.0)

    def test_an_abort_in_the_queue(self, warm: InprocEngine) -> None:
        """At most four requests run, so the fifth one still waits after 50 ms."""
        others = [Arrival(new_request(seed, 20, 12)) for seed in range(4)]
        *_, last = completed(serve(warm, *others, Arrival(new_request(9, 20, 12, abort=Abort(after_ms=50)))))
        assert (last.aborted, last.tokens) == (Stage.QUEUED, ())

    def test_a_failing_burst_leaves_no_request(self, warm: InprocEngine) -> None:
        """The exception reaches the caller, and the engine is idle afterwards."""

        def fail() -> None:
            raise ValueError("ours")

        with pytest.raises(ValueError, match="ours"):
            serve(warm, *too_many_requests(), between=fail)
        assert (warm.metrics().running, warm.metrics().waiting) == (0, 0)
        assert len(warm.complete(new_request(1, 20, 2)).tokens) == 2

    def test_a_reset_waits_for_requests(self, warm: InprocEngine) -> None:
        """While requests hold blocks the reset returns False, and True once none is running."""
        said: list[bool] = []
        serve(warm, Arrival(new_request(1, 100, 5)), between=lambda: said.append(warm.reset_cache()))
        assert said == [False] * 4 + [True]

    def test_a_session_continues_from_its_computed_tokens(self, warm: InprocEngine, cold: InprocEngine) -> None:
        """All but the last token are kept. The session holds its blocks until it is closed, and then takes no turn."""
        opened = new_request(1, 40, 4, session="mine")
        first = warm.complete(opened)
        held = (*opened.prompt, *ids(first)[:-1])
        turn = msgspec.structs.replace(opened, prompt=(*held, *range(50, 60)), held=len(held))
        used = warm.metrics().pool_usage
        then = warm.complete(turn)
        assert ids(then) == ids(cold.complete(msgspec.structs.replace(turn, session=None, held=0)))
        assert (first.cached_tokens is None, then.cached_tokens, then.prompt) == (False, None, None)
        warm.close_session("mine", aborted=False)
        warm.close_session("mine", aborted=False)
        assert used is not None
        assert used > (warm.metrics().pool_usage or 0) == 0
        with pytest.raises(RequestRefused, match="not open") as refused:
            warm.complete(turn)
        assert refused.value.status == 400

    @pytest.mark.parametrize("how", ["abort of a turn", "disconnect"])
    def test_an_aborted_session_is_closed(self, warm: InprocEngine, how: str) -> None:
        """The blocks of an aborted session are free again."""
        leaves = Abort(after_tokens=2) if how == "abort of a turn" else None
        opened = new_request(1, 40, 8, session=how, abort=leaves)
        answer = warm.complete(opened)
        warm.close_session(how, aborted=True)
        assert warm.metrics().pool_usage == 0
        held = (*opened.prompt, *ids(answer)[:-1])
        with pytest.raises(RequestRefused):
            warm.complete(msgspec.structs.replace(opened, prompt=(*held, 50), held=len(held), abort=None))

    def test_its_shape_and_capabilities(self, warm: InprocEngine, cold: InprocEngine) -> None:
        """Shape and capabilities of both engines; only priorities need another scheduling policy."""
        assert (warm.shape.block_size, warm.shape.pool_blocks, warm.shape.adapter_slots) == (32, 16, 4)
        assert (warm.shape.max_model_tokens, warm.shape.most_requests, warm.shape.uniform) == (512, 4, True)
        assert (warm.shape.prefix_caching, cold.shape.prefix_caching) == (True, False)
        absent = {c for c in Capability if not warm.capabilities[c].present}
        other_cells = {Capability.PRIORITY, Capability.KV_EVENTS, Capability.SEVERAL_GROUPS, Capability.SECOND_TIER}
        elsewhere = {*other_cells, *OPTIONAL_ABSENT, Capability.PROVENANCE, Capability.ADAPTER_SWITCH}
        assert absent == elsewhere - VLLM_CONTROLS - {Capability.WEIGHTS_IN_PLACE, Capability.SESSIONS}
        assert "--num-gpu-blocks-override 17" in warm.config["flags"]
        assert "vllm" in warm.log_tail()

    def test_priorities(self, ranked: InprocEngine, cold: InprocEngine) -> None:
        """The urgent request (lower number) preempts the other one, and the metrics are those of the server."""
        assert ranked.capabilities[Capability.PRIORITY].present
        usual, urgent = new_request(1, 250, 100, priority=1), new_request(2, 250, 100, priority=0)
        first, second = completed(serve(ranked, Arrival(usual), Arrival(urgent, offset_ms=50)))
        assert first.preemptions
        assert (second.preemptions, second.preempted_at) == (0, ())
        assert len(first.preempted_at) == first.preemptions
        out = [max(t.at for t in first.tokens if t.at < at) for at in first.preempted_at]
        assert [round(at - last, 6) for at, last in zip(first.preempted_at, out, strict=True)] == [0.01] * len(out)
        assert second.tokens[-1].at < first.tokens[-1].at
        assert [ids(first), ids(second)] == [ids(cold.complete(usual)), ids(cold.complete(urgent))]
        ranked.complete(usual)
        metrics = ranked.metrics()
        for name, value in (
            ("prefix_cache_queries", metrics.queried_tokens),
            ("prefix_cache_hits", metrics.hit_tokens),
            ("num_preemptions", metrics.preemptions),
        ):
            assert value
            assert published(name) == value

    def test_preemptions_of_an_aborted_request_count(self, warm: InprocEngine) -> None:
        """The second of two answers is preempted, and the client disconnects while it waits to resume."""
        both = new_request(2, 100, 100, options=ResponseOptions(answers=2), abort=Abort(after_tokens=60))
        before = warm.metrics()
        other, aborted = completed(serve(warm, Arrival(new_request(1, 250, 150)), Arrival(both)))
        assert (aborted.aborted, len(aborted.tokens)) == (Stage.DECODE, 60)
        assert len(aborted.others[0]) < 60
        assert (other.preemptions, bool(aborted.preemptions)) == (0, True)
        assert warm.metrics().since(before).preemptions == aborted.preemptions
        assert warm.metrics().pool_usage == 0.0

    def test_stopped_in_between(self, start: Start, cold: InprocEngine) -> None:
        """Unfinished requests of the burst end with EngineDied, and the other engine is unaffected."""
        engine = start("--num-gpu-blocks-override", "17")
        looks: list[float] = []

        def between() -> None:
            looks.append(engine.clock())
            if len(looks) == 3:
                engine.stop()

        short, long, late = new_request(1, 20, 2), new_request(2, 20, 50), new_request(3, 20, 50)
        served = serve(engine, Arrival(short), Arrival(long), Arrival(late, offset_ms=900), between=between)
        assert [type(result) for result in results(served)] == [Completion, EngineDied, EngineDied]
        assert len(looks) == 3
        assert not engine.alive()
        with pytest.raises(EngineDied):
            engine.complete(short)
        engine.stop()
        assert len(cold.complete(short).tokens) == 2
        assert "vllm" in engine.log_tail()

    def test_a_failing_step_ends_the_engine(
        self, start: Start, cold: InprocEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All running requests end with EngineDied, and the log has the cause."""
        engine = start("--num-gpu-blocks-override", "17")
        assert engine._parts is not None
        monkeypatch.setattr(engine._parts.engine, "step", lambda: 1 / 0)
        served = serve(engine, Arrival(new_request(1, 20, 2)), Arrival(new_request(2, 20, 2), offset_ms=50))
        assert [type(result) for result in results(served)] == [EngineDied, EngineDied]
        assert not engine.alive()
        assert "ZeroDivisionError" in engine.log_tail()
        assert len(cold.complete(new_request(1, 20, 2)).tokens) == 2

    def test_a_start_leaves_no_trace_in_the_environment(self, warm: InprocEngine) -> None:
        """A server that is started afterwards gets an unchanged environment. torch's compiler sets variables later
        on.
        """
        changed = {name for name in os.environ.keys() | BEFORE.keys() if os.environ.get(name) != BEFORE.get(name)}
        assert {name for name in changed if "TORCHINDUCTOR" not in name} <= {
            "PYTEST_CURRENT_TEST",
            "RAY_CLIENT_MODE",  # Ray sets it for a test of fleets that ran in this process before
            *added_environment(),
        }

    def test_torch_has_the_threads_that_the_environment_names(self, warm: InprocEngine) -> None:
        """The limit holds even if torch was imported before: with more threads a small model is many times slower."""
        torch = importlib.import_module("torch")
        torch.set_num_threads(2)
        try:
            limit_threads()
            assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]) == 1
        finally:
            torch.set_num_threads(1)

    def test_flags_that_vllm_refuses(self, start: Start) -> None:
        """The error is one line instead of an exit. A pool that cannot hold a request of full length is refused."""
        with pytest.raises(EngineStartError, match="--no-such-flag"):
            start("--no-such-flag")
        with pytest.raises(EngineStartError, match="larger than the available KV cache memory"):
            start("--num-gpu-blocks-override", "5")


def test_the_module_imports_neither_vllm_nor_torch() -> None:
    """Importing the module imports neither vLLM nor torch."""
    check = (
        "import sys, coldproof.adapters.vllm.inproc.engine; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=CACHED.parent.parent, check=False).returncode == 0


def test_without_vllm_the_start_fails_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one clear line."""
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="vLLM is not installed"):
        vllm_inproc.start(VllmOptions(model=str(tmp_path), log=tmp_path / "engine.log"))


def test_an_error_without_a_message_is_named_by_its_line() -> None:
    """vLLM's kernels raise assertions without a message, and the report said "the engine did not start: "."""
    with pytest.raises(AssertionError) as caught:
        raise AssertionError
    line = r"AssertionError in test_inproc.py, line \d+: raise AssertionError"
    assert re.fullmatch(line, described(caught.value))
    assert described(ValueError("said")) == "said"
