"""Faults of SGLang's KV cache: the corruptions with which its developers test their canary (srt/kv_canary/perturb).

They act where the canary is on, and Coldproof lets them act in engines with a cache alone: cold answers stay cold. A
corruption of KV flips the lowest byte of one number, which is hardly enough to change an answer in float32.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coldproof.adapters.sglang import setup
from coldproof.adapters.spec.fault import Patch, collector, listed

FAULTS, fault = collector("Corruptions of SGLang's KV canary.")
CELLS, LOGS = ("sglang-canary",), "logs"
PREFIX = "SGLANG_KV_CANARY_PERTURB_"
# What the server logs for each corruption; what it passes over is logged as "skipped".
DONE = re.compile(rb"kv_canary perturb \w+: (group|req_pool_idx)=")


def corrupt(patch: Patch, what: str, probability: float) -> None:
    """Let a server corrupt something in this fraction of its steps, once its probes are over."""
    variables = {f"{PREFIX}{what}_PROB": str(probability), f"{PREFIX}WARMUP_STEPS": "200"}
    patch.setattr(setup, "corruption", setup.Corruption({**variables, f"{PREFIX}TARGET_GROUP": "full"}))


@fault("CHAT-1", "MIXED-1", "PREEMPT-1", "PRESS-1", cells=CELLS, stands_for="SGLang's canary: req_to_token")
def a_position_has_another_slot(patch: Patch) -> None:
    """A position of a running request refers to the slot of another position."""
    corrupt(patch, "REQ_TO_TOKEN", 0.2)


@fault("CHAT-1", "MIXED-1", "PREEMPT-1", "PRESS-1", cells=CELLS, stands_for="SGLang's canary: real_kv_used")
def kv_in_use_is_changed(patch: Patch) -> None:
    """A byte of the KV that a running request reads is changed."""
    corrupt(patch, "REAL_KV_USED", 0.2)


@fault(
    "CHAT-1",
    "MIXED-1",
    "PREEMPT-1",
    "PRESS-1",
    cells=CELLS,
    stands_for="SGLang's canary: perturb/real_kv_unused_cache.py",
)
def cached_kv_is_changed(patch: Patch) -> None:
    """A byte of cached KV that no running request reads is changed."""
    corrupt(patch, "REAL_KV_UNUSED_CACHE", 0.5)


@fault(
    "CHAT-1",
    "MIXED-1",
    "PREEMPT-1",
    "PRESS-1",
    cells=CELLS,
    stands_for="SGLang's canary: perturb/real_kv_post_forward.py",
)
def new_kv_is_changed(patch: Patch) -> None:
    """A byte of KV is changed right after the step that computed it."""
    corrupt(patch, "REAL_KV_POST_FORWARD", 0.2)


def listing() -> str:
    """Return a text with one line for each fault."""
    return listed("SGLang: corruptions of its KV canary.", FAULTS)


@contextlib.contextmanager
def injected(name: str, folder: Path) -> Iterator[None]:
    """Inject a fault into every engine with a cache that starts in this context. `folder` gets a list of their logs."""
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[name].plant(patch)
        assert setup.corruption is not None  # every fault plants one
        patch.setattr(setup, "corruption", msgspec.structs.replace(setup.corruption, listing=folder / LOGS))
        yield


def has_acted(folder: Path) -> bool:
    """Return whether a server's log says that it corrupted something."""
    listing = folder / LOGS
    logs = map(Path, listing.read_text().splitlines()) if listing.exists() else ()
    return any(DONE.search(log.read_bytes()) for log in logs if log.exists())
