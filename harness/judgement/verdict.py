"""Decides the verdict of a finished trial. It conforms only if evidence shows it, never by default."""

from __future__ import annotations

from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import CLOSED_FORM, is_other_engine
from coldproof.reports.schema.case import NO_KNOWN_ANSWER, Case
from coldproof.reports.schema.verdict import FailureClass, Verdict

# Evidence that needs a KV-cache pool too small for the workload.
PRESSURE = {Evidence.EVICTED, Evidence.PREEMPTIONS, Evidence.FULL_POOL, Evidence.WAITED}
# Evidence that needs an engine that reports, in some way, how much of a prompt came from its cache.
COUNTS = {
    Evidence.EVICTED,
    Evidence.HITS,
    Evidence.SHARED_HITS,
    Evidence.DECODE_HITS,
    Evidence.AFTER_PREEMPTION,
    Evidence.SEVERAL,
    Evidence.STOPPED,
    Evidence.PATTERNED,
}
UNPROVEN_ALONE = (FailureClass.CORRUPT, FailureClass.CRASH, FailureClass.HANG)


def verdict_of_case(case: Case) -> tuple[Verdict, str]:
    """Return the verdict of a counterexample and the reason, before any waiver.

    A counterexample that does not reproduce on a fresh engine, or on an attached server, depends on a longer history.
    It still counts if a positive match or a token count proves it. A corrupt answer, a crash, a hang, or lost reuse
    that no single request shows (a gauge, or a sum over requests that may be published late), seen once, does not
    count unless it reproduced on a fresh engine that had run the prior workloads. Nor does an answer of an engine
    without its cache that differs once and equals no known one: that is what rare noise looks like.
    """
    alone = case.history_dependent and not case.reproduction.workloads_before
    of_no_request = case.failure_class is FailureClass.LOST_REUSE and case.failing_request is None
    if alone and (of_no_request or case.failure_class in UNPROVEN_ALONE or differs_once_without_cache(case)):
        where = "the attached server" if case.reproduction.fresh_tries is None else "a fresh engine"
        return Verdict.INCONCLUSIVE, f"observed once, did not reproduce on {where}: {case.sentence}"
    # A computed answer needs no engine: if the engine is wrong without its cache too, it is wrong about the request.
    stands = case.oracle == CLOSED_FORM and case.failure_class is FailureClass.NOT_THE_CACHE
    if case.reproduction.fresh_oracle_agrees is False and not (stands or is_other_engine(case.oracle)):
        return Verdict.INCONCLUSIVE, "a fresh engine does not give the oracle's answer: the oracle may be wrong"
    if case.known_issue is not None:
        return Verdict.KNOWN_ISSUE, case.known_issue
    reason = [f"{case.failure_class.value}: {case.sentence}", *case.provenance[:1]]
    if is_other_engine(case.oracle) and case.reproduction.note:
        reason.append(case.reproduction.note)
    return Verdict.VIOLATED, " ".join(reason)


def differs_once_without_cache(case: Case) -> bool:
    """Return whether nothing but one comparison with a cold engine shows that an engine is wrong without its cache."""
    if case.failure_class is not FailureClass.NOT_THE_CACHE or case.oracle == CLOSED_FORM:
        return False
    failing = [row for row in case.requests if row.request == case.failing_request]
    known = any(row.answers_as not in ("", NO_KNOWN_ANSWER) for row in failing)
    return not (known or case.reproduction.caching_off_failed)


def verdict_without_case(trial: Trial, problem: BaseException | None, rule: Rule = EXACT) -> tuple[Verdict, str]:
    """Return the verdict and the reason for a trial in which no finding counts by the rule."""
    if problem is not None:
        return Verdict.ERROR, f"{type(problem).__name__}: {problem}"
    if trial.obstacle and not trial.known:  # with examples, plain requests were sent, and no fresh engine ended at them
        return Verdict.ERROR if trial.examples else Verdict.NOT_EXERCISED, trial.obstacle
    if trial.noise:
        if not rule.exact and rule.noise is None:
            return Verdict.INCONCLUSIVE, f"{trial.noise} differences, none of which counts: {rule.why}"
        return Verdict.INCONCLUSIVE, f"{trial.noise} differences below the noise that the calibration measured"
    if trial.out_of_time and not trial.examples:
        return Verdict.NOT_EXERCISED, trial.out_of_time
    missing = trial.missing()
    if missing:
        reason = "missing evidence: " + "; ".join(name.value for name in missing)
        hints = ((trial.hint, PRESSURE), (trial.uncounted, COUNTS))
        said = [hint for hint, about in hints if hint and about & set(missing)]
        return Verdict.NOT_EXERCISED, ". ".join([reason, *said])
    not_compared = trial.evidence[Evidence.MAY_BE_CHANGED]
    if trial.lossy and not_compared and not_compared >= trial.evidence[Evidence.REQUESTS]:
        return Verdict.NOT_EXERCISED, f"no answer could be compared with its cold answer: {describe_lossy(trial)}"
    reason = f"no counterexample in {trial.examples} examples with {trial.requests} requests"
    if trial.explained:
        reason += f"; {trial.explained} answers diverged from the cold answers, with scores within the noise tolerance"
    reason = f"{reason}; {trial.remark}" if trial.remark else reason
    return Verdict.CONFORMS, f"{reason}; {describe_lossy(trial)}" if trial.lossy else reason


def verdict_after_end(case: Case) -> tuple[Verdict, str]:
    """Return the verdict and reason of a trial of an engine that ends at a plain request, which is the failure `case`.

    If a known issue waives that, it waives what cannot be tested because of it.
    """
    reason = f"the engine ends at a plain request (case {case.id}), so that nothing can be compared"
    if case.known_issue is not None:
        return Verdict.KNOWN_ISSUE, f"{case.known_issue}; {reason}"
    return Verdict.NOT_EXERCISED, reason


def narrowed_verdict(verdict: Verdict, reason: str, trial: Trial) -> tuple[Verdict, str]:
    """Return the verdict and reason of a trial without the kinds of requests that it did not send, and say so.

    If known issues waive the crashes because of which it lacks evidence, it is a known issue as well.
    """
    if not trial.narrowed or verdict not in (Verdict.CONFORMS, Verdict.NOT_EXERCISED) or trial.out_of_time:
        return verdict, reason
    said = "; ".join(one.words for one in trial.narrowed)
    waived = [one.known_issue for one in trial.narrowed if one.known_issue is not None]
    if verdict is Verdict.NOT_EXERCISED and len(waived) == len(trial.narrowed):
        return Verdict.KNOWN_ISSUE, f"{waived[0]}; {said}; here {reason}"
    return verdict, f"{reason}; {said}"


def verdict_with_known(verdict: Verdict, reason: str, trial: Trial) -> tuple[Verdict, str]:
    """Return the verdict of a trial without another counterexample than its replayed findings.

    They make it a known issue, as a drawn counterexample does. A trial with an ERROR stays that.
    """
    if not trial.known or verdict is Verdict.ERROR:
        return verdict, reason
    return Verdict.KNOWN_ISSUE, f"{trial.known[0].known_issue}; besides it, {reason}"


def describe_lossy(trial: Trial) -> str:
    """Describe which answers a lossy mode kept from being compared."""
    return (
        f"lossy mode ({trial.lossy}): it may have changed {trial.evidence[Evidence.MAY_BE_CHANGED]:.0f} of "
        f"{trial.evidence[Evidence.REQUESTS]:.0f} answers, which were not compared with their cold answers "
        f"({trial.permitted} differ); for these, only a match with another identity's or another request's answer "
        "counts"
    )
