"""No command imports a module or reads settings from the working folder, which may contain anything."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.forked import ForkedProcess, own_fork_server
from coldproof.harness.schema.results import read_results

WITNESS = "executed"  # every file below adds its name to it
MODULES = ("requests", "jinja2", "msgspec", "pytest", "hypothesis", "numpy", "psutil", "json", "tempfile", "suites")
CUSTOM = ("sitecustomize", "usercustomize")  # Python itself imports them at its start
SETTINGS = {
    "pytest.ini": "[pytest]\naddopts = --no-such-option\n",
    "pytest.toml": '[pytest]\naddopts = ["--no-such-option"]\n',
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--no-such-option"\n',
    "tox.ini": "[pytest]\naddopts = --no-such-option\n",
    "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
}
RUN = ("-p", "support.layered_engine", "--engine", "layered", "--model", "none", "--budget", "1s")
RUN += ("--requirements", "REUSE-1", "--diagnose", "none", "--report-dir", "out")


def fill(folder: Path, *more: str) -> None:
    """Write a hostile folder. `more`: names of modules besides MODULES."""
    folder.mkdir()
    code = f"import os\nopen({str(folder / WITNESS)!r}, 'a').write(__file__ + os.linesep)\n"
    for name in (*MODULES, *more, "conftest", "planted"):
        (folder / f"{name}.py").write_text(code)
    for name, text in SETTINGS.items():
        (folder / name).write_text(text)
    plugin = folder / "planted-1.dist-info"  # an entry point that pytest loads from every folder on the import path
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(
        "[pytest11]\nplanted = planted\n[vllm.general_plugins]\nplanted = planted\n"
    )


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """Write the command `coldproof` as an installation does, and return it."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["coldproof"]
    point = importlib.metadata.EntryPoint(name="coldproof", value=target, group="console_scripts")
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / "coldproof"
    path.write_text(f"import sys\nfrom {point.module} import {point.attr}\nsys.exit({point.attr}())\n")
    return [sys.executable, str(path)]


def call(
    command: list[str], folder: Path, *path: str, ours: Path | str = IMPORT_ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder. `path`: entries of PYTHONPATH after ours."""
    path = (str(ours), str(ROOT / "tests"), *path)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(path)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    witness = folder / WITNESS
    assert not witness.exists(), witness.read_text() + done.stdout + done.stderr
    return done


def ran(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Check that the run is complete."""
    assert (folder / "out" / "results.json").exists(), done.stdout + done.stderr
    assert read_results(folder / "out" / "results.json").complete, done.stdout + done.stderr


def test_a_run_of_two_layers_uses_nothing_of_the_working_folder(tmp_path: Path, script: list[str]) -> None:
    """Neither the fork server nor a layer imports from the working folder."""
    folder = tmp_path / "work"
    fill(folder, *CUSTOM)
    (folder / "coldproof").mkdir()
    (folder / "coldproof" / "__init__.py").write_text((folder / "planted.py").read_text())
    ran(folder, call([*script, "run", *RUN, "--layers", "exact,server"], folder))


@pytest.mark.nightly
def test_an_empty_entry_of_the_python_path_is_not_the_working_folder(tmp_path: Path, script: list[str]) -> None:
    """`PYTHONPATH=$PYTHONPATH:/more` has an empty entry where the variable was not set. xdist's workers ignore it
    too.
    """
    folder = tmp_path / "work"
    fill(folder)
    ran(folder, call([*script, "run", *RUN, "-n", "1"], folder, ""))


def test_python_m_does_not_import_from_the_working_folder(tmp_path: Path) -> None:
    """`python -m` puts the working folder first on the import path, and nothing may be imported from it."""
    folder = tmp_path / "work"
    fill(folder)
    for name in ("json", "tempfile"):  # `python -m` itself may use them before it knows what it runs
        (folder / f"{name}.py").unlink()
    done = call([sys.executable, "-m", "coldproof", "cells"], folder)
    assert done.returncode == 0, done.stderr
    ran(folder, call([sys.executable, "-m", "coldproof", "run", *RUN, "--layers", "exact"], folder))


def test_what_the_python_path_names_can_be_imported(tmp_path: Path, script: list[str]) -> None:
    """A folder on PYTHONPATH can be imported from, even if it is the working folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "theirs.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    done = call([*script, "run", "-p", "theirs", "--cells", "list"], folder, str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "imported").exists()


@pytest.mark.nightly
def test_the_project_around_an_environment_has_no_say(tmp_path: Path, script: list[str]) -> None:
    """An environment in `project/.venv/...` does not apply the project's settings and conftest.py to our suites."""
    folder = tmp_path / "project"
    fill(folder)
    library = folder / ".venv" / "lib"
    shutil.copytree(
        Path(IMPORT_ROOT) / "coldproof", library / "coldproof", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = call([*script, "run", "--cells", "list"], folder, ours=library)
    assert done.returncode == 0, done.stderr
    assert "default" in done.stdout


def test_a_forked_process_does_not_import_from_its_folder(tmp_path: Path) -> None:
    """A forked process has the import path of its parent, and what its own PYTHONPATH names."""
    folder = tmp_path / "work"
    fill(folder)
    address = own_fork_server("json")
    with (tmp_path / "said").open("wb") as said:
        process = ForkedProcess(
            address, "planted:main", (), environment=dict(os.environ), folder=folder, output=said, guarded=False
        )
        assert process.wait() == 1
    assert "No module named 'planted'" in (tmp_path / "said").read_text()
    assert not (folder / WITNESS).exists()
