"""From a finished trial to its verdict. Starts from 'not shown', never from 'passed'."""

from __future__ import annotations

from harness.checkers.finding import EXACT, Rule
from harness.facts import Evidence
from harness.oracle.other import is_across
from harness.requirement import Trial
from reports.schema import Case, FailureClass, Verdict

# What only shows when the pool is too small for what is asked of it.
PRESSURE = {Evidence.EVICTED, Evidence.PREEMPTIONS, Evidence.FULL_POOL, Evidence.WAITED}
# What only shows where the engine tells, somehow, how much of a prompt came from its cache.
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
    """A counterexample's verdict before any waiver.

    One that does not reproduce on a fresh engine depends on a longer history. It still counts where a positive match
    or a count proves it; 'equals nothing known', or an engine that was lost (who knows to whom), seen once, does not,
    unless it happened again on a fresh engine that had run what was run before it.
    """
    alone = case.history_dependent and not case.reproduction.workloads_before
    if alone and case.failure_class in UNPROVEN_ALONE:
        return Verdict.INCONCLUSIVE, f"seen once, did not reproduce on a fresh engine: {case.sentence}"
    if case.reproduction.fresh_oracle_agrees is False and not is_across(case.oracle):
        return Verdict.INCONCLUSIVE, "a just-started engine does not give the oracle's answer: the oracle is in doubt"
    if case.known_issue is not None:
        return Verdict.KNOWN_ISSUE, case.known_issue
    said = [f"{case.failure_class.value}: {case.sentence}", *case.provenance[:1]]
    if is_across(case.oracle) and case.reproduction.note:
        said.append(case.reproduction.note)
    return Verdict.VIOLATED, " ".join(said)


def verdict_without_case(trial: Trial, problem: BaseException | None, rule: Rule = EXACT) -> tuple[Verdict, str]:
    """The verdict of a trial in which nothing failed that counts by the rule."""
    if problem is not None:
        return Verdict.ERROR, f"{type(problem).__name__}: {problem}"
    if trial.noise:
        if not rule.exact and rule.noise is None:
            return Verdict.INCONCLUSIVE, f"{trial.noise} differences, of which none counts: {rule.why}"
        return Verdict.INCONCLUSIVE, f"{trial.noise} differences below the noise floor of the calibration"
    missing = trial.missing()
    if missing:
        said = "never seen: " + "; ".join(name.value for name in missing)
        hints = [
            hint for hint, about in ((trial.hint, PRESSURE), (trial.uncounted, COUNTS)) if hint and about & set(missing)
        ]
        return Verdict.NOT_EXERCISED, ". ".join([said, *hints])
    unjudged = trial.evidence[Evidence.MAY_BE_CHANGED]
    if trial.lossy and unjudged and unjudged >= trial.evidence[Evidence.REQUESTS]:
        return Verdict.NOT_EXERCISED, f"no answer could be held to its cold one: {unjudged_words(trial)}"
    said = f"no counterexample in {trial.examples} examples with {trial.requests} requests"
    if trial.explained:
        said += f"; {trial.explained} answers parted from the cold ones, with scores within noise"
    said = f"{said}; {trial.remark}" if trial.remark else said
    return Verdict.CONFORMS, f"{said}; {unjudged_words(trial)}" if trial.lossy else said


def unjudged_words(trial: Trial) -> str:
    """What was not judged in a lossy mode, and what was all the same."""
    return (
        f"lossy mode ({trial.lossy}): {trial.evidence[Evidence.MAY_BE_CHANGED]:.0f} of "
        f"{trial.evidence[Evidence.REQUESTS]:.0f} answers may have been changed by it and were not held to their cold "
        f"ones ({trial.permitted} differ); of them only positive matches count, which are another identity's answer or "
        "another request's"
    )
