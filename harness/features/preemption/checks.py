"""Checks that the least urgent request is preempted first, of equals the latest, and resumed before later ones.

vLLM documents that requests are handled by priority, or in the order of their arrival, which also decides ties
(`SchedulerConfig.policy`). Its scheduler preempts the running request with the largest priority and, among these, with
the latest arrival; without priorities, the one that it admitted last (`Scheduler.schedule`).
"""

from __future__ import annotations

import itertools

from coldproof.adapters.protocol.images import has_images
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass


@check(
    "order",
    order=130,
    fails=(
        "A request that is preempted while a less urgent one keeps running, if requests have priorities, or an equal "
        "one that came later, if the engine documents that the later one is preempted first. A preempted request that "
        "is resumed after a later one was admitted, if the engine documents that it comes first."
    ),
)
def check_order(history: History) -> list[Finding]:
    """Return findings for the first request that is known to be preempted while a less urgent one kept running, or an
    equal one that came later, and for the first one that a later request overtook while it was preempted.
    """
    return [*unfair_preemptions(history), *overtaken_requests(history)]


def unfair_preemptions(history: History) -> list[Finding]:
    """Return a finding for the first request that is known to be preempted while one kept running that should have
    been preempted before it.
    """
    urgency = {number: request.priority for number, _, request in history.workload.requests()}
    for outcome in history.outcomes:
        for at in outcome.preempted_at:
            for other in history.outcomes:
                less = urgency[other.request] > urgency[outcome.request]
                equal = urgency[other.request] == urgency[outcome.request]
                goes_first = less or (equal and later_of_equals(history, other, outcome))
                if goes_first and kept_running(other, outcome.since_start(at)):
                    return [order_finding(outcome, other, urgency)]
    return []


def later_of_equals(history: History, other: Outcome, outcome: Outcome) -> bool:
    """Return whether `other` is preempted before `outcome`, which is as urgent, because it came later.

    Not with a second tier, which may still need the blocks of a request, nor for grammars: a request is admitted only
    once its grammar is compiled.
    """
    judged = history.shape.preempts_latest and not history.shape.second_tier
    return judged and outcome.options.pattern is None and comes_after(other, outcome)


def overtaken_requests(history: History) -> list[Finding]:
    """Return a finding for the first preempted request that had to wait for one that was sent after it.

    Only where the engine documents the order, and for pairs that differ in nothing that could let one wait alone:
    a request can wait for an adapter slot, a grammar, or KV from a second tier. Only with full attention in all layers:
    where chunks end at the blocks of a state, a longer prompt that was resumed first may have its token later.
    """
    shape = history.shape
    if not shape.resumes_first or shape.second_tier or not shape.uniform:
        return []
    urgency = {number: request.priority for number, _, request in history.workload.requests()}
    for outcome, other in itertools.permutations(history.outcomes, 2):
        follows = comes_after(other, outcome) and urgency[other.request] >= urgency[outcome.request]
        if follows and any(overtook(history, other, outcome, number) for number in range(len(outcome.preempted_at))):
            return [overtaking_finding(outcome, other)]
    return []


def comes_after(other: Outcome, outcome: Outcome) -> bool:
    """Return whether `other` was sent later in the same burst, and needs nothing that `outcome` does not need."""
    later = other.step == outcome.step and other.request > outcome.request and other.sent >= outcome.sent
    return needs_the_same(other, outcome) and later


def needs_the_same(other: Outcome, outcome: Outcome) -> bool:
    """Return whether two requests differ in nothing that could let one of them wait alone.

    A request with images may wait for room in the encoder's cache. From 0.33 on, vLLM's scheduler then puts it back "so
    it does not stall the requests behind it". A session may go on before requests that hold no blocks.
    """
    if other.session or outcome.session:
        return False
    if has_images(other.prompt) or has_images(outcome.prompt):
        return False
    alike = (other.model, other.options.pattern) == (outcome.model, outcome.options.pattern)
    return alike and other.options.answers == outcome.options.answers == 1


def overtook(history: History, other: Outcome, preempted: Outcome, number: int) -> bool:
    """Return whether `other` was admitted while `preempted` waited to be resumed. `number`: of its preemption.

    In the engine's steps, each admission but the first ends one preemption. One by a reset is reported at the end of
    the step that begins with its admission. Where the engine's steps are not recorded, a first token shows it. An
    engine may compute chunks of several prompts in one step, so that a shorter one has its token first although it was
    admitted later.
    """
    lost = preempted.since_start(preempted.preempted_at[number])
    if history.engine_steps is not None:
        begun = admitted_at(history, other)
        resumed = admitted_at(history, preempted)[number + 1 :]
    elif computed_at_least(other) < len(preempted.prompt) + len(preempted.tokens):
        return False
    else:
        begun = [other.since_start(token.at) for token in other.tokens]
        resumed = [at for token in preempted.tokens if (at := preempted.since_start(token.at)) > lost]
    return bool(begun and resumed) and other.preemptions == 0 and lost < begun[0] < resumed[0]


def admitted_at(history: History, outcome: Outcome) -> list[float]:
    """Return when a request was admitted, first and again, in the engine's steps."""
    name = str(outcome.request)
    return [step.at for step in history.engine_steps or () for one in step.admitted if one.request == name]


def computed_at_least(outcome: Outcome) -> int:
    """Return how many tokens of its prompt a request has computed for itself; 0 if its hits are unknown."""
    return 0 if outcome.hit_at_most is None else len(outcome.prompt) - outcome.hit_at_most


def kept_running(outcome: Outcome, when: float) -> bool:
    """Return whether a request had tokens before and after `when`, and was not preempted between the two."""
    times = [outcome.since_start(token.at) for token in outcome.tokens]
    before, then = [at for at in times if at < when], [at for at in times if at >= when]
    if not before or not then:
        return False
    return not any(before[-1] <= outcome.since_start(at) <= then[0] for at in outcome.preempted_at)


def order_finding(outcome: Outcome, other: Outcome, urgency: dict[int, int]) -> Finding:
    """Return the finding about the request that was preempted."""
    preempted, spared = (f"{o.request} with priority {urgency[o.request]}" for o in (outcome, other))
    equal = urgency[outcome.request] == urgency[other.request]
    why = "the later of two equals is preempted first" if equal else "a lower number is more urgent"
    sentence = f"Request {preempted} was preempted while request {spared} kept running; {why}."
    return Finding(checker="order", failure_class=FailureClass.API, request=outcome.request, sentence=sentence)


def overtaking_finding(outcome: Outcome, other: Outcome) -> Finding:
    """Return the finding about the request that was overtaken."""
    sentence = (
        f"Request {outcome.request} was preempted and resumed only after request {other.request}, which was sent later "
        "and had not begun."
    )
    return Finding(checker="order", failure_class=FailureClass.API, request=outcome.request, sentence=sentence)
