"""A bundle in which a file was changed, added or removed is refused with the file's name, also after a new seal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bundles import copy_of, reasons

from coldproof.harness.cli.main import main
from coldproof.harness.release.run.manifest import seal

Damage = Callable[[Path], None]


pytestmark = pytest.mark.usefixtures("small_list")


def rewrite(name: str, old: str, new: str) -> Damage:
    """Return a change that replaces text in a file."""

    def damage(bundle: Path) -> None:
        text = (bundle / name).read_text()
        assert old in text
        (bundle / name).write_text(text.replace(old, new, 1))

    return damage


def reseal(damage: Damage) -> Damage:
    """Return a change after which the bundle is sealed again."""

    def both(bundle: Path) -> None:
        damage(bundle)
        seal(bundle)

    return both


def added(name: str) -> Damage:
    """Return a change that adds a file."""
    return lambda bundle: bool((bundle / name).write_text("mine")) or None


def removed(name: str) -> Damage:
    """Return a change that removes a file."""
    return lambda bundle: (bundle / name).unlink()


def linked(name: str) -> Damage:
    """Return a change that replaces a file by a symbolic link."""

    def damage(bundle: Path) -> None:
        (bundle / name).rename(bundle.parent / "elsewhere")
        (bundle / name).symlink_to(bundle.parent / "elsewhere")

    return damage


def cut_off(name: str) -> Damage:
    """Return a change that cuts off the end of a file."""
    return lambda bundle: bool((bundle / name).write_bytes((bundle / name).read_bytes()[:-9])) or None


def better_verdict(bundle: Path) -> None:
    """Mark LORA-9 as conforming in results.json."""
    results = json.loads((bundle / "results.json").read_text())
    next(one for one in results["requirements"] if one["id"] == "LORA-9")["verdict"] = "CONFORMS"
    (bundle / "results.json").write_text(json.dumps(results))


CASE, KNOWN_ISSUES = "cases/LORA-9-7c21a0f3.json", "known_issues.toml"
CHANGED_FILES: list[tuple[str, Damage, str]] = [
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
    ("a file that is not listed", added("notes.txt"), "altered: notes.txt is not in the manifest"),
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


@pytest.mark.parametrize(("damage", "why"), [row[1:] for row in CHANGED_FILES], ids=[row[0] for row in CHANGED_FILES])
def test_a_changed_file_is_refused_by_its_name(whole: Path, tmp_path: Path, damage: Damage, why: str) -> None:
    """The change is detected even if the manifest is written again."""
    bundle = copy_of(whole, tmp_path / "bundle")
    damage(bundle)
    assert why in reasons(bundle)


def test_a_refusal_is_exit_code_1_and_a_reason_a_line(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The worst kind of reason comes first."""
    bundle = copy_of(whole, tmp_path / "bundle")
    (bundle / "summary.md").unlink()
    assert main(["verify", str(bundle)]) == 1
    assert capfd.readouterr().out.splitlines() == [
        f"REFUSED: {bundle}, 2 reasons",
        "  altered: summary.md is in the manifest but missing from the bundle",
        "  left out: summary.md is missing",
    ]


def test_a_missing_folder_is_a_usage_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error is one line, and the exit code is 4."""
    assert main(["verify", str(tmp_path / "nowhere")]) == 4
    assert capfd.readouterr().err.count("\n") == 1
