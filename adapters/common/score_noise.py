"""Numeric noise that Coldproof adds to an engine's scores, to imitate a nondeterministic engine.

A CPU engine is deterministic bit for bit; a GPU that uses different kernels for a hit and a miss is not. The noise is
added to every score before a token is chosen, so that the token and its reported score follow from the same numbers.
The engine's keys and values are not changed: noise is not corruption.
"""

from __future__ import annotations

import enum
import hashlib
import os
import secrets

import msgspec
import numpy as np
import numpy.typing as npt

VARIABLE = "COLDPROOF_NOISE"
Scores = npt.NDArray[np.float64]


class NoiseKind(enum.StrEnum):
    """What the noise depends on."""

    GAUSSIAN = "gaussian"  # on nothing: no two computations agree
    BATCH = "batch"  # on the content and order of the batch: a request that runs alone is deterministic


class Noise(msgspec.Struct, frozen=True):
    """The kind of noise and its standard deviation for each score, in nats."""

    kind: NoiseKind
    nats: float

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.nats:g}"


class NoiseSource:
    """Draws the noise of one engine. Two engines never draw the same noise, whatever they compute."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.own = secrets.randbits(64)
        self.random = np.random.default_rng()

    def draw(self, shape: tuple[int, int], batch: bytes) -> Scores:
        """Return the noise to add to each score. `batch`: the bytes that noise of the kind `batch` depends on."""
        random = self.random
        if self.noise.kind is NoiseKind.BATCH:
            digest = hashlib.sha256(batch).digest()
            random = np.random.default_rng([self.own, int.from_bytes(digest[:8], "little")])
        return random.normal(0.0, self.noise.nats, shape)


def parse(text: str) -> Noise:
    """Return the noise that a text such as `gaussian:0.05` or `batch:0.05` names. Raises ValueError for other texts."""
    kind, _, nats = text.partition(":")
    try:
        found = Noise(NoiseKind(kind), float(nats))
    except ValueError:
        found = None
    if found is None or not 0 < found.nats <= 100:
        kinds = " or ".join(f"{one.value}:NATS" for one in NoiseKind)
        raise ValueError(f"{text!r} is not a noise setting: use {kinds}, for example gaussian:0.05")
    return found


def noise_from_environment() -> NoiseSource | None:
    """Return a source of the noise that the environment variable names; None if it is not set."""
    text = os.environ.get(VARIABLE)
    return NoiseSource(parse(text)) if text else None
