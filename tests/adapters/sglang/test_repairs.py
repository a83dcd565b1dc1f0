"""A server of SGLang starts with repairs: its plugins plant them, and one that does not fit ends the process."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from support.paths import ROOT

from coldproof.adapters.sglang import repairs
from coldproof.adapters.spec.repair import RepairError

RELEASE, FIRST, SECOND = "0.5.23", "last-page-is-never-scheduled", "responses-ignore-the-adapter"
MISFIT = '''\
"""Change what is not there."""
from coldproof.adapters.spec.repair import part
RELEASES = "==0.5.23"
def install():
    part("an_engine_that_is_not_installed")
'''


def test_findings_are_named_with_their_engine_or_without() -> None:
    """The order is kept. `known` are all for the release."""
    folder = ROOT / "findings" / "sglang"
    found = repairs.files_of(f"sglang/{SECOND},{FIRST}", RELEASE)
    assert [path.resolve() for path in found] == [folder / name / "repair.py" for name in (SECOND, FIRST)]
    everything = {path.resolve() for path in repairs.files_of("known", RELEASE)}
    assert everything == set(folder.glob("*/repair.py"))


@pytest.mark.parametrize(
    ("names", "release", "words"),
    [
        ("sglang/no-such-finding", RELEASE, "sglang/no-such-finding has no repair; there are "),
        (FIRST, "0.5.24", f"the repair of sglang/{FIRST} is for ==0.5.23, not for 0.5.24"),
        ("known", "0.5.24", "no repair was written for SGLang 0.5.24"),
    ],
)
def test_repairs_that_do_not_fit_are_refused(names: str, release: str, words: str) -> None:
    """The message says which, and what there is."""
    with pytest.raises(RepairError, match=words):
        repairs.files_of(names, release)


def test_engines_that_start_inside_find_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in SGLang's group of plugins, and nothing of it stays afterwards."""
    monkeypatch.delenv(repairs.FILES, raising=False)
    before = dict(os.environ)
    with repairs.planted([Path("one.py"), Path("two.py")], tmp_path / "plugins"):
        (point,) = importlib.metadata.entry_points(group=repairs.GROUP, name="coldproof_repairs")
        assert point.load() is repairs.plant_chosen
        assert os.environ[repairs.FILES] == os.pathsep.join(("one.py", "two.py"))
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "plugins")
    assert dict(os.environ) == before
    assert not importlib.metadata.entry_points(group=repairs.GROUP, name="coldproof_repairs")


def test_a_process_without_its_repairs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang would log an exception of a plugin, and go on without the repair."""
    file = tmp_path / "sglang" / "a-finding" / "repair.py"
    file.parent.mkdir(parents=True)
    file.write_text(MISFIT)
    monkeypatch.setenv(repairs.FILES, str(file))
    with pytest.raises(SystemExit, match="coldproof: the repair a-finding is not for this engine: No module named"):
        repairs.plant_chosen()
    monkeypatch.delenv(repairs.FILES)
    repairs.plant_chosen()  # an engine without chosen repairs is as it is shipped


@pytest.mark.parametrize("words", [[], [FIRST], [FIRST, "--port", "30000"]])
def test_the_servers_arguments_stand_behind_two_dashes(words: list[str]) -> None:
    """Otherwise the usage is shown."""
    with pytest.raises(SystemExit, match=r"usage: .* NAME,\.\.\. -- ARGUMENTS_OF_THE_SERVER"):
        repairs.main(words)


def test_without_sglang_the_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command belongs into the environment of the server."""

    def none_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none_installed)
    with pytest.raises(SystemExit) as ended:
        repairs.main(["known", "--"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "coldproof: SGLang is not installed here; run this with the Python of its environment\n"
    )


def test_an_unknown_repair_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server starts."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: RELEASE)
    with pytest.raises(SystemExit) as ended:
        repairs.main(["no-such-finding", "--"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("coldproof: the finding sglang/no-such-finding has no repair; ")
