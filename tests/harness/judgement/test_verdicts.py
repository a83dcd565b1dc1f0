"""Verdicts start from 'not shown', results follow from the events, and the exit code fails closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support import report_samples
from support.histories import history, outcome
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.harness.features.images.evidence import Images
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.judgement.counters import Evidence, Trait
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.evidence.divergences import Divergences
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.evidence.sensitivity import Examples
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.requirement import Requirement, requirement
from coldproof.harness.judgement.trial import KEPT_ALIKE, Failing, Mark, PutAside, Trial
from coldproof.harness.judgement.verdict import (
    narrowed_verdict,
    verdict_of_case,
    verdict_of_put_aside,
    verdict_with_known,
    verdict_without_case,
)
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case, Reproduction
from coldproof.harness.schema.cold_answers import ADAPTER, ColdAnswers, Sensitivity
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.session.trials import raise_outcome
from coldproof.harness.workload.request_kinds import RequestKind
from coldproof.reports.assemble.assemble import Event, assemble, read_events

SHOWS = (Requests.HIT_TOKENS, Adapters.DISCRIMINATING)


def trial(noise: int = 0, **seen: float) -> Trial:
    """Return a trial with this evidence, by names of counters."""
    made = Trial(Requirement("LORA-1", "reload", (), SHOWS), "default", "a statement", "test_reload")
    made.evidence.update({ReportedEvidence[name]: value for name, value in seen.items()})
    made.noise = noise
    return made


def case_verdict(failure: FailureClass, *, agrees: bool | None = True, **changes: Any) -> Verdict:
    """Return the verdict of a case of this class."""
    tried = Reproduction(
        while_shrinking_failed=1, while_shrinking_tries=1, fresh_failed=1, fresh_tries=3, fresh_oracle_agrees=agrees
    )
    return verdict_of_case(report_samples.case(failure_class=failure, reproduction=tried, **changes))[0]


def test_a_requirement_conforms_when_all_its_evidence_was_seen() -> None:
    """Each counter needs to be above zero only once."""
    assert verdict_without_case(trial(HIT_TOKENS=320, DISCRIMINATING=1), None)[0] is Verdict.CONFORMS


@pytest.mark.parametrize(
    "seen", [{}, {"HIT_TOKENS": 320.0}, {"HIT_TOKENS": 320.0, "DISCRIMINATING": 0.0, "EVICTED": 9.0}]
)
def test_missing_evidence_is_not_exercised(seen: dict[str, float]) -> None:
    """Other evidence does not matter. The reason names what is missing."""
    verdict, reason = verdict_without_case(trial(**seen), None)
    assert verdict is Verdict.NOT_EXERCISED
    assert Adapters.DISCRIMINATING.value in reason


COLD = ColdAnswers(rate=Rate(270, 0), sensitivity=(Sensitivity("the first token", 1, 1), Sensitivity(ADAPTER, 0, 6)))


def diverged_verdict(hits: tuple[int, int, int], misses: tuple[int, int, int], **facts: Any) -> tuple[Verdict, str]:
    """Return the verdict of a trial with these compared prompts, divergences and tokens, on hits and without."""
    names = ("COMPARED", "DIVERGED", "TOKENS")
    counts = {f"{name}_HITS": float(count) for name, count in zip(names, hits, strict=True)}
    counts |= {f"{name}_MISSES": float(count) for name, count in zip(names, misses, strict=True)}
    made = trial(HIT_TOKENS=320, DISCRIMINATING=1, **counts)
    made.cold, made.explained = COLD, hits[1] + misses[1]
    for name, value in facts.items():
        setattr(made, name, value)
    return verdict_without_case(made, None)


def test_more_divergences_on_hits_than_noise_explains_never_conform() -> None:
    """Each was explained by its margin, but all of them together are too many. The reason has the numbers."""
    verdict, reason = diverged_verdict((36, 36, 40), (40, 0, 480))
    assert verdict is Verdict.INCONCLUSIVE
    assert "36 of 36 prompts diverged on a hit, to 0 of 40 without a hit" in reason
    assert "more than noise explains" in reason
    assert (
        diverged_verdict((360, 36, 4000), (400, 40, 4400), cold=ColdAnswers(rate=Rate(4000, 40)))[0] is Verdict.CONFORMS
    )
    assert diverged_verdict((360, 2, 4000), (400, 0, 4400))[0] is Verdict.CONFORMS


def test_divergences_in_one_cell_are_summed_over_its_requirements() -> None:
    """No requirement has too many alone. A requirement without any keeps its verdict, and so does another cell."""
    counts = {Divergences.DIVERGED_HITS: 5.0, Divergences.TOKENS_HITS: 5.0, Divergences.TOKENS_MISSES: 10.0}
    cold = {"rate": {"tokens": 100, "diverged": 0}}
    events = []
    for number in range(6):
        events += [
            announced(f"R-{number}"),
            concluded(f"R-{number}", Verdict.CONFORMS, cold=cold, evidence=counts if number else {}),
        ]
    found = results(*events)
    assert [one.verdict for one in found.requirements] == [Verdict.CONFORMS, *[Verdict.INCONCLUSIVE] * 5]
    assert "over all requirements in this cell" in found.requirements[1].reason
    assert found.exit_code == 1
    assert [one.verdict for one in results(*events[:4]).requirements] == [Verdict.CONFORMS] * 2


@pytest.mark.parametrize(
    ("cold", "verdict"),
    [
        (ColdAnswers(sensitivity=(Sensitivity("the first token", 0, 12),)), Verdict.INCONCLUSIVE),
        (ColdAnswers(sensitivity=(Sensitivity("the first token", 1, 12),)), Verdict.CONFORMS),
        (COLD, Verdict.CONFORMS),  # adapters change nothing, and the requirement needs none
        (ColdAnswers(), Verdict.CONFORMS),
    ],
)
def test_answers_that_do_not_depend_on_their_prompt_show_nothing(cold: ColdAnswers, verdict: Verdict) -> None:
    """Other evidence does not matter."""
    made = trial(HIT_TOKENS=320, DISCRIMINATING=1)
    made.cold = cold
    found, reason = verdict_without_case(made, None)
    assert found is verdict
    assert ("none of 12 cold answers changed with the first token" in reason) is (verdict is Verdict.INCONCLUSIVE)


def test_requirements_about_adapters_need_answers_that_depend_on_them() -> None:
    """Other requirements do not need them."""
    made = trial(HIT_TOKENS=320, DISCRIMINATING=1)
    made.cold, made.requirement = COLD, msgspec.structs.replace(made.requirement, needs=(Capability.ADAPTER_CHOICE,))
    verdict, reason = verdict_without_case(made, None)
    assert verdict is Verdict.INCONCLUSIVE
    assert "the adapter" in reason


@pytest.mark.parametrize(("examples", "verdict"), [(4, Verdict.NOT_EXERCISED), (5, Verdict.INCONCLUSIVE)])
def test_examples_that_do_not_depend_on_the_cache_show_nothing(examples: int, verdict: Verdict) -> None:
    """A few examples of a trained model may all have the same short answer. One sensitive example is enough."""
    made = trial(HIT_TOKENS=320, DISCRIMINATING=1, INSENSITIVE=examples)
    made.examples = examples
    found, reason = verdict_without_case(made, None)
    assert found is verdict
    assert "could not have shown a wrong block" in reason
    made.evidence[Examples.SENSITIVE] = 1
    made.examples += 1
    found, reason = verdict_without_case(made, None)
    assert found is Verdict.CONFORMS
    assert "no counterexample in 1 examples" in reason
    assert f"{examples} more examples do not count" in reason


def test_insensitive_examples_do_not_count_for_the_minimum() -> None:
    """Neither the examples nor their requests count."""
    insensitive = {Examples.INSENSITIVE: 20.0, Examples.INSENSITIVE_REQUESTS: 80.0}
    for evidence, verdict in (({}, Verdict.CONFORMS), (insensitive, Verdict.NOT_EXERCISED)):
        events = [
            announced("R-1"),
            concluded("R-1", Verdict.CONFORMS, examples=40, requests=160, evidence=evidence),
        ]
        (found,) = results(*events).requirements
        assert found.verdict is verdict


def test_no_time_is_the_reason_only_without_examples() -> None:
    """With an example, the reason is the missing evidence."""
    made = trial()
    made.out_of_time = "no time"
    assert verdict_without_case(made, None) == (Verdict.NOT_EXERCISED, "no time")
    made.examples = 1
    assert "missing evidence" in verdict_without_case(made, None)[1]


@pytest.mark.parametrize(
    ("missing", "hinted"),
    [(Pressure.EVICTED, True), (Pressure.PREEMPTIONS, True), (Pressure.FULL_POOL, True), (Requests.HITS, False)],
)
def test_evidence_that_needs_a_smaller_pool_has_a_hint(missing: Evidence, hinted: bool) -> None:
    """Evidence that is missing for another reason has no hint."""
    made = Trial(Requirement("PRESS-1", "eviction", (), (missing,)), "default", "a statement", "test_eviction")
    made.hints[Trait.SMALL_POOL] = "The pool is of unknown size."
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
def test_a_dropped_request_kind_is_a_known_issue_only_if_evidence_is_missing(
    before: Verdict, known: str | None, after: Verdict
) -> None:
    """The crash itself is a case of another trial. A trial with all its evidence conforms for what was sent."""
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
    verdict, reason = verdict_without_case(trial(noise=1, HIT_TOKENS=1, DISCRIMINATING=1), KeyError("seed"))
    assert (verdict, reason) == (Verdict.ERROR, "KeyError: 'seed'")


def test_differences_within_the_noise_are_inconclusive() -> None:
    """The requirement neither conforms nor is violated."""
    assert verdict_without_case(trial(noise=3, HIT_TOKENS=1, DISCRIMINATING=1), None)[0] is Verdict.INCONCLUSIVE


def test_a_requirement_must_name_its_evidence() -> None:
    """Without any, it could conform without a single hit."""
    with pytest.raises(ValueError, match="LORA-9"):
        requirement("LORA-9", "nothing to show", shows=())


def test_a_trial_sums_the_evidence_of_its_examples() -> None:
    """It sums requests and noise, too."""
    summed, made = trial(), history(outcome(0, range(9)), outcome(1, range(9)))
    for _ in range(2):
        summed.add(Judgement(history=made, answers={}, findings=(), noise=(), evidence={Requests.HIT_TOKENS: 16.0}))
    assert (summed.examples, summed.requests, summed.evidence[Requests.HIT_TOKENS]) == (2, 4, 32.0)
    assert summed.missing() == [Adapters.DISCRIMINATING]


@pytest.mark.parametrize("failure", list(FailureClass))
def test_a_confirmed_counterexample_is_a_violation_unless_waived(failure: FailureClass) -> None:
    """This holds for every class."""
    assert case_verdict(failure) is Verdict.VIOLATED
    assert case_verdict(failure, known_issue="upstream knows") is Verdict.KNOWN_ISSUE


def test_a_remark_is_no_violation_if_it_was_confirmed() -> None:
    """Nor is it a known issue. What was seen once stays inconclusive."""
    remark = Attribution(basis=Basis.REPAIR, finding="vllm/some-remark", remark=True)
    for known_issue in (None, "upstream knows"):
        made = msgspec.structs.replace(seen(known_issue=known_issue, fresh_failed=1, fresh_tries=1), attribution=remark)
        verdict, reason = verdict_of_case(made)
        assert verdict is Verdict.CONFORMS
        assert "vllm/some-remark" in reason
    once = msgspec.structs.replace(seen(fresh_failed=0, fresh_tries=3), attribution=remark)
    assert verdict_of_case(once)[0] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("failing", "passed", "verdict"),
    [(8, 0, Verdict.CONFORMS), (9, 0, Verdict.NOT_EXERCISED), (9, 3, Verdict.CONFORMS)],
)
def test_examples_that_all_show_a_remark_show_nothing_else(failing: int, passed: int, verdict: Verdict) -> None:
    """What the engine does without it is not known then, unless some of them passed with the repair."""
    made, remark = trial(), Attribution(basis=Basis.REPAIR, finding="vllm/some-remark", remark=True)
    made.looked_behind = passed
    made.examples, made.failing, made.known = 9, failing, [msgspec.structs.replace(seen(), attribution=remark)]
    found, reason = verdict_with_known(Verdict.CONFORMS, "so it is", made)
    assert found is verdict
    assert f"{failing} of 9 examples failed as a remark says, which no contract forbids: vllm/some-remark" in reason
    assert verdict_with_known(Verdict.ERROR, "it broke", made)[0] is Verdict.ERROR
    made.accepted_remarks = ["we accept it"]
    accepted = Verdict.CONFORMS if verdict is Verdict.CONFORMS else Verdict.KNOWN_ISSUE
    assert verdict_with_known(Verdict.CONFORMS, "so it is", made)[0] is accepted
    assert verdict_with_known(Verdict.NOT_EXERCISED, "nothing hit", made)[0] is Verdict.KNOWN_ISSUE
    made.known.append(seen(known_issue="upstream knows"))
    assert verdict_with_known(Verdict.CONFORMS, "so it is", made)[0] is Verdict.KNOWN_ISSUE


def test_examples_that_failed_like_a_remark_and_were_not_replayed_decide_nothing() -> None:
    """They may be something else, also if the remark is accepted."""
    made, remark = trial(), Attribution(basis=Basis.REPAIR, finding="vllm/some-remark", remark=True)
    made.examples, made.failing, made.not_behind = 9, 3, "no time"
    made.known = [msgspec.structs.replace(seen(), attribution=remark)]
    verdict, reason = verdict_with_known(Verdict.CONFORMS, "so it is", made)
    assert verdict is Verdict.INCONCLUSIVE
    assert reason.endswith("whether those that failed so pass with the repair is not known: no time")
    made.accepted_remarks = ["we accept it"]
    for found in (Verdict.CONFORMS, Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED):
        assert verdict_with_known(found, "so it is", made)[0] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("verdict", "given"), [(Verdict.KNOWN_ISSUE, Verdict.INCONCLUSIVE), (Verdict.VIOLATED,) * 2])
def test_a_known_issue_decides_nothing_about_examples_that_were_not_replayed(verdict: Verdict, given: Verdict) -> None:
    """Another fault may fail in the same way. A violation stays one."""
    made = trial()
    made.aside = [PutAside(verdict, "seen"), PutAside(Verdict.KNOWN_ISSUE, "known")]
    made.repeated, made.not_behind = 3, "no time"
    found, reason, _ = verdict_of_put_aside(made)
    assert found is given
    assert ("pass with that repaired is not known: no time" in reason) is (found is Verdict.INCONCLUSIVE)
    assert "known" in reason


def test_nor_does_a_known_finding_that_was_replayed() -> None:
    """What failed like it in the drawn examples may be another fault."""
    made = trial()
    made.known, made.repeated, made.not_behind = [seen(known_issue="known")], 3, "no time"
    found, reason = verdict_with_known(Verdict.CONFORMS, "so", made)
    assert found is Verdict.INCONCLUSIVE
    assert "pass with the repair is not known: no time" in reason
    assert "known" in reason


def seen(failure: FailureClass = FailureClass.STALE_STATE, known_issue: str | None = None, **replays: int) -> Case:
    """Return a counterexample with these replays, and no others."""
    tried = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1, fresh_oracle_agrees=True, **replays)
    return report_samples.case(failure_class=failure, reproduction=tried, known_issue=known_issue)


@pytest.mark.parametrize(
    ("replays", "verdict"),
    [
        ({"running_failed": 1, "running_tries": 3}, Verdict.INCONCLUSIVE),
        ({"running_failed": 2, "running_tries": 3}, Verdict.INCONCLUSIVE),
        ({"running_failed": 3, "running_tries": 3}, Verdict.VIOLATED),
        ({"running_failed": 1, "running_tries": 3, "caching_off_failed": 0, "caching_off_tries": 3}, Verdict.VIOLATED),
        ({"fresh_failed": 1, "fresh_tries": 3}, Verdict.VIOLATED),
    ],
)
def test_a_wrong_answer_that_fails_in_some_replays_may_be_noise(replays: dict[str, int], verdict: Verdict) -> None:
    """A server by URL may take its second-best token once in thirty answers, with and without a hit.

    An answer that equals a known wrong one is a violation all the same.
    """
    assert verdict_of_case(seen(FailureClass.CORRUPT, **replays))[0] is verdict
    assert verdict_of_case(seen(FailureClass.STALE_STATE, **replays))[0] is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("basis", "remark", "waiver", "verdict"),
    [
        (Basis.LOCAL, False, None, Verdict.VIOLATED),
        (Basis.LOCAL, False, "upstream knows", Verdict.KNOWN_ISSUE),
        (Basis.LOCAL, True, None, Verdict.CONFORMS),
        (Basis.SIGNATURE, False, "upstream knows", Verdict.INCONCLUSIVE),
        (Basis.SIGNATURE, True, None, Verdict.INCONCLUSIVE),
        (Basis.GONE, False, None, Verdict.INCONCLUSIVE),
    ],
)
def test_a_repair_on_a_local_engine_tells_a_cause_from_noise(
    basis: Basis, *, remark: bool, waiver: str | None, verdict: Verdict
) -> None:
    """The case fails in some replays on a server. On an engine of its release it fails too, and not with the repair."""
    finding = "vllm/some-finding" if basis is not Basis.GONE else ""
    cause = Attribution(basis=basis, finding=finding, remark=remark)
    case = seen(FailureClass.CORRUPT, waiver, running_failed=2, running_tries=3)
    assert verdict_of_case(msgspec.structs.replace(case, attribution=cause))[0] is verdict


NOT_REPRODUCED: list[tuple[dict[str, int], str]] = [
    ({"fresh_failed": 0, "fresh_tries": 3}, "did not reproduce on a fresh engine"),
    ({"running_failed": 0, "running_tries": 1}, "did not reproduce on the running engine"),
    ({"fresh_failed": 0, "fresh_tries": 3, "running_failed": 0, "running_tries": 3}, "did not reproduce"),
    ({}, "could not be replayed"),
    ({"running_failed": 0, "running_tries": 0}, "could not be replayed"),
]


@pytest.mark.parametrize("failure", list(FailureClass))
@pytest.mark.parametrize(("replays", "where"), NOT_REPRODUCED)
def test_what_was_seen_once_is_inconclusive(failure: FailureClass, replays: dict[str, int], where: str) -> None:
    """This holds for every class, with and without a waiver, for a started engine and for an attached server."""
    for known_issue in (None, "upstream knows"):
        verdict, reason = verdict_of_case(seen(failure, known_issue, **replays))
        assert verdict is Verdict.INCONCLUSIVE
        assert where in reason


@pytest.mark.parametrize(
    "replays",
    [
        {"fresh_failed": 1, "fresh_tries": 3},
        {"running_failed": 1, "running_tries": 3},
        {"fresh_failed": 0, "fresh_tries": 3, "running_failed": 1, "running_tries": 1},
        {"fresh_failed": 0, "fresh_tries": 3, "workloads_before": 12},
    ],
)
def test_one_replay_that_fails_is_enough(replays: dict[str, int]) -> None:
    """It may fail on a fresh engine, after the prior workloads there, or on the engine that has run them."""
    assert verdict_of_case(seen(**replays))[0] is Verdict.VIOLATED
    assert verdict_of_case(seen(known_issue="upstream knows", **replays))[0] is Verdict.KNOWN_ISSUE


def test_an_oracle_that_disagrees_makes_a_case_inconclusive() -> None:
    """An unknown answer of the fresh oracle is no disagreement."""
    assert case_verdict(FailureClass.STALE_STATE, agrees=False) is Verdict.INCONCLUSIVE
    assert case_verdict(FailureClass.STALE_STATE, agrees=None) is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("failure", "oracle", "verdict"),
    [
        (FailureClass.NOT_THE_CACHE, "closed-form", Verdict.VIOLATED),
        (FailureClass.STALE_STATE, "closed-form", Verdict.INCONCLUSIVE),
        (FailureClass.NOT_THE_CACHE, "cold-engine", Verdict.INCONCLUSIVE),
    ],
)
def test_a_computed_answer_counts_if_the_cache_is_not_the_cause(
    failure: FailureClass, oracle: str, verdict: Verdict
) -> None:
    """Two images of one prompt under one hash are wrong on any engine.

    A cold engine cannot confirm a failure of itself.
    """
    assert case_verdict(failure, agrees=False, oracle=oracle) is verdict


FAILED_SELF_TEST = {"event": "selftest", "rows": [{"planted": "never hits", "caught": False, "said": "no finding"}]}


def results(*events: Event, allowed: tuple[Verdict, ...] = (), ended: bool = True, **start: Any) -> Results:
    """Return the results of a run with these events between start and end.

    `start` has more fields of its start.
    """
    all_events = [{**STARTED, "allowed": list(allowed), **start}, SOUND, *events, *([FINISHED] if ended else [])]
    return assemble([{"at": float(i), **event} for i, event in enumerate(all_events)])


def run(*verdicts: Verdict, extra: tuple[Event, ...] = (), **more: Any) -> Results:
    """Return the results of a run of one requirement for each verdict."""
    pairs = [(announced(f"R-{i}"), concluded(f"R-{i}", v)) for i, v in enumerate(verdicts)]
    named = [{**event, "test": f"test_{i}"} for i, pair in enumerate(pairs) for event in pair]
    return results(*named, *extra, **more)


@pytest.mark.parametrize(
    ("shown", "left", "unsupported", "least", "code"),
    [
        (0, 3, 0, None, 6),  # allowed, and nothing shown
        (2, 6, 52, None, 6),
        (4, 8, 0, None, 6),
        (5, 8, 0, None, 0),
        (2, 0, 58, None, 0),  # all that the engine supports
        (0, 0, 9, None, 6),
        (1, 0, 0, 2, 6),  # the user's number is no estimate
        (7, 8, 0, 8, 6),
        (8, 8, 0, 8, 0),
    ],
)
def test_missing_evidence_is_allowed_only_if_enough_was_shown(
    shown: int, left: int, unsupported: int, least: int | None, code: int
) -> None:
    """Known issues count as shown. A shard needs to show something, and the merged run needs to show enough."""
    waived = [Verdict.KNOWN_ISSUE] * (shown // 2)
    conforming = [Verdict.CONFORMS] * (shown - len(waived))
    found = [*waived, *conforming, *[Verdict.NOT_EXERCISED] * left, *[Verdict.UNSUPPORTED] * unsupported]
    made = run(*found, allowed=(Verdict.NOT_EXERCISED,), least_shown=least)
    assert made.exit_code == code
    assert (made.conclusion == "TOO LITTLE SHOWN") == (code == 6 and shown > 0)
    assert (made.conclusion == "NOTHING SHOWN") == (shown == 0)
    shard = run(*found, allowed=(Verdict.NOT_EXERCISED,), least_shown=least, shard="1/2")
    assert shard.exit_code == (0 if shown else 6)


def problem(*, usage: bool) -> Event:
    """Return the event of a problem that ended the run."""
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
        ([Verdict.UNSUPPORTED, Verdict.UNSUPPORTED], 6),
        ([Verdict.KNOWN_ISSUE, Verdict.UNSUPPORTED], 0),
    ],
)
def test_the_exit_code_follows_the_verdicts(verdicts: list[Verdict], code: int) -> None:
    """0 means that everything is shown, waived or unsupported.

    A violation ranks above an error, and no requirement is 5.
    """
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
        (FAILED_SELF_TEST, [Verdict.CONFORMS], 3),
        (FAILED_SELF_TEST, [Verdict.VIOLATED], 3),
    ],
)
def test_a_problem_outranks_all_but_a_violation(extra: Event, verdicts: list[Verdict], code: int) -> None:
    """If the detector failed its self-test, not even a violation proves anything."""
    assert run(*verdicts, extra=(extra,)).exit_code == code


@pytest.mark.parametrize("verdict", list(Verdict))
def test_without_a_self_test_the_exit_code_is_never_0(verdict: Verdict) -> None:
    """This includes a violation, because it is unknown whether the detector works."""
    events = (STARTED, announced("R-1"), concluded("R-1", verdict), FINISHED)
    made = assemble([{"at": float(i), **event} for i, event in enumerate(events)])
    assert made.exit_code == 3


def test_only_allowed_verdicts_pass() -> None:
    """--allow-not-exercised and --allow-inconclusive relax only their own verdict."""
    assert run(Verdict.CONFORMS, Verdict.INCONCLUSIVE, allowed=(Verdict.INCONCLUSIVE,)).exit_code == 0
    assert run(Verdict.INCONCLUSIVE, allowed=(Verdict.NOT_EXERCISED,)).exit_code == 1
    assert run(Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED, allowed=(Verdict.INCONCLUSIVE,)).exit_code == 1
    assert run(Verdict.VIOLATED, allowed=(Verdict.NOT_EXERCISED, Verdict.INCONCLUSIVE)).exit_code == 1


def test_a_run_that_did_not_finish_is_incomplete_and_fails() -> None:
    """This holds even if every verdict so far conforms."""
    stopped = run(Verdict.CONFORMS, ended=False)
    assert (stopped.complete, stopped.exit_code) == (False, 1)


def test_a_requirement_without_a_verdict_is_not_dropped() -> None:
    """It is not exercised, and the run is not complete."""
    lost = results(announced("R-1"), concluded("R-1", Verdict.CONFORMS), announced("R-2", test="test_late"))
    assert [r.verdict for r in lost.requirements] == [Verdict.CONFORMS, Verdict.NOT_EXERCISED]
    assert "the run ended before" in lost.requirements[1].reason
    assert (lost.complete, lost.exit_code) == (False, 1)
    allowed = results(announced("R-2"), allowed=(Verdict.NOT_EXERCISED,))
    assert allowed.exit_code == 1


def test_two_tests_of_one_requirement_are_one_result() -> None:
    """It has the worse verdict with its reason. Examples, requests, seconds and evidence add up."""
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
    """The requirement has the worst of them. A cell without support does not count if another cell has it."""
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
    """A run that was killed while it wrote still reports what it had."""
    whole = [{"at": 0.0, **STARTED}, {"at": 1.0, **announced("R-1")}]
    last = json.dumps({"at": 2.0, **concluded("R-1", Verdict.CONFORMS)})
    path = tmp_path / "events.ndjson"
    path.write_text("".join(json.dumps(event) + "\n" for event in whole) + last[:cut])
    assert read_events(path) == whole
    assert assemble(read_events(path)).requirements[0].verdict is Verdict.NOT_EXERCISED


def test_events_without_a_start_are_no_run() -> None:
    """Such events have nothing to report."""
    with pytest.raises(LookupError):
        assemble([])


@pytest.mark.parametrize(
    ("made", "headline"),
    [
        (run(Verdict.CONFORMS), "CONFORMANT — of 1 requirement on no engine: 1 conforms"),
        (run(Verdict.CONFORMS, Verdict.KNOWN_ISSUE), "CONFORMANT, known issues aside — "),
        (run(Verdict.CONFORMS, Verdict.VIOLATED, Verdict.ERROR), "NOT CONFORMANT — "),
        (run(Verdict.UNSUPPORTED), "NOTHING SHOWN — "),
        (run(Verdict.NOT_EXERCISED), "NOT SHOWN TO CONFORM — "),
        (run(), "NOT SHOWN TO CONFORM — "),
        (run(Verdict.CONFORMS, ended=False), "NOT SHOWN TO CONFORM — "),
        (run(Verdict.VIOLATED, extra=(FAILED_SELF_TEST,)), "RUN INVALID — "),
    ],
)
def test_the_headline_promises_no_more_than_was_shown(made: Results, headline: str) -> None:
    """Only exit code 0 is called conformant."""
    assert made.headline.startswith(headline)
    assert made.headline.startswith("CONFORMANT") == (made.exit_code == 0)


@pytest.mark.parametrize("verdict", [Verdict.KNOWN_ISSUE, Verdict.VIOLATED, Verdict.NOT_EXERCISED])
def test_a_verdict_is_no_traceback(verdict: Verdict) -> None:
    """The reason is enough, and parsing the sources for a traceback has crashed runs (cpython#106905)."""
    kind = pytest.xfail.Exception if verdict is Verdict.KNOWN_ISSUE else pytest.fail.Exception
    with pytest.raises(kind, match=f"LORA-1 {verdict.value}: because") as raised:
        raise_outcome(verdict, trial(), "because", None)
    assert not raised.value.pytrace


def test_a_verdict_that_is_allowed_does_not_fail_its_test() -> None:
    """pytest -x then stops only at a test that fails the run."""
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
    """Identities can be similar only if requests have some."""
    declared = Requirement(
        id="MM-1",
        title="t",
        needs=(),
        shows=(Images.OTHER_IMAGE,),
        shows_where=dict.fromkeys((Capability.CACHE_SALT, Capability.ADAPTER_CHOICE), Adapters.STALE_CHANCES),
    )
    assert declared.on(present).shows.count(Adapters.STALE_CHANCES) == int(required)


@pytest.mark.parametrize(
    ("verdicts", "decides"),
    [
        ((Verdict.KNOWN_ISSUE,), 0),
        ((Verdict.KNOWN_ISSUE, Verdict.VIOLATED), 1),
        ((Verdict.VIOLATED, Verdict.KNOWN_ISSUE), 0),
        ((Verdict.KNOWN_ISSUE, Verdict.INCONCLUSIVE, Verdict.VIOLATED), 2),
        ((Verdict.VIOLATED, Verdict.VIOLATED), 0),
    ],
)
def test_the_worst_counterexample_of_a_trial_decides(verdicts: tuple[Verdict, ...], decides: int) -> None:
    """The others stay in the reason."""
    made = trial()
    made.aside = [PutAside(one, f"reason {i}", report_samples.case(id=f"c{i}")) for i, one in enumerate(verdicts)]
    verdict, reason, case = verdict_of_put_aside(made)
    assert (verdict, case) == (verdicts[decides], made.aside[decides].case)
    assert reason.startswith(f"reason {decides}")
    assert all(f"reason {i}" in reason for i in range(len(verdicts)))


def test_a_known_issue_says_how_many_examples_failed_so_and_what_ended_its_trial() -> None:
    """So the reader sees how much was looked at behind it."""
    made = trial()
    made.aside, made.examples, made.minimising_examples, made.repeated = (
        [PutAside(Verdict.KNOWN_ISSUE, "known")],
        41,
        1,
        12,
    )
    assert verdict_of_put_aside(made)[1] == "known; 12 more of 40 examples failed so, and none failed otherwise"
    made.not_behind = "no time"
    said = "and none failed otherwise; whether all that failed so pass with that repaired is not known: no time"
    assert verdict_of_put_aside(made)[1].endswith(said)


def test_of_many_examples_that_failed_alike_some_are_drawn_at_random() -> None:
    """A fault that needs a state of the engine which only later examples reach would not be among the first ones."""
    made, mark, number = trial(), Mark("stale state"), 2_000
    for place in range(number):
        made.keep_alike(mark, cast(Failing, place))
    kept = cast(list[int], made.alike[mark])
    assert len(set(kept)) == KEPT_ALIKE
    assert {place * 2 // number for place in kept} == {0, 1}  # halves of which some are kept


@pytest.mark.parametrize(
    ("aside", "verdict"), [(Verdict.KNOWN_ISSUE, Verdict.INCONCLUSIVE), (Verdict.VIOLATED, Verdict.VIOLATED)]
)
def test_what_could_not_be_tested_to_its_end_is_no_known_issue(aside: Verdict, verdict: Verdict) -> None:
    """What it would have shown behind the known cause is unknown."""
    made = trial()
    made.aside, made.examples, made.problem = [PutAside(aside, "seen")], 41, EngineDied("it ended")
    found, reason, _ = verdict_of_put_aside(made)
    assert found is verdict
    assert reason == "seen; it could not be tested further: EngineDied: it ended"
