"""The registry finds every engine by the module that declares it, and imports no engine to do so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support import fake_reply, fake_server
from support.paths import ROOT

from coldproof.adapters import registry
from coldproof.adapters.registry import (
    ENGINES,
    catalogue,
    default_engine,
    fault_of,
    measured_engine,
    promise_of,
    title_of,
)
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.weight_promise import UNDOCUMENTED, WeightPromise
from coldproof.harness.options import Options, UsageError
from coldproof.harness.release.run.record import packages
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.environment import environment

HEAVY = (
    "vllm",
    "torch",
    "transformers",
    "openvino",
    "openvino_genai",
    "xllamacpp",
    "coldproof.adapters.vllm.faults.catalogue",
)
TOY = EngineSpec(name="toy", about="of another distribution")


def test_building_the_registry_imports_no_engine() -> None:
    """It does not import the faults either: most runs need neither."""
    code = f"import sys, coldproof.harness.selection.select; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_engines_of_other_distributions_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that an entry point names declares them."""
    module = ModuleType("toy_spec")
    module.ENGINES = (TOY,)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_spec", module)
    found = [SimpleNamespace(module="toy_spec")]
    monkeypatch.setattr(
        registry.importlib.metadata, "entry_points", lambda group: found if group == registry.GROUP else []
    )
    assert registry.discovered() == {**ENGINES, "toy": TOY}


def test_the_default_engine_is_that_of_the_worker_or_of_a_url() -> None:
    """A worker that no engine has is reported later; until then the default engine stands for it."""
    names = [default_engine(worker).name for worker in ("model", "fingerprint", "nope")]
    assert names == ["vllm", "vllm-inproc", "vllm"]
    assert default_engine("fingerprint", attached=True).name == "endpoint"
    assert next(iter(ENGINES)) == "vllm"


def test_faults_are_those_of_the_engine() -> None:
    """An engine may have none."""
    engine = measured_engine()
    assert engine.name == "vllm-inproc"
    name = next(iter(catalogue(engine.name).faults))
    assert fault_of(engine.name, name) is not None
    assert fault_of("llamacpp", name) is None
    with pytest.raises(LookupError, match="fault injection is not supported for llamacpp"):
        catalogue("llamacpp")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"engine": "llamacpp", "fault": "x"},
            "--engine llamacpp does not support --fault; engines that do: vllm, vllm-inproc",
        ),
        (
            {"engine": "llamacpp", "worker": "fingerprint"},
            "does not support --worker fingerprint; engines that do: vllm, vllm-inproc",
        ),
        ({"engine": "vllm", "engine_args": ("--port", "http")}, "--engine-args: 'http' is not a port number"),
    ],
)
def test_what_an_engine_does_not_offer_is_usage(changes: dict[str, object], said: str) -> None:
    """Nothing is started, and the message says which engines do."""
    with pytest.raises(UsageError, match=said):
        check_options(Options(report_dir=Path("out"), **changes))  # type: ignore[arg-type]


def test_reports_name_engines_and_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with several packages has each of them."""
    assert (title_of("vllm"), title_of("llamacpp"), title_of("forgotten")) == ("vLLM", "llamacpp", "forgotten")
    assert packages("transformers") == ("transformers", "peft")
    assert packages("endpoint") == packages("forgotten") == ()
    monkeypatch.setitem(ENGINES, "toy", EngineSpec(name="toy", about="x", package="msgspec"))
    assert "msgspec" in environment()


@pytest.mark.parametrize(
    ("metrics", "promise"),
    [(fake_reply.METRICS, ENGINES["vllm"].weights), (fake_reply.BARE_METRICS, UNDOCUMENTED), (None, UNDOCUMENTED)],
    ids=["vLLM's metrics", "other metrics", "no metrics"],
)
def test_an_attached_server_promises_what_its_engine_documents(metrics: str | None, promise: WeightPromise) -> None:
    """The adapter for any server documents nothing; vLLM recognises its own servers."""
    with fake_server.serving(fake_reply.ServerBehaviour(metrics=metrics)) as fake:
        attach = default_engine(attached=True).attach
        assert attach is not None
        engine = attach(fake.url, adapter_for=lambda _: None)
    assert promise_of(default_engine(attached=True).name, engine.config) is promise


def test_an_engine_with_a_policy_keeps_its_own() -> None:
    """The configuration of the engine does not matter."""
    assert promise_of("transformers", {"cache.block_size": "16"}) is ENGINES["transformers"].weights
    assert promise_of("vllm", {}) is ENGINES["vllm"].weights
