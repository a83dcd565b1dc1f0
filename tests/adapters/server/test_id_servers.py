"""LMDeploy's and TensorRT-LLM's servers, against scripts of them: what is sent, read and probed, and a whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_id_servers import MODEL, IdServer, serving
from support.fake_reply import answer
from support.paths import COUNTED, PLUGIN_PATH, ROOT

from coldproof import IMPORT_ROOT
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineStartError, RequestRefused
from coldproof.adapters.protocol.requests import Abort, CompletionRequest, Message, ResponseOptions, Stage
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.server.engine import ServerEngine
from coldproof.reports.schema.results import read_results

BOTH = ("lmdeploy", "trtllm")
PROMPT = tuple(range(40, 100))
THERE = {
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.STREAMING,
    Capability.CACHED_TOKENS,
    Capability.LOGPROBS,
    Capability.ABORT,
    Capability.SEVERAL_ANSWERS,
    Capability.STRUCTURED_OUTPUT,
}
ADAPTERS = {
    Capability.RUNTIME_LORA,
    Capability.LORA_IN_PLACE,
    Capability.ADAPTER_CHOICE,
    Capability.MIXED_ADAPTERS,
}


def attached(fake: IdServer, adapter: str | None = "/adapters/A") -> ServerEngine:
    """What attaching makes of a stand-in."""
    attach = ENGINES[fake.engine].attach
    assert attach is not None
    engine = attach(fake.url, adapter_for=lambda _: adapter)
    assert isinstance(engine, ServerEngine)
    return engine


def present(engine: ServerEngine) -> set[Capability]:
    """The capabilities that were seen."""
    return {capability for capability, support in engine.capabilities.items() if support.present}


def sent(**changes: Any) -> CompletionRequest:
    """A request to the base model."""
    return CompletionRequest(**{"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **changes})


@pytest.mark.parametrize(
    ("engine", "more"),
    [
        ("lmdeploy", {Capability.STOP_STRINGS, Capability.METRICS, Capability.POOL_USAGE}),
        ("trtllm", {Capability.VERSION, *ADAPTERS}),
    ],
)
def test_what_a_server_offers_is_seen_and_the_rest_has_a_reason(engine: str, more: set[Capability]) -> None:
    """Of every capability that there is."""
    with serving(engine) as fake:
        found = attached(fake)
    assert present(found) == THERE | more
    assert set(found.capabilities) == set(Capability)
    assert all(support.evidence.strip() for support in found.capabilities.values())
    assert (found.name, found.base_model) == (engine, MODEL)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("field", ["logprobs", "response_format", "n"])
def test_what_a_server_refuses_is_absent_in_its_words(engine: str, field: str) -> None:
    """Nothing else is."""
    gone = {
        "logprobs": Capability.LOGPROBS,
        "response_format": Capability.STRUCTURED_OUTPUT,
        "n": Capability.SEVERAL_ANSWERS,
    }[field]
    with serving(engine) as whole, serving(engine, refuses=(field,)) as fake:
        found = attached(fake)
        assert present(attached(whole)) - present(found) == {gone}
    assert f"{field} is off" in found.capabilities[gone].evidence


@pytest.mark.parametrize("engine", BOTH)
def test_an_answer_is_read(engine: str) -> None:
    """Ids, scores with their margin, and the count of cached tokens."""
    with serving(engine) as fake:
        found = attached(fake)
        found.complete(sent())
        read = found.complete(sent(surface=ResponseOptions(logprobs=True)))
    assert [token.id for token in read.tokens] == answer("", PROMPT, 4)
    assert [(token.logprob, token.gap) for token in read.tokens] == [(-0.5, 1.5)] * 4
    assert (read.finish_reason, read.cached_tokens) == ("length", 48)


@pytest.mark.parametrize("engine", BOTH)
def test_a_client_that_disconnects_keeps_what_it_has(engine: str) -> None:
    """After so many tokens."""
    with serving(engine) as fake:
        read = attached(fake).complete(sent(max_tokens=60, abort=Abort(after_tokens=2)))
    assert (read.aborted, len(read.tokens)) == (Stage.DECODE, 2)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize(
    "changes",
    [
        {"messages": (Message("user", "Hi"),)},
        {"cache_salt": "tenant"},
        {"priority": 1},
        {"surface": ResponseOptions(prompt_logprobs=True)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_the_engine_lacks_is_refused_before_it_is_sent(engine: str, changes: dict[str, Any]) -> None:
    """A field that a server ignores would look as if it had an effect."""
    with serving(engine) as fake:
        found = attached(fake)
        before = len(fake.bodies)
        with pytest.raises(RequestRefused):
            found.complete(sent(**changes))
        with pytest.raises(RequestRefused):
            found.reset_cache()
        assert len(fake.bodies) == before


def test_the_load_of_an_lmdeploy_server_is_read() -> None:
    """From /metrics, if the server has it."""
    with serving("lmdeploy", load=(2, 1, 0.25)) as fake, serving("lmdeploy", load=None) as without:
        read = attached(fake).metrics()
        assert (read.running, read.waiting, read.pool_usage, read.hit_tokens) == (2, 1, 0.25, None)
        assert attached(without).capabilities[Capability.METRICS].present is False


def test_lmdeploy_loads_no_adapter() -> None:
    """They are given at its start."""
    with serving("lmdeploy") as fake, pytest.raises(RequestRefused, match="at its start"):
        attached(fake).load_adapter("mine", "/adapters/A", in_place=False)


def test_each_load_of_an_adapter_is_a_new_id_for_tensorrt_llm() -> None:
    """A name that is loaded again hits nothing of before. The server knows no names: the client refuses those that are
    not loaded, which the server would answer as its base model.
    """
    with serving("trtllm") as fake:
        found = attached(fake)
        mine = sent(model="mine")
        for path in ("/adapters/A", "/adapters/B"):
            found.load_adapter("mine", path, in_place=True)
            read = found.complete(mine)
            assert ([token.id for token in read.tokens], read.cached_tokens) == (answer(path, PROMPT, 4), 0)
        assert found.complete(mine).cached_tokens == 48
        carried = [body["lora_request"]["lora_int_id"] for body in fake.bodies if "lora_request" in body]
        assert len(set(carried)) == 3  # with that of the probe
        with pytest.raises(RequestRefused, match="no such adapter"):
            found.load_adapter("mine", "/nowhere", in_place=True)
        assert [token.id for token in found.complete(mine).tokens] == answer("/adapters/B", PROMPT, 4)
        found.unload_adapter("mine")
        with pytest.raises(RequestRefused, match="no adapter is loaded as mine"):
            found.complete(mine)
        with pytest.raises(RequestRefused, match="no adapter is loaded as mine"):
            found.unload_adapter("mine")


def test_an_adapter_that_the_server_refuses_is_no_capability() -> None:
    """A request shows it."""
    with serving("trtllm", refuses=("lora_request",)) as fake:
        found = attached(fake)
    assert not present(found) & ADAPTERS
    assert "lora_request is off" in found.capabilities[Capability.RUNTIME_LORA].evidence
    with serving("trtllm") as fake:
        assert "--adapter" in attached(fake, adapter=None).capabilities[Capability.RUNTIME_LORA].evidence


@pytest.mark.parametrize("engine", BOTH)
def test_another_server_is_told_apart(engine: str) -> None:
    """One without the route of a generation."""
    other = next(name for name in BOTH if name != engine)
    with serving(other) as fake:
        fake.engine, wrong = other, ENGINES[engine].attach
        assert wrong is not None
        try:
            found = wrong(fake.url, adapter_for=lambda _: None)
        except EngineStartError:
            return
        assert found.capabilities[Capability.TOKEN_PROMPTS].present is False


def run(folder: Path, *words: str) -> tuple[int, Path]:
    """Exit code and report of a short run of one requirement."""
    report = folder / "report"
    command = [sys.executable, "-m", "coldproof", "run", *words, "--requirements", "CHAT-1", *COUNTED]
    command += ["--diagnose", "none", "--report-dir", str(report)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PLUGIN_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (report / "results.json").is_file(), done.stdout + done.stderr
    return done.returncode, report


@pytest.mark.parametrize("engine", BOTH)
def test_a_cache_that_answers_wrongly_is_found_and_reproduced(engine: str, tmp_path: Path) -> None:
    """With a second server without a cache; the script of the case finds it again."""
    with serving(engine, wrong=True) as tested, serving(engine, caches=False) as cold:
        words = ("--engine", engine, "--engine-url", tested.url, "--cold-url", cold.url)
        code, report = run(tmp_path, *words)
        results = read_results(report / "results.json")
        assert (code, results.requirements[0].verdict) == (1, "VIOLATED"), results.requirements[0].reason
        (script,) = (report / "cases").glob("*.py")
        for other, expected in ((tested.url, 1), (cold.url, 0)):
            ended = subprocess.run(
                [sys.executable, str(script), other],
                cwd=tmp_path,
                env={**os.environ, "COLD_SERVER": cold.url},
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == expected, ended.stdout + ended.stderr
    assert "COLD_SERVER" in (report / "cases" / f"{script.stem}.md").read_text()


@pytest.mark.parametrize("engine", BOTH)
def test_a_right_cache_conforms(engine: str, tmp_path: Path) -> None:
    """By the same run."""
    with serving(engine) as tested, serving(engine, caches=False) as cold:
        code, report = run(tmp_path, "--engine", engine, "--engine-url", tested.url, "--cold-url", cold.url)
    assert code == 0, read_results(report / "results.json").requirements[0].reason


@pytest.mark.parametrize("engine", BOTH)
def test_the_contract_of_adapters_holds(engine: str) -> None:
    """Every part of it that the capabilities allow."""
    with serving(engine) as fake:
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract"]
        done = subprocess.run(
            [sys.executable, *words, "--engine", engine, "--engine-url", fake.url],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(IMPORT_ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.rpartition(" passed")[0].split()[-1])
    assert passed >= 55
