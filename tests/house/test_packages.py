"""An installed Coldproof has every template that a checkout has."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from support.paths import ROOT

# Imports every engine's specification with no distribution but those that Coldproof requires, and what they require.
CORE_ALONE = """
import importlib.abc, importlib.metadata, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

needed, waiting = set(), [Requirement(line) for line in sys.argv[1:]]
while waiting:
    one = waiting.pop()
    name = canonicalize_name(one.name)
    if name not in needed and (one.marker is None or one.marker.evaluate({"extra": ""})):
        needed.add(name)
        waiting += map(Requirement, importlib.metadata.requires(name) or ())
others = {
    module
    for module, owners in importlib.metadata.packages_distributions().items()
    if not needed & set(map(canonicalize_name, owners))
} - {"coldproof", *sys.stdlib_module_names}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(f"no module named {name!r}, which no dependency of Coldproof brings")

sys.meta_path.insert(0, Absent())
from coldproof.adapters.registry import ENGINES
print(len(others), *sorted(ENGINES))
"""


def test_all_that_is_no_python_is_in_the_wheel() -> None:
    """Nobody who works in a checkout would notice a missing pattern."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    rooms = ("adapters", "findings", "harness", "reports", "suites")
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {ROOT / name for name in listed.splitlines() if not name.endswith(".py")}
    folders = {package: ROOT / "src" / package.replace(".", "/") for package in declared}
    found = (path for package, patterns in declared.items() for one in patterns for path in folders[package].glob(one))
    packed = {path.resolve() for path in found}
    assert wanted
    assert wanted - packed == set()


def test_what_runs_and_builds_leave_is_ignored_by_git() -> None:
    """These are the default of --report-dir, which is in no package, builds of the package, and the cache."""
    left = ("coldproof-report/index.html", "build/lib/x.py", "dist/x.whl", ".coldproof/cache/x")
    found = subprocess.run(["git", "check-ignore", *left], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tuple(found.stdout.splitlines()) == left


def test_nothing_recommends_an_index_name_that_is_not_ours() -> None:
    """Coldproof is on no package index. Whoever registers the name there would get the users who follow the advice."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    advice = re.compile(r"(pip|uv|pipx)\s+(install|add)\b[^\n`]*?[\s'\"](coldproof)(?![\w/.-])", re.IGNORECASE)
    files = [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]
    read = ((path, path.read_bytes().decode(errors="ignore")) for path in files if path != Path(__file__))
    assert [f"{path}: {found[0]}" for path, text in read for found in advice.finditer(text)] == []
    assert advice.search("pip install 'coldproof[models]'")
    assert not advice.search("pip install coldproof-0.1.0-py3-none-any.whl")


def test_no_engine_is_needed_to_list_the_engines() -> None:
    """Where one engine is installed alone, an import of another one's packages would end every command."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ran = subprocess.run([sys.executable, "-c", CORE_ALONE, *required], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    kept_away, *engines = ran.stdout.split()
    assert int(kept_away) > 10  # the tests' own environment has engines
    assert {"mlx", "mistralrs", "vllm"} <= set(engines)
