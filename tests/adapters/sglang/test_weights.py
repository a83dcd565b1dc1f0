"""SGLang's routes for weights and pauses against a stand-in: what is found, sent and promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.fake_sglang import MODEL, WEIGHT_ROUTES, FakeSglang, ServerBehaviour, serving
from support.histories import ask, burst, contents
from support.paths import COUNTED
from support.suite_runs import run_coldproof
from support.weights import SGLANG_CONTROLS

from coldproof.adapters.common.tiny_model import make_model
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.weights import (
    FlushesOnUpdate,
    PauseMode,
    Pauses,
    WeightPolicy,
    WeightRoute,
    flush_with_updates,
)
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.sglang.client import SglangReader
from coldproof.adapters.sglang.spec import attach
from coldproof.adapters.sglang.weights import SglangEngine, pause_mode
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.weight_pairs import pair_counts
from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.weight_updates import Invalidation
from coldproof.harness.session.selftest.selftest import write_versions
from coldproof.harness.workload.steps import START_WEIGHTS, Pause, Reset, Resume, Step, UpdateWeights, Workload

UPDATES = {Capability.WEIGHT_UPDATES, Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH}
PAUSES = {Capability.PAUSE_ABORT, Capability.PAUSE_KEEP}
NEVER = {Capability.WEIGHTS_IN_PLACE, Capability.PAUSE_WAIT, Capability.SLEEP}
TO_A, BACK = UpdateWeights(version="A"), UpdateWeights(version=START_WEIGHTS)


def attached(fake: FakeSglang) -> ServerEngine:
    """Return the engine of an attached stand-in."""
    return attach(fake.url, adapter_for=lambda _: None)


def run(fake: FakeSglang, folder: Path, policy: WeightPolicy, *steps: Step) -> History:
    """Run these steps under a weight policy and return the history."""
    engine = CheckedEngine(attached(fake))
    flush_with_updates(engine.engine, policy)
    versions = write_versions(folder)
    workload = Workload(steps)
    return WorkloadRun(
        engine, workload, "n", contents(folder), folder / "run", versions=versions, policy=policy
    ).history()


def sent(fake: FakeSglang, *paths: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what was sent to these paths, in order."""
    return [(path, body) for path, body in fake.bodies if path.partition("?")[0] in paths]


@pytest.mark.parametrize(
    ("routes", "missing"),
    [
        (WEIGHT_ROUTES, set()),
        ((), SGLANG_CONTROLS),
        (WEIGHT_ROUTES[:1], {*PAUSES, Capability.WEIGHT_CHECKSUM}),
        (WEIGHT_ROUTES[:3], PAUSES),
        (WEIGHT_ROUTES[1:], UPDATES),
    ],
    ids=["all", "none", "updates", "no continue", "no update"],
)
def test_routes_are_found_by_the_list_of_the_server(routes: tuple[str, ...], missing: set[Capability]) -> None:
    """A pause counts only with its end. The probe calls no route that changes or stops the server."""
    with serving(routes=routes) as fake:
        engine = attached(fake)
        called = {path for path, _ in fake.bodies}
    found = {one for one in SGLANG_CONTROLS | NEVER if engine.capabilities[one].present}
    assert found == SGLANG_CONTROLS - missing
    assert all(engine.capabilities[one].evidence for one in SGLANG_CONTROLS | NEVER)
    assert not called & {"/update_weights_from_disk", "/pause_generation", "/continue_generation"}


def test_a_checksum_that_is_refused_is_no_checksum() -> None:
    """The route exists but has another response, as in older versions."""
    with serving(routes=WEIGHT_ROUTES) as fake:
        engine = attached(fake)
        first = engine.weights_checksum()
        engine.update_weights("/step-1", WeightRoute.PATH)
        assert first != engine.weights_checksum()
        fake.behaviour = ServerBehaviour(routes=())
        with pytest.raises((RequestRefused, MalformedAnswer)):
            engine.weights_checksum()


@pytest.mark.parametrize(
    ("mode", "clear", "flushes", "name"),
    [
        (PauseMode.ABORT, True, True, "abort"),
        (PauseMode.ABORT, False, False, "abort"),
        (PauseMode.KEEP, True, True, "retract"),
        (PauseMode.KEEP, False, True, "retract"),
        (PauseMode.KEEP, True, False, "retract"),
        (PauseMode.KEEP, False, False, "in_place"),
    ],
)
def test_a_pause_has_the_mode_that_keeps_its_promise(mode: PauseMode, clear: bool, flushes: bool, name: str) -> None:
    """Requests stay in place only if neither the pause nor an update flushes, because a flush fails meanwhile."""
    assert pause_mode(mode, clear=clear, flushes=flushes) == name
    with serving() as fake:
        engine = attached(fake)
        assert isinstance(engine, FlushesOnUpdate)
        assert isinstance(engine, Pauses)
        engine.flush_on_update = flushes
        engine.pause(mode, clear=clear)
        engine.update_weights("/step-1", WeightRoute.PATH)
        engine.resume()
        engine.update_weights("/step-2", WeightRoute.PATH)
        flush = "/flush_cache?timeout=10" if name == "abort" else "/flush_cache"  # a retracted request is in the queue
        flushed = [(flush, {})] if clear else []
        assert sent(fake, "/pause_generation", "/flush_cache", *WEIGHT_ROUTES)[-4 - clear :] == [
            ("/pause_generation", {"mode": name}),
            *flushed,
            ("/update_weights_from_disk", {"model_path": "/step-1", "flush_cache": flushes}),
            ("/continue_generation", {}),
            ("/update_weights_from_disk", {"model_path": "/step-2", "flush_cache": flushes}),
        ]


def test_an_update_in_place_does_not_flush() -> None:
    """A policy that changes during the pause has no effect: the server would refuse the flush after the update."""
    with serving() as fake:
        engine = attached(fake)
        assert isinstance(engine, SglangEngine)
        engine.flush_on_update = False
        engine.pause(PauseMode.KEEP, clear=False)
        engine.flush_on_update = True
        engine.update_weights("/step-1", WeightRoute.PATH)
        assert fake.received("/update_weights_from_disk")[-1]["flush_cache"] is False


def test_a_pause_that_cannot_clear_the_cache_does_not_stay() -> None:
    """The pause is ended, so that the next request does not hang."""
    with serving(busy=True) as fake:
        engine = attached(fake)
        with pytest.raises(RequestRefused, match="Flush cache failed"):
            engine.pause(PauseMode.KEEP, clear=True)
        assert fake.bodies[-1][0] == "/continue_generation"


def test_an_update_flushes_or_keeps_the_cache_by_policy(tmp_path: Path) -> None:
    """Updates flush by default. A run that tests the reset keeps the cache over an update and then resets it."""
    assert ENGINES["sglang"].weights.policy is WeightPolicy.INVALIDATES
    with serving() as fake:
        default = run(fake, tmp_path / "a", WeightPolicy.INVALIDATES, burst(ask()), TO_A, burst(ask()))
        on_reset = run(
            fake, tmp_path / "b", WeightPolicy.ON_RESET, burst(ask()), TO_A, burst(ask()), Reset(), burst(ask())
        )
        flushes = [body["flush_cache"] for body in fake.received("/update_weights_from_disk")]
    assert [o.cached_tokens for o in default.outcomes] == [0, 0]
    assert default.outcomes[0].token_ids != default.outcomes[1].token_ids
    assert len({update.checksum for update in default.updates} | {default.start_checksum}) == 2
    pages = (len(on_reset.outcomes[0].prompt) - 1) // 16
    assert [o.cached_tokens for o in on_reset.outcomes] == [0, 16 * pages, 0]
    assert flushes == [True, True, False, False]  # each run returns to the weights of the start
    assert [one.invalidation for one in pair_counts(default, [])] == [Invalidation.UPDATE]
    assert [one.invalidation for one in pair_counts(on_reset, [])] == [Invalidation.NOTHING, Invalidation.RESET]


def test_a_server_that_keeps_the_cache_over_an_update_is_detected(tmp_path: Path) -> None:
    """The documented default is to flush the cache."""
    with serving(keeps=True) as fake:
        seen = run(fake, tmp_path, WeightPolicy.INVALIDATES, burst(ask()), TO_A, burst(ask()))
    (found,) = check_bounds(seen)
    assert found.request == 1
    (pair,) = pair_counts(seen, [found])
    assert (pair.invalidation, pair.requests, pair.wrong) == (Invalidation.UPDATE, 1, 1)


@pytest.mark.parametrize(
    ("keeps", "verdict"), [pytest.param(False, "CONFORMS", marks=pytest.mark.nightly), (True, "VIOLATED")]
)
def test_a_run_on_a_server_tests_its_promise(tmp_path: Path, keeps: bool, verdict: str) -> None:
    """The test covers everything from the command line to the report, with two checkpoints of a model."""
    model, other = tmp_path / "step-0", tmp_path / "step-1"
    make_model(model)
    make_model(other, seed=1)
    served = {"model_path": str(model), "served_model_name": MODEL, "is_generation": True}
    words = ["--engine", "sglang", "--model", str(model), "--weights", str(other)]
    words += ["--requirements", "WEIGHT-1", *COUNTED, "--diagnose", "none"]
    with serving(model=served, lora=False, keeps=keeps) as fake:
        run_coldproof([*words, "--engine-url", fake.url, "--report-dir", str(tmp_path / "report")])
    results = read_results(tmp_path / "report" / "results.json")
    (requirement,) = results.requirements
    assert requirement.verdict == verdict, requirement.reason
    assert results.engine is not None
    assert results.engine.weight_promise == str(ENGINES["sglang"].weights)
    assert {count.invalidation for count in results.weight_updates} == {Invalidation.UPDATE}
    assert any(count.wrong for count in results.weight_updates) is keeps


def test_an_aborted_answer_ends_without_a_token_that_is_not_its_own() -> None:
    """A server that sends only new tokens repeats the last one in the event of the abort."""
    for incremental in (True, False):
        reader = SglangReader(None)
        for count in (1, 2):
            ids = [40 + count] if incremental else list(range(41, 41 + count))
            about = {"finish_reason": None, "completion_tokens": count}
            reader.take(msgspec.json.encode({"text": "x", "output_ids": ids, "meta_info": about}).decode())
        end = {"finish_reason": {"type": "abort", "message": "Aborted"}, "completion_tokens": 2}
        ids = [42] if incremental else [41, 42]
        reader.take(msgspec.json.encode({"text": "x", "output_ids": ids, "meta_info": end}).decode())
        answer = reader.completion()
        assert ([token.id for token in answer.tokens], answer.finish_reason) == ([41, 42], "abort")


@pytest.mark.parametrize("flushes", [True, False])
def test_a_case_repeats_the_calls(flushes: bool) -> None:
    """The script has the flush setting of the run that failed."""
    story = (burst(ask()), Pause(mode=PauseMode.KEEP, clear=False), TO_A, Resume(), BACK, burst(ask()))
    case = report_samples.case(
        engine="sglang",
        workload=msgspec.to_builtins(Workload(story)),
        recipes={},
        engine_config={"url": "http://somewhere", "flush_cache of updates": str(flushes).lower()},
        failing_request=1,
    )
    script = reproducer(case)
    assert f'"flush_cache": {flushes}}}' in script
    assert "/continue_generation" in script
    compile(script, "case.py", "exec")
