"""The suites against a real vLLM server: faults that they must find, no false positives, and runs without a cache.

One server serves all attached runs; only tests of the start of an engine start another.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.paths import COUNTED
from support.suite_runs import run_coldproof
from support.weights import VLLM_CONTROLS

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.endpoints import ENDPOINT_CAPABILITIES
from coldproof.adapters.protocol.engine import Served
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.vllm.server import VllmOptions, spawn
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import generate_adapter, tiny_model
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload

pytestmark = pytest.mark.engine
FEW = "6,6"  # examples of a trial: one on a model takes seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    """Yield a real vLLM with prefix caching on."""
    cache = generated_files()
    model = tiny_model(cache)
    adapter = generate_adapter(cache, json.loads((model / "config.json").read_text()), seed=1, rank=8)
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    engine = spawn(VllmOptions(model=str(model), log=log, adapter_path=str(adapter.folder)), on_process=lambda _: None)
    yield engine
    engine.stop()


def suites(*arguments: str, report: Path) -> tuple[int, Results, str]:
    """Run the suites as a user does, and return exit code, results and terminal output."""
    done = run_coldproof(["--report-dir", str(report), *arguments], {"COUNTED_EXAMPLES": FEW})
    return done.returncode, read_results(report / "results.json"), done.stdout


def verdicts(results: Results) -> dict[str, Verdict]:
    """Return the verdict of each requirement."""
    return {r.id: r.verdict for r in results.requirements}


def test_every_capability_that_the_suites_need_is_there(server: ServerEngine) -> None:
    """On this build the probes find every capability, so nothing is UNSUPPORTED that should be tested.

    What is missing here is covered by other cells or by the fingerprint worker.
    """
    absent = {c for c in Capability if server.capabilities[c].present is not True}
    elsewhere = {Capability.KV_EVENTS, Capability.SECOND_TIER, Capability.SEVERAL_GROUPS, Capability.PROVENANCE}
    endpoints = {Capability.ENDPOINTS, *ENDPOINT_CAPABILITIES.values()}
    others = {Capability.ADAPTER_SWITCH, *OPTIONAL_ABSENT} - VLLM_CONTROLS - {Capability.PAUSE_WAIT} - endpoints
    assert absent == elsewhere | others  # which other engines have


def attached_run(server: ServerEngine, names: str, report: Path) -> tuple[int, Results, str]:
    """Return an attached run of the tests with these names, judged by the same-engine oracle."""
    return suites("--engine-url", server.client.url, *COUNTED, "--diagnose", "none", "-k", names, report=report)


@pytest.fixture(scope="module")
def attached(server: ServerEngine, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Results, str, Path]:
    """Return an attached run of reloads, with its report folder."""
    report = tmp_path_factory.mktemp("attached")
    return *attached_run(server, "in_place_reload", report), report


def found(results: Results) -> dict[str, Verdict]:
    """Return the verdicts. On a busy machine a requirement that conforms may have too few examples."""
    few = {r.id for r in results.requirements if r.reason.startswith("only ")}
    return {name: Verdict.CONFORMS if name in few else verdict for name, verdict in verdicts(results).items()}


@pytest.mark.nightly
def test_an_attached_run_tells_reloads_apart(attached: tuple[int, Results, str, Path]) -> None:
    """An in-place reload from another path conforms; the same path with changed files does not."""
    code, results, output, _ = attached
    assert found(results) == {"LORA-1": Verdict.CONFORMS, "LORA-3": Verdict.VIOLATED}, output
    assert code == 1
    assert {case.requirement for case in results.cases} == {"LORA-3"}


def test_in_an_attached_run_salts_conform_and_a_pool_may_be_too_large(server: ServerEngine, tmp_path: Path) -> None:
    """Pressure that cannot be reached is not exercised, and the report says what it would take."""
    code, results, output = attached_run(server, "salts_isolate or working_set", tmp_path)
    assert found(results) == {"PRESS-1": Verdict.NOT_EXERCISED, "SALT-1": Verdict.CONFORMS}, output
    assert code == 1
    (pressed,) = [r for r in results.requirements if r.id == "PRESS-1"]
    assert "use a smaller pool" in pressed.reason


@pytest.mark.nightly
def test_the_lora_3_case_is_minimal_and_has_its_cause(attached: tuple[int, Results, str, Path]) -> None:
    """The case has four steps, hit tokens above the bound, the class stale state, and fails every time."""
    _, results, _, _ = attached
    for case in results.cases:
        assert len(case.steps) == 4
        assert case.failure_class is FailureClass.STALE_STATE
        failing = next(r for r in case.requests if r.request == case.failing_request)
        assert failing.cached_tokens is not None
        assert failing.cached_at_most is not None
        assert failing.cached_tokens > failing.cached_at_most
        assert case.reproduction.while_shrinking_failed >= 1
        assert case.reproduction.note == "no fresh engine could be started"


@pytest.mark.nightly
def test_a_saved_case_replays(attached: tuple[int, Results, str, Path], server: ServerEngine, tmp_path: Path) -> None:
    """`--replay` runs that one case and finds the violation again."""
    _, results, _, report = attached
    case = report / "cases" / f"{results.cases[0].id}.json"
    code, replayed, output = suites(
        "--replay", str(case), "--engine-url", server.client.url, "--diagnose", "none", report=tmp_path
    )
    assert verdicts(replayed) == {"LORA-3": Verdict.VIOLATED}, output
    assert code == 1


@pytest.mark.nightly
def test_the_stand_alone_reproducer_reproduces(
    attached: tuple[int, Results, str, Path], server: ServerEngine, tmp_path: Path
) -> None:
    """`cases/ID.py URL` exits 1 on this engine, without importing anything of ours."""
    _, results, _, report = attached
    script = report / "cases" / f"{results.cases[0].id}.py"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(script), server.client.url],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout


def test_a_hanging_engine_is_ended_and_its_queue_is_known(server: ServerEngine, tmp_path: Path) -> None:
    """This test comes last: the engine core is suspended during an answer while the server goes on to answer."""
    process = server.process
    assert process is not None
    (core,) = [p for p in process.processes() if "EngineCore" in " ".join([p.name(), *p.cmdline()])]
    request = Request(prompt=Prompt((Segment("stem", 64),)), max_tokens=1900)  # nobody sees its end, however slow he is

    answering: set[int] = set()

    class Stopping(CheckedEngine):
        """An engine that suspends the core as soon as both requests are being answered."""

        def serve(self, arrivals: Any, on_token: Any, between: Any) -> list[Served]:
            def stop_core(number: int, count: int) -> None:
                on_token(number, count)
                if number not in answering:
                    answering.add(number)
                    if len(answering) == 2:
                        core.suspend()

            return super().serve(arrivals, stop_core, between)

    history = WorkloadRun(
        Stopping(server), Workload((Burst(requests=(request, request)),)), "hang", {}, tmp_path, stall_seconds=5
    ).history()
    with contextlib.suppress(psutil.NoSuchProcess):
        core.resume()
    assert history.stalled is not None
    assert history.stalled.running == 2
    findings = check_liveness(history)
    assert {f.failure_class for f in findings} == {FailureClass.HANG}
    assert "running 2, waiting 0" in findings[0].sentence
    assert "POST /v1/completions" in history.log_tail
    assert not server.alive()


@pytest.mark.nightly
def test_without_prefix_caching_nothing_passes(tmp_path: Path) -> None:
    """With caching off no answer is warm, so the verdict is NOT EXERCISED and the exit code 1."""
    off, selected = "--engine-args=--no-enable-prefix-caching", "in_place_reload_from_another_path"
    code, results, output = suites(off, "--layers=exact", "--budget=8s", "-k", selected, report=tmp_path)
    assert verdicts(results) == {"LORA-1": Verdict.NOT_EXERCISED}, output
    assert code == 1
    assert results.complete
