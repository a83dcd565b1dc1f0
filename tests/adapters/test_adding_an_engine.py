"""The example of the guide works: it is extracted from the page into the files that it names, and passes the
contract and the suites.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from support.paths import COUNTED, PLUGIN_PATH, ROOT, ended

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.registry import ENGINES
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict

GUIDE = ROOT / "docs" / "adding-an-engine.md"
METADATA = "Metadata-Version: 2.1\nName: toylm\nVersion: 1.0\n"
# What the reader does with a folder in the checkout, done with a folder beside it.
PLUGIN = """
from pathlib import Path

import coldproof.adapters

coldproof.adapters.__path__.append(str(Path(__file__).parent / "adapters"))
"""


def test_every_capability_is_explained() -> None:
    """The table has its name and what a requirement does without it."""
    explained = re.findall(r"^\| `([A-Z_]+)` \| .+ \| .+ \|$", GUIDE.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(Capability.__members__)


def test_every_engine_has_its_section() -> None:
    """The section in docs/engines.md has the name that the command line accepts."""
    page = (ROOT / "docs" / "engines.md").read_text()
    assert [name for name in ENGINES if f"`--engine {name}`" not in page] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the files of the page and the package of the engine, and a plugin that adds them to
    Coldproof.
    """
    files = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
    assert sorted(files) == ["adapters/toylm/__init__.py", "adapters/toylm/engine.py", "adapters/toylm/spec.py"]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "tests" / "support" / "toy_engine.py", tmp_path / "toylm.py")
    (tmp_path / "toylm-1.0.dist-info").mkdir()
    (tmp_path / "toylm-1.0.dist-info" / "METADATA").write_text(METADATA)
    (tmp_path / "with_toy.py").write_text(PLUGIN)
    return tmp_path


def run(checkout: Path, *arguments: str) -> str:
    """Run pytest with the engine of the example and return its output."""
    path = os.pathsep.join([str(checkout), PLUGIN_PATH])
    words = ["-m", "pytest", "-p", "with_toy", "-p", "no:cacheprovider", "-q", *arguments, "--engine", "toylm"]
    done = ended([sys.executable, *words], PYTHONPATH=path)
    return done.stdout + done.stderr


def results(checkout: Path, requirements: str) -> Results:
    """Run the suites on the engine with few examples and return their results."""
    out = checkout / "out"
    given = ["--requirements", requirements, *COUNTED, "--diagnose", "none"]
    printed = run(checkout, "suites", *given, "--report-dir", str(out))
    assert (out / "results.json").is_file(), printed
    return read_results(out / "results.json")


def verdicts(found: Results) -> dict[str, Verdict]:
    """Return the verdict of each requirement."""
    return {one.id: one.verdict for one in found.requirements}


def test_the_example_keeps_the_contract(checkout: Path) -> None:
    """It passes every rule on the first attempt, as the page says."""
    printed = run(checkout, "tests/contract")
    assert re.search(r"^\d{2,} passed, \d+ skipped", printed, re.MULTILINE), printed


@pytest.mark.nightly
def test_the_example_conforms_and_says_what_it_lacks(checkout: Path) -> None:
    """ToyLM is correct and has no salts: UNSUPPORTED is not counted as a pass."""
    found = results(checkout, "GROUND-1,LORA-4,SALT-1")
    expected = {"GROUND-1": Verdict.CONFORMS, "LORA-4": Verdict.CONFORMS, "SALT-1": Verdict.UNSUPPORTED}
    assert verdicts(found) == expected
    (salts,) = [one for one in found.requirements if one.id == "SALT-1"]
    assert "cache salt: ToyLM has none" in salts.reason


def test_a_fault_of_the_examples_engine_is_found(checkout: Path) -> None:
    """The adapter does not hide a cache key that lacks the adapter."""
    library = checkout / "toylm.py"
    right, wrong = "return (self.content, b", 'return (b"", b'
    assert right in library.read_text()
    library.write_text(library.read_text().replace(right, wrong))
    assert verdicts(results(checkout, "LORA-4"))["LORA-4"] is Verdict.VIOLATED
