"""A bundle in which a file was changed, added or taken away is refused by the file's name, sealed again or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bundles import copy_of, reasons

from coldproof.harness.cli.main import main
from coldproof.harness.release.run.manifest import seal

Spoil = Callable[[Path], None]


pytestmark = pytest.mark.usefixtures("small_list")


def rewrite(name: str, old: str, new: str) -> Spoil:
    """Replace something in a file."""

    def spoil(bundle: Path) -> None:
        text = (bundle / name).read_text()
        assert old in text
        (bundle / name).write_text(text.replace(old, new, 1))

    return spoil


def reseal(spoil: Spoil) -> Spoil:
    """The same by somebody who knows of the manifest."""

    def both(bundle: Path) -> None:
        spoil(bundle)
        seal(bundle)

    return both


def added(name: str) -> Spoil:
    """Put a file of somebody's into the bundle."""
    return lambda bundle: bool((bundle / name).write_text("mine")) or None


def removed(name: str) -> Spoil:
    """Take a file away."""
    return lambda bundle: (bundle / name).unlink()


def linked(name: str) -> Spoil:
    """Have a file lie elsewhere."""

    def spoil(bundle: Path) -> None:
        (bundle / name).rename(bundle.parent / "elsewhere")
        (bundle / name).symlink_to(bundle.parent / "elsewhere")

    return spoil


def cut_off(name: str) -> Spoil:
    """Have the end of a file lost."""
    return lambda bundle: bool((bundle / name).write_bytes((bundle / name).read_bytes()[:-9])) or None


def better_verdict(bundle: Path) -> None:
    """results.json says that LORA-9 conforms."""
    results = json.loads((bundle / "results.json").read_text())
    next(one for one in results["requirements"] if one["id"] == "LORA-9")["verdict"] = "CONFORMS"
    (bundle / "results.json").write_text(json.dumps(results))


CASE, KNOWN_ISSUES = "cases/LORA-9-7c21a0f3.json", "known_issues.toml"
SPOILT: list[tuple[str, Spoil, str]] = [
    ("a verdict in results.json", better_verdict, "altered: results.json was changed after the run"),
    (
        "the same, sealed again",
        reseal(better_verdict),
        "altered: results.json: LORA-9 is CONFORMS, the events give KNOWN ISSUE",
    ),
    (
        "the seed",
        reseal(rewrite("results.json", '"seed": "4"', '"seed": "5"')),
        "results.json: seed is 5, the events give 4",
    ),
    (
        "the page",
        reseal(rewrite("index.html", "CONFORMANT, known issues aside", "CONFORMANT")),
        "altered: index.html differs from the page that the events give",
    ),
    (
        "a log",
        rewrite("engine-01-tested.log", "ready", "steady"),
        "altered: engine-01-tested.log was changed after the run",
    ),
    ("a stranger", added("notes.txt"), "altered: notes.txt is not in the manifest"),
    ("a file gone", removed("junit.xml"), "altered: junit.xml is in the manifest but missing from the bundle"),
    ("a case gone", reseal(removed(CASE)), f"left out: {CASE} is missing"),
    (
        "another case",
        reseal(rewrite(CASE, "stale state", "stale  state")),
        f"altered: {CASE} differs from the case in the events",
    ),
    (
        "known issues gone",
        reseal(removed(KNOWN_ISSUES)),
        f"left out: the run: {KNOWN_ISSUES} is not the file that the run used",
    ),
    (
        "what waives a verdict gone",
        reseal(removed(KNOWN_ISSUES)),
        "left out: LORA-9 (test_lora) in two: case LORA-9-7c21a0f3 is waived, but no known issue",
    ),
    ("no manifest", removed("manifest.json"), "left out: manifest.json is missing"),
    (
        "no manifest of ours",
        rewrite("manifest.json", "{", "["),
        "not accepted: manifest.json is not a valid manifest of this version",
    ),
    ("a link", linked("junit.xml"), "not accepted: junit.xml is a symbolic link"),
    ("half a line", reseal(cut_off("events.ndjson")), "of events.ndjson cannot be re-evaluated"),
    (
        "no events",
        reseal(removed("events.ndjson")),
        "not accepted: the bundle cannot be read as a run: FileNotFoundError",
    ),
]


@pytest.mark.parametrize(("spoil", "why"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT])
def test_a_changed_file_is_refused_by_its_name(whole: Path, tmp_path: Path, spoil: Spoil, why: str) -> None:
    """Also where the manifest was made anew."""
    bundle = copy_of(whole, tmp_path / "bundle")
    spoil(bundle)
    assert why in reasons(bundle)


def test_a_refusal_is_exit_code_1_and_a_reason_a_line(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The worst kind first."""
    bundle = copy_of(whole, tmp_path / "bundle")
    (bundle / "summary.md").unlink()
    assert main(["verify", str(bundle)]) == 1
    assert capfd.readouterr().out.splitlines() == [
        f"REFUSED: {bundle}, 2 reasons",
        "  altered: summary.md is in the manifest but missing from the bundle",
        "  left out: summary.md is missing",
    ]


def test_what_is_no_folder_is_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 4."""
    assert main(["verify", str(tmp_path / "nowhere")]) == 4
    assert capfd.readouterr().err.count("\n") == 1
