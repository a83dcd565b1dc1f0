"""Numeric noise that an engine has not of itself: scores that are a little otherwise each time they are computed.

A CPU engine repeats itself bit for bit; a GPU with other kernels for a hit and a miss does not. What stands in for that
moves every score before a token is chosen, so that the token and all that is told of its score follow from the same
numbers. The engine's keys and values are not touched: noise is no corruption.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import os
import secrets
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

VARIABLE = "COLDPROOF_NOISE"
Scores = npt.NDArray[np.float64]


class Kind(enum.StrEnum):
    """What the noise depends on."""

    GAUSSIAN = "gaussian"  # on nothing: no two computations agree
    BATCH = (
        "batch"  # on what a step computes and in which order: alone an engine repeats itself, in company it does not
    )


class Noise(msgspec.Struct, frozen=True):
    """A kind and how large it is: the standard deviation of each score, in nats."""

    kind: Kind
    nats: float

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.nats:g}"


class Source:
    """Draws the noise of one engine. Two engines never draw alike, whatever they compute."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.own = secrets.randbits(64)
        self.random = np.random.default_rng()

    def draw(self, shape: tuple[int, int], company: bytes) -> Scores:
        """So much for each score. `company`: all that noise of the kind `batch` depends on."""
        random = self.random
        if self.noise.kind is Kind.BATCH:
            digest = hashlib.sha256(company).digest()
            random = np.random.default_rng([self.own, int.from_bytes(digest[:8], "little")])
        return random.normal(0.0, self.noise.nats, shape)


def parse(text: str) -> Noise:
    """`gaussian:0.05` or `batch:0.05`. Raises ValueError saying what it wants."""
    kind, _, nats = text.partition(":")
    try:
        found = Noise(Kind(kind), float(nats))
    except ValueError:
        found = None
    if found is None or not 0 < found.nats <= 100:
        kinds = " or ".join(f"{one.value}:NATS" for one in Kind)
        raise ValueError(f"{text!r} is no noise: write {kinds}, such as gaussian:0.05")
    return found


def chosen() -> Source | None:
    """A source of the noise that the environment asks for; None where it asks for none."""
    text = os.environ.get(VARIABLE)
    return Source(parse(text)) if text else None


def plant() -> None:
    """Have vLLM's models add the noise to their logits, for as long as the environment asks for it. The worker without
    a model adds its own."""
    processor: Any = importlib.import_module("vllm.model_executor.layers.logits_processor").LogitsProcessor
    original = processor.forward
    if hasattr(original, "source_of"):
        return
    sources: dict[int, Source] = {}

    def source_of(layer: Any) -> Source | None:
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        known = sources.get(id(layer))
        if known is None or known.noise != parse(text):
            sources[id(layer)] = Source(parse(text))
        return sources[id(layer)]

    def forward(layer: Any, head: Any, hidden: Any, *rest: Any, **named: Any) -> Any:
        logits = original(layer, head, hidden, *rest, **named)
        source = source_of(layer)
        if logits is None or source is None:
            return logits
        company = hidden.detach().float().cpu().numpy().tobytes() if source.noise.kind is Kind.BATCH else b""
        drawn = source.draw((int(logits.shape[0]), int(logits.shape[1])), company)
        return logits + logits.new_tensor(drawn.astype(np.float32))

    forward.source_of = source_of  # type: ignore[attr-defined]  # the mark that it is in place
    processor.forward = forward
