"""Verdicts start from 'not shown', results are a view of the events, and the exit code fails closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import history, outcome
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.requirement import Requirement, requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import narrowed_verdict, verdict_of_case, verdict_without_case
from coldproof.harness.session.trials import raise_outcome
from coldproof.harness.workload.request_kinds import RequestKind
from coldproof.reports.assemble.assemble import Event, assemble, read_events
from coldproof.reports.schema.case import NO_KNOWN_ANSWER, Reproduction
from coldproof.reports.schema.results import Results
from coldproof.reports.schema.verdict import FailureClass, Verdict

SHOWS = (Evidence.HIT_TOKENS, Evidence.TELLING)


def trial(noise: int = 0, **seen: float) -> Trial:
    """A trial that saw this evidence, by member name."""
    made = Trial(Requirement("LORA-1", "reload", (), SHOWS), "default", "a statement", "test_reload")
    made.evidence.update({Evidence[name]: value for name, value in seen.items()})
    made.noise = noise
    return made


def of_case(failure: FailureClass, *, agrees: bool | None = True, **changes: Any) -> Verdict:
    """The verdict of a case of this class."""
    tried = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1, fresh_oracle_agrees=agrees)
    return verdict_of_case(report_samples.case(failure_class=failure, reproduction=tried, **changes))[0]


def test_a_requirement_conforms_when_all_its_evidence_was_seen() -> None:
    """Once is enough."""
    assert verdict_without_case(trial(HIT_TOKENS=320, TELLING=1), None)[0] is Verdict.CONFORMS


@pytest.mark.parametrize("seen", [{}, {"HIT_TOKENS": 320.0}, {"HIT_TOKENS": 320.0, "TELLING": 0.0, "HITS": 9.0}])
def test_missing_evidence_is_not_exercised(seen: dict[str, float]) -> None:
    """Whatever else was seen; the reason names what was not."""
    verdict, reason = verdict_without_case(trial(**seen), None)
    assert verdict is Verdict.NOT_EXERCISED
    assert Evidence.TELLING.value in reason


def test_no_time_is_the_reason_only_without_examples() -> None:
    """With one, the reason is the evidence that it lacked."""
    made = trial()
    made.out_of_time = "no time"
    assert verdict_without_case(made, None) == (Verdict.NOT_EXERCISED, "no time")
    made.examples = 1
    assert "missing evidence" in verdict_without_case(made, None)[1]


@pytest.mark.parametrize(
    ("missing", "hinted"),
    [(Evidence.EVICTED, True), (Evidence.PREEMPTIONS, True), (Evidence.FULL_POOL, True), (Evidence.HITS, False)],
)
def test_what_would_have_taken_a_smaller_pool_says_so(missing: Evidence, hinted: bool) -> None:
    """And what is missing for another reason does not."""
    made = Trial(Requirement("PRESS-1", "eviction", (), (missing,)), "default", "a statement", "test_eviction")
    made.hint = "The pool is of unknown size."
    reason = verdict_without_case(made, None)[1]
    assert reason == f"missing evidence: {missing.value}" + (". The pool is of unknown size." if hinted else "")


@pytest.mark.parametrize(
    ("before", "known", "after"),
    [
        (Verdict.CONFORMS, None, Verdict.CONFORMS),
        (Verdict.CONFORMS, "issue 7", Verdict.CONFORMS),
        (Verdict.NOT_EXERCISED, None, Verdict.NOT_EXERCISED),
        (Verdict.NOT_EXERCISED, "issue 7", Verdict.KNOWN_ISSUE),
    ],
)
def test_what_was_not_sent_is_said_and_is_a_known_issue_only_where_evidence_lacks(
    before: Verdict, known: str | None, after: Verdict
) -> None:
    """The crash itself is a case of another trial; a pass is a pass of what was sent."""
    made = trial()
    dropped = DroppedKind(
        kind=RequestKind.PATTERN, cell="default", requirement="SURFACE-1", why="it ended", case="abc", known_issue=known
    )
    made.narrow([dropped])
    made.narrow([dropped])
    verdict, reason = narrowed_verdict(before, "so it is", made)
    assert verdict is after
    assert reason.count("requests with structured output have not been sent since case abc of SURFACE-1") == 1
    assert "so it is" in reason
    made.out_of_time = "no time"
    assert narrowed_verdict(before, "so it is", made) == (before, "so it is")
    assert narrowed_verdict(Verdict.VIOLATED, "bad", made) == (Verdict.VIOLATED, "bad")


def test_a_broken_harness_is_an_error_even_with_all_evidence() -> None:
    """The reason names the exception."""
    verdict, reason = verdict_without_case(trial(noise=1, HIT_TOKENS=1, TELLING=1), KeyError("seed"))
    assert (verdict, reason) == (Verdict.ERROR, "KeyError: 'seed'")


def test_differences_below_the_noise_floor_are_inconclusive() -> None:
    """No pass, and no violation."""
    assert verdict_without_case(trial(noise=3, HIT_TOKENS=1, TELLING=1), None)[0] is Verdict.INCONCLUSIVE


def test_a_requirement_must_name_its_evidence() -> None:
    """Without any it could pass on nothing."""
    with pytest.raises(ValueError, match="LORA-9"):
        requirement("LORA-9", "nothing to show", shows=())


def test_a_trial_sums_the_evidence_of_its_examples() -> None:
    """Requests and noise too."""
    summed, seen = trial(), history(outcome(0, range(9)), outcome(1, range(9)))
    for _ in range(2):
        summed.add(Judgement(history=seen, answers={}, findings=(), noise=(), evidence={Evidence.HIT_TOKENS: 16.0}))
    assert (summed.examples, summed.requests, summed.evidence[Evidence.HIT_TOKENS]) == (2, 4, 32.0)
    assert summed.missing() == [Evidence.TELLING]


@pytest.mark.parametrize("failure", list(FailureClass))
def test_a_confirmed_counterexample_is_a_violation_unless_waived(failure: FailureClass) -> None:
    """Of whatever class."""
    assert of_case(failure) is Verdict.VIOLATED
    assert of_case(failure, known_issue="upstream knows") is Verdict.KNOWN_ISSUE


def test_what_was_seen_once_counts_only_with_a_positive_match_or_a_count() -> None:
    """'Equals nothing known' or a lost engine, not reproduced on a fresh one, is inconclusive; waived or not."""
    for failure, verdict in (
        (FailureClass.CORRUPT, Verdict.INCONCLUSIVE),
        (FailureClass.CRASH, Verdict.INCONCLUSIVE),
        (FailureClass.HANG, Verdict.INCONCLUSIVE),
        (FailureClass.STALE_STATE, Verdict.VIOLATED),
        (FailureClass.CROSS_REQUEST, Verdict.VIOLATED),
        (FailureClass.LOST_REUSE, Verdict.VIOLATED),
    ):
        assert of_case(failure, history_dependent=True) is verdict
    assert of_case(FailureClass.CORRUPT, history_dependent=True, known_issue="x") is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("answers_as", "caching_off", "oracle", "verdict"),
    [
        (NO_KNOWN_ANSWER, None, "cold-engine", Verdict.INCONCLUSIVE),
        ("", None, "cold-engine", Verdict.INCONCLUSIVE),
        ("adapter B", None, "cold-engine", Verdict.VIOLATED),
        (NO_KNOWN_ANSWER, 1, "cold-engine", Verdict.VIOLATED),
        (NO_KNOWN_ANSWER, None, "closed-form", Verdict.VIOLATED),
    ],
)
def test_an_answer_without_a_cache_that_differs_once_may_be_noise(
    answers_as: str, caching_off: int | None, oracle: str, verdict: Verdict
) -> None:
    """vLLM in bfloat16 with KV in fp8 on a GPU: one token of 4,000, where the two best were 0.03 nats apart."""
    case = report_samples.case(failure_class=FailureClass.NOT_THE_CACHE, history_dependent=True, oracle=oracle)
    rows = [
        msgspec.structs.replace(row, answers_as=answers_as) if row.request == case.failing_request else row
        for row in case.requests
    ]
    tried = msgspec.structs.replace(case.reproduction, fresh_failed=0, fresh_tries=1, caching_off_failed=caching_off)
    assert verdict_of_case(msgspec.structs.replace(case, requests=rows, reproduction=tried))[0] is verdict


def test_lost_reuse_that_no_request_shows_counts_only_if_it_is_seen_again() -> None:
    """A gauge is no count of a request: a busy machine changes what runs side by side."""
    case = report_samples.case(failure_class=FailureClass.LOST_REUSE, history_dependent=True)
    assert verdict_of_case(msgspec.structs.replace(case, failing_request=None))[0] is Verdict.INCONCLUSIVE


def test_what_failed_again_behind_the_same_workloads_counts() -> None:
    """A fresh engine came to the same."""
    case = report_samples.case(failure_class=FailureClass.HANG, history_dependent=True)
    again = msgspec.structs.replace(case.reproduction, workloads_before=12)
    assert verdict_of_case(case)[0] is Verdict.INCONCLUSIVE
    assert verdict_of_case(msgspec.structs.replace(case, reproduction=again))[0] is Verdict.VIOLATED


@pytest.mark.parametrize(("tries", "where"), [(3, "on a fresh engine"), (None, "on the attached server")])
def test_what_was_seen_once_says_where_it_was_tried_again(tries: int | None, where: str) -> None:
    """An attached server is never a fresh engine."""
    case = report_samples.case(failure_class=FailureClass.HANG, history_dependent=True)
    again = msgspec.structs.replace(case.reproduction, fresh_tries=tries)
    verdict, reason = verdict_of_case(msgspec.structs.replace(case, reproduction=again))
    assert verdict is Verdict.INCONCLUSIVE
    assert where in reason


def test_an_oracle_in_doubt_makes_a_case_inconclusive() -> None:
    """Not known is no doubt."""
    assert of_case(FailureClass.STALE_STATE, agrees=False) is Verdict.INCONCLUSIVE
    assert of_case(FailureClass.STALE_STATE, agrees=None) is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("failure", "oracle", "verdict"),
    [
        (FailureClass.NOT_THE_CACHE, "closed-form", Verdict.VIOLATED),
        (FailureClass.STALE_STATE, "closed-form", Verdict.INCONCLUSIVE),
        (FailureClass.NOT_THE_CACHE, "cold-engine", Verdict.INCONCLUSIVE),
    ],
)
def test_a_computed_answer_stands_where_no_cache_is_needed_to_differ(
    failure: FailureClass, oracle: str, verdict: Verdict
) -> None:
    """Two images of one prompt under one hash are wrong on any engine; a cold engine is no witness against itself."""
    assert of_case(failure, agrees=False, oracle=oracle) is verdict


BLIND = {"event": "selftest", "rows": [{"planted": "never hits", "caught": False, "said": "no alarm"}]}


def results(*events: Event, allowed: tuple[Verdict, ...] = (), ended: bool = True) -> Results:
    """The results of a run with these events between start and end."""
    told = [{**STARTED, "allowed": list(allowed)}, SOUND, *events, *([FINISHED] if ended else [])]
    return assemble([{"at": float(i), **event} for i, event in enumerate(told)])


def run(*verdicts: Verdict, extra: tuple[Event, ...] = (), **more: Any) -> Results:
    """A run of one requirement for each verdict."""
    pairs = [(announced(f"R-{i}"), concluded(f"R-{i}", v)) for i, v in enumerate(verdicts)]
    named = [{**event, "test": f"test_{i}"} for i, pair in enumerate(pairs) for event in pair]
    return results(*named, *extra, **more)


def problem(*, usage: bool) -> Event:
    """The run could not go on."""
    return {"event": "problem", "message": "no such model", "usage": usage}


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.CONFORMS], 0),
        ([Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.UNSUPPORTED], 0),
        ([Verdict.CONFORMS, Verdict.NOT_EXERCISED], 1),
        ([Verdict.CONFORMS, Verdict.INCONCLUSIVE], 1),
        ([Verdict.CONFORMS, Verdict.VIOLATED], 1),
        ([Verdict.CONFORMS, Verdict.ERROR], 3),
        ([Verdict.INCONCLUSIVE, Verdict.ERROR], 3),
        ([Verdict.VIOLATED, Verdict.ERROR], 1),
        ([], 5),
    ],
)
def test_the_exit_code_follows_the_verdicts(verdicts: list[Verdict], code: int) -> None:
    """0 only where everything is shown, waived or unsupported; a violation outranks an error; nothing is 5."""
    assert run(*verdicts).exit_code == code


@pytest.mark.parametrize(
    ("extra", "verdicts", "code"),
    [
        (problem(usage=True), [], 4),
        (problem(usage=True), [Verdict.CONFORMS], 4),
        (problem(usage=False), [Verdict.CONFORMS], 3),
        (problem(usage=False), [Verdict.NOT_EXERCISED], 3),
        (problem(usage=True), [Verdict.VIOLATED], 1),
        (problem(usage=False), [Verdict.VIOLATED], 1),
        (BLIND, [Verdict.CONFORMS], 3),
        (BLIND, [Verdict.VIOLATED], 3),
    ],
)
def test_a_problem_outranks_all_but_a_violation(extra: Event, verdicts: list[Verdict], code: int) -> None:
    """Save a detector that failed its self-test: then even a violation proves nothing."""
    assert run(*verdicts, extra=(extra,)).exit_code == code


@pytest.mark.parametrize("verdict", list(Verdict))
def test_verdicts_that_no_self_test_vouches_for_are_never_0(verdict: Verdict) -> None:
    """A violation neither: nobody knows whether the detector works."""
    events = (STARTED, announced("R-1"), concluded("R-1", verdict), FINISHED)
    blind = assemble([{"at": float(i), **event} for i, event in enumerate(events)])
    assert blind.exit_code == 3


def test_only_what_was_allowed_is_let_pass() -> None:
    """--allow-not-exercised and --allow-inconclusive relax their own verdict and nothing else."""
    assert run(Verdict.NOT_EXERCISED, allowed=(Verdict.NOT_EXERCISED,)).exit_code == 0
    assert run(Verdict.INCONCLUSIVE, allowed=(Verdict.NOT_EXERCISED,)).exit_code == 1
    assert run(Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED, allowed=(Verdict.INCONCLUSIVE,)).exit_code == 1
    assert run(Verdict.VIOLATED, allowed=(Verdict.NOT_EXERCISED, Verdict.INCONCLUSIVE)).exit_code == 1


def test_a_run_that_did_not_finish_is_incomplete_and_fails() -> None:
    """Even where every verdict so far is good."""
    stopped = run(Verdict.CONFORMS, ended=False)
    assert (stopped.complete, stopped.exit_code) == (False, 1)


def test_a_requirement_without_a_verdict_is_not_dropped() -> None:
    """It is not exercised, and a run that calls itself complete is not."""
    lost = results(announced("R-1"), concluded("R-1", Verdict.CONFORMS), announced("R-2", test="test_late"))
    assert [r.verdict for r in lost.requirements] == [Verdict.CONFORMS, Verdict.NOT_EXERCISED]
    assert "the run ended before" in lost.requirements[1].reason
    assert (lost.complete, lost.exit_code) == (False, 1)
    allowed = results(announced("R-2"), allowed=(Verdict.NOT_EXERCISED,))
    assert allowed.exit_code == 1


def test_two_tests_of_one_requirement_are_one_result() -> None:
    """The worse verdict with its reason; examples, requests, seconds and evidence add up."""
    merged = results(
        announced("LORA-3", test="test_a", title="in place", statement="first"),
        announced("LORA-3", test="test_b", title="unload", statement="second"),
        concluded("LORA-3", Verdict.VIOLATED, test="test_b", reason="stale"),
        concluded("LORA-3", Verdict.CONFORMS, test="test_a"),
    )
    (one,) = merged.requirements
    (cell,) = one.cells
    assert (one.verdict, one.reason) == (Verdict.VIOLATED, "stale")
    assert (one.title, one.statement) == ("in place; unload", "first\n\nsecond")
    assert (cell.examples, cell.requests, cell.seconds, cell.evidence) == (80, 60, 3.0, {"hit tokens": 128})
    assert merged.complete


def test_cells_keep_their_own_verdicts() -> None:
    """The requirement has the worst of them; a cell that lacks support does not count where another has it."""
    two = results(
        *(announced("R-1", cell=cell) for cell in ("default", "sync", "attached")),
        concluded("R-1", Verdict.CONFORMS),
        concluded("R-1", Verdict.NOT_EXERCISED, cell="sync"),
        concluded("R-1", Verdict.UNSUPPORTED, cell="attached"),
    )
    (one,) = two.requirements
    assert {cell.cell: cell.verdict for cell in one.cells} == {
        "default": Verdict.CONFORMS,
        "sync": Verdict.NOT_EXERCISED,
        "attached": Verdict.UNSUPPORTED,
    }
    assert (one.verdict, one.examples, one.evidence) == (Verdict.NOT_EXERCISED, 120, {"hit tokens": 192})


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_an_unfinished_last_line_is_left_out(cut: int, tmp_path: Path) -> None:
    """A run that was killed in the middle of writing still reports what it had."""
    whole = [{"at": 0.0, **STARTED}, {"at": 1.0, **announced("R-1")}]
    last = json.dumps({"at": 2.0, **concluded("R-1", Verdict.CONFORMS)})
    path = tmp_path / "events.ndjson"
    path.write_text("".join(json.dumps(event) + "\n" for event in whole) + last[:cut])
    assert read_events(path) == whole
    assert assemble(read_events(path)).requirements[0].verdict is Verdict.NOT_EXERCISED


def test_events_without_a_start_are_no_run() -> None:
    """There is nothing to report about."""
    with pytest.raises(LookupError):
        assemble([])


def test_results_of_a_run_are_fit_to_be_written() -> None:
    """What is assembled validates against its own schema."""
    made = run(Verdict.CONFORMS, Verdict.VIOLATED)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Results) == made


@pytest.mark.parametrize(
    ("made", "headline"),
    [
        (run(Verdict.CONFORMS), "CONFORMANT — of 1 requirement on no engine: 1 conforms"),
        (
            run(Verdict.CONFORMS, Verdict.KNOWN_ISSUE),
            "CONFORMANT, known issues aside — of 2 requirements on no engine: 1 known issue, 1 conforms",
        ),
        (
            run(Verdict.CONFORMS, Verdict.VIOLATED, Verdict.ERROR),
            "NOT CONFORMANT — of 3 requirements on no engine: 1 violated, 1 error, 1 conforms",
        ),
        (run(Verdict.NOT_EXERCISED), "NOT SHOWN TO CONFORM — of 1 requirement on no engine: 1 not exercised"),
        (run(), "NOT SHOWN TO CONFORM — of 0 requirements on no engine: no requirement was run"),
        (run(Verdict.CONFORMS, ended=False), "NOT SHOWN TO CONFORM — of 1 requirement on no engine: 1 conforms"),
        (run(Verdict.VIOLATED, extra=(BLIND,)), "RUN INVALID — the detector did not pass its self-test"),
    ],
)
def test_the_headline_promises_no_more_than_was_shown(made: Results, headline: str) -> None:
    """The worst is named first, and only exit code 0 is called conformant."""
    assert made.headline == headline
    assert made.headline.startswith("CONFORMANT") == (made.exit_code == 0)


@pytest.mark.parametrize("verdict", [Verdict.KNOWN_ISSUE, Verdict.VIOLATED, Verdict.NOT_EXERCISED])
def test_a_verdict_is_no_traceback(verdict: Verdict) -> None:
    """To parse the sources of one has ended runs (cpython#106905), and the reason says all that there is to say."""
    kind = pytest.xfail.Exception if verdict is Verdict.KNOWN_ISSUE else pytest.fail.Exception
    with pytest.raises(kind, match=f"LORA-1 {verdict.value}: because") as said:
        raise_outcome(verdict, trial(), "because", None)
    assert not said.value.pytrace


def test_a_verdict_that_is_allowed_does_not_fail_its_test() -> None:
    """pytest -x then ends at what fails the run, and at nothing else."""
    with pytest.raises(pytest.skip.Exception, match="NOT EXERCISED: because"):
        raise_outcome(Verdict.NOT_EXERCISED, trial(), "because", None, [Verdict.NOT_EXERCISED])
    with pytest.raises(pytest.fail.Exception):
        raise_outcome(Verdict.VIOLATED, trial(), "because", None, [Verdict.NOT_EXERCISED])


@pytest.mark.parametrize(
    ("present", "required"),
    [((), False), ((Capability.CACHE_SALT,), True), ((Capability.CACHE_SALT, Capability.ADAPTER_CHOICE), True)],
)
def test_evidence_of_a_capability_is_required_once_from_engines_that_have_it(
    present: tuple[Capability, ...], required: bool
) -> None:
    """Identities can only be near one another where requests have some."""
    declared = Requirement(
        id="MM-1",
        title="t",
        needs=(),
        shows=(Evidence.OTHER_IMAGE,),
        shows_where=dict.fromkeys((Capability.CACHE_SALT, Capability.ADAPTER_CHOICE), Evidence.STALE_CHANCES),
    )
    assert declared.on(present).shows.count(Evidence.STALE_CHANCES) == int(required)
