"""The Transformers adapter: its parts and, where Transformers is installed, correct and repeatable answers."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.histories import BLOCK, history, outcome, read_config, shape
from support.start_options import start_options

from coldproof.adapters.common.stepping import disconnects
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, EngineSilent, EngineStartError, RequestRefused, Served
from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.requests import (
    Abort,
    Arrival,
    Completion,
    CompletionRequest,
    ResponseOptions,
    Stage,
)
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import CHUNKS, POOL
from coldproof.adapters.transformers import engine as transformers
from coldproof.adapters.transformers import faults, setup
from coldproof.adapters.transformers.engine import TransformersEngine
from coldproof.adapters.transformers.loop import CAPTURES, Driver, EngineHooks
from coldproof.adapters.transformers.lora import PeftAdapters
from coldproof.adapters.transformers.request import TransformersRequest
from coldproof.adapters.transformers.setup import fields
from coldproof.adapters.transformers.spec import CELLS, variants
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import AdapterFiles, generate_adapter, tiny_model
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.reference_cache import bounds

SHAPE = EngineShape(block_size=16, pool_blocks=24, max_model_tokens=512, adapter_slots=0, prefix_caching=True)
CACHED = generated_files()
MISSING = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
SKIPPED = f"not installed here: {', '.join(MISSING)} (pip install torch transformers peft accelerate)"
needs_package = pytest.mark.skipif(bool(MISSING), reason=SKIPPED)
Start = Callable[..., TransformersEngine]


def new_request(seed: int, length: int, tokens: int, **more: Any) -> CompletionRequest:
    """Return a request with a prompt that follows from its seed and length."""
    prompt = tuple(32 + (seed * 31 + i * i * (seed + 3)) % 95 for i in range(length))
    return CompletionRequest(**{"model": "base", **more}, prompt=prompt, max_tokens=tokens)


def ids(answer: Completion) -> list[int]:
    """Return the token ids of an answer."""
    return [token.id for token in answer.tokens]


def completed(served: list[Served]) -> list[Completion]:
    """Return the answers of a burst in which every request was answered."""
    answers = [one.result for one in served if isinstance(one.result, Completion)]
    assert len(answers) == len(served)
    return answers


def serve(engine: TransformersEngine, *arrivals: Arrival, between: Callable[[], None] = lambda: None) -> list[Served]:
    """Serve a burst."""
    return engine.serve(arrivals, lambda _number, _count: None, between)


class TestDriver:
    """The driver runs everything in one thread, and no caller waits forever."""

    def test_an_exception_of_the_thread_is_raised_in_the_caller(self) -> None:
        """The next call is made all the same."""
        driver = Driver()
        with pytest.raises(ZeroDivisionError):
            driver.do(lambda: 1 // 0)
        assert driver.do(lambda: 2) == 2
        driver.end()

    def test_a_loop_that_hangs_is_silent(self) -> None:
        """The call raises EngineSilent instead of hanging."""
        never = threading.Event()
        with pytest.raises(EngineSilent, match="next pause in 0 s"):
            Driver(patience=0.05).do(never.wait)
        never.set()

    def test_its_calls_are_made_under_its_gate(self) -> None:
        """The gate is open again before the caller goes on."""
        gate = threading.Lock()
        driver = Driver(gate=gate)
        assert driver.do(gate.locked)
        assert not gate.locked()
        with pytest.raises(ZeroDivisionError):
            driver.do(lambda: 1 // 0)
        assert driver.do(gate.locked)
        driver.end()

    @pytest.mark.parametrize("graphs", [True, False])
    def test_engines_with_cuda_graphs_compute_one_at_a_time(
        self, graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On an H200 the cold and the tested engine captured graphs side by side, and both crashed."""
        monkeypatch.setattr(transformers, "check_installed", lambda: None)
        monkeypatch.setattr(transformers, "build", lambda _: CAPTURES.locked())
        monkeypatch.setattr(transformers, "TransformersEngine", lambda _, driver, parts: (driver.end(), parts)[1])
        chosen = start_options(CELLS[0], f"use_cuda_graph={graphs}", log=tmp_path / "log")
        assert transformers.start(chosen) is graphs

    def test_its_threads_do_not_keep_the_process(self) -> None:
        """Threads that Transformers starts are daemons, like the thread that starts them."""
        driver = Driver()
        assert driver.do(lambda: threading.Thread(target=time.sleep).daemon)
        driver.end()


class Scheduling:
    """A scheduler and a cache of 24 blocks that find these numbers of tokens, one per lookup."""

    def __init__(self, *found: int) -> None:
        self.found, self.added = list(found), list[str]()
        self.cache = SimpleNamespace(
            search_prefix_match=lambda _name, _ids: self.found.pop(0), get_num_free_blocks=lambda: 20, num_blocks=24
        )
        self.batches: list[list[Any] | None] = []
        self.scheduler = SimpleNamespace(
            add_waiting_request=lambda state: self.added.append(state.request_id),
            schedule_batch=lambda *_limits: (self.batches.pop(0), False, 0, 0),
        )


def test_hits_are_those_of_the_lookup_at_admission() -> None:
    """A request without a hit or room is looked up again. A lookup after a preemption does not change its hit."""
    engine = Scheduling(0, 32, 96)
    watched, one = EngineHooks(engine), SimpleNamespace(request_id="a")
    engine.scheduler.add_waiting_request(one)
    assert [engine.cache.search_prefix_match("a", [1] * 40) for _ in range(2)] == [0, 32]
    assert (watched.hits, watched.preemptions("a")) == ({"a": 32}, 0)
    engine.scheduler.add_waiting_request(one)
    assert engine.cache.search_prefix_match("a", [1] * 100) == 96
    assert (watched.hits, watched.preemptions("a"), engine.added) == ({"a": 32}, 1, ["a", "a"])
    watched.forget("a")
    assert (watched.hits, watched.preemptions("a")) == ({}, 0)


def test_the_last_token_of_a_prompt_is_never_a_hit() -> None:
    """Up to 5.15 the lookup finds a whole prompt, and the scheduler computes its last token all the same."""
    engine = Scheduling(32)
    watched = EngineHooks(engine)
    assert engine.cache.search_prefix_match("a", [1] * 32) == 32
    assert watched.hits == {"a": 31}


def test_a_request_that_was_in_a_batch_since_its_admission_has_begun() -> None:
    """A request that only shares blocks has not begun, nor has a preempted one."""
    engine = Scheduling()
    one, two = (
        SimpleNamespace(request_id=name, position_offset=5, tokens_to_process=[1], remaining_prefill_tokens=[])
        for name in "ab"
    )
    engine.batches = [None, [SimpleNamespace(state=one)], [SimpleNamespace(state=two)]]
    watched = EngineHooks(engine)
    begun = []
    for _ in range(3):
        assert engine.scheduler.schedule_batch(64, 384)[1:] == (False, 0, 0)
        begun.append(set(watched.started))
    assert begun == [set(), {"a"}, {"a", "b"}]
    engine.scheduler.add_waiting_request(one)
    watched.forget("b")
    assert watched.started == set()


class Model:
    """The part of a model that PeftAdapters uses. It records which adapter is on."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.on: str | None = None
        self.device = SimpleNamespace(type="cpu")

    def load_adapter(self, path: str, *, adapter_name: str, hotswap: bool) -> Any:
        """Load an adapter and switch it on, as Transformers does."""
        assert adapter_name not in self.loaded
        if "bad" in path:
            raise RuntimeError("shapes")
        self.loaded[adapter_name] = self.on = path if adapter_name in self.loaded else adapter_name
        self.loaded[adapter_name] = path
        missing = {f"layer.lora_A.{adapter_name}.weight"} if "part" in path else set()
        return SimpleNamespace(missing_keys={"layer.lora_A.other.weight", *missing})

    def delete_adapter(self, name: str) -> None:
        """Unload an adapter. Raises ValueError as Transformers does."""
        if name not in self.loaded:
            raise ValueError(name)
        del self.loaded[name]
        self.on = next(iter(self.loaded), None)

    def set_adapter(self, name: str) -> None:
        """Switch one adapter on."""
        self.on = name

    def disable_adapters(self) -> None:
        """Switch all adapters off."""
        self.on = None

    def enable_adapters(self) -> None:
        """Allow adapters to be on."""


class TestAdapters:
    """Adapter names on a model that records its calls."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Callable[[str], str]:
        """Return a function that makes a folder which looks like an adapter's."""

        def made(name: str) -> str:
            (tmp_path / name).mkdir()
            (tmp_path / name / "adapter_config.json").touch()
            return str(tmp_path / name)

        return made

    def test_loading_and_unloading_change_no_active_adapter(self, files: Callable[[str], str]) -> None:
        """Loading switches the new adapter on and unloading a remaining one; neither may affect a request."""
        model = Model()
        adapters = PeftAdapters(model, "base")
        adapters.load("a", files("a"), in_place=False)
        assert (model.on, adapters.on) == (None, None)
        adapters.switch("a")
        adapters.load("b", files("b"), in_place=False)
        assert (model.on, adapters.on) == ("a", "a")
        adapters.load("a", files("a2"), in_place=True)
        assert (model.on, Path(model.loaded["a"]).name) == ("a", "a2")
        adapters.unload("a")
        assert (model.on, adapters.on, adapters.names) == (None, None, {"b"})

    def test_refusals(self, files: Callable[[str], str], tmp_path: Path) -> None:
        """Each refusal has its status, and leaves neither a name nor an adapter that is on."""
        model = Model()
        adapters = PeftAdapters(model, "base")
        adapters.load("a", files("a"), in_place=False)
        statuses = []
        for attempt in (
            lambda: adapters.load("a", files("again"), in_place=False),
            lambda: adapters.load("base", files("base"), in_place=True),
            lambda: adapters.load("none", str(tmp_path / "nowhere"), in_place=False),
            lambda: adapters.load("bad", files("bad"), in_place=False),
            lambda: adapters.load("part", files("part"), in_place=False),
            lambda: adapters.unload("nobody"),
            lambda: adapters.known("nobody"),
        ):
            with pytest.raises(RequestRefused) as refusal:
                attempt()
            statuses.append(refusal.value.status)
        assert statuses == [400, 400, 404, 400, 400, 404, 404]
        assert (set(model.loaded), adapters.names, model.on) == ({"a"}, {"a"}, None)
        assert [adapters.known("a"), adapters.known("base")] == ["a", None]


def output(
    *tokens: int, name: str = "a", scores: tuple[float, ...] = (), error: str | None = None, finished: bool = False
) -> Any:
    """Return an output of Transformers after a step."""
    return SimpleNamespace(
        request_id=name,
        generated_tokens=list(tokens),
        logprobs=list(scores),
        prompt_ids=[1, 2],
        error=error,
        is_finished=lambda: finished,
    )


class TestLive:
    """The state of one request."""

    def test_tokens_come_once_and_at_their_step(self) -> None:
        """Each output repeats the whole answer, and a step may add no token."""
        one = TransformersRequest(new_request(1, 2, 3), (1, 2), name="a", step=4)
        for step, said in ((5, output()), (6, output(7)), (7, output(7, 8)), (8, output(7, 8, 9, finished=True))):
            one.take(said, step)
        answer = one.result("xyz")
        assert isinstance(answer, Completion)
        assert [(token.id, round(token.at, 3)) for token in answer.tokens] == [(7, 0.02), (8, 0.03), (9, 0.04)]
        assert (answer.finish_reason, answer.prompt, answer.text, one.ended) == ("length", (1, 2), "xyz", 8)

    def test_scores_are_returned_without_a_request_for_them(self) -> None:
        """The engine always gives scores, which distinguish a tie from a wrong answer."""
        answers = []
        for response_options in (ResponseOptions(), ResponseOptions(logprobs=True)):
            one = TransformersRequest(new_request(1, 2, 1, options=response_options), (1, 2), name="a", step=0)
            one.take(output(7, scores=(-0.5,), finished=True), 1)
            answers.append(one.tokens[0].logprob)
        assert answers == [-0.5, -0.5]

    def test_it_is_over_when_all_answers_are(self) -> None:
        """Each answer has a name of its own. The request's prompt and first answer have the request's name."""
        one = TransformersRequest(new_request(1, 2, 2, options=ResponseOptions(answers=3)), (1, 2), name="a", step=0)
        for step, (name, *tokens) in enumerate((("a__child#1", 5, 6), ("a", 3, 4), ("a__child#0", 7, 8)), 1):
            assert one.ended is None
            one.take(output(*cast(list[int], tokens), name=str(name), finished=True), step)
        answer = one.result("")
        assert isinstance(answer, Completion)
        found = [[token.id for token in tokens] for tokens in (answer.tokens, *answer.others)]
        assert (found, one.ended) == ([[3, 4], [7, 8], [5, 6]], 3)

    def test_an_error_is_no_answer(self) -> None:
        """The error counts although it is the last output."""
        one = TransformersRequest(new_request(1, 2, 1), (1, 2), name="a", step=0)
        one.take(output(error="no", finished=True), 1)
        problem = one.result("")
        assert isinstance(problem, RequestRefused)
        assert problem.status == 500

    @pytest.mark.parametrize(
        ("abort", "stage", "tokens", "step", "is_due"),
        [
            (Abort(after_ms=20), Stage.QUEUED, 0, 1, False),
            (Abort(after_ms=20), Stage.QUEUED, 0, 2, True),
            (Abort(after_ms=20, at=Stage.PREFILL), Stage.QUEUED, 0, 9, False),
            (Abort(after_ms=20, at=Stage.PREFILL), Stage.PREFILL, 0, 2, True),
            (Abort(after_tokens=2), Stage.PREFILL, 0, 9, False),
            (Abort(after_tokens=2), Stage.DECODE, 1, 9, False),
            (Abort(after_tokens=2), Stage.DECODE, 2, 9, True),
            (Abort(after_ms=500), Stage.DECODE, 1, 3, True),
            (None, Stage.DECODE, 5, 9, False),
        ],
    )
    def test_when_a_client_disconnects(
        self, abort: Abort | None, stage: Stage, tokens: int, step: int, *, is_due: bool
    ) -> None:
        """A client disconnects after its tokens, or after its time at its stage, at the latest with the first token
        then.
        """
        one = TransformersRequest(new_request(1, 2, 9, abort=abort), (1, 2), name="a", step=0, stage=lambda _: stage)
        one.take(output(*range(tokens)), 1)
        assert disconnects(one, step) == is_due


class TestOptions:
    """Engine options become fields of the configuration."""

    def test_fields_are_read_as_python_would(self) -> None:
        """Numbers, None and booleans are converted, other words stay text, and the last value of a field counts."""
        words = ("num_blocks=9", "num_blocks=12", "safety_margin=None", "scheduler_type=fifo")
        given = fields(start_options(CELLS[0], *words, caching=False, log=Path("l")))
        assert (given["num_blocks"], given["safety_margin"], given["scheduler_type"]) == (12, None, "fifo")
        assert (given["allow_block_sharing"], given["page_size"], given["dtype"]) == (False, 16, "float32")

    def test_a_missing_package_is_one_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The error says what to install and in which Python."""
        monkeypatch.setattr(setup.importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(EngineStartError, match=r"torch and transformers not installed for .*: pip install") as said:
            transformers.start(start_options(CELLS[0], log=tmp_path / "l"))
        assert "\n" not in str(said.value)

    def test_variants_take_away_what_the_cell_has(self) -> None:
        """The tight cell has a small pool and short steps. The user's own fields count too."""
        roomy, tight, *_ = CELLS
        assert [v.removes for v in variants(roomy, SHAPE, ())] == []
        assert [v.removes for v in variants(tight, SHAPE, ())] == [POOL, CHUNKS]
        (made,) = variants(roomy, SHAPE, ("num_blocks=8",))
        assert made.cell.arguments == (*roomy.arguments, "num_blocks=2048")


class TestWholeCacheEviction:
    """Expected hits of an engine that empties its cache for lack of room, instead of evicting the oldest blocks."""

    def test_only_what_fits_beside_the_reserve_is_expected(self) -> None:
        """Two prompts of three blocks and their answers fill eight of ten blocks; with a reserve of three they do
        not fit.
        """
        prompt = range(3 * BLOCK)
        reported = [outcome(0, prompt), outcome(1, prompt)]
        expected = [
            bounds(history(*reported, shape=shape(pool_blocks=10, drops_all_below=below)))[1].at_least
            for below in (None, 0, 2, 3)
        ]
        assert expected == [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, None]

    @pytest.mark.parametrize(
        ("below", "resets", "expected_resets"), [(3, True, 1), (0, True, 1), (None, True, 0), (3, False, 0)]
    )
    def test_each_run_begins_with_an_empty_cache(
        self, below: int | None, *, resets: bool, expected_resets: int
    ) -> None:
        """Otherwise blocks of other runs would fill the cache. Other engines keep it."""
        resets_done: list[int] = []
        engine = SimpleNamespace(
            shape=shape(drops_all_below=below),
            capabilities={Capability.CACHE_RESET: Support(resets, "")},
            reset_cache=lambda: resets_done.append(1),
        )
        WorkloadRun.empty_first(
            cast(WorkloadRun, SimpleNamespace(engine=engine, unless_lost=lambda ask, _nothing: ask()))
        )
        assert len(resets_done) == expected_resets


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Yield a function that starts engines, which are stopped after the tests of this file."""
    engines: list[TransformersEngine] = []

    def start_one(*arguments: str, prefix_caching: bool = True) -> TransformersEngine:
        log = tmp_path_factory.mktemp("engine") / "engine.log"
        model = str(tiny_model(CACHED))
        options = start_options(CELLS[0], *arguments, model=model, caching=prefix_caching, log=log)
        engines.append(transformers.start(options))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def cold(start: Start) -> TransformersEngine:
    """Return an engine with block sharing off."""
    return start(prefix_caching=False)


@pytest.fixture(scope="module")
def warm(start: Start) -> TransformersEngine:
    """Return an engine with block sharing: 24 blocks of 16 tokens, and 64 tokens per step."""
    return start("num_blocks=24", "max_batch_tokens=64")


def adapter(seed: int, rank: int = 8) -> AdapterFiles:
    """Return a generated adapter."""
    return generate_adapter(CACHED, read_config(tiny_model(CACHED)), seed=seed, rank=rank)


def too_many_requests() -> list[Arrival]:
    """Return requests that together need more than the pool has."""
    return [Arrival(new_request(seed, 150, 40)) for seed in range(3)]


@needs_package
class TestEngine:
    """Tests of the real engine."""

    def test_several_answers_share_their_prompt(self, cold: TransformersEngine, warm: TransformersEngine) -> None:
        """All answers equal the cold one, also on a hit, and no block stays in use."""
        assert warm.reset_cache()
        request = new_request(2, 60, 12, options=ResponseOptions(answers=3))
        right = ids(cold.complete(new_request(2, 60, 12)))
        for hit in (0, 48):
            answer = warm.complete(request)
            found = [[token.id for token in tokens] for tokens in (answer.tokens, *answer.others)]
            assert (found, answer.cached_tokens) == ([right] * 3, hit)
        assert ids(warm.complete(new_request(2, 60, 12))) == right
        assert warm.metrics().pool_usage == 0

    def test_a_small_pool_preempts(self, cold: TransformersEngine, warm: TransformersEngine) -> None:
        """Preemptions are counted per request and in total, and no answer changes."""
        before = warm.metrics()
        answers = completed(serve(warm, *too_many_requests()))
        counted = sum(answer.preemptions or 0 for answer in answers)
        assert counted > 0
        assert warm.metrics().since(before).preemptions == counted
        assert [ids(answer) for answer in answers] == [ids(cold.complete(one.request)) for one in too_many_requests()]

    def test_its_steps_are_recorded(self, warm: TransformersEngine) -> None:
        """A prompt takes three chunks of at most 64 tokens. Its repetition hits, in one step with another prompt."""
        assert warm.reset_cache()
        warm.take_steps()
        first = warm.complete(new_request(6, 150, 4))
        (admission,) = (one for step in self.steps(warm) for one in step.admitted)
        assert (admission.hit, admission.resumed) == (first.cached_tokens, False)
        again, other = completed(serve(warm, Arrival(new_request(6, 150, 4)), Arrival(new_request(7, 30, 4))))
        step = self.steps(warm)[0]
        assert [(one.start, one.end, one.target) for one in step.chunks] == [(144, 150, 150), (0, 30, 30)]
        assert [one.hit for one in step.admitted] == [again.cached_tokens, other.cached_tokens] == [144, 0]
        assert step.free == 24 - 12

    def test_prefill_and_decode_are_distinguished(self, warm: TransformersEngine) -> None:
        """Steps that only decode are not recorded; decoding requests next to a prompt are counted."""
        assert warm.reset_cache()
        warm.take_steps()
        serve(warm, Arrival(new_request(8, 20, 30)), Arrival(new_request(9, 100, 4), offset_ms=100))
        steps = self.steps(warm)
        assert [[(one.start, one.end) for one in step.chunks] for step in steps] == [[(0, 20)], [(0, 63)], [(63, 100)]]
        assert [step.decoding for step in steps] == [0, 1, 1]

    def test_preempted_requests_are_resumed_and_blocks_evicted(self, warm: TransformersEngine) -> None:
        """Each preempted request is resumed, and a full pool loses all blocks that no request uses."""
        assert warm.reset_cache()
        warm.take_steps()
        warm.complete(new_request(10, 100, 4))
        answers = completed(serve(warm, *too_many_requests()))
        steps = self.steps(warm)
        resumed = sum(one.resumed for step in steps for one in step.admitted)
        assert resumed == sum(answer.preemptions or 0 for answer in answers) > 0
        evictions = [step for step in steps if step.evicted]
        assert evictions
        assert (evictions[0].evicted, evictions[0].evicted_first) == (6, 1)

    def steps(self, engine: TransformersEngine) -> tuple[EngineStep, ...]:
        """Return the recorded steps."""
        steps = engine.take_steps()
        assert steps is not None
        return steps

    def test_a_run_repeats_exactly(self, warm: TransformersEngine) -> None:
        """Tokens, times, cached tokens and preemptions repeat, with arrivals and an abort at their steps."""
        arrivals = [
            *too_many_requests(),
            Arrival(new_request(5, 60, 30, abort=Abort(after_tokens=7)), offset_ms=30),
            Arrival(new_request(5, 60, 30), offset_ms=120),
        ]
        runs = []
        for _ in range(3):
            assert warm.reset_cache()
            runs.append([one.result for one in serve(warm, *arrivals)])
        assert runs[0] == runs[1] == runs[2]
        answers = [one for one in runs[0] if isinstance(one, Completion)]
        assert [answer.aborted for answer in answers] == [None, None, None, Stage.DECODE, None]

    def test_several_threads_share_the_steps(self, cold: TransformersEngine) -> None:
        """Two concurrent requests run side by side, so the second one does not wait for the end of the first."""
        began, answers = cold.clock(), dict[int, Completion]()

        def ask(seed: int) -> None:
            answers[seed] = cold.complete(new_request(seed, 40, 200))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cold.clock() - began < 3.5
        assert [ids(answers[seed]) for seed in (1, 2)] == [ids(cold.complete(new_request(s, 40, 200))) for s in (1, 2)]

    @pytest.mark.parametrize(
        ("abort", "stage", "tokens"),
        [
            (Abort(), Stage.QUEUED, 0),
            (Abort(at=Stage.PREFILL), Stage.PREFILL, 0),
            (Abort(after_ms=30), Stage.PREFILL, 0),
            (Abort(after_tokens=3), Stage.DECODE, 3),
            (Abort(after_tokens=9), None, 9),
        ],
    )
    def test_an_abort_reports_its_stage(
        self, warm: TransformersEngine, abort: Abort, stage: Stage | None, tokens: int
    ) -> None:
        """The prompt takes four steps. The ninth token is the last, so there is nothing left to abort."""
        assert warm.reset_cache()
        answer = warm.complete(new_request(4, 250, 9, abort=abort))
        assert (answer.aborted, len(answer.tokens)) == (stage, tokens)
        gauges = warm.metrics()
        assert (gauges.running, gauges.waiting, gauges.pool_usage) == (0, 0, 0.0)

    def test_an_aborted_request_begins_once(self, warm: TransformersEngine) -> None:
        """An aborted request may be in one more batch, because the engine has not removed it yet."""
        assert warm.reset_cache()
        warm.take_steps()
        answer = warm.complete(new_request(13, 50, 9, abort=Abort(after_tokens=2)))
        assert answer.aborted is Stage.DECODE
        assert [one.hit for step in self.steps(warm) for one in step.admitted] == [0]

    def test_adapters_wait_for_one_another(self, warm: TransformersEngine, cold: TransformersEngine) -> None:
        """Each request is answered with its own adapter, in any order."""
        names = {"one": adapter(1), "two": adapter(2, rank=16)}
        for engine in (warm, cold):
            for name, files in names.items():
                engine.load_adapter(name, str(files.folder), in_place=False)
        arrivals = [Arrival(new_request(i, 40, 8, model=m)) for i, m in enumerate(("one", "two", "base", "one", "two"))]
        expected = [ids(cold.complete(one.request)) for one in arrivals]
        assert [ids(answer) for answer in completed(serve(warm, *arrivals))] == expected
        assert len({tuple(answer) for answer in expected}) == len(expected)
        for engine in (warm, cold):
            for name in names:
                engine.unload_adapter(name)

    def test_a_reload_in_place_changes_the_answer(self, cold: TransformersEngine) -> None:
        """A reload works for another rank and under traffic, and a name in use cannot be unloaded."""
        first, second = str(adapter(1).folder), str(adapter(2, rank=16).folder)
        request, answers, refused = new_request(1, 40, 12, model="lora"), [], list[int]()
        cold.load_adapter("lora", first, in_place=False)
        answers.append(ids(cold.complete(request)))
        began = cold.clock()

        def between() -> None:
            if round(cold.clock() - began, 3) == 0.06:
                cold.load_adapter("lora", second, in_place=True)
                with pytest.raises(RequestRefused) as refusal:
                    cold.unload_adapter("lora")
                refused.append(refusal.value.status)

        (mixed,) = completed(serve(cold, Arrival(request), between=between))
        answers.append(ids(cold.complete(request)))
        assert refused == [409]
        assert answers[0] != answers[1]
        assert ids(mixed)[:3] == answers[0][:3]
        assert ids(mixed) not in answers
        cold.unload_adapter("lora")
        with pytest.raises(RequestRefused):
            cold.complete(request)

    def test_a_switch_does_not_affect_the_base_model(self, cold: TransformersEngine) -> None:
        """The base model's answers do not change, neither during the switch nor after it."""
        before = ids(cold.complete(new_request(1, 40, 8)))
        cold.switch_adapter("all", str(adapter(3).folder))
        switched, base = (ids(cold.complete(new_request(1, 40, 8, model=model))) for model in ("all", "base"))
        cold.unload_adapter("all")
        assert (base, ids(cold.complete(new_request(1, 40, 8)))) == (before, before)
        assert switched != before

    def test_a_name_unloaded_while_waiting_is_refused(self, cold: TransformersEngine) -> None:
        """A switch to another adapter unloads the previous one, also for a request that waits for it."""
        cold.switch_adapter("first", str(adapter(1).folder))
        began = cold.clock()

        def between() -> None:
            if round(cold.clock() - began, 3) == 0.05:
                cold.switch_adapter("second", str(adapter(2).folder))

        running, waiting = Arrival(new_request(1, 40, 12)), Arrival(new_request(2, 40, 4, model="first"), offset_ms=20)
        base, gone = (one.result for one in serve(cold, running, waiting, between=between))
        assert isinstance(base, Completion)
        assert isinstance(gone, RequestRefused)
        assert gone.status == 404
        assert len(cold.complete(new_request(2, 40, 4, model="second")).tokens) == 4
        cold.unload_adapter("second")

    def test_a_reset_waits_for_requests(self, start: Start) -> None:
        """The reset returns False during a burst. After a successful reset nothing hits."""
        engine, said = start("num_blocks=24"), list[bool]()
        serve(engine, Arrival(new_request(1, 60, 5)), between=lambda: said.append(engine.reset_cache()))
        assert said == [False] * (len(said) - 1) + [True]
        assert len(said) > 3
        assert engine.complete(new_request(1, 60, 5)).cached_tokens == 0

    def test_direct_scores_equal_those_of_the_answer(self, cold: TransformersEngine) -> None:
        """A direct pass scores an answer as the engine did, for the base model and for an adapter, and changes no
        later answer.

        With its cache on, this release answers an adapter's request from the base model's KV.
        """
        cold.load_adapter("scored", str(adapter(4).folder), in_place=False)
        for model in ("base", "scored", "base"):
            request = new_request(14, 40, 12, model=model)
            answer = cold.complete(request)
            text = CompletionRequest(model=model, prompt=(*request.prompt, *ids(answer)), max_tokens=1)
            scored = cold.score(text)
            assert scored.prompt_logprobs is not None
            assert scored.prompt_best is not None
            own = [token.logprob for token in answer.tokens]
            assert scored.prompt_logprobs[-12:] == pytest.approx(own, abs=1e-4)
            assert scored.prompt_best[-12:] == pytest.approx(own, abs=1e-4)
            assert (len(scored.prompt_logprobs), scored.prompt_logprobs[0]) == (len(text.prompt), None)
            assert min(one for one in scored.prompt_logprobs[1:-12] if one is not None) < min(map(float, own)) - 1
            assert ids(cold.complete(request)) == ids(answer)
        cold.unload_adapter("scored")

    def test_nothing_is_scored_while_requests_run(self, warm: TransformersEngine) -> None:
        """The pass would use the model's attention, which running requests need."""
        refused = list[int]()

        def between() -> None:
            if not refused and warm.metrics().running:
                with pytest.raises(RequestRefused) as refusal:
                    warm.score(new_request(15, 20, 1))
                refused.append(refusal.value.status)

        serve(warm, Arrival(new_request(1, 60, 5)), between=between)
        assert refused == [409]

    def test_a_failed_loop_is_a_crashed_engine(self, start: Start) -> None:
        """The error names the cause, and later calls raise it as well."""
        engine = start("num_blocks=8")
        with pytest.raises(EngineDied, match="No requests can be scheduled"):
            engine.complete(new_request(1, 200, 4))
        assert not engine.alive()
        assert "RuntimeError" in engine.log_tail()
        with pytest.raises(EngineDied, match="generation loop failed"):
            engine.metrics()
        engine.stop()

    def test_a_start_that_fails_names_the_reason(self, start: Start) -> None:
        """An unknown field is refused, and so is one that needs a device which this machine lacks."""
        for argument, said in (("blocks=3", "blocks"), ("use_async_batching=True", "(?i)async")):
            with pytest.raises(EngineStartError, match=said):
                start(argument)

    def test_its_shape_and_capabilities(self, warm: TransformersEngine) -> None:
        """Sizes are as configured, and the scheduler keeps 15 % of the pool free."""
        assert (warm.shape.block_size, warm.shape.pool_blocks, warm.shape.drops_all_below) == (16, 24, 4)
        assert (warm.shape.max_model_tokens, warm.shape.uniform) == (4096, True)
        assert warm.capabilities[Capability.ADAPTER_CHOICE].present
        assert not warm.capabilities[Capability.MIXED_ADAPTERS].present


def changed(prompt: tuple[int, ...], *places: int) -> tuple[int, ...]:
    """Return the prompt with other tokens at these positions."""
    return tuple(126 - token % 7 if i in places else token for i, token in enumerate(prompt))


FIRST = new_request(1, 60, 4).prompt
OTHER = new_request(2, 60, 4).prompt
LEADS = {  # fault -> what is sent, and the cached tokens of the last prompt with the fault and without
    "half-a-block-is-hashed": ((FIRST, changed(FIRST, 30)), 48, 16),
    "the-first-token-is-not-hashed": ((FIRST, changed(FIRST, 16)), 48, 16),
    "hashes-lack-the-parent": ((FIRST, OTHER, (*OTHER[:16], *FIRST[16:])), 48, 16),
    "a-match-is-one-block-too-long": ((FIRST, (*FIRST[:16], *OTHER[16:])), 32, 16),
}


@needs_package
class TestFaults:
    """Each fault does what its name says, and only within its context."""

    @pytest.mark.parametrize("name", LEADS)
    def test_a_prompt_hits_what_another_one_computed(self, start: Start, tmp_path: Path, name: str) -> None:
        """The engine counts the hit, so the answer comes from other tokens."""
        prompts, with_fault, without = LEADS[name]
        for number, hits in enumerate((without, with_fault, without)):
            folder = tmp_path / str(number)
            with faults.injected(name, folder) if number == 1 else contextlib.nullcontext():
                engine = start()
                requests = [CompletionRequest(model="base", prompt=prompt, max_tokens=4) for prompt in prompts]
                found = [engine.complete(one) for one in requests]
            assert found[-1].cached_tokens == hits
            assert faults.has_acted(folder) == (number == 1)

    def test_evicted_blocks_are_found(self, start: Start, tmp_path: Path) -> None:
        """The fault acts after a burst that needs the whole pool."""
        with faults.injected("evicted-blocks-stay-in-the-index", tmp_path):
            engine = start("num_blocks=24", "max_batch_tokens=64")
            completed(serve(engine, *too_many_requests()))
            assert faults.has_acted(tmp_path)

    def test_all_faults_are_in_the_list(self) -> None:
        """The list describes what each fault does."""
        assert set(faults.FAULTS) == {*LEADS, "evicted-blocks-stay-in-the-index"}
        assert all(one.summary in faults.listing() for one in faults.FAULTS.values())
