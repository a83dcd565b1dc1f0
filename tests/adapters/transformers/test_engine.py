"""Transformers: what the adapter makes of it and, where it is installed, that it answers right and repeats."""

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
    Message,
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


def asked(seed: int, length: int, tokens: int, **more: Any) -> CompletionRequest:
    """A request with a prompt that its seed and length say."""
    prompt = tuple(32 + (seed * 31 + i * i * (seed + 3)) % 95 for i in range(length))
    return CompletionRequest(**{"model": "base", **more}, prompt=prompt, max_tokens=tokens)


def ids(answer: Completion) -> list[int]:
    """The tokens."""
    return [token.id for token in answer.tokens]


def completed(served: list[Served]) -> list[Completion]:
    """The answers of a burst in which all were answered."""
    answers = [one.result for one in served if isinstance(one.result, Completion)]
    assert len(answers) == len(served)
    return answers


def serve(engine: TransformersEngine, *arrivals: Arrival, between: Callable[[], None] = lambda: None) -> list[Served]:
    """A burst."""
    return engine.serve(arrivals, lambda _number, _count: None, between)


class TestDriver:
    """One thread for everything, and nobody waits for ever."""

    def test_what_is_raised_there_is_raised_here(self) -> None:
        """And the next thing is done all the same."""
        driver = Driver()
        with pytest.raises(ZeroDivisionError):
            driver.do(lambda: 1 // 0)
        assert driver.do(lambda: 2) == 2
        driver.end()

    def test_a_loop_that_hangs_is_silent(self) -> None:
        """It does not hang its caller."""
        never = threading.Event()
        with pytest.raises(EngineSilent, match="next pause in 0 s"):
            Driver(patience=0.05).do(never.wait)
        never.set()

    def test_its_calls_are_made_under_its_gate(self) -> None:
        """Which is open again before the caller goes on."""
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
        """On an H200, the cold and the tested engine captured side by side, and both ended."""
        monkeypatch.setattr(transformers, "check_installed", lambda: None)
        monkeypatch.setattr(transformers, "build", lambda _: CAPTURES.locked())
        monkeypatch.setattr(transformers, "TransformersEngine", lambda _, driver, parts: (driver.end(), parts)[1])
        chosen = start_options(CELLS[0], f"use_cuda_graph={graphs}", log=tmp_path / "log")
        assert transformers.start(chosen) is graphs

    def test_its_threads_do_not_keep_the_process(self) -> None:
        """Transformers starts a thread that is none of ours: a daemon like the one that started it."""
        driver = Driver()
        assert driver.do(lambda: threading.Thread(target=time.sleep).daemon)
        driver.end()


class Scheduling:
    """A scheduler and a cache of 24 blocks that find so many tokens, one lookup after the other."""

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


def test_hits_are_those_of_the_lookup_that_let_it_in() -> None:
    """A request that finds nothing and no room looks again; one that was thrown out and looks again hit no more."""
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


def test_who_was_in_a_batch_since_it_was_let_in_has_begun() -> None:
    """One that only shares somebody's blocks has not; one that was thrown out has not any more."""
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
    """What PeftAdapters wants of a model: notes what is on."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.on: str | None = None
        self.device = SimpleNamespace(type="cpu")

    def load_adapter(self, path: str, *, adapter_name: str, hotswap: bool) -> Any:
        """As Transformers does, it switches on what it loads."""
        assert adapter_name not in self.loaded
        if "bad" in path:
            raise RuntimeError("shapes")
        self.loaded[adapter_name] = self.on = path if adapter_name in self.loaded else adapter_name
        self.loaded[adapter_name] = path
        missing = {f"layer.lora_A.{adapter_name}.weight"} if "part" in path else set()
        return SimpleNamespace(missing_keys={"layer.lora_A.other.weight", *missing})

    def delete_adapter(self, name: str) -> None:
        """Raises as Transformers does."""
        if name not in self.loaded:
            raise ValueError(name)
        del self.loaded[name]
        self.on = next(iter(self.loaded), None)

    def set_adapter(self, name: str) -> None:
        """One on."""
        self.on = name

    def disable_adapters(self) -> None:
        """None on."""
        self.on = None

    def enable_adapters(self) -> None:
        """Some may be on."""


class TestAdapters:
    """Names, with a model that notes what was done to it."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Callable[[str], str]:
        """A folder that looks like an adapter's."""

        def made(name: str) -> str:
            (tmp_path / name).mkdir()
            (tmp_path / name / "adapter_config.json").touch()
            return str(tmp_path / name)

        return made

    def test_what_was_on_stays_on(self, files: Callable[[str], str]) -> None:
        """Loading switches on what it loads, deleting what is left: neither may reach a request."""
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
        """Each with its status; what is refused leaves no name and nothing on behind it."""
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
    """What Transformers puts out after a step."""
    return SimpleNamespace(
        request_id=name,
        generated_tokens=list(tokens),
        logprobs=list(scores),
        prompt_ids=[1, 2],
        error=error,
        is_finished=lambda: finished,
    )


class TestLive:
    """One request's account."""

    def test_tokens_come_once_and_at_their_step(self) -> None:
        """Each output repeats all of the answer; one of a step may bring none."""
        one = TransformersRequest(asked(1, 2, 3), (1, 2), name="a", step=4)
        for step, said in ((5, output()), (6, output(7)), (7, output(7, 8)), (8, output(7, 8, 9, finished=True))):
            one.take(said, step)
        answer = one.result("xyz")
        assert isinstance(answer, Completion)
        assert [(token.id, round(token.at, 3)) for token in answer.tokens] == [(7, 0.02), (8, 0.03), (9, 0.04)]
        assert (answer.finish_reason, answer.prompt, answer.text, one.ended) == ("length", (1, 2), "xyz", 8)

    def test_scores_also_where_nobody_asked_for_them(self) -> None:
        """The engine gives them always. They tell a tie from a wrong answer."""
        answers = []
        for surface in (ResponseOptions(), ResponseOptions(logprobs=True)):
            one = TransformersRequest(asked(1, 2, 1, surface=surface), (1, 2), name="a", step=0)
            one.take(output(7, scores=(-0.5,), finished=True), 1)
            answers.append(one.tokens[0].logprob)
        assert answers == [-0.5, -0.5]

    def test_it_is_over_when_all_answers_are(self) -> None:
        """Each has a name of its own; the request's prompt and first answer are those of its own name."""
        one = TransformersRequest(asked(1, 2, 2, surface=ResponseOptions(answers=3)), (1, 2), name="a", step=0)
        for step, (name, *tokens) in enumerate((("a__child#1", 5, 6), ("a", 3, 4), ("a__child#0", 7, 8)), 1):
            assert one.ended is None
            one.take(output(*cast(list[int], tokens), name=str(name), finished=True), step)
        answer = one.result("")
        assert isinstance(answer, Completion)
        found = [[token.id for token in tokens] for tokens in (answer.tokens, *answer.others)]
        assert (found, one.ended) == ([[3, 4], [7, 8], [5, 6]], 3)

    def test_an_error_is_no_answer(self) -> None:
        """Though it is the last output."""
        one = TransformersRequest(asked(1, 2, 1), (1, 2), name="a", step=0)
        one.take(output(error="no", finished=True), 1)
        problem = one.result("")
        assert isinstance(problem, RequestRefused)
        assert problem.status == 500

    @pytest.mark.parametrize(
        ("abort", "stage", "tokens", "step", "hangs_up"),
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
    def test_when_a_client_hangs_up(
        self, abort: Abort | None, stage: Stage, tokens: int, step: int, *, hangs_up: bool
    ) -> None:
        """After so many tokens; or after a time without one, once it is where it was to be, and then with the first."""
        one = TransformersRequest(asked(1, 2, 9, abort=abort), (1, 2), name="a", step=0, stage=lambda _: stage)
        one.take(output(*range(tokens)), 1)
        assert disconnects(one, step) == hangs_up


class TestOptions:
    """Fields by name, the cache as the harness wants it."""

    def test_fields_are_read_as_python_would(self) -> None:
        """Numbers, None and truth values; any other word is itself; the last one wins."""
        words = ("num_blocks=9", "num_blocks=12", "safety_margin=None", "scheduler_type=fifo")
        given = fields(start_options(CELLS[0], *words, caching=False, log=Path("l")))
        assert (given["num_blocks"], given["safety_margin"], given["scheduler_type"]) == (12, None, "fifo")
        assert (given["allow_block_sharing"], given["page_size"], given["dtype"]) == (False, 16, "float32")

    def test_a_missing_package_is_one_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """That says what to install, and where."""
        monkeypatch.setattr(setup.importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(EngineStartError, match=r"torch and transformers not installed for .*: pip install") as said:
            transformers.start(start_options(CELLS[0], log=tmp_path / "l"))
        assert "\n" not in str(said.value)

    def test_variants_take_away_what_the_cell_has(self) -> None:
        """A small pool and short steps are the tight cell's; the user's own fields count, too."""
        roomy, tight, *_ = CELLS
        assert [v.removes for v in variants(roomy, SHAPE, ())] == []
        assert [v.removes for v in variants(tight, SHAPE, ())] == [POOL, CHUNKS]
        (made,) = variants(roomy, SHAPE, ("num_blocks=8",))
        assert made.cell.arguments == (*roomy.arguments, "num_blocks=2048")


class TestAnEngineThatDropsAllAtOnce:
    """What the harness owes to one that empties its cache for want of room, instead of letting go of the oldest."""

    def test_only_what_fits_beside_its_reserve_is_owed(self) -> None:
        """Two prompts of three blocks with their answers fill eight of ten: with three to keep free they do not fit."""
        prompt = range(3 * BLOCK)
        told = [outcome(0, prompt), outcome(1, prompt)]
        owed = [
            bounds(history(*told, shape=shape(pool_blocks=10, drops_all_below=below)))[1].at_least
            for below in (None, 0, 2, 3)
        ]
        assert owed == [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, None]

    @pytest.mark.parametrize(
        ("below", "resets", "asked_for"), [(3, True, 1), (0, True, 1), (None, True, 0), (3, False, 0)]
    )
    def test_each_run_begins_with_an_empty_cache(self, below: int | None, *, resets: bool, asked_for: int) -> None:
        """Or what other runs have left would be what fills it; other engines keep it."""
        asked_of: list[int] = []
        engine = SimpleNamespace(
            shape=shape(drops_all_below=below),
            capabilities={Capability.CACHE_RESET: Support(resets, "")},
            reset_cache=lambda: asked_of.append(1),
        )
        WorkloadRun.empty_first(
            cast(WorkloadRun, SimpleNamespace(engine=engine, unless_lost=lambda ask, _nothing: ask()))
        )
        assert len(asked_of) == asked_for


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts engines that live until the tests here are over."""
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
    """Sharing off."""
    return start(prefix_caching=False)


@pytest.fixture(scope="module")
def warm(start: Start) -> TransformersEngine:
    """Beside the cold one: 24 blocks of 16 tokens, 64 tokens a step."""
    return start("num_blocks=24", "max_batch_tokens=64")


def adapter(seed: int, rank: int = 8) -> AdapterFiles:
    """A forged adapter."""
    return generate_adapter(CACHED, read_config(tiny_model(CACHED)), seed=seed, rank=rank)


def crowd() -> list[Arrival]:
    """Requests that together need more than the pool has."""
    return [Arrival(asked(seed, 150, 40)) for seed in range(3)]


@needs_package
class TestEngine:
    """The real one."""

    def test_sharing_off_is_off(self, cold: TransformersEngine, warm: TransformersEngine) -> None:
        """The same answers; whole blocks from the cache where sharing is on, nothing where it is off."""
        assert (warm.shape.prefix_caching, cold.shape.prefix_caching) == (True, False)
        request = asked(1, 60, 12)
        first, again = warm.complete(request), warm.complete(request)
        assert (first.cached_tokens, again.cached_tokens) == (0, 48)
        alone = [cold.complete(request) for _ in range(2)]
        assert [answer.cached_tokens for answer in alone] == [0, 0]
        assert ids(first) == ids(again) == ids(alone[0]) == ids(alone[1])
        assert (first.prompt, first.text) == (request.prompt, bytes(ids(first)).decode())

    def test_several_answers_share_their_prompt(self, cold: TransformersEngine, warm: TransformersEngine) -> None:
        """All are equal to the cold one, also on a hit, and they leave nothing behind."""
        assert warm.reset_cache()
        request = asked(2, 60, 12, surface=ResponseOptions(answers=3))
        right = ids(cold.complete(asked(2, 60, 12)))
        for hit in (0, 48):
            answer = warm.complete(request)
            found = [[token.id for token in tokens] for tokens in (answer.tokens, *answer.others)]
            assert (found, answer.cached_tokens) == ([right] * 3, hit)
        assert ids(warm.complete(asked(2, 60, 12))) == right
        assert warm.metrics().pool_usage == 0

    def test_a_small_pool_preempts(self, cold: TransformersEngine, warm: TransformersEngine) -> None:
        """Seen per request and in total, and no answer suffers."""
        before = warm.metrics()
        answers = completed(serve(warm, *crowd()))
        counted = sum(answer.preemptions or 0 for answer in answers)
        assert counted > 0
        assert warm.metrics().since(before).preemptions == counted
        assert [ids(answer) for answer in answers] == [ids(cold.complete(one.request)) for one in crowd()]

    def test_its_steps_are_recorded(self, warm: TransformersEngine) -> None:
        """A prompt in three chunks of at most 64 tokens, then a hit of it and, in one step with it, another prompt."""
        assert warm.reset_cache()
        warm.take_steps()
        first = warm.complete(asked(6, 150, 4))
        (admission,) = (one for step in self.steps(warm) for one in step.admitted)
        assert (admission.hit, admission.resumed) == (first.cached_tokens, False)
        again, other = completed(serve(warm, Arrival(asked(6, 150, 4)), Arrival(asked(7, 30, 4))))
        step = self.steps(warm)[0]
        assert [(one.start, one.end, one.target) for one in step.chunks] == [(144, 150, 150), (0, 30, 30)]
        assert [one.hit for one in step.admitted] == [again.cached_tokens, other.cached_tokens] == [144, 0]
        assert step.free == 24 - 12

    def test_prefill_and_decode_are_told_apart(self, warm: TransformersEngine) -> None:
        """Steps in which requests only decode are not recorded; those beside a prompt are counted."""
        assert warm.reset_cache()
        warm.take_steps()
        serve(warm, Arrival(asked(8, 20, 30)), Arrival(asked(9, 100, 4), offset_ms=100))
        steps = self.steps(warm)
        assert [[(one.start, one.end) for one in step.chunks] for step in steps] == [[(0, 20)], [(0, 63)], [(63, 100)]]
        assert [step.decoding for step in steps] == [0, 1, 1]

    def test_preempted_requests_are_resumed_and_blocks_evicted(self, warm: TransformersEngine) -> None:
        """As often as requests were preempted; a full pool loses all blocks that no request uses."""
        assert warm.reset_cache()
        warm.take_steps()
        warm.complete(asked(10, 100, 4))
        answers = completed(serve(warm, *crowd()))
        steps = self.steps(warm)
        resumed = sum(one.resumed for step in steps for one in step.admitted)
        assert resumed == sum(answer.preemptions or 0 for answer in answers) > 0
        evictions = [step for step in steps if step.evicted]
        assert evictions
        assert (evictions[0].evicted, evictions[0].evicted_first) == (6, 1)

    def steps(self, engine: TransformersEngine) -> tuple[EngineStep, ...]:
        """What it has recorded."""
        steps = engine.take_steps()
        assert steps is not None
        return steps

    def test_a_run_repeats_exactly(self, warm: TransformersEngine) -> None:
        """Tokens, times, cached tokens, preemptions: with arrivals and an abort on their steps."""
        arrivals = [
            *crowd(),
            Arrival(asked(5, 60, 30, abort=Abort(after_tokens=7)), offset_ms=30),
            Arrival(asked(5, 60, 30), offset_ms=120),
        ]
        runs = []
        for _ in range(3):
            assert warm.reset_cache()
            runs.append([one.result for one in serve(warm, *arrivals)])
        assert runs[0] == runs[1] == runs[2]
        answers = [one for one in runs[0] if isinstance(one, Completion)]
        assert [answer.aborted for answer in answers] == [None, None, None, Stage.DECODE, None]

    def test_several_threads_share_the_steps(self, cold: TransformersEngine) -> None:
        """Two that ask at once run side by side: whoever asks second does not wait for the first one's end."""
        began, answers = cold.clock(), dict[int, Completion]()

        def ask(seed: int) -> None:
            answers[seed] = cold.complete(asked(seed, 40, 200))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cold.clock() - began < 3.5
        assert [ids(answers[seed]) for seed in (1, 2)] == [ids(cold.complete(asked(s, 40, 200))) for s in (1, 2)]

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
    def test_an_abort_tells_its_stage(
        self, warm: TransformersEngine, abort: Abort, stage: Stage | None, tokens: int
    ) -> None:
        """A prompt of four steps; the ninth token is the last, so there is nothing left to abort."""
        assert warm.reset_cache()
        answer = warm.complete(asked(4, 250, 9, abort=abort))
        assert (answer.aborted, len(answer.tokens)) == (stage, tokens)
        gauges = warm.metrics()
        assert (gauges.running, gauges.waiting, gauges.pool_usage) == (0, 0, 0.0)

    def test_an_aborted_request_begins_once(self, warm: TransformersEngine) -> None:
        """Also where it is in a further batch, because the engine has not removed it yet."""
        assert warm.reset_cache()
        warm.take_steps()
        answer = warm.complete(asked(13, 50, 9, abort=Abort(after_tokens=2)))
        assert answer.aborted is Stage.DECODE
        assert [one.hit for step in self.steps(warm) for one in step.admitted] == [0]

    def test_adapters_wait_for_one_another(self, warm: TransformersEngine, cold: TransformersEngine) -> None:
        """Each is answered under its own, whoever is sent first."""
        names = {"one": adapter(1), "two": adapter(2, rank=16)}
        for engine in (warm, cold):
            for name, files in names.items():
                engine.load_adapter(name, str(files.folder), in_place=False)
        arrivals = [Arrival(asked(i, 40, 8, model=m)) for i, m in enumerate(("one", "two", "base", "one", "two"))]
        expected = [ids(cold.complete(one.request)) for one in arrivals]
        assert [ids(answer) for answer in completed(serve(warm, *arrivals))] == expected
        assert len({tuple(answer) for answer in expected}) == len(expected)
        for engine in (warm, cold):
            for name in names:
                engine.unload_adapter(name)

    def test_a_reload_in_place_changes_the_answer(self, cold: TransformersEngine) -> None:
        """Also to another rank, also under traffic; a name in use is not unloaded."""
        first, second = str(adapter(1).folder), str(adapter(2, rank=16).folder)
        request, answers, refused = asked(1, 40, 12, model="lora"), [], list[int]()
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

    def test_a_switch_is_for_everybody(self, cold: TransformersEngine) -> None:
        """The base model is the base model all the same, and again when it is switched off."""
        before = ids(cold.complete(asked(1, 40, 8)))
        cold.switch_adapter("all", str(adapter(3).folder))
        switched, base = (ids(cold.complete(asked(1, 40, 8, model=model))) for model in ("all", "base"))
        cold.unload_adapter("all")
        assert (base, ids(cold.complete(asked(1, 40, 8)))) == (before, before)
        assert switched != before

    def test_a_name_that_is_gone_is_refused_when_its_turn_comes(self, cold: TransformersEngine) -> None:
        """Switching another adapter on forgets the one before it, also for a request that waits for it."""
        cold.switch_adapter("first", str(adapter(1).folder))
        began = cold.clock()

        def between() -> None:
            if round(cold.clock() - began, 3) == 0.05:
                cold.switch_adapter("second", str(adapter(2).folder))

        running, waiting = Arrival(asked(1, 40, 12)), Arrival(asked(2, 40, 4, model="first"), offset_ms=20)
        base, gone = (one.result for one in serve(cold, running, waiting, between=between))
        assert isinstance(base, Completion)
        assert isinstance(gone, RequestRefused)
        assert gone.status == 404
        assert len(cold.complete(asked(2, 40, 4, model="second")).tokens) == 4
        cold.unload_adapter("second")

    def test_a_reset_waits_for_requests(self, start: Start) -> None:
        """False in the midst of a burst; then nothing is left to hit."""
        engine, said = start("num_blocks=24"), list[bool]()
        serve(engine, Arrival(asked(1, 60, 5)), between=lambda: said.append(engine.reset_cache()))
        assert said == [False] * (len(said) - 1) + [True]
        assert len(said) > 3
        assert engine.complete(asked(1, 60, 5)).cached_tokens == 0

    def test_direct_scores_equal_those_of_the_answer(self, cold: TransformersEngine) -> None:
        """The model alone scores an answer as the engine did, for the base model and for an adapter, and changes no
        later answer. (With its cache on, this release answers an adapter from the base model's KV.)"""
        cold.load_adapter("scored", str(adapter(4).folder), in_place=False)
        for model in ("base", "scored", "base"):
            request = asked(14, 40, 12, model=model)
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
        """The pass would use the model's attention, which the running requests need."""
        refused = list[int]()

        def between() -> None:
            if not refused and warm.metrics().running:
                with pytest.raises(RequestRefused) as refusal:
                    warm.score(asked(15, 20, 1))
                refused.append(refusal.value.status)

        serve(warm, Arrival(asked(1, 60, 5)), between=between)
        assert refused == [409]

    def test_a_chat_is_its_rendered_prompt(self, warm: TransformersEngine) -> None:
        """Asking with the ids of the template gives the same answer."""
        messages = (Message("system", "Be brief."), Message("user", "Hello."))
        rendered = warm.render(messages)
        chat = warm.complete(asked(1, 1, 8, messages=messages))
        assert chat.prompt == rendered
        assert ids(chat) == ids(warm.complete(CompletionRequest(model="base", prompt=rendered, max_tokens=8)))

    def test_a_loop_that_fails_is_dead(self, start: Start) -> None:
        """What it failed of is said; whatever is asked afterwards is told so, too."""
        engine = start("num_blocks=8")
        with pytest.raises(EngineDied, match="No requests can be scheduled"):
            engine.complete(asked(1, 200, 4))
        assert not engine.alive()
        assert "RuntimeError" in engine.log_tail()
        with pytest.raises(EngineDied, match="generation loop failed"):
            engine.metrics()
        engine.stop()

    def test_a_stop_ends_the_burst(self, start: Start) -> None:
        """And its threads."""
        engine = start()
        (served,) = serve(engine, Arrival(asked(1, 60, 50)), between=engine.stop)
        assert isinstance(served.result, EngineDied)
        assert not engine.parts.loop.manager.is_running()

    def test_what_it_cannot_start_is_said(self, start: Start) -> None:
        """A field that does not exist, and two that this machine has no device for."""
        for argument, said in (("blocks=3", "blocks"), ("use_async_batching=True", "(?i)async")):
            with pytest.raises(EngineStartError, match=said):
                start(argument)

    def test_it_says_what_it_is(self, warm: TransformersEngine) -> None:
        """Sizes as configured; the first scheduler holds 15 % of the pool back."""
        assert (warm.shape.block_size, warm.shape.pool_blocks, warm.shape.drops_all_below) == (16, 24, 4)
        assert (warm.shape.max_model_tokens, warm.shape.uniform) == (4096, True)
        assert warm.capabilities[Capability.ADAPTER_CHOICE].present
        assert not warm.capabilities[Capability.MIXED_ADAPTERS].present


def changed(prompt: tuple[int, ...], *places: int) -> tuple[int, ...]:
    """The prompt with other tokens at these places."""
    return tuple(126 - token % 7 if i in places else token for i, token in enumerate(prompt))


FIRST = asked(1, 60, 4).prompt
OTHER = asked(2, 60, 4).prompt
LEADS = {  # fault -> what is sent, and the cached tokens of the last prompt with the fault and without
    "half-a-block-is-hashed": ((FIRST, changed(FIRST, 30)), 48, 16),
    "the-first-token-is-not-hashed": ((FIRST, changed(FIRST, 16)), 48, 16),
    "blocks-forget-what-stands-before": ((FIRST, OTHER, (*OTHER[:16], *FIRST[16:])), 48, 16),
    "a-match-is-one-block-too-long": ((FIRST, (*FIRST[:16], *OTHER[16:])), 32, 16),
}


@needs_package
class TestFaults:
    """Each is what it says, and is gone with its context."""

    @pytest.mark.parametrize("name", LEADS)
    def test_a_prompt_hits_what_another_one_computed(self, start: Start, tmp_path: Path, name: str) -> None:
        """The engine counts the hit, so that the answer comes from other tokens."""
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
        """After a burst that needs the whole pool."""
        with faults.injected("evicted-blocks-stay-in-the-index", tmp_path):
            engine = start("num_blocks=24", "max_batch_tokens=64")
            completed(serve(engine, *crowd()))
            assert faults.has_acted(tmp_path)

    def test_all_faults_are_in_the_list(self) -> None:
        """With what they do."""
        assert set(faults.FAULTS) == {*LEADS, "evicted-blocks-stay-in-the-index"}
        assert all(one.summary in faults.listing() for one in faults.FAULTS.values())
