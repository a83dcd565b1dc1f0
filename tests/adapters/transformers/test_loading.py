"""Loading in Transformers is not thread-safe: one model at a time. What it imports is imported before a fork."""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.transformers import setup


def test_two_engines_do_not_load_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tested and a cold SmolLM2 together raised 'Cannot copy out of meta tensor; no data!'."""
    loading, together = threading.Semaphore(1), []

    def from_pretrained(*_: Any, **__: Any) -> Any:
        together.append(not loading.acquire(blocking=False))
        time.sleep(0.05)  # longer than the other thread takes to come here, were it not kept from it
        return SimpleNamespace(to=lambda _device: loading.release())

    packages = {
        "torch": SimpleNamespace(float32=0, set_num_threads=lambda _count: None),
        "transformers": SimpleNamespace(AutoModelForCausalLM=SimpleNamespace(from_pretrained=from_pretrained)),
    }
    monkeypatch.setattr(importlib, "import_module", packages.__getitem__)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(setup.load_model, "m", device="cpu", dtype="float32", attn_implementation="sdpa")
    assert together == [False, False]


@pytest.mark.parametrize(
    ("absent", "cuda", "expected"),
    [
        ("", None, ["torch", *setup.MODULES[1:]]),
        ("peft", None, []),
        ("", "13.0", ["torch"]),  # a process that has initialised CUDA cannot be forked
    ],
)
def test_what_a_start_imports_is_imported_before_processes_fork(
    absent: str, cuda: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that another version of Transformers has elsewhere is passed over: the start imports it."""
    imported = []

    def import_module(name: str) -> Any:
        if name == setup.MODULES[0]:
            raise ImportError(name)
        imported.append(name)
        return SimpleNamespace(version=SimpleNamespace(cuda=cuda))

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else name)
    setup.preload()
    assert imported == expected
