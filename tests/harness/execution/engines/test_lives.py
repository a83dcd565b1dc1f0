"""Engines that follow one another have the same model path and the same storage; only the contents differ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.harness.execution.engines.lives import EngineLives
from coldproof.harness.execution.engines.pool import EnginePlace
from coldproof.harness.execution.models.lora import tiny_model


class Pool:
    """A pool that starts nothing, and records each request and the files at the model's path."""

    def __init__(self, cache: Path) -> None:
        self.files = SimpleNamespace(
            cache=cache, model=lambda _: str(tiny_model(cache)), layers=lambda _: ModelLayers.FULL
        )
        self.places: list[EnginePlace] = []
        self.weights: list[bytes] = []
        self.open: list[object] = []
        self.most = 0

    def open_engine(self, _cell: object, *, place: EnginePlace, **_: object) -> object:
        self.places.append(place)
        self.weights.append((place.model / "model.safetensors").read_bytes())
        place.storage.mkdir(exist_ok=True)
        self.open.append(object())
        self.most = max(self.most, len(self.open))
        return self.open[-1]

    def close_engine(self, engine: object) -> None:
        self.open.remove(engine)


def test_one_engine_follows_the_other_over_one_folder(tmp_path: Path) -> None:
    """Other weights are at the same path with the same configuration, and nothing is left at the end."""
    pool: Any = Pool(tmp_path / "cache")
    folder = tmp_path / "lives"
    with EngineLives(pool, CELLS["default"], folder, caching=True) as lives:
        for change in (EngineChange.WEIGHTS, EngineChange.ROPE, EngineChange.NOTHING):
            lives.next(change)
        assert {(place.model, place.storage) for place in pool.places} == {(folder / "model", folder / "storage")}
        assert (folder / "storage").is_dir()
    other, same, usual = pool.weights
    assert same == usual == (tiny_model(tmp_path / "cache") / "model.safetensors").read_bytes()
    assert other != usual
    assert len(other) == len(usual)
    assert (pool.open, pool.most) == ([], 1)
    assert not folder.exists()
