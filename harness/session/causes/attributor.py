"""Attributes the confirmed cases of a run to known causes, one after the other, while the run goes on.

Invariant: a case belongs to a cause that has a repair only if a replay showed it, wherever one could be made. Cases of
one requirement and cell with one signature are attributed once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager

import msgspec

from coldproof.harness.case.attribution import Candidates, by_repairs, by_signature, undecided
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.repairs import repairing
from coldproof.harness.case.tested_engine import family_of
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.options import Options
from coldproof.harness.schema.attribution import FAILED, NO_TIME, Attribution, Basis, CauseReplay
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.harness.schema.results import Calibration
from coldproof.harness.session.budget import LEAST_PROOFS, ProofTime
from coldproof.harness.session.causes.forked_replays import ForkedReplays
from coldproof.harness.session.causes.local_engine import LocalEngine, local_engine
from coldproof.harness.session.causes.replay_job import ReplayEnd, Run, job_of
from coldproof.harness.workload.steps import Workload

SHARE = 1.0  # of the run's budget, for the replays of a process: a busy machine takes five times as long
BEHIND = 0.5  # of this time, after which nothing is replayed any more that only looks like a known cause
FURTHER_REPLAYS = 2  # of what fails with the repair as well, as its rate is what proves it
LOCALLY = "a local engine of its release"
SHOWN = {
    ReplayResult.PASSES: "does not fail",
    ReplayResult.OTHERWISE: "fails in another way",
    ReplayResult.NOT_RUN: "could not be replayed",
}
Place = tuple[str, str, str]  # requirement, cell and signature


class OutOfTime(Exception):
    """The time for replays is over."""


class Behind(msgspec.Struct, frozen=True):
    """What replays of examples that failed like a case showed, with the repair of its cause. `passed`: how many did.

    `failing`: an example that fails with it as well, in `failed` of `tries` replays by itself, and how, in `words`.
    Without one, `words` say why there was no replay.
    """

    passed: int = 0
    failing: Failing | None = None
    failed: int = 0
    tries: int = 0
    words: str = ""


class Attributor:
    """The attributions of one process of a run. `time`: that for proofs, which a budget of the user's bounds.

    `starting`: counts the time in which it imports an engine.
    """

    def __init__(
        self,
        options: Options,
        log: EventLog,
        *,
        time: ProofTime,
        starting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.options, self.log, self.time = options, log, time
        self.replays = ForkedReplays(starting)
        self.prepared = False
        self.found: dict[Place, Attribution] = {}
        self.calibrations: dict[Basis, dict[str, tuple[Calibration, Rule]]] = {}

    def prepare(self, case: Case) -> None:
        """Get ready, once, to look for the causes of cases: the proof of this one waits."""
        if self.prepared:
            return
        self.prepared, local = True, local_engine(self.options, case)
        if not isinstance(local, str) and any(one.engine == family_of(case) for one in read_records().values()):
            self.replays.prepare(local.options.engine)

    def known(self, place: Place) -> Attribution | None:
        """Return the attribution of the cases of a place; None if none was attributed yet."""
        return self.found.get(place)

    def attribution(
        self, case: Case, requirement: Requirement, engines: CellEngines, *, fails_now: bool = False
    ) -> Attribution | None:
        """Return the attribution of a case; None if no finding of its engine is recorded.

        `fails_now`: it has just failed on the engine of the run.
        """
        place = (case.requirement, case.cell, case.signature)
        if place not in self.found:
            records = [one for one in read_records().values() if one.engine == family_of(case)]
            if not records:
                return None
            records = [one for one in records if one.id not in self.options.repaired]
            found = self.attributed(case, records, requirement, engines, fails_now=fails_now)
            if found.lacked_time:
                return found  # a later one may have time
            self.found[place] = found
        return self.found[place]

    def attributed(
        self,
        case: Case,
        records: list[FindingRecord],
        requirement: Requirement,
        engines: CellEngines,
        *,
        fails_now: bool,
    ) -> Attribution:
        """Attribute a case, by replays if they can be made."""
        local = local_engine(self.options, case)
        if isinstance(local, str):
            return by_signature(case, records, local)
        if local.basis is Basis.REPAIR:
            self.calibrations[local.basis] = dict(engines.pool.calibrations)
        earlier = {
            one.finding
            for (requirement_id, _, signature), one in self.found.items()
            if case.signature == signature or case.requirement == requirement_id
        }
        candidates = Candidates.of(case, local.possible(records), local.repairs, first=earlier)
        workload = msgspec.convert(case.workload, Workload)
        if candidates.repairs:
            self.log.emit("phase", words=f"looking for the cause of {case.id}")

        replays: list[CauseReplay] = []

        def replay(names: tuple[str, ...]) -> ReplayResult:
            end = self.replay(case, [Run(workload, case.nonce)], requirement, local, names)
            replays.append(CauseReplay.under(names, end.result, end.words))
            return end.result

        try:
            if local.basis is Basis.LOCAL:
                shipped, fails_now = replay(()), True
                if shipped is not ReplayResult.FAILS:
                    found = by_signature(case, records, f"on {LOCALLY} it {SHOWN[shipped]}")
                    return msgspec.structs.replace(found, replays=replays)
            found = by_repairs(case, candidates, replay, basis=local.basis, rounds=int(not fails_now))
        except OutOfTime:
            return undecided(case, candidates, NO_TIME, without=Basis.NOT_TRIED)
        if found.basis in (Basis.GONE, Basis.NOT_RUN):
            found = undecided(case, candidates, found.words)
        return msgspec.structs.replace(found, replays=replays)

    def replay(
        self, case: Case, runs: list[Run], requirement: Requirement, local: LocalEngine, names: tuple[str, ...]
    ) -> ReplayEnd:
        """Replay a case, or what failed like it, under the repairs with these names. Raises OutOfTime."""
        if self.spent() > 1 or not self.time.left():
            raise OutOfTime
        job = job_of(case, runs, [requirement], local, names, self.calibrations.get(local.basis, {}))
        end = self.replays.run(job, seconds=min(local.seconds, self.time.left()))
        if end.calibrations:
            self.calibrations[local.basis] = end.calibrations
        return end

    def spent(self) -> float:
        """Return the part of the time for replays that is over."""
        if self.time.clock().strict:
            return self.time.spent / self.time.part()
        return self.replays.seconds / max(LEAST_PROOFS, SHARE * self.options.seconds)

    def behind(
        self, case: Case, alike: Sequence[Failing], requirement: Requirement, accepted: Collection[str] = ()
    ) -> Behind:
        """Replay examples that failed like a case with the repair of its cause, until one fails with it as well.

        One that fails with it may have another cause that the run accepts: it is replayed with the repairs of all
        `accepted` findings as well. Nothing passes if the case's cause has no repair that can be planted here. Raises
        OutOfTime.
        """
        nothing = Behind()
        local, cause = local_engine(self.options, case), case.attribution
        if (
            isinstance(local, str)
            or cause is None
            or local.basis is not Basis.REPAIR
            or cause.basis is not Basis.REPAIR
        ):
            return nothing
        own = self.repairs_of(cause.findings, local)
        if not own:
            return nothing
        if self.spent() > BEHIND:
            raise OutOfTime
        of_accepted = self.repairs_of(sorted({*cause.findings, *accepted}), local)
        left, passed = list(alike), len(alike)
        while left:
            runs = [Run(one.workload, one.judgement.history.nonce) for one in left]
            end = self.replay(case, runs, requirement, local, own)
            if end.result not in FAILED:
                return Behind(passed=passed) if end.result is ReplayResult.PASSES else Behind(words=end.words)
            only = runs[end.run : end.run + 1]  # what follows is not because of the runs before it
            alone = self.replay(case, only, requirement, local, own)
            if alone.result in FAILED:
                if self.replay(case, only, requirement, local, of_accepted).result is not ReplayResult.PASSES:
                    ends = [alone]
                    with contextlib.suppress(OutOfTime):
                        ends += [self.replay(case, only, requirement, local, own) for _ in range(FURTHER_REPLAYS)]
                    failed = sum(one.result in FAILED for one in ends)
                    return Behind(failing=left[end.run], failed=failed, tries=len(ends), words=alone.words)
                passed -= 1
            left = left[end.run + 1 :]
        return Behind(passed=passed)

    @staticmethod
    def repairs_of(findings: Iterable[str], local: LocalEngine) -> tuple[str, ...]:
        """Return the names of the repairs of findings, where they have one."""
        found = (repairing(name, local.repairs) for name in findings)
        return tuple(dict.fromkeys(one.name for one in found if one is not None))

    def stop(self) -> None:
        """End the replay that runs, and let no other one begin."""
        self.replays.stop()
