"""What a bundle says about the cause of a case has to agree with the finding's record and with the recorded replays."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.run_events import concluded

from coldproof.harness.case.finding_records import read_finding, read_records
from coldproof.harness.case.known_issues import Waivers
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.release.bundle.check_attributions import check_attribution, on_trust
from coldproof.harness.release.bundle.check_verdicts import check_waiver, check_without_counterexample
from coldproof.harness.release.bundle.refusal import RefusalKind
from coldproof.harness.release.bundle.run_folder import Part, RejudgedTest
from coldproof.harness.release.requirements.frozen import FrozenTest, Place
from coldproof.harness.schema.attribution import Attribution, Basis, CauseReplay
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.verdict import Verdict

CONTENTS = "vllm/adapter-key-lacks-the-contents"
REMARK, SHOWN = "vllm/reload-changes-running-answers", "vllm/event-lacks-the-adapter-path"
BESIDE = "vllm/reload-leaves-blocks-of-running-requests"  # a root cause that the repair of the remark removes as well
FAILS, PASSES = ReplayResult.FAILS, ReplayResult.PASSES
OTHER = "vllm/idle-reset-is-not-announced"


def replays(*results: tuple[tuple[str, ...], ReplayResult]) -> list[CauseReplay]:
    """Return replays under these repairs, with these results."""
    return [CauseReplay.under(*one) for one in results]


SHOW = {name: replays(((name,), PASSES), ((), FAILS)) for name in (CONTENTS, REMARK)}
ALONE = replays(((REMARK,), PASSES), ((), FAILS), ((BESIDE,), FAILS))


TOGETHER = replays(((CONTENTS, BESIDE), PASSES), ((CONTENTS,), FAILS), ((BESIDE,), ReplayResult.OTHERWISE))


def case_of(finding: str, *, own: str = "", basis: Basis = Basis.REPAIR, **changes: Any) -> Case:
    """Return the case of a finding, or of its `own`, which a bundle attributes to it."""
    case = read_finding(read_records()[own or finding]).case
    assert case is not None
    found = Attribution(basis=basis, finding=finding, replays=SHOW.get(finding, []))
    given = {"engine_version": "0.32.0", **{k: v for k, v in changes.items() if k in Case.__struct_fields__}}
    about = {k: v for k, v in changes.items() if k not in Case.__struct_fields__}
    return msgspec.structs.replace(case, attribution=msgspec.structs.replace(found, **about), **given)


@pytest.mark.parametrize(
    "case",
    [
        case_of(CONTENTS),
        case_of(CONTENTS, engine_version="0.32.0+cpu"),
        case_of(CONTENTS, replays=replays(((CONTENTS,), PASSES))),  # the case has failed again on the run's engine
        case_of(CONTENTS, basis=Basis.LOCAL, engine="vllm", replays=replays(((), FAILS), ((CONTENTS,), PASSES))),
        case_of(CONTENTS, basis=Basis.SIGNATURE, engine_version="0.33.0", replays=[]),
        case_of(REMARK, remark=True, replays=ALONE),
        case_of(SHOWN, basis=Basis.SIGNATURE, remark=True),
        case_of(CONTENTS, with_findings=[BESIDE], replays=TOGETHER),
        msgspec.structs.replace(case_of(CONTENTS), attribution=Attribution(basis=Basis.NEW)),
    ],
)
def test_what_follows_is_accepted(case: Case) -> None:
    """A cause that a run has found follows from what it recorded."""
    assert list(check_attribution(case)) == []


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (case_of(CONTENTS, replays=[]), "its replays do not show that"),
        (
            case_of(CONTENTS, signature="stale state; in-place reload; other path; between requests"),
            "which acts only with same path",
        ),
        (case_of(CONTENTS, replays=replays(((CONTENTS,), FAILS), ((), FAILS))), "its replays do not show that"),
        (case_of(CONTENTS, replays=replays(((OTHER,), PASSES), ((), FAILS))), "its replays do not show that"),
        (case_of(CONTENTS, replays=replays(((CONTENTS, OTHER), PASSES))), "its replays do not show that"),
        (case_of(CONTENTS, replays=replays(((CONTENTS,), PASSES), ((), PASSES))), "its replays do not show that"),
        (
            case_of(CONTENTS, replays=replays(((CONTENTS,), PASSES), ((CONTENTS,), FAILS), ((), FAILS))),
            "its replays do not show that",
        ),
        (case_of(CONTENTS, basis=Basis.LOCAL, replays=replays(((CONTENTS,), PASSES))), "replays do not show that"),
        (case_of(CONTENTS, engine_version="0.33.0"), "has no repair for its release"),
        (case_of(CONTENTS, basis=Basis.SIGNATURE), "although its repair decides on this engine"),
        (
            case_of(CONTENTS, own=OTHER, basis=Basis.SIGNATURE, engine_version="0.33.0"),
            "by its signature, which is another one",
        ),
        (case_of("vllm/no-such", own=CONTENTS), "which no record describes"),
        (case_of("", own=CONTENTS, basis=Basis.SIGNATURE, candidates=[CONTENTS]), "although its repair decides"),
        (
            case_of("", own=CONTENTS, basis=Basis.SIGNATURE, engine_version="0.33.0", candidates=[CONTENTS, OTHER]),
            "by its signature, which is another one",
        ),
        (case_of("transformers/hash-lacks-the-adapter", own=CONTENTS), "which is about another engine"),
        (case_of(CONTENTS, remark=True), "counts as a remark"),
        (case_of(REMARK, remark=True), "counts as a remark"),
        (case_of(REMARK, basis=Basis.SIGNATURE, engine_version="0.33.0", remark=True), "counts as a remark"),
        (case_of("", own=CONTENTS, basis=Basis.NEW, remark=True), "attributed to no finding"),
        (case_of(CONTENTS, with_findings=[BESIDE], replays=TOGETHER[1:]), "its replays do not show that"),
        (case_of(CONTENTS, with_findings=[BESIDE], replays=TOGETHER[:-1]), "its replays do not show that"),
        (case_of(CONTENTS, with_findings=[BESIDE], remark=True, replays=TOGETHER), "counts as a remark"),
        (case_of(CONTENTS, with_findings=["vllm/no-such"], replays=TOGETHER), "which no record describes"),
        (case_of(CONTENTS, with_findings=["transformers/hash-lacks-the-adapter"]), "which is about another engine"),
    ],
)
def test_a_forged_cause_is_refused(case: Case, said: str) -> None:
    """It would make a known issue, or nothing, of a violation."""
    assert any(said in words for words in check_attribution(case))


def test_it_is_an_alteration_of_the_bundle() -> None:
    """Also where the case is not waived: a remark needs no waiver."""
    place, case = Place("LORA-3", "a_test", "default"), case_of(CONTENTS, remark=True)
    (reason,) = check_waiver(cast(Part, None), place, {}, case)
    assert reason.kind is RefusalKind.ALTERED
    assert f"case {case.id} counts as a remark" in reason.sentence


@pytest.mark.parametrize(("given", "refused"), [(Verdict.INCONCLUSIVE, False), (Verdict.CONFORMS, True)])
def test_what_failed_like_a_remark_and_was_not_replayed_follows_from_the_verdict(given: Verdict, refused: bool) -> None:
    """The reason is in the event of the verdict: without it, a genuine bundle would be called altered."""
    case = case_of(REMARK, remark=True, replays=ALONE)
    declared = Requirement(case.requirement, "t", (), (Requests.HIT_TOKENS,))
    test = FrozenTest(declared=declared, test="test_it", suite="s", statement="s", source="")
    seen = RejudgedTest(test, case.cell)
    seen.evidence.update({Requests.HIT_TOKENS: 320})
    seen.examples, seen.failing = 9, 3
    waivers = Waivers([], version="0.32.0", today=datetime.date(2030, 1, 1))
    part = cast(Part, SimpleNamespace(waivers=lambda _: waivers, all=lambda _: []))
    verdict = concluded(case.requirement, given, cell=case.cell, known=[case.id], not_behind="no time")
    place = Place(case.requirement, "test_it", case.cell)
    reasons = check_without_counterexample(part, place, verdict, seen, [case], {case.id: case}, [])
    assert [reason.kind for reason in reasons] == [RefusalKind.ALTERED] * refused


def test_what_is_taken_on_trust_is_named() -> None:
    """A violation gains nothing by its cause."""
    waived = case_of(CONTENTS, known_issue="accepted")
    (line,) = on_trust([waived, case_of(CONTENTS)])
    cause = f"{CONTENTS}, by repair, 2 replays recorded"
    assert line == f"on trust: the cause of {waived.id} ({cause}); `coldproof attribute` replays the case"
    assert len(on_trust([case_of(REMARK, remark=True)])) == 1
