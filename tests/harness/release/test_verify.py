"""A bundle is accepted as its run wrote it, and refused if something does not follow from its events or was not
shown.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from support import bundles
from support.bundles import Change, Event, change, copy_of, draw, reasons, recorded, with_fields, without
from support.paths import ROOT

from coldproof.harness.cli.main import main
from coldproof.harness.release.bundle.verify import verify

RARE = """
[[issue]]
requirement = "CHAT-9"
cell = "one"
signature = "corrupt; *"
versions = ">=0"
reason = "found by luck"
link = "https://example.org/issues/10"
rate = "found in 2 of 7 runs"
"""


pytestmark = pytest.mark.usefixtures("small_list")


def test_a_bundle_is_accepted_as_its_run_wrote_it(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The output names what was qualified and what was judged again, and the exit code is 0."""
    assert reasons(whole) == ""
    assert main(["verify", str(whole)]) == 0
    said = capfd.readouterr().out
    assert said.startswith(f"ACCEPTED: {whole}\n  CONFORMANT, known issues aside")
    assert "4 tests in 2 cells: one, two" in said
    assert "31 examples with 62 requests were re-evaluated, all with the recorded results" in said
    assert "known issue used: LORA-9 in *, https://example.org/issues/9" in said
    assert "not signed" in said


def test_a_signature_file_beside_the_manifest_is_accepted(whole: Path, tmp_path: Path) -> None:
    """A signature can only be made after the manifest."""
    bundle = copy_of(whole, tmp_path / "bundle")
    (bundle / "manifest.json.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")
    assert verify(bundle).reasons == []
    assert not any("not signed" in line for line in verify(bundle).summary)


def without_requirement(events: list[Event]) -> list[Event]:
    """Remove all events of EVENT-9."""
    return [e for e in events if "EVENT-9" not in (e.get("id"), e.get("requirement"))]


def a_wrong_answer(events: list[Event]) -> list[Event]:
    """Change a token of the first example's answer and nothing else."""
    example = next(e for e in events if e["event"] == "example")
    token = example["history"]["outcomes"][1]["tokens"][0]
    token["id"] = 33 if token["id"] != 33 else 34
    return events


def no_hits(events: list[Event]) -> list[Event]:
    """Set all cached tokens to zero and keep the verdict."""
    for event in events:
        if event["event"] == "example":
            for one in event["history"]["outcomes"]:
                one["cached_tokens"] = 0
    return events


def invented_updates(events: list[Event]) -> list[Event]:
    """Count requests of weight updates that no example has."""
    pair = {"route": "reload", "invalidation": "update, cache reset", "policy": "on reset"}
    example = next(e for e in events if e["event"] == "example")
    example["weight_pairs"] = [{**pair, "requests": 9, "wrong": 0, "hits": None}]
    return events


def a_loose_rule(events: list[Event]) -> list[Event]:
    """Give the examples another comparison rule than the calibration found."""
    for event in events:
        if event["event"] == "example":
            event["rule"] = {"exact": False, "noise": 100.0}
    return events


def a_wide_rounding(events: list[Event]) -> list[Event]:
    """Let rounding explain more than the calibration measured."""
    for event in events:
        if event["event"] == "example":
            event["rule"] = {**event["rule"], "rounding": 0.5}
    return events


def all_unsupported(events: list[Event]) -> list[Event]:
    """Mark CHAT-9 in the first cell as unsupported and remove its examples."""
    kept = [e for e in events if not (e["event"] == "example" and e["cell"] == "one")]
    chosen: dict[str, object] = {"requirement": "CHAT-9", "cell": "one"}
    return with_fields("verdict", chosen, verdict="UNSUPPORTED", examples=0, requests=0, evidence={})(kept)


def without_case(events: list[Event]) -> list[Event]:
    """Remove the case of LORA-9 and mark the requirement as conforming."""
    kept = [e for e in events if e["event"] != "case"]
    return with_fields("verdict", {"requirement": "LORA-9"}, verdict="CONFORMS", case=None)(kept)


CHAT = {"requirement": "CHAT-9", "cell": "one"}
TAMPERED: dict[str, tuple[Change, str]] = {
    "an example removed": (without("example", cell="two"), "the verdict counts 15 examples, the log has 14"),
    "a requirement removed": (without_requirement, "left out: 1 tests are missing: EVENT-9 (test_event) in one"),
    "a verdict removed": (without("verdict", **CHAT), "left out: 1 tests have no verdict: CHAT-9 (test_chat) in one"),
    "a verdict changed": (
        with_fields("verdict", CHAT, verdict="NOT EXERCISED"),
        "CHAT-9 (test_chat) in one is NOT EXERCISED; from its examples follows CONFORMS",
    ),
    "a capability said to be absent": (
        with_fields("verdict", {"requirement": "EVENT-9"}, absent=["token-id prompts"]),
        "is UNSUPPORTED for lack of token-id prompts; from the engine follows: published KV events: it publishes no",
    ),
    "evidence said to be missing": (
        with_fields("verdict", CHAT, verdict="NOT EXERCISED", missing=["requests"]),
        "is NOT EXERCISED with missing evidence: requests; but its examples show it",
    ),
    "a counterexample waved through": (
        with_fields("verdict", {"requirement": "LORA-9"}, verdict="CONFORMS"),
        "is CONFORMS; from its case LORA-9-7c21a0f3 follows KNOWN ISSUE",
    ),
    "a counterexample besides it that is missing": (
        with_fields("verdict", {"requirement": "LORA-9"}, further=[{"case": "LORA-9-0", "verdict": "KNOWN ISSUE"}]),
        "left out: LORA-9 (test_lora) in two is KNOWN ISSUE with case LORA-9-0 besides, which is missing",
    ),
    "a counterexample besides it that is worse": (
        with_fields("verdict", {"requirement": "LORA-9"}, further=[{"case": "LORA-9-7c21a0f3", "verdict": "VIOLATED"}]),
        "LORA-9 (test_lora) in two has case LORA-9-7c21a0f3 besides as VIOLATED; from the case follows KNOWN ISSUE",
    ),
    "a counterexample removed": (without_case, "LORA-9 (test_lora) in two is CONFORMS, but 1 of its examples fail"),
    "a counterexample made up": (
        without("example", requirement="LORA-9"),
        "is KNOWN ISSUE because of case LORA-9-7c21a0f3, but none of its 0 examples fails",
    ),
    "an engine forgotten": (without("engine", cell="one"), "15 examples ran in a cell whose engine was never opened"),
    "a wrong answer unnoticed": (a_wrong_answer, "15 examples have other results when re-evaluated; the first"),
    "hits that never were": (no_hits, "have other results when re-evaluated"),
    "updates of weights that never were": (invented_updates, "have other results when re-evaluated"),
    "a loose rule": (a_loose_rule, "compared by a rule that no calibration of the run found"),
    "a wide rounding": (a_wide_rounding, "compared by a rule that no calibration of the run found"),
    "more cold answers than there were": (
        with_fields("verdict", CHAT, cold={"rate": {"tokens": 9000, "diverged": 900}}),
        "CHAT-9 (test_chat) in one: the verdict rests on other cold answers than its examples",
    ),
    "unsupported, it says": (all_unsupported, "is UNSUPPORTED, but the engine has all that it needs"),
    "other requirements": (recorded(requirements="9.8"), "other version: the run has requirements version 9.8"),
    "another list of that name": (
        recorded(requirements_sha256="1" * 64),
        "other version: the run has a different frozen list",
    ),
    "a changed suite": (
        recorded(sources_sha256="1" * 64),
        "other version: the run was made with sources of digest 1111",
    ),
    "another profile": (with_fields("run_started", {}, profile="ci"), "not shown: the run was made with --profile ci"),
    "a repaired engine": (
        with_fields("run_started", {}, repairs=[{"name": "vllm/x", "title": "Mend x.", "also": []}]),
        "not shown: the run ran with repairs: vllm/x",
    ),
    "a relaxed run": (
        with_fields("run_started", {}, allowed=["INCONCLUSIVE"]),
        "was allowed to pass with INCONCLUSIVE",
    ),
    "an interrupted run": (
        with_fields("run_finished", {}, complete=False),
        "left out: the run did not finish",
    ),
    "a number beyond all others": (
        with_fields("run_finished", {}, number=2**53),
        "left out: the run: 9007199254740940 events of a process are missing",
    ),
    "a softer requirement": (
        with_fields("requirement", {"id": "CHAT-9"}, statement="Anything goes."),
        "CHAT-9 (test_chat) is announced with another title, statement or evidence",
    ),
    "one shard of two": (with_fields("run_started", {}, shard="1/2"), "left out: 1 of 2 shards are missing (2/2)"),
}


@pytest.mark.parametrize(("how", "why"), TAMPERED.values(), ids=TAMPERED)
def test_changed_events_are_refused_by_what_no_longer_follows(
    whole: Path, tmp_path: Path, how: Change, why: str
) -> None:
    """The change is detected, also if everything that follows from the events is written and sealed again."""
    bundle = copy_of(whole, tmp_path / "bundle")
    change(bundle, how)
    assert "altered: events.ndjson was changed after the run" in reasons(bundle)
    draw(bundle)
    said = reasons(bundle)
    assert why in said
    assert "was changed after the run" not in said


def test_too_few_examples_are_not_enough(tmp_path: Path) -> None:
    """The bundle is valid, but has too few examples."""
    assert reasons(bundles.write(tmp_path / "bundle", examples=3)) == (
        "not shown: CHAT-9 is NOT EXERCISED: only 6 examples with 12 requests; CONFORMS needs 30 examples or 100 "
        "requests: raise --budget\nnot shown: no requirement conforms"
    )


def test_few_examples_are_enough_where_there_are_no_others(tmp_path: Path) -> None:
    """A larger budget would not give more examples."""
    bundle = bundles.write(tmp_path / "bundle", examples=3)

    def early(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "verdict":
                event.update(exhausted=True)
        return events

    change(bundle, early)
    draw(bundle)
    assert reasons(bundle) == ""


def test_a_cell_that_runs_on_request_only_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A qualification does not choose cells."""
    more = replace(bundles.cell("three", "CHAT"), on_request=True)
    listed = replace(bundles.FROZEN, cells=(*bundles.FROZEN.cells, more))
    bundles.small_list(tmp_path, monkeypatch, listed)
    bundle = bundles.write(tmp_path / "bundle")
    change(bundle, recorded(requirements_sha256=bundles.digest_of_list(listed)))
    draw(bundle)
    assert reasons(bundle) == ""


def test_a_rare_known_issue_keeps_a_requirement_from_conforming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds whether or not the run found the issue."""
    monkeypatch.setattr(bundles, "KNOWN", bundles.KNOWN + RARE)
    bundle = bundles.write(tmp_path / "bundle")
    assert "in one is CONFORMS; from its examples follows KNOWN ISSUE: not found in this run" in reasons(bundle)

    def known(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "verdict" and (event["requirement"], event["cell"]) == ("CHAT-9", "one"):
                event.update(verdict="KNOWN ISSUE")
        return events

    change(bundle, known)
    draw(bundle)
    assert reasons(bundle) == "not shown: no requirement conforms"  # nothing is altered


def test_an_engine_without_capabilities_does_not_qualify(tmp_path: Path) -> None:
    """A bundle without failures but without a conforming requirement is refused."""
    places = [place for place in bundles.PLACES if place.requirement == "EVENT-9"]
    assert "not shown: no requirement conforms" in reasons(bundles.write(tmp_path / "bundle", places=places))


def test_verifying_loads_no_engine(whole: Path, tmp_path: Path) -> None:
    """A bundle may be verified on a machine without any engine."""
    script = (
        "import sys; from pathlib import Path; from coldproof.harness.release.bundle import verify; "
        "from coldproof.harness.release.requirements import frozen; "
        f"frozen.LISTS = Path({str(tmp_path / 'lists')!r}); "
        f"found = verify.verify(Path({str(whole)!r})); assert found.accepted, found.reasons; "
        "assert not {'vllm', 'torch', 'xllamacpp', 'openvino_genai', 'ray'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_run_is_judged_again_without_its_engine(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The folder of any run can be judged again."""
    assert main(["rejudge", str(whole)]) == 0
    assert capfd.readouterr().out == "31 examples with 62 requests re-evaluated; different results: 0\n"


def test_different_results_are_reported(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The output has the number of differences, their place and the first one."""
    altered = copy_of(whole, tmp_path / "altered")
    change(altered, a_wrong_answer)
    assert main(["rejudge", str(altered)]) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "31 examples with 62 requests re-evaluated; different results: 1"
    assert len(said) == 2
    assert "1 of" in said[1]
    assert "recorded no finding, recomputed 1 findings" in said[1]


def test_a_folder_without_a_run_cannot_be_judged_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error is one line, and the exit code is 4."""
    assert main(["rejudge", str(tmp_path)]) == 4
    assert "give the --report-dir of a run" in capfd.readouterr().err
