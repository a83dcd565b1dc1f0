"""Every repair belongs to a finding, and is refused by code that it was not written for."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from support import planted_repairs
from support.suite_runs import run_function

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec import repair as tools
from coldproof.adapters.spec.repair import Repair, RepairError, loaded
from coldproof.harness.case import repairs as repairs_module
from coldproof.harness.case.finding_records import FOLDER, read_records
from coldproof.harness.case.repairs import REPAIR, chosen_repairs, installed_release, read_repairs, repairing
from coldproof.harness.options import UsageError

REPAIRS = read_repairs()
RECORDS = read_records()
HEADS, WAITS = "vllm/failed-load-heads-the-queue", "vllm/failed-load-waits-for-itself"
ATTACHED = "sglang"  # its servers are started with repairs, and not by Coldproof
SENTENCES = re.compile(r"\A[A-Z].*\.\n\n[A-Z`]", re.DOTALL)


def of_installed_engines() -> list[Repair]:
    """Return the repairs of engines that are installed."""
    here = {
        spec.repairs.findings: installed_release(spec)
        for spec in ENGINES.values()
        if spec.repairs is not None and spec.installed
    }
    if tools.installed(ATTACHED):
        here[ATTACHED] = importlib.metadata.version(ATTACHED)
    engine_of = {name: name.split("/")[0] for name in REPAIRS}
    of_engines = [one for one in REPAIRS.values() if engine_of[one.name] in here]
    return [one for one in of_engines if one.is_for(here[engine_of[one.name]]) and not one.absent]


def test_every_file_is_read() -> None:
    """Its folder is its name."""
    assert set(REPAIRS) == {f"{path.parent.parent.name}/{path.parent.name}" for path in FOLDER.glob(f"*/*/{REPAIR}")}


@pytest.mark.parametrize("repair", REPAIRS.values(), ids=lambda one: one.name)
def test_each_repair_says_what_it_changes_and_names_findings(repair: Repair) -> None:
    """Its text has a line about the change and a paragraph about the reason. Its findings are of one engine."""
    assert SENTENCES.match(repair.text)
    assert len(set(repair.mends)) == len(repair.mends)
    for name in repair.mends:
        assert name in RECORDS
        assert name.split("/")[0] == repair.name.split("/")[0]
    engines = {spec.repairs.findings for spec in ENGINES.values() if spec.repairs is not None}
    assert repair.name.split("/")[0] in {*engines, ATTACHED}


@pytest.mark.parametrize("repair", of_installed_engines(), ids=lambda one: one.name)
def test_each_repair_refuses_foreign_code(repair: Repair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every function of the engine has another text. Nothing has been changed when the repair refuses."""
    monkeypatch.setattr(tools, "shipped_source", lambda _function: "def another(): pass\n")
    with pytest.raises(RepairError, match="has 0 times, not once: ") as refused:
        loaded(repair.path).install()
    assert "\n" not in str(refused.value)


def test_all_repairs_of_an_engine_fit_it_together() -> None:
    """Two of them may change the same function."""
    for engine in {one.name.split("/")[0] for one in of_installed_engines()}:
        files = [str(one.path) for one in of_installed_engines() if one.name.startswith(f"{engine}/")]
        done = run_function(f"{planted_repairs.__name__}:{planted_repairs.main.__name__}", files)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list whose last item is the release of the engine that is installed."""
    installed = ["0.32.0"]
    monkeypatch.setattr(repairs_module, "installed_release", lambda _spec: installed[-1])
    return installed


def test_no_repair_is_the_default() -> None:
    """An engine without Python code has none either, and that is no error."""
    assert chosen_repairs("vllm", None) == chosen_repairs("llamacpp", "none") == ()


def test_known_repairs_are_those_for_the_installed_release(release: list[str]) -> None:
    """There may be none."""
    assert HEADS in [one.name for one in chosen_repairs("vllm-inproc", "known")]
    assert all(one.name.startswith("vllm/") for one in chosen_repairs("vllm", "known"))
    release.append("9.9")
    with pytest.raises(UsageError, match=r"no repair was written for vllm 9\.9"):
        chosen_repairs("vllm", "known")


def test_repairs_are_named_by_their_findings(release: list[str]) -> None:
    """The name of the engine may be left out, and a repair is planted once."""
    names = f"failed-load-heads-the-queue,{HEADS},{WAITS}"
    assert [one.name for one in chosen_repairs("vllm", names)] == [HEADS, WAITS]


def test_a_finding_is_left_out_of_the_known_ones(release: list[str]) -> None:
    """All repairs that remove its case are left out, so that its cause is in the engine."""
    every = chosen_repairs("vllm", "known")
    left = chosen_repairs("vllm", f"known,-{HEADS},-failed-load-waits-for-itself")
    assert [one for one in every if one not in left] == [one for one in every if {HEADS, WAITS} & set(one.mends)]
    assert len(left) < len(every)


@pytest.mark.parametrize(
    ("engine", "text", "said"),
    [
        ("vllm", "known,-no-such-finding", "the finding 'vllm/no-such-finding' has no repair"),
        ("vllm", f"-{HEADS}", f"leave {HEADS} out of known: known,-NAME"),
        ("vllm", f"{WAITS},-{HEADS}", f"leave {HEADS} out of known: known,-NAME"),
        ("vllm", "no-such-finding", "the finding 'vllm/no-such-finding' has no repair"),
        ("llamacpp", "known", "--repairs is not supported for --engine llamacpp; use --engine "),
        ("endpoint", "known", "--repairs is not supported for --engine endpoint"),
    ],
)
def test_a_repair_that_cannot_be_planted_is_refused(engine: str, text: str, said: str, release: list[str]) -> None:
    """This covers engines that are not written in Python, or that Coldproof does not start."""
    with pytest.raises(UsageError, match=re.escape(said)):
        chosen_repairs(engine, text)


def test_a_repair_for_another_release_is_refused(release: list[str]) -> None:
    """The message has both releases."""
    release.append("0.31.0")
    with pytest.raises(UsageError, match=r"is for ==0\.32\.0, and 0\.31\.0 is installed"):
        chosen_repairs("vllm", HEADS)


def test_a_repair_of_code_that_is_not_installed_is_refused(release: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`known` leaves it out."""
    monkeypatch.setattr(tools, "installed", lambda _name: False)
    assert all(not one.needs for one in chosen_repairs("vllm", "known"))
    with pytest.raises(UsageError, match="needs lmcache, not installed"):
        chosen_repairs("vllm", "lmcache-key-lacks-the-adapter")


def test_a_finding_without_a_repair_of_its_own_has_that_of_another() -> None:
    """Its own is preferred."""
    found = repairing(WAITS, [REPAIRS[HEADS]])
    assert found is not None
    assert found.name == HEADS
    both = repairing(WAITS, [REPAIRS[HEADS], REPAIRS[WAITS]])
    assert both is not None
    assert both.name == WAITS


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    """A user sees one line."""
    path = tmp_path / "vllm" / "some-name" / REPAIR
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    with pytest.raises(UsageError, match=re.escape(str(path))):
        read_repairs("vllm", tmp_path)
