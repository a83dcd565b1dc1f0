"""What the same request did on the engine with another implementation of one part. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.workload.halves import count_of, half_of
from coldproof.harness.workload.steps import Burst, Workload


def twins(history: History) -> list[tuple[Outcome, Outcome]]:
    """Return each request that ran on both engines: as it was on the other one, and as it was on the one under test.

    Empty if the workload did not run twice, or if what runs at once may differ from run to run: if requests are sent
    together, or ended early, to an engine whose steps are not recorded. A recorded engine has a clock of its own.
    """
    half = half_of(history.workload)
    if half is None or not (history.engine_steps is not None or one_by_one(half)):
        return []
    count, known = count_of(half), {one.request: one for one in history.outcomes}
    pairs = ((known.get(number), known.get(number + count)) for number in range(count))
    return [(other, own) for other, own in pairs if other is not None and own is not None]


def one_by_one(workload: Workload) -> bool:
    """Return whether each request of a workload is alone, and ends by itself."""
    bursts = [step for step in workload.steps if isinstance(step, Burst)]
    alone = all(len(burst.requests) == 1 and burst.meanwhile is None for burst in bursts)
    return alone and not any(request.abort for _, _, request in workload.requests())


def hits_of_twins(history: History) -> dict[int, int]:
    """Return how many tokens requests to the engine under test hit at least on the other one, where both answered."""
    return {
        own.request: other.hit_at_least
        for other, own in twins(history)
        if other.answered and own.answered and own.options.answers == 1
    }
