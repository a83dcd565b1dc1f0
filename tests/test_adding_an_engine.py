"""The guide's example is run: taken out of the page, put where its first lines say, and put to contract and suites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.base import Capability
from harness.engines.kinds import KINDS
from reports.schema import Results, Verdict, read_results

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "adding-an-engine.md"
METADATA = "Metadata-Version: 2.1\nName: toylm\nVersion: 1.0\n"
# What the reader does with two files in the checkout, done with two files beside it.
PLUGIN = """
from pathlib import Path

import adapters
import harness.engines

HERE = Path(__file__).parent
adapters.__path__.append(str(HERE / "adapters"))
harness.engines.__path__.append(str(HERE / "harness" / "engines"))

from harness.engines.kinds import KINDS
from harness.engines.toy import TOY

KINDS[TOY.name] = TOY
"""


def test_every_capability_is_explained() -> None:
    """In the table, by its name, with what a requirement does without it."""
    explained = re.findall(r"^\| `([A-Z_]+)` \| .+ \| .+ \|$", GUIDE.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(Capability.__members__)


def test_every_engine_has_its_section() -> None:
    """In docs/engines.md, under the name that the command line knows."""
    told = (ROOT / "docs" / "engines.md").read_text()
    assert [name for name in KINDS if f"`--engine {name}`" not in told] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of the page, the engine's package, and what makes them part of ours."""
    files = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
    assert sorted(files) == ["adapters/toy.py", "harness/engines/toy.py"]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "tests" / "toylm.py", tmp_path)
    (tmp_path / "toylm-1.0.dist-info").mkdir()
    (tmp_path / "toylm-1.0.dist-info" / "METADATA").write_text(METADATA)
    (tmp_path / "with_toy.py").write_text(PLUGIN)
    return tmp_path


def run(checkout: Path, *arguments: str) -> str:
    """Pytest with the example's engine; what it printed."""
    path = os.pathsep.join([str(checkout), str(ROOT)])
    words = ["-m", "pytest", "-p", "with_toy", "-p", "no:cacheprovider", "-q", *arguments, "--engine", "toy"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout + done.stderr


def results(checkout: Path) -> Results:
    """What the suites find on it, in a few examples."""
    out = checkout / "out"
    given = [
        "--requirements",
        "GROUND-1,LORA-4,SALT-1",
        "--budget",
        "4s",
        "--diagnose",
        "none",
        "--hypothesis-seed",
        "1",
    ]
    printed = run(checkout, "suites", *given, "--report-dir", str(out))
    assert (out / "results.json").is_file(), printed
    return read_results(out / "results.json")


def verdicts(found: Results) -> dict[str, Verdict]:
    """Requirement id -> verdict."""
    return {one.id: one.verdict for one in found.requirements}


def test_the_example_keeps_the_contract(checkout: Path) -> None:
    """Every rule, on the first try, as the page says."""
    printed = run(checkout, "tests/contract")
    assert re.search(r"^\d{2,} passed, \d+ skipped", printed, re.MULTILINE), printed


def test_the_example_conforms_and_says_what_it_lacks(checkout: Path) -> None:
    """ToyLM is right, and has no salts: UNSUPPORTED is no silent pass."""
    found = results(checkout)
    expected = {"GROUND-1": Verdict.CONFORMS, "LORA-4": Verdict.CONFORMS, "SALT-1": Verdict.UNSUPPORTED}
    assert verdicts(found) == expected
    (salts,) = [one for one in found.requirements if one.id == "SALT-1"]
    assert "cache salt: ToyLM has none" in salts.reason


def test_a_fault_of_the_examples_engine_is_found(checkout: Path) -> None:
    """Behind this adapter a cache key that forgets the adapter does not go unnoticed."""
    library = checkout / "toylm.py"
    right, wrong = "return (self.content, b", 'return (b"", b'
    assert right in library.read_text()
    library.write_text(library.read_text().replace(right, wrong))
    assert verdicts(results(checkout))["LORA-4"] is Verdict.VIOLATED
