"""Decides the verdict of a finished trial. It conforms only if evidence shows it, never by default."""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.capabilities import OF_ADAPTERS
from coldproof.harness.judgement.collect import with_trait
from coldproof.harness.judgement.evidence.lossy import Lossy
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.schema.case import Case, Unfinished
from coldproof.harness.schema.divergences import describe
from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.oracles import is_other_engine
from coldproof.harness.schema.verdict import Verdict

LEAST_INSENSITIVE = 5  # examples: fewer of a trained model may all have the same short answer for either prompt


def verdict_of_case(case: Case) -> tuple[Verdict, str]:
    """Return the verdict of a counterexample and the reason, before any waiver. What is undecided accuses nobody."""
    if case.undecided:
        return Verdict.INCONCLUSIVE, case.undecided
    cause = case.attribution
    if case.is_remark:
        return Verdict.CONFORMS, remark_of(case)
    if case.known_issue is not None:
        return Verdict.KNOWN_ISSUE, case.accepted
    reason = [f"{case.failure_class.value}: {case.sentence}", *case.provenance[:1]]
    if cause is not None:
        reason.append(cause.not_accepted)
    if case.unfinished is Unfinished.CAUSE:
        reason.append("`coldproof prove` looks for its cause.")
    if is_other_engine(case.oracle) and case.reproduction.note:
        reason.append(case.reproduction.note)
    return Verdict.VIOLATED, " ".join(reason)


def remark_of(case: Case) -> str:
    """Return the remark that a case shows, and how that was found."""
    assert case.attribution is not None
    return f"{case.attribution.finding} ({case.attribution.how})"


def verdict_of_put_aside(trial: Trial) -> tuple[Verdict, str, Case | None]:
    """Return the verdict, the reason and the case of a trial with counterexamples: the worst of these decides.

    So a known issue hides no other failure, and the others stay in the reason.
    """
    decides = max(trial.aside, key=lambda one: list(Verdict).index(one.verdict))
    verdict = verdict_as_replayed(decides.verdict, trial.unknown_behind)
    more = [f"besides it, {one.verdict}: {one.reason}" for one in trial.aside if one is not decides]
    if decides.verdict is Verdict.KNOWN_ISSUE and not more and trial.repeated:
        drawn = trial.examples - trial.minimising_examples
        more.append(f"{trial.repeated} more of {drawn} examples failed so, and none failed otherwise")
        if trial.looked_behind:
            more.append(f"with that repaired, {trial.looked_behind} of them were replayed and passed")
    if verdict is not decides.verdict and trial.problem is None:
        more.append(f"whether all that failed so pass with that repaired is not known: {trial.not_behind}")
    more += [f"besides it, a remark: {remark_of(case)}" for case in trial.known if case.is_remark]
    if trial.problem is not None and decides.verdict is not Verdict.ERROR:
        more.append(trial.unknown_behind)
    return verdict, "; ".join([decides.reason, *more]), decides.case


def verdict_as_replayed(verdict: Verdict, not_behind: str) -> Verdict:
    """Return what a known issue is if examples that failed like it could not be replayed with the repair of its cause.

    Another fault may fail in the same way: unknown is no agreement. `not_behind`: why they were not, or why the trial
    could not be tested to its end; "": all were, or the cause has no repair that can be planted in the engine of the
    run.
    """
    return Verdict.INCONCLUSIVE if not_behind and verdict is Verdict.KNOWN_ISSUE else verdict


def verdict_without_case(trial: Trial, problem: BaseException | None, rule: Rule = EXACT) -> tuple[Verdict, str]:
    """Return the verdict and the reason for a trial in which no finding counts by the rule."""
    if problem is not None:
        return Verdict.ERROR, f"{type(problem).__name__}: {problem}"
    if trial.obstacle and not trial.known:  # with examples, plain requests were sent, and no fresh engine ended at them
        return Verdict.ERROR if trial.examples else Verdict.NOT_EXERCISED, trial.obstacle
    if trial.noise:
        differences = "1 difference" if trial.noise == 1 else f"{trial.noise} differences"
        if not rule.exact and rule.noise is None:
            return Verdict.INCONCLUSIVE, f"{differences}, none of which counts: {rule.why}"
        return Verdict.INCONCLUSIVE, f"{differences} below the noise that the calibration measured"
    if trial.exceeds:
        counts = describe(trial.evidence, trial.cold.rate)
        return Verdict.INCONCLUSIVE, f"{counts}: more than noise explains, and no replay showed a wrong answer"
    if trial.out_of_time and not trial.examples:
        return Verdict.NOT_EXERCISED, trial.out_of_time
    blind = insensitive(trial)
    if blind:
        few = not trial.cold.insensitive(adapters=about_adapters(trial)) and trial.examples < LEAST_INSENSITIVE
        reason = f"its answers could not have shown a wrong block: {blind}"
        return Verdict.NOT_EXERCISED if few else Verdict.INCONCLUSIVE, reason
    missing = trial.missing()
    if missing:
        reason = "missing evidence: " + "; ".join(missing)
        said = [hint for trait, hint in trial.hints.items() if with_trait(trait, missing)]
        return Verdict.NOT_EXERCISED, ". ".join([reason, *said])
    not_compared = trial.evidence[Lossy.MAY_BE_CHANGED]
    if trial.lossy and not_compared and not_compared >= trial.evidence[Requests.REQUESTS]:
        return Verdict.NOT_EXERCISED, f"no answer could be compared with its cold answer: {describe_lossy(trial)}"
    reason = f"no counterexample in {trial.discriminating_examples} examples with {trial.requests} requests"
    if trial.explained:
        counts = describe(trial.evidence, trial.cold.rate)
        reason += f"; {trial.explained} answers diverged within the measured noise, as often as it explains: {counts}"
    not_sensitive = trial.evidence[ReportedEvidence.INSENSITIVE]
    if not_sensitive:
        reason += (
            f"; {not_sensitive:.0f} more examples do not count: their cold answers do not depend on the cached tokens"
        )
    reason = f"{reason}; {trial.remark}" if trial.remark else reason
    return Verdict.CONFORMS, f"{reason}; {describe_lossy(trial)}" if trial.lossy else reason


def verdict_without_counterexample(
    trial: Trial,
    problem: BaseException | None,
    rule: Rule = EXACT,
    *,
    ended: Case | None,
    with_rare: Callable[[str, str, Verdict, str], tuple[Verdict, str]],
) -> tuple[Verdict, str]:
    """Return the verdict and the reason of a trial that has no counterexample besides its replayed findings.

    `ended`: the case about the engine that ended at its first requests. `with_rare`: returns what a verdict becomes by
    the known issues that not every run finds. A run and `coldproof verify` both decide with this function.
    """
    found = verdict_without_case(trial, problem, rule)
    if ended is not None and problem is None and not trial.examples:
        found = verdict_after_end(ended)
    if all(case.is_remark for case in trial.known):
        found = with_rare(trial.requirement.id, trial.cell, *found)
    return verdict_with_known(*narrowed_verdict(*found, trial), trial)


def insensitive(trial: Trial) -> str:
    """Return why no answer of a trial could have shown a wrong block; "" if one could."""
    by_calibration = trial.cold.insensitive(adapters=about_adapters(trial))
    if by_calibration:
        return by_calibration
    tested = trial.evidence[ReportedEvidence.INSENSITIVE]
    if tested and not trial.evidence[ReportedEvidence.SENSITIVE]:
        return f"in none of {tested:.0f} examples did the cold answer depend on the cached tokens"
    return ""


def about_adapters(trial: Trial) -> bool:
    """Return whether a requirement needs adapters."""
    return bool(OF_ADAPTERS & set(trial.requirement.needs))


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
    """Return the verdict of a trial without another counterexample than its replayed findings and its remarks.

    Findings make it a known issue, as a drawn counterexample does. Remarks are named, and the trial conforms if any
    example did not fail, or passed with the repair. One that they keep from being exercised is a known issue if it is
    accepted. Either is inconclusive if what failed so could not be replayed. A trial with an ERROR stays that.
    """
    remarks = [case for case in trial.known if case.is_remark]
    waived = [case for case in trial.known if not case.is_remark]
    if remarks:
        said = "; ".join(dict.fromkeys(map(remark_of, remarks)))
        counted = (
            f"{trial.failing} of {trial.examples} examples failed as a remark says, which no contract forbids: {said}"
        )
        if verdict is Verdict.CONFORMS and trial.failing >= trial.discriminating_examples + trial.looked_behind:
            verdict, reason = Verdict.NOT_EXERCISED, f"no example shows what it does without that; {reason}"
        reason = f"{reason}; {counted}"
        if verdict is Verdict.CONFORMS and trial.not_behind:
            verdict = Verdict.INCONCLUSIVE  # what failed like a remark and was not replayed may be something else
        if verdict is Verdict.NOT_EXERCISED and trial.accepted_remarks:
            verdict, reason = Verdict.KNOWN_ISSUE, f"{trial.accepted_remarks[0]}; {reason}"
    behind = f"; {trial.looked_behind} that failed so passed with the repair" if trial.looked_behind else ""
    if trial.not_behind:
        behind += f"; whether those that failed so pass with the repair is not known: {trial.not_behind}"
    if waived and verdict is not Verdict.ERROR:
        verdict, reason = Verdict.KNOWN_ISSUE, f"{waived[0].accepted}; besides it, {reason}"
    return verdict_as_replayed(verdict, trial.not_behind), f"{reason}{behind}"


def describe_lossy(trial: Trial) -> str:
    """Describe which answers a lossy mode kept from being compared."""
    return (
        f"lossy mode ({trial.lossy}): it may have changed {trial.evidence[Lossy.MAY_BE_CHANGED]:.0f} of "
        f"{trial.evidence[Requests.REQUESTS]:.0f} answers, which were not compared with their cold answers "
        f"({trial.permitted} differ); for these, only a match with another identity's or another request's answer "
        "counts"
    )
