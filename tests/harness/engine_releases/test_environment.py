"""An environment has one release, which hides what is installed. pip is real, and installs wheels from a folder."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import msgspec
import pytest

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.release_package import ReleasePackage
from coldproof.harness.engine_releases.environment import NoEnvironment, prepared
from coldproof.harness.engine_releases.release_runs import ReleaseRuns

TINY = ReleasePackage(name="coldproof-tiny-engine")


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of a module with its version."""
    stem = f"coldproof_tiny_engine-{version}"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as file:
        file.writestr("tiny_engine.py", f"VERSION = {version!r}\n")
        about = f"{stem}.dist-info"
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: coldproof-tiny-engine\nVersion: {version}\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two releases, the only packages that pip sees."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(folder, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def output(python: Path, code: str) -> str:
    """Return what a program prints in that environment."""
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_each_release_is_in_front_of_what_is_installed(wheels: Path, tmp_path: Path) -> None:
    """The engine's package is that of the release. All others, and Coldproof, come from this interpreter."""
    said: list[str] = []
    for version in ("1.0", "2.0"):
        python = prepared(TINY, version, tmp_path / version, said.append)
        assert output(python, "import tiny_engine; print(tiny_engine.VERSION)") == version
        assert output(python, "import importlib.metadata as m; print(m.version('coldproof-tiny-engine'))") == version
        assert output(python, "import msgspec, coldproof.harness.cli.main; print('both')") == "both"
    assert said == ["installing coldproof-tiny-engine==1.0", "installing coldproof-tiny-engine==2.0"]


def test_an_environment_is_made_once(wheels: Path, tmp_path: Path) -> None:
    """It is made again for another release."""
    said: list[str] = []
    for version in ("1.0", "1.0", "2.0"):
        python = prepared(TINY, version, tmp_path / "one", said.append)
    assert len(said) == 2
    assert output(python, "import tiny_engine; print(tiny_engine.VERSION)") == "2.0"


def test_a_release_that_pip_does_not_find_leaves_nothing(wheels: Path, tmp_path: Path) -> None:
    """The message names the release."""
    with pytest.raises(NoEnvironment, match=r"coldproof-tiny-engine==3\.0"):
        prepared(TINY, "3.0", tmp_path / "three", lambda _: None)
    assert not (tmp_path / "three").exists()


def test_a_folder_of_packages_is_between_the_release_and_what_is_installed(wheels: Path, tmp_path: Path) -> None:
    """The folder hides an installed package, but not the release. Without the folder, the environment is made again."""
    between = tmp_path / "between"
    between.mkdir()
    for name in ("msgspec", "tiny_engine"):
        (between / f"{name}.py").write_text("VERSION = 'between'\n")
    said: list[str] = []
    code = "import tiny_engine, msgspec; print(tiny_engine.VERSION, getattr(msgspec, 'VERSION', 'installed'))"
    found = [
        output(prepared(TINY, "1.0", tmp_path / "one", said.append, packages=folders), code)
        for folders in ([between], [between], [])
    ]
    assert found == ["1.0 between", "1.0 between", "1.0 installed"]
    assert len(said) == 2


def test_only_the_releases_that_need_them_get_packages(wheels: Path, tmp_path: Path) -> None:
    """The user says which releases need them."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "other_torch.py").touch()
    runs = ReleaseRuns(
        engine=msgspec.structs.replace(ENGINES["vllm-inproc"], releases=TINY),
        arguments=(),
        out=tmp_path,
        seconds=60,
        packages=(("0.5..1.0", tmp_path / "torch"),),
        say=lambda _: None,
    )
    code = "import importlib.util; print(importlib.util.find_spec('other_torch') is not None)"
    assert [output(runs.python(version), code) for version in ("1.0", "2.0")] == ["True", "False"]
