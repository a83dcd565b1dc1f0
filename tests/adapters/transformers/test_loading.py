"""Models are loaded one at a time, because loading in Transformers is not thread-safe."""

from __future__ import annotations

import importlib
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
