"""Irregular files in a folder from elsewhere are refused: nothing that they point to is read or published."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import bundles
from support.bundles import copy_of

from coldproof.harness.cli.main import main
from coldproof.harness.release.run.manifest import seal

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"
Place = Callable[[Path, Path], None]


@pytest.fixture(autouse=True)
def _small_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the list of requirements by the bundles' small one."""
    bundles.small_list(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two runs that form a bundle together, with one cell each."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        bundles.write(folder / name, shard=shard, places=[place for place in bundles.PLACES if place.cell == cell])
        for name, shard, cell in (("a", "1/2", "one"), ("b", "2/2", "two"))
    ]


def folder_link(path: Path, secret: Path) -> None:
    """Place a symbolic link to a folder."""
    path.parent.joinpath("more").symlink_to(secret.parent)


KINDS: dict[str, Place] = {
    "a link": lambda path, secret: path.symlink_to(secret),
    "a link in the folder": lambda path, _: path.symlink_to("results.json"),
    "a link of a folder": folder_link,
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a device": lambda path, _: path.symlink_to("/dev/zero"),
    "a loop": lambda path, _: path.symlink_to(path.name),
}
PLACES = ("manifest.json.sig", "cases/more.json", "engine-02-tested.log")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file that must not be read or published."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_ed25519").write_text(SECRET)
    return tmp_path / "home" / "id_ed25519"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_published_that_a_bundle_leads_to(
    shards: list[Path], tmp_path: Path, secret: Path, capfd: pytest.CaptureFixture[str], kind: str, place: str
) -> None:
    """The register refuses the bundle and merge refuses the shard, each in one line."""
    shard = copy_of(shards[0], tmp_path / "shard")
    KINDS[kind](shard / place, secret)
    assert main(["register", str(shard), "--out", str(tmp_path / "site")]) == 1
    said = capfd.readouterr()
    assert "a bundle has only files and folders" in said.out
    assert main(["merge", str(shard), str(shards[1]), "--out", str(tmp_path / "merged")]) == 4
    assert capfd.readouterr().err.count("\n") == 1
    assert not (tmp_path / "merged").exists()
    copies = [path for name in ("site", "merged") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text(errors="replace") for path in copies)


@pytest.mark.parametrize("name", ["results.json", "events.ndjson"])
@pytest.mark.parametrize("kind", ["a link", "a FIFO", "a device"])
def test_a_report_is_not_read_through_a_link(
    shards: list[Path], tmp_path: Path, secret: Path, capfd: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    """A command does not follow the link, and does not wait for the writer of a FIFO."""
    run = copy_of(shards[0], tmp_path / "run")
    (run / name).unlink()
    KINDS[kind](run / name, secret)
    if name == "events.ndjson":
        (run / "results.json").unlink()
    assert main(["render", str(run)]) == 4
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert SECRET not in said


def test_a_link_that_the_user_names_is_followed(shards: list[Path], tmp_path: Path) -> None:
    """A link that the user names on the command line is followed, because the user chose it."""
    (tmp_path / "latest.json").symlink_to(shards[0] / "results.json")
    assert main(["render", str(tmp_path / "latest.json"), "-o", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize("shard", ["1/300000000", "1/999999", "0/2", "../../2/2", "x", "1/2/3"])
def test_a_shard_of_many_takes_no_time(
    shards: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], shard: str
) -> None:
    """A shard number from a file is neither counted up to nor used as a folder name."""
    run = copy_of(shards[0], tmp_path / "run")
    bundles.change(run, bundles.with_fields("run_started", {}, shard=shard))
    assert main(["merge", str(run), "--out", str(tmp_path / "merged")]) == 1
    assert capfd.readouterr().out.startswith("REFUSED: 1 reason")
    bundles.draw(run)
    assert main(["verify", str(run)]) == 1
    assert not (tmp_path / "merged").exists()


def test_a_whole_run_is_no_shard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Merge reports that a whole run is not a shard."""
    run = bundles.write(tmp_path / "run", examples=1)
    assert main(["merge", str(run), "--out", str(tmp_path / "merged")]) == 1
    assert capfd.readouterr().out.splitlines()[1] == "  not accepted: these are not the shards of one run: a whole run"


def test_a_run_whose_folder_has_a_link_is_not_sealed(shards: list[Path], tmp_path: Path, secret: Path) -> None:
    """A folder with a link cannot be sealed, because the digest would be that of another file."""
    run = copy_of(shards[0], tmp_path / "run")
    (run / "more").symlink_to(secret)
    with pytest.raises(OSError, match="cannot be sealed"):
        seal(run)
