"""`coldproof verify` derives from the run's record every way in which a requirement becomes UNSUPPORTED."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import bundles
from support.bundles import FROZEN, Event, change, copy_of, draw, reasons

from coldproof.adapters.protocol.capabilities import OF_EVERY_CELL, OPTIONAL_ABSENT, Capability, Support
from coldproof.harness.judgement.requirement import absent_everywhere, missing, missing_everywhere

PRESENT = {one: Support(True, "there") for one in Capability}
Capabilities = dict[Capability, Support]


def without(*absent: Capability, evidence: str = "not there", present: bool | None = False) -> Capabilities:
    """Return all capabilities, with these marked as absent."""
    return {**PRESENT, **{one: Support(present, evidence) for one in absent}}


WAYS: dict[str, tuple[Capabilities, int, int, tuple[Capability, ...], str]] = {
    "a capability is absent": (
        *(without(Capability.CACHE_SALT), 3, 1, (Capability.CACHE_SALT,)),
        "cache salt: not there",
    ),
    "a capability is unknown": (
        *(without(Capability.METRICS, present=None, evidence="unknown"), 3, 1, (Capability.METRICS,)),
        "metrics: unknown",
    ),
    "several are absent": (
        *(without(Capability.METRICS, Capability.ABORT), 3, 1, (Capability.ABORT, Capability.METRICS)),
        "client aborts: not there; metrics: not there",
    ),
    "--adapter is not given often enough": (
        *(PRESENT, 1, 1, (Capability.RUNTIME_LORA,)),
        "only 1 usable adapter contents: give at least two that the engine loads with --adapter",
    ),
    "an engine without adapters lacks the capability, not the contents": (
        *(without(Capability.ADAPTER_CHOICE), 0, 1, (Capability.ADAPTER_CHOICE,)),
        f"{Capability.ADAPTER_CHOICE.value}: not there",
    ),
    "--weights is not given": (
        *(PRESENT, 3, 0, (Capability.WEIGHT_UPDATES,)),
        "only one version of the weights is known: give the served folder with --model and another checkpoint of it",
    ),
    "an engine without updates lacks the capability, not the versions": (
        *(without(Capability.WEIGHT_UPDATES), 3, 0, (Capability.WEIGHT_UPDATES,)),
        f"{Capability.WEIGHT_UPDATES.value}: not there",
    ),
    "nothing is missing": (PRESENT, 3, 1, (Capability.WEIGHT_UPDATES, Capability.RUNTIME_LORA), ""),
}


@pytest.mark.parametrize(("capabilities", "contents", "versions", "needs", "says"), WAYS.values(), ids=WAYS)
def test_the_run_reports_what_is_missing(
    capabilities: Capabilities, contents: int, versions: int, needs: tuple[Capability, ...], says: str
) -> None:
    """The text is that of the verdict's reason."""
    found = "; ".join(map(str, missing(capabilities, needs, contents=contents, versions=versions)))
    assert found.startswith(says)
    assert bool(found) == bool(says)


pytestmark = pytest.mark.usefixtures("small_list")


def with_way(bundle: Path, to: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Return why a bundle is refused whose EVENT-9 is UNSUPPORTED in one of these ways."""
    capabilities, contents, versions, needs, _ = WAYS[name]
    chat, event, lora = FROZEN.tests
    needing = replace(event, declared=replace(event.declared, needs=needs))
    listed = replace(FROZEN, tests=(chat, needing, lora))
    bundles.small_list(to, monkeypatch, listed)
    lacks = missing(capabilities, needs, contents=contents, versions=versions)

    def how(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "engine" and event["cell"] == "one":
                facts = {c.value: {"present": s.present, "evidence": s.evidence} for c, s in capabilities.items()}
                facts[Capability.VERSION.value]["evidence"] = "package version 1"
                event["engine"]["capabilities"] = facts
                event.update(contents=contents, versions=versions)
            if event["event"] == "verdict" and event["requirement"] == "EVENT-9":
                event["absent"] = [one.capability for one in lacks if one.capability is not None]
            if event["event"] == "qualification":
                event["qualification"]["requirements_sha256"] = bundles.digest_of_list(listed)
        return events

    copy = copy_of(bundle, to / "bundle")
    change(copy, how)
    draw(copy)
    return reasons(copy)


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way[-1]])
def test_verify_derives_it_from_the_record(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The bundle is not altered just because the run had no weights, no adapters or a less capable engine."""
    assert with_way(whole, tmp_path / "way", monkeypatch, name) == ""


def test_unsupported_without_a_reason_is_altered(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine and options had everything that the requirement needs."""
    said = with_way(whole, tmp_path / "way", monkeypatch, "nothing is missing")
    assert said == "altered: EVENT-9 (test_event) in one is UNSUPPORTED, but the engine has all that it needs"


EVERYWHERE = sorted(OF_EVERY_CELL)[0]
OPTIONAL = Capability.SESSIONS


@pytest.mark.parametrize(
    ("support", "capability", "lacks"),
    [
        (Support(False, "never"), EVERYWHERE, True),
        (Support(None, "never"), EVERYWHERE, False),
        (Support(True, "here"), EVERYWHERE, False),
        (Support(False, OPTIONAL_ABSENT[OPTIONAL]), OPTIONAL, True),
        (Support(False, "not in this cell"), OPTIONAL, False),
    ],
)
def test_a_cell_that_was_not_opened_lacks_what_all_cells_lack(
    support: Support, capability: Capability, *, lacks: bool
) -> None:
    """Only what does not depend on how the engine is started counts for a cell that was not opened."""
    found = missing_everywhere(absent_everywhere({**PRESENT, capability: support}), (capability, Capability.METRICS))
    assert bool(found) is lacks


def test_verify_knows_of_cells_that_were_not_opened(whole: Path, tmp_path: Path) -> None:
    """If there was no time for a cell, what another cell showed counts for it."""
    bundle = copy_of(whole, tmp_path / "bundle")

    def unopened(events: list[Event]) -> list[Event]:
        kept = []
        for event in events:
            of_one = event.get("cell") == "one" and event["event"] in ("engine", "calibration")
            if of_one or (event["event"] == "example" and event["cell"] == "one"):
                continue
            if event["event"] == "engine":
                facts = event["engine"]["capabilities"]
                facts["published KV events"] = {"present": False, "evidence": "it publishes no events"}
                facts[OPTIONAL.value] = {"present": False, "evidence": OPTIONAL_ABSENT[OPTIONAL]}
            kept.append(event)
        return kept

    change(bundle, unopened)
    draw(bundle)
    said = reasons(bundle)
    assert "EVENT-9 (test_event) in one is UNSUPPORTED, but its cell was not opened, and no other shows" in said
