"""The example of docs/architecture.md is a whole feature: it is extracted from the page into a copy of the tree, where
its requirement conforms, is violated by its fault, and needs no other change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict

PAGE = ROOT / "docs" / "architecture.md"
REQUIREMENT, FAULT = "CTRL-10", "a-reset-of-an-empty-cache-is-refused"
COUNTER, STEP = "resets of a cache that was reset just before", "story.client.reset(); story.client.reset()"
MOST_FILES = 9  # of a feature of this size
# What the example needs of the checkout, besides its rooms.
BESIDE = ("pyproject.toml", "tests/house/test_imports.py", "tests/support/paths.py")
RUN = (
    *("-m", "coldproof", "run", "--engine", "vllm-inproc", "--worker", "fingerprint", "--cells", "default"),
    *("--budget", "4s", "--findings", "off", "--diagnose", "none", "--requirements", REQUIREMENT),
)
Started = subprocess.Popen[str]


def example() -> dict[str, str]:
    """Return the files of the example, by their paths."""
    return dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree with the files of the example."""
    copy = tmp_path_factory.mktemp("tree")
    for room in ("src", "adapters", "harness", "reports", "suites"):
        shutil.copytree(ROOT / room, copy / room, symlinks=True)
    (copy / "findings").symlink_to(ROOT / "findings")
    for name in BESIDE:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for name, text in example().items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
    return copy


def start(tree: Path, *words: str) -> Started:
    """Start Python in the copy of the tree."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "tests")])
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def runs(tree: Path) -> Iterator[tuple[Started, Started]]:
    """Start a run on the unmodified engine and one with the fault, side by side: most of each is vLLM's start."""
    sound = start(tree, *RUN, "--report-dir", "sound")
    faulty = start(tree, *RUN, "--report-dir", "faulty", "--fault", FAULT)
    yield sound, faulty
    for run in (sound, faulty):
        run.kill()
        run.wait()


def results(run: Started, folder: Path) -> Results:
    """Wait for a run, and return its results."""
    printed, _ = run.communicate()
    assert (folder / "results.json").is_file(), printed
    return read_results(folder / "results.json")


def test_it_is_a_feature_of_new_files_only() -> None:
    """Nothing of the tree is changed for it: no list names a feature, its area, its counters or its fault."""
    files = example()
    assert 5 <= len(files) <= MOST_FILES
    assert [name for name in files if (ROOT / name).exists()] == []


def test_it_keeps_the_rules_of_imports_and_of_style(tree: Path) -> None:
    """Its files are formatted, and import only what their names allow."""
    for words in (
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/house/test_imports.py"),
        ("-m", "ruff", "check", "--no-cache", *example()),
        ("-m", "ruff", "format", "--no-cache", "--check", *example()),
    ):
        run = start(tree, *words)
        printed, _ = run.communicate()
        assert run.returncode == 0, printed


def test_it_conforms_with_evidence(tree: Path, runs: tuple[Started, Started]) -> None:
    """The unmodified engine confirms resets of an empty cache, and the counter shows that there were some."""
    (found,) = results(runs[0], tree / "sound").requirements
    assert (found.id, found.verdict) == (REQUIREMENT, Verdict.CONFORMS), found.reason
    assert found.evidence[COUNTER] > 0
    assert found.needed == [COUNTER]


def test_its_fault_violates_it(tree: Path, runs: tuple[Started, Started]) -> None:
    """The checker's finding becomes a case, whose script has the calls of the step."""
    found = results(runs[1], tree / "faulty")
    (requirement,) = found.requirements
    assert requirement.verdict is Verdict.VIOLATED, requirement.reason
    wanted = "refused to reset a cache that it had reset just before"
    case = next(one for one in found.cases if wanted in one.sentence)  # what else its fault breaks is found behind it
    script = (tree / "faulty" / "cases" / f"{case.id}.py").read_text()
    compile(script, case.id, "exec")
    assert STEP in script
