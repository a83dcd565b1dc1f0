"""Engines are forked from a process that has imported vLLM, but not on a GPU."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.vllm import forked
from coldproof.adapters.vllm.server import FORKING
from coldproof.harness.session.layers.processes import preloads


@pytest.mark.parametrize("cpu", [True, False])
def test_vllm_is_imported_before_a_fork_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
    """A forked process cannot use CUDA that its parent has initialised, and vLLM's imports may do that."""
    imported: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(forked, "is_cpu_build", lambda: cpu)
    monkeypatch.setattr(forked, "vllm_module", imported.append)
    monkeypatch.setattr(forked, "replace_kernels", lambda: None)
    monkeypatch.setattr(forked, "MODULES", ("version",))
    forked.preload()
    assert imported == (["version"] if cpu else [])


@pytest.mark.parametrize("engine", ["vllm", "vllm-inproc"])
def test_a_run_or_replay_of_one_layer_prepares_what_its_servers_are_forked_from(engine: str) -> None:
    """A server is forked from its run's process. Beside LMCache, one that has not replaced its kernels dies."""
    assert preloads([ENGINES[engine]]) == [FORKING.preload]
