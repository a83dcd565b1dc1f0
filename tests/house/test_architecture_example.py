"""The example of docs/architecture.md is a whole feature: it is extracted from the page into a copy of the tree, where
its requirement conforms, is violated by its fault, and needs no other change.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import COUNTED, ROOT

from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict

PAGE = ROOT / "docs" / "architecture.md"
REQUIREMENT, FAULT = "CTRL-10", "a-reset-of-an-empty-cache-is-refused"
COUNTER, STEP = "resets of a cache that was reset just before", "story.client.reset(); story.client.reset()"
MOST_FILES = 9  # of a feature of this size
# What the example needs of the checkout, besides its rooms.
BESIDE = ("pyproject.toml", "tests/house/test_imports.py", "tests/support/paths.py", "tests/support/counted_budget.py")
RUN = (
    *("--engine", "vllm-inproc", "--worker", "fingerprint", "--cells", "default", "--findings", "off"),
    *("--diagnose", "none", "--requirements", REQUIREMENT, *COUNTED),
)
RUNS = {"sound": RUN, "faulty": (*RUN, "--fault", FAULT)}
# Most of a run is vLLM's import, which both share.
IN_FORKS = """
import json, sys
from pathlib import Path
from coldproof.harness.power.forked_run import run_in_fork
from coldproof.harness.session.layers.processes import pytest_main
from coldproof.harness.session.pytest_command import suite_words
for name, words in json.load(sys.stdin).items():
    folder = Path(name).absolute()
    folder.mkdir()
    run_in_fork(3600, pytest_main, suite_words([*words, "--report-dir", str(folder / "report")]), folder)
"""


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


def run(tree: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in the copy of the tree, with `given` as standard input."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "tests")])
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def results(tree: Path) -> dict[str, Results]:
    """Return the results of a run on the unmodified engine and of one with the fault."""
    done = run(tree, "-c", IN_FORKS, given=json.dumps(RUNS))
    assert done.returncode == 0, done.stdout
    found = {name: tree / name / "report" / "results.json" for name in RUNS}
    assert all(file.is_file() for file in found.values()), [log.read_text() for log in tree.glob("*/output.log")]
    return {name: read_results(file) for name, file in found.items()}


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
        done = run(tree, *words)
        assert done.returncode == 0, done.stdout


@pytest.mark.nightly
def test_it_conforms_with_evidence(results: dict[str, Results]) -> None:
    """The unmodified engine confirms resets of an empty cache, and the counter shows that there were some."""
    (found,) = results["sound"].requirements
    assert (found.id, found.verdict) == (REQUIREMENT, Verdict.CONFORMS), found.reason
    assert found.evidence[COUNTER] > 0
    assert found.needed == [COUNTER]


@pytest.mark.nightly
def test_its_fault_violates_it(tree: Path, results: dict[str, Results]) -> None:
    """The checker's finding becomes a case, whose script has the calls of the step."""
    found = results["faulty"]
    (requirement,) = found.requirements
    assert requirement.verdict is Verdict.VIOLATED, requirement.reason
    wanted = "refused to reset a cache that it had reset just before"
    case = next(one for one in found.cases if wanted in one.sentence)  # what else its fault breaks is found behind it
    script = (tree / "faulty" / "report" / "cases" / f"{case.id}.py").read_text()
    compile(script, case.id, "exec")
    assert STEP in script
