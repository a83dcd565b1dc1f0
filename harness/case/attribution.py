"""To which known cause a counterexample belongs: to the one whose repair alone makes it vanish.

Where no repair can be tried, only likeness is left: a finding's signature, which says what happened and not why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.known_issues import describes, has_circumstances, is_alike, may_be_of, shows
from coldproof.harness.schema.attribution import FAILED, MOST_TOGETHER, REPEATS, Attribution, Basis, CauseReplay
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.harness.workload.steps import Workload

Replay = Callable[[tuple[str, ...]], ReplayResult]  # of a case, under the repairs with these names
BY_LUCK = 0.01
USUAL_RATE, LEAST_RATE, MOST_TRIES = 0.8, 0.1, 20  # of a case that takes luck: how often it fails, and is tried
SHIPPED_TRIES = 3  # of a case on the engine as it is shipped, where it has failed before, until it is gone
MOST_ALONE = 3  # repairs of the likeliest causes that are tried alone, before all others are halved again and again


class Candidates(msgspec.Struct, frozen=True):
    """The findings of an engine, the likeliest first, and the repairs that are not in the engine yet, in this order."""

    records: list[FindingRecord]
    repairs: list[Repair]

    @classmethod
    def of(
        cls,
        case: Case,
        records: Iterable[FindingRecord],
        repairs: Iterable[Repair],
        *,
        first: Collection[str] = (),
    ) -> Candidates:
        """Return the candidates for a case. `first`: findings of earlier cases with its signature or requirement.

        A repair may lead around another fault, as one that puts more into a block's key does. So a finding whose cause
        cannot have acted in this case is no candidate.
        """
        possible = [one for one in records if may_be_of(one, case)]
        ordered = sorted(in_order_of_likeness(case, possible), key=lambda one: one.id not in first)
        mends = {name: repair for repair in repairs for name in repair.mends}
        return cls(ordered, list(dict.fromkeys(mends[one.id] for one in ordered if one.id in mends)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the repairs."""
        return tuple(one.name for one in self.repairs)

    @property
    def unrepaired(self) -> list[FindingRecord]:
        """Return the findings that no repair among these removes."""
        mended = {name for one in self.repairs for name in one.mends}
        return [one for one in self.records if one.id not in mended]

    def alike(self, case: Case) -> list[str]:
        """Return the ids of the findings with the signature of a case."""
        return [one.id for one in self.records if is_alike(one, case)]

    def beside_remark(self, repair: str) -> list[FindingRecord]:
        """Return the root causes that the repair of a remark removes as well."""
        mended = next(one.mends for one in self.repairs if one.name == repair)
        return [one for one in self.records if one.id in mended and one.is_root_cause]

    def finding_of(self, repair: str) -> FindingRecord:
        """Return the likeliest finding that a repair removes."""
        mended = next(one.mends for one in self.repairs if one.name == repair)
        return next(one for one in self.records if one.id in mended)


def tries_of(case: Case, workload: Workload) -> int:
    """Return how often a case has to pass with a repair until it has vanished: more often if it takes luck to fail.

    By its reproduction rate, luck passes all of these once in a hundred times.
    """
    tried = case.reproduction
    counts = ((tried.fresh_failed, tried.fresh_tries), (tried.running_failed, tried.running_tries))
    rate = min((failed or 0) / tries for failed, tries in (*counts, (1, 1)) if tries)
    if rate == 1 and not workload.depends_on_timing():
        return 1
    return min(MOST_TRIES, math.ceil(math.log(BY_LUCK) / math.log(1 - min(max(rate, LEAST_RATE), USUAL_RATE))))


def in_order_of_likeness(case: Case, records: Iterable[FindingRecord]) -> list[FindingRecord]:
    """Return the findings, those that are most like a case first: by their signatures for it, the class, the
    requirement, the cell and parts of the signature.
    """

    def likeness(record: FindingRecord) -> tuple[bool, bool, bool, bool, int]:
        shared = set(record.signature.split("; ")) & set(case.signature.split("; "))
        return (
            is_alike(record, case),
            record.failure_class == case.failure_class,
            record.requirement == case.requirement,
            record.found.cell == case.cell,
            len(shared),
        )

    return sorted(records, key=lambda record: (*(-int(part) for part in likeness(record)), record.id))


def by_signature(case: Case, records: Sequence[FindingRecord], why: str) -> Attribution:
    """Return the attribution of a case for which no repair can be tried. `why`: says so, as a clause.

    The record of a finding with a repair has one signature. Its other ones are not known, so that a case of its
    requirement and class may belong to it, unless the case lacks what its cause needs to act.
    """
    records = [one for one in records if may_be_of(one, case)]
    same = [one for one in records if is_alike(one, case)]
    if len(same) == 1:
        remark = not same[0].is_root_cause and any(shows(one, case) for one in same[0].shows)
        return Attribution(basis=Basis.SIGNATURE, finding=same[0].id, link=same[0].link, words=why, remark=remark)
    about = (case.requirement, case.failure_class)
    near = [one for one in records if not one.shows and (one.requirement, one.failure_class) == about]
    names = sorted(one.id for one in same or near)
    if same:
        return Attribution(basis=Basis.SIGNATURE, candidates=names, words=f"{why}, and each has its signature")
    if near:
        words = f"{why}, and its signature is another one"
        return Attribution(basis=Basis.UNDECIDED, candidates=names, words=words)
    return Attribution(basis=Basis.NEW, words=f"{why}, and no finding has its signature")


def by_repairs(
    case: Case, candidates: Candidates, replay: Replay, *, basis: Basis = Basis.REPAIR, rounds: int = 1
) -> Attribution:
    """Return the attribution of a case by replaying it under repairs and without them.

    The likeliest one is tried alone. Then all together tell whether any can be the cause, and if so, the next ones
    alone and halves of the others tell which. `rounds`: how often it must vanish with it and come back without it; 0:
    it has just failed without.
    What `replay` raises when the time is over is passed on.
    """
    replays: list[CauseReplay] = []

    def noted(names: tuple[str, ...]) -> ReplayResult:
        result = replay(names)
        replays.append(CauseReplay.under(names, result))
        return result

    found = searched(case, candidates, noted, basis, rounds)
    return msgspec.structs.replace(found, replays=replays)


def searched(case: Case, candidates: Candidates, replay: Replay, basis: Basis, rounds: int) -> Attribution:
    """Return the attribution of a case by replays under repairs: see `by_repairs`."""
    names, passes = candidates.names, ReplayResult.PASSES
    if not names:
        return beyond_repairs(case, candidates)
    together = replay(names[:1])
    if together is passes:
        return confirmed(case, candidates, names[0], replay, basis, rounds)
    if together is ReplayResult.OTHERWISE:
        behind = behind_cause(case, candidates, replay, basis, rounds)
        if behind is not None:
            return behind
    if names[1:]:
        together = replay(names)
    if together is ReplayResult.NOT_RUN:
        return Attribution(basis=Basis.NOT_RUN, words="its replay with all repairs came to no verdict")
    if together is ReplayResult.FAILS:
        return beyond_repairs(case, candidates)
    if together is ReplayResult.OTHERWISE:
        words = f"with all {len(names)} repairs it fails in another way"
        return Attribution(basis=Basis.OTHERWISE, words=words)
    for name in names[1:MOST_ALONE]:
        if replay((name,)) is passes:
            return confirmed(case, candidates, name, replay, basis, rounds)
    rest = names[MOST_ALONE:]
    while rest[1:]:
        half = rest[: len(rest) // 2]
        rest = half if replay(half) is passes else rest[len(half) :]
    if rest and replay(rest) is passes:
        return confirmed(case, candidates, rest[0], replay, basis, rounds)
    return of_several(candidates, replay, basis, rounds)


def behind_cause(case: Case, candidates: Candidates, replay: Replay, basis: Basis, rounds: int) -> Attribution | None:
    """Return the attribution to the likeliest cause if a case fails in another way without it, by a remark.

    What no contract forbids may show itself as soon as the cause is repaired, on a busy machine more often: a search by
    halves takes that for a failure of the case. It is the cause if the case fails with the repair of the remark alone,
    and is gone with both. None if that is not so.
    """
    cause = candidates.finding_of(candidates.names[0])
    remarks = [candidates.finding_of(name) for name in candidates.names[1:]]
    for remark in (one for one in remarks if not one.is_root_cause and one.requirement == case.requirement):
        both = (cause.id, remark.id)
        gone = cause.is_root_cause and set(both) <= set(candidates.names) and replay(both) is ReplayResult.PASSES
        if gone and replay((remark.id,)) is ReplayResult.FAILS:
            not_back = why_not_back(both, replay, rounds)
            words = "it fails without it, and with it in another way, by a remark"
            return not_back or Attribution(
                basis=basis, finding=cause.id, link=cause.link, words=words, with_findings=[remark.id]
            )
    return None


def of_several(candidates: Candidates, replay: Replay, basis: Basis, rounds: int) -> Attribution:
    """Return the attribution of a case that is gone with all repairs together, and with none of them alone.

    Several causes act in it if it fails with each of their repairs left out. The search takes more repairs to mend no
    less: the last one of the fewest likeliest ones with which it is gone is needed, beside those found before.
    """
    needed: tuple[str, ...] = ()
    names = candidates.names
    while len(needed) < MOST_TOGETHER and (not needed or replay(needed) is not ReplayResult.PASSES):
        fails, passes = 0, len(names)
        while passes - fails > 1:
            middle = (fails + passes) // 2
            if replay((*needed, *names[:middle])) is ReplayResult.PASSES:
                passes = middle
            else:
                fails = middle
        needed, names = (*needed, *names[fails:passes]), names[:fails]
    findings = sorted(map(candidates.finding_of, needed), key=lambda one: not one.is_root_cause)
    fewer = [tuple(other for other in needed if other != one) for one in needed]
    if (
        not all(replay(names) in FAILED for names in fewer)
        or replay(needed) is not ReplayResult.PASSES
        or not findings[0].is_root_cause
    ):
        return Attribution(basis=Basis.NEW, words="it is gone with all repairs together, and with no three of them")
    not_back = why_not_back(needed, replay, rounds)
    if not_back is not None:
        return not_back
    first, *others = findings
    words = "it fails without one of them"
    with_findings = [one.id for one in others]
    return Attribution(basis=basis, finding=first.id, link=first.link, words=words, with_findings=with_findings)


def confirmed(case: Case, candidates: Candidates, name: str, replay: Replay, basis: Basis, rounds: int) -> Attribution:
    """Return the attribution to the finding of a repair with which a case was gone, if it comes back without it.

    A repair may lead around another fault. What is no wrong by any contract must not be that, so that a case belongs to
    a remark only if the remark describes it.
    """
    not_back = why_not_back((name,), replay, rounds)
    if not_back is not None:
        return not_back
    found = candidates.finding_of(name)
    if found.is_root_cause:
        return Attribution(basis=basis, finding=found.id, link=found.link, words="it fails without it")
    return remark_or_cause(case, candidates, name, replay, basis)


def why_not_back(names: tuple[str, ...], replay: Replay, rounds: int) -> Attribution | None:
    """Return the attribution of a case that was gone with repairs and does not come back without them, time and again.

    None if it does. One that comes back only sometimes takes luck to fail, so that it has to be gone more often.
    """
    for number in range(rounds):
        results = [replay(())]
        while results[-1] is ReplayResult.PASSES and len(results) < SHIPPED_TRIES:
            results.append(replay(()))
        *passed, shipped = results
        if shipped is ReplayResult.NOT_RUN:
            return Attribution(basis=Basis.NOT_RUN, words="its replay without repairs came to no verdict")
        if shipped is not ReplayResult.FAILS:
            return Attribution(basis=Basis.GONE, words=f"on the engine as it is shipped, it is {shipped.value}")
        again = bool(number) + len(passed) * REPEATS
        if any(replay(names) is not ReplayResult.PASSES for _ in range(again)):
            named = " and ".join(names)
            return Attribution(basis=Basis.NEW, words=f"it was gone with the repair of {named} once, and then failed")
    return None


def remark_or_cause(case: Case, candidates: Candidates, name: str, replay: Replay, basis: Basis) -> Attribution:
    """Return the attribution of a case that vanishes with the repair of a remark, which may remove root causes as well.

    It belongs to one of these whose own repair ends it too. It is the remark only if those leave it there, and if the
    remark describes it. Else it is the root cause whose class and circumstances it has, or nobody knows.
    """
    remark, causes = candidates.finding_of(name), candidates.beside_remark(name)
    ended = {one.id: replay((one.id,)) for one in causes if one.id in candidates.names}
    cause = next((one for one in causes if ended.get(one.id) is ReplayResult.PASSES), None)
    shown = all(ended.get(one.id) is ReplayResult.FAILS for one in causes)
    described = describes(remark, case)
    if cause is None and not described:
        cause = next((one for one in causes if has_circumstances(one, case)), None)
        if cause is None:
            words = "it vanishes with the repair of this remark, which does not describe it"
            return Attribution(basis=Basis.UNDECIDED, candidates=[remark.id], words=words)
    found = cause or remark
    words = "it fails without it"
    return Attribution(basis=basis, finding=found.id, link=found.link, words=words, remark=cause is None and shown)


def undecided(case: Case, candidates: Candidates, why: str, *, without: Basis = Basis.UNDECIDED) -> Attribution:
    """Return the attribution of a case whose replays came to no end. `without`: where no finding has its signature."""
    alike = candidates.alike(case)
    basis = Basis.UNDECIDED if alike else without
    return Attribution(basis=basis, candidates=alike, words="" if basis is Basis.NOT_TRIED else why)


def beyond_repairs(case: Case, candidates: Candidates) -> Attribution:
    """Return the attribution of a case that fails with all repairs: only a finding without one can be its cause."""
    number = len(candidates.names)
    which = "the repair" if number == 1 else f"all {number} repairs"
    fails = f"it fails with {which}" if number else "no repair is left"
    unrepaired = [one for one in candidates.unrepaired if is_alike(one, case)]
    if unrepaired:
        return by_signature(case, unrepaired, fails)
    alike = ", ".join(candidates.alike(case))
    words = f"it has the signature of {alike}, but {fails}" if alike else fails
    return Attribution(basis=Basis.NEW, words=words)
