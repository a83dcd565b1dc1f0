"""Shards of one run are merged into one report or bundle, and other shards are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import bundles
from support.bundles import change, copy_of, reasons, recorded, with_fields

from coldproof.harness.cli.main import main
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.run.manifest import seal
from coldproof.reports.format.text import duration

Damage = Callable[[Path], None]


pytestmark = pytest.mark.usefixtures("small_list")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two runs that form a bundle together, with one cell each."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        bundles.write(folder / name, shard=shard, places=[place for place in bundles.PLACES if place.cell == cell])
        for name, shard, cell in (("a", "1/2", "one"), ("b", "2/2", "two"))
    ]


def test_shards_are_merged_into_a_bundle_that_is_accepted(
    shards: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The order of the shards does not matter, and nothing is lost or counted twice."""
    out = tmp_path / "merged"
    assert main(["merge", *map(str, reversed(shards)), "--out", str(out)]) == 0
    assert "of 3 requirements" in capfd.readouterr().out
    found = verify(out)
    assert found.reasons == []
    assert "31 examples with 62 requests were re-evaluated, all with the recorded results" in found.summary
    for line in ("shard 1/2: {} for drawing examples, seed 41", "shard 2/2: {} for drawing examples, seed 42"):
        assert line.format(duration(60)) in found.summary
    assert (out / "cases" / "LORA-9-7c21a0f3.json").is_file()


def test_a_shard_alone_is_no_bundle(shards: list[Path]) -> None:
    """The headline of its report says that it is a shard."""
    assert "left out: 1 of 2 shards are missing (2/2)" in reasons(shards[0])
    assert "(shard 1/2)" in json.loads((shards[0] / "results.json").read_text())["headline"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("a",), "left out: 1 of 2 shards are missing (2/2)"),
        (("a", "b", "b"), "not accepted: shard 2/2 is given 2 times"),
        (("a", "other"), "not accepted: the profile is not the same in all shards: qualify, ci"),
        (("a", "engine"), "not accepted: the engine's version is not the same in all shards: 1, 2"),
        (("a", "again"), "not accepted: 2 tests ran in more than one shard: CHAT-9 (test_chat) in one, ..."),
        (("whole",), "not accepted: these are not the shards of one run: a whole run, 1/2"),
    ],
    ids=" ".join,
)
def test_shards_of_different_runs_are_not_merged(
    shards: list[Path],
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    why: str,
) -> None:
    """A shard missing or twice, another profile or engine, a test in two of them: exit code 1, nothing written."""
    known = {"a": shards[0], "b": shards[1], "whole": whole}
    known["other"] = copy_of(shards[1], tmp_path / "other")
    change(known["other"], with_fields("run_started", {}, profile="ci"))
    known["engine"] = copy_of(shards[1], tmp_path / "engine")
    change(known["engine"], with_fields("engine", {}, engine={**bundles.engine(), "version": "2"}))
    known["again"] = copy_of(shards[0], tmp_path / "again")
    change(known["again"], with_fields("run_started", {}, shard="2/2"))
    folders = [known[name] for name in given] + ([shards[0]] if given == ("whole",) else [])
    assert main(["merge", *map(str, folders), "--out", str(tmp_path / "out")]) == 1
    assert why in capfd.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda out: shutil.rmtree(out / "shards" / "2"), "left out: 1 of 2 shards are missing (2/2)"),
        (
            lambda out: shutil.copytree(out / "shards" / "2", out / "shards" / "3"),
            "not accepted: shard 2/2 is given 2 times",
        ),
        (
            lambda out: change(out / "shards" / "2", recorded(model="1" * 64)),
            "not shown: the shards do not belong to one qualification: model differs",
        ),
        (
            lambda out: (out / "shards" / "1" / "manifest.json").unlink(),
            "left out: shards/1: manifest.json is missing",
        ),
    ],
    ids=["a shard gone", "a shard twice", "another model", "a shard's seal broken"],
)
def test_a_merged_bundle_is_checked_shard_by_shard(
    shards: list[Path], tmp_path: Path, damage: Damage, why: str
) -> None:
    """The shards are checked even if the whole is sealed again."""
    out = tmp_path / "merged"
    main(["merge", *map(str, shards), "--out", str(out)])
    damage(out)
    seal(out)
    assert why in reasons(out)


def test_merge_overwrites_nothing(shards: list[Path], tmp_path: Path) -> None:
    """An existing folder and a folder without a run are usage errors."""
    assert main(["merge", *map(str, shards), "--out", str(shards[0])]) == 4
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "out")]) == 4
