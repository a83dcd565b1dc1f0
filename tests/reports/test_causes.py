"""The causes of a run: one line for each, new ones first, the worst first, with what a maintainer needs to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples as samples

from coldproof.harness.proof.diagnose.conclusion import MECHANISMS
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case, Diagnosis, Reproduction, Unfinished
from coldproof.harness.schema.findings import FindingFacts, FindingReplay, FindingStatus, ReplayResult, Severity
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.exports.terminal import closing_lines
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.views.cause_view import SIGN, State
from coldproof.reports.views.causes import ELSEWHERE, FEW_UNCONFIRMED, cause_views
from coldproof.reports.views.verdict_sentence import verdict_sentence

ADAPTER_KEY = "a cache key without the adapter, or with another one"
FINDING = "vllm/adapter-key-lacks-the-contents"


def facts(finding: str = FINDING, **changes: Any) -> FindingFacts:
    """Return the facts about a finding."""
    one = FindingFacts(
        id=finding,
        title="After the files change, requests hit the KV of the old files",
        severity=Severity.FOREIGN_DATA,
        status=FindingStatus.REPORTED,
        releases="0.24.0 to 0.33.0",
        upstream=["https://github.com/vllm-project/vllm/issues/42125"],
        repair=True,
    )
    return msgspec.structs.replace(one, **changes)


def pointing(id: str, mechanism: str, **changes: Any) -> Case:
    """Return a case whose controls point at a mechanism."""
    return samples.case(id, diagnosis=Diagnosis(conclusion="", mechanism=mechanism, controls=[]), **changes)


def replay(result: ReplayResult = ReplayResult.FAILS, **changes: Any) -> FindingReplay:
    """Return the replay of the finding."""
    one = FindingReplay(finding=FINDING, requirement="LORA-3", cell="default", layer="exact", result=result)
    return msgspec.structs.replace(one, **changes)


def known(**changes: Any) -> Results:
    """Return a run with a waived case of the finding, and the facts about it."""
    case = samples.case("one", requirement="LORA-3", layer="exact", known_issue="waived")
    used = samples.waiver("used", requirement="LORA-3", finding=FINDING, cases=["one"])
    return msgspec.structs.replace(samples.results(case), waivers=[used], records=[facts()], **changes)


def test_a_known_cause_has_the_facts_of_its_finding() -> None:
    """Title, severity, releases, link and repair are those of the record."""
    (view,) = (one for one in cause_views(known()) if one.finding)
    assert (view.title, view.severity, view.state) == (facts().title, Severity.FOREIGN_DATA, State.WAIVED)
    assert (view.releases, view.link, view.mending) == ("0.24.0 to 0.33.0", facts().upstream[0], "repair")
    assert (view.broke, view.counted) == ("LORA-3 in exact", "1 case")
    assert view.replay == "coldproof replay coldproof-report/cases/one.json"
    assert view.script == "cases/one.py"


@pytest.mark.parametrize(
    "changes",
    [
        {"unfinished": Unfinished.PROOF},
        {"reproduction": Reproduction(while_shrinking_failed=1, while_shrinking_tries=1, running_tries=3)},
    ],
)
def test_what_no_replay_showed_again_breaks_nothing(changes: dict[str, Any]) -> None:
    """A cause of its own that was seen once is neither new nor the worst effect, and stands behind those that are."""
    confirmed = samples.case("shown", failure_class=FailureClass.LOST_REUSE, signature="lost reuse")
    seen = samples.case("once", requirement="LORA-5", signature="stale state", **changes)
    made = samples.results(confirmed, seen)
    views = cause_views(made)
    assert [(view.cases[0].id, view.state) for view in views if view.cases] == [
        ("shown", State.NEW),
        ("once", State.UNCONFIRMED),
    ]
    assert [(view.breaks, view.verdict) for view in views if view.cases] == [
        (True, Verdict.VIOLATED),
        (False, Verdict.INCONCLUSIVE),
    ]
    said = str(verdict_sentence(made, views))
    assert "1 new cause broke" in said
    assert "The effect is cache hits that are lost" in said
    assert "Another failure (LORA-5) was seen and is not confirmed by a replay: it does not count." in said
    assert "not confirmed (1)" in render_html(made)


def test_many_failures_without_a_proof_are_one_line() -> None:
    """One fault gives many of them before its proofs, and they cannot be told apart."""
    confirmed = samples.case("shown", signature="lost reuse")
    seen = [
        samples.case(f"once-{i}", requirement=f"LORA-{i}", signature=f"stale state; {i}", unfinished=Unfinished.PROOF)
        for i in range(FEW_UNCONFIRMED + 1)
    ]
    made = samples.results(confirmed, *seen)
    words = "3 failures that no replay has shown again: LORA-0, LORA-1, LORA-2"
    assert [line for line in closing_lines(made, Path("r/index.html")) if "NOT CONFIRMED" in line] == [
        f"  NOT CONFIRMED {words}"
    ]
    assert f"**not confirmed**: {words}" in summary_markdown(made).replace("\\", "")
    assert "3 failures that no replay has shown again" in render_html(made)


def test_a_cause_with_a_confirmed_case_is_confirmed() -> None:
    """Its other cases may be undecided."""
    alike = [samples.case("a", unfinished=Unfinished.PROOF), samples.case("b")]
    (view,) = (view for view in cause_views(samples.results(*alike)) if view.cases)
    assert (view.state, view.cases[0].id) == (State.NEW, "b")


def test_a_confirmed_cause_broke_only_the_requirements_in_which_a_replay_showed_it() -> None:
    """What looks like it elsewhere, and waits for its proof, accuses nobody there."""
    shown = samples.case("shown", requirement="REUSE-1")
    waits = [
        samples.case(name, requirement=name, unfinished=Unfinished.PROOF) for name in ("CHAT-1", "REUSE-1", "LORA-1")
    ]
    results = samples.results(shown, *waits)
    confirmed, waiting = (view for view in cause_views(results) if view.cases)
    assert (confirmed.requirements, waiting.requirements) == (["REUSE-1"], ["CHAT-1", "LORA-1"])
    assert (confirmed.breaks, waiting.breaks) == (True, False)
    assert "CHAT-1" not in verdict_sentence(results, [confirmed, waiting]).lead


def test_a_remark_fails_no_run_and_is_named_everywhere() -> None:
    """It comes last, and the sentence of a run in which all conforms names it, too."""
    remark = Attribution(basis=Basis.REPAIR, finding=FINDING, remark=True)
    case = samples.case("one", requirement="LORA-3", attribution=remark)
    made = samples.results(case)
    row = msgspec.structs.replace(
        made.requirements[0], id="LORA-3", verdict=Verdict.CONFORMS, remarks=[FINDING], cases=["one"]
    )
    made = msgspec.structs.replace(
        made, requirements=[row], exit_code=0, records=[facts(severity=Severity.REMARK, title="It is so")]
    )
    (view,) = cause_views(made)
    assert (view.state, view.fails, view.is_waived) == (State.REMARK, False, False)
    said = str(verdict_sentence(made, [view]))
    assert " conforms to the requirement that was tested." in said
    assert said.endswith("1 remark about what no contract forbids: It is so (LORA-3).")
    (line,) = (one for one in closing_lines(made, Path("index.html")) if "It is so (" in one and "REMARK" in one)
    assert "replay" not in line
    assert "**remark**: It is so" in summary_markdown(made)
    page = render_html(made)
    assert "1 remark about what no contract forbids: no requirement is violated by it" in page
    assert "Violations (0) and remarks (1)" in page
    assert f"Remarks, which no contract forbids:</strong> {FINDING}" in page


def test_without_the_facts_the_name_of_a_finding_is_its_title() -> None:
    """Results that an earlier release wrote have none."""
    (view,) = (one for one in cause_views(msgspec.structs.replace(known(), records=[])) if one.finding)
    assert view.title == "adapter key lacks the contents"
    assert view.repair is None


def test_cases_that_point_at_the_same_mechanism_are_one_new_cause() -> None:
    """Its name is what the controls point at, not a fingerprint. Its best case failed again on a fresh engine."""
    tried = Reproduction(
        while_shrinking_failed=1,
        while_shrinking_tries=1,
        fresh_failed=0,
        fresh_tries=3,
        running_failed=3,
        running_tries=3,
    )
    first = pointing("a", ADAPTER_KEY, signature="s1", requirement="LORA-4", reproduction=tried)
    second = pointing("b", ADAPTER_KEY, signature="s2", requirement="LORA-1")
    (view,) = cause_views(samples.results(first, second))
    assert view.title == "A cache key without the adapter, or with another one"
    assert (view.state, view.requirements) == (State.NEW, ["LORA-1", "LORA-4"])
    assert [case.id for case in view.cases] == ["b", "a"]


def test_one_mechanism_is_one_cause_whatever_it_did() -> None:
    """A key without the salt gives wrong answers in one requirement and wrong counts in another. The worst is named."""
    wrong = pointing("a", ADAPTER_KEY, signature="s1", failure_class=FailureClass.STALE_STATE)
    count = pointing("b", ADAPTER_KEY, signature="s2", failure_class=FailureClass.ACCOUNTING)
    (view,) = cause_views(samples.results(count, wrong))
    assert (view.severity, len(view.cases)) == (Severity.FOREIGN_DATA, 2)


def test_the_mechanism_that_is_elsewhere_tells_no_causes_apart() -> None:
    """Two faults outside of the prefix cache are two causes, named by what happened."""
    two = [pointing(name, ELSEWHERE, signature=name, sentence=f"said {name}") for name in "ab"]
    assert sorted(view.title for view in cause_views(samples.results(*two))) == ["said a", "said b"]
    assert ELSEWHERE in [name for name, _ in MECHANISMS]


@pytest.mark.parametrize(
    ("order", "given"),
    [
        (["new", "waived"], [("waived", FailureClass.STALE_STATE, "x"), ("new", FailureClass.API, None)]),
        (["wrong", "lost"], [("lost", FailureClass.LOST_REUSE, None), ("wrong", FailureClass.CORRUPT, None)]),
        (["foreign", "wrong"], [("wrong", FailureClass.CORRUPT, None), ("foreign", FailureClass.CROSS_REQUEST, None)]),
    ],
)
def test_new_causes_come_first_and_then_the_worst(order: list[str], given: list[tuple[Any, ...]]) -> None:
    """What is waived comes after what fails the run, however bad it is."""
    made = [samples.case(n, signature=n, failure_class=c, known_issue=k, sentence=n) for n, c, k in given]
    assert [view.cases[0].id for view in cause_views(samples.results(*made))] == order


def test_a_request_without_an_answer_is_no_wrong_answer() -> None:
    """Without the cache, a crash has the class of all that is not the cache."""
    broken = [samples.request(3, correct=False, error="HTTP 500")]
    case = samples.case(failure_class=FailureClass.NOT_THE_CACHE, requests=broken)
    assert cause_views(samples.results(case))[0].severity is Severity.CRASH_OR_HANG


def test_a_finding_that_was_fixed_and_is_back_is_new() -> None:
    """So is its line."""
    case = samples.case("one", requirement="LORA-3")
    run = msgspec.structs.replace(samples.results(case), findings=[replay(regression=True, case="one")])
    assert cause_views(run)[0].state is State.REGRESSION
    repaired = samples.case("one", attribution=Attribution(basis=Basis.LOCAL, finding=FINDING))
    fixed = msgspec.structs.replace(samples.results(repaired), records=[facts(fixed=True)])
    assert cause_views(fixed)[0].state is State.REGRESSION


@pytest.mark.parametrize(
    ("bases", "state", "said"),
    [
        ((Basis.UNDECIDED,), State.UNDECIDED, "1 cause that may be known broke"),
        ((Basis.NOT_TRIED, Basis.UNDECIDED), State.UNDECIDED, "1 cause that may be known broke"),
        ((Basis.NEW, Basis.NOT_TRIED), State.NEW, "1 new cause broke"),
        ((Basis.OTHERWISE,), State.NEW, "1 new cause broke"),
    ],
)
def test_a_cause_that_was_not_looked_for_is_not_called_new(bases: tuple[Basis, ...], state: State, said: str) -> None:
    """It may be a known one, and breaks its requirement all the same."""
    cases = [samples.case(f"{i}", attribution=Attribution(basis=basis)) for i, basis in enumerate(bases)]
    made = samples.results(*cases, samples.case("seen", unfinished=Unfinished.PROOF, attribution=None))
    (view,) = (view for view in cause_views(made) if view.cases)
    assert (view.state, view.breaks) == (state, True)
    assert said in str(verdict_sentence(made, [view]))


def test_a_signature_alone_brings_no_fixed_finding_back() -> None:
    """A salt that long prompts lose has the signature of one that was an adapter's name, and no more in common."""
    alike = samples.case("one", attribution=Attribution(basis=Basis.SIGNATURE, finding=FINDING))
    run = msgspec.structs.replace(samples.results(alike), records=[facts(fixed=True)])
    (view,) = cause_views(run)
    assert (view.state, view.finding, view.repair) == (State.NEW, "", None)
    assert FINDING in view.attributed
    shown = msgspec.structs.replace(run, findings=[replay(regression=True, case="one")])
    assert cause_views(shown)[0].state is State.REGRESSION


def test_a_known_cause_that_nothing_waives_fails_the_run() -> None:
    """Its line says both."""
    run = samples.results(samples.case("one"))
    run = msgspec.structs.replace(run, findings=[replay(case="one")], records=[facts()])
    (view,) = cause_views(run)
    assert (view.state, view.is_waived, view.title) == (State.KNOWN, False, facts().title)


@pytest.mark.parametrize("result", [ReplayResult.PASSES, ReplayResult.OTHERWISE, ReplayResult.NOT_RUN])
def test_only_a_replay_that_fails_as_before_shows_its_finding(result: ReplayResult) -> None:
    """A case that fails in a different way has another cause."""
    run = msgspec.structs.replace(samples.results(samples.case("one")), findings=[replay(result, case="one")])
    assert [view.finding for view in cause_views(run)] == [""]


def test_a_cause_without_a_case_is_listed_too() -> None:
    """The engine as it is shipped has it, and `coldproof findings` replays it."""
    run = msgspec.structs.replace(samples.results(), findings=[replay()], records=[facts()])
    (view,) = cause_views(run)
    assert (view.cases, view.replay) == ([], f"coldproof findings --replay {FINDING}")
    assert view.counted == "no case of this run"


def test_a_violated_requirement_without_a_case_is_a_cause() -> None:
    """No violation is left out of the list."""
    run = samples.results(samples.case())
    (view,) = cause_views(msgspec.structs.replace(run, cases=[]))
    assert (view.requirements, view.title) == (["LORA-1"], "1 distinct counterexamples")


def test_every_severity_has_a_sign() -> None:
    """Colour alone tells nobody."""
    assert SIGN.keys() == set(Severity)
    assert len(set(SIGN.values())) == len(Severity)


def test_what_is_like_a_finding_that_is_fixed_here_says_so() -> None:
    """It is new, and its link is to the other one's report."""
    found = Attribution(basis=Basis.SIGNATURE, finding=FINDING, link=facts().upstream[0])
    made = samples.results(samples.case("one", attribution=found, signature="stale state"))
    made = msgspec.structs.replace(made, records=[facts(fixed=True)])
    (view,) = (one for one in cause_views(made) if one.cases)
    assert (view.state, view.attributed) == (State.NEW, f"like {FINDING}, which is fixed in this release")


def test_beside_a_new_cause_the_accepted_ones_are_only_counted() -> None:
    """Their worst effect may be graver, and would be read as the run's."""
    new = samples.case("new", requirement="PRESS-1", failure_class=FailureClass.LOST_REUSE, signature="lost reuse")
    accepted = known()
    calm = [one for one in accepted.requirements if one.verdict is not Verdict.VIOLATED]
    alone_made = msgspec.structs.replace(accepted, requirements=calm)
    alone = str(verdict_sentence(alone_made, cause_views(alone_made)))
    both = msgspec.structs.replace(
        samples.results(new, *accepted.cases), waivers=accepted.waivers, records=accepted.records
    )
    beside = str(verdict_sentence(both, cause_views(both)))
    assert facts().title in alone
    assert "1 cause is known and accepted." in beside
    assert facts().title not in beside
