"""Replays saved cases under repairs, outside a run: for `coldproof attribute` and `coldproof findings --matrix`."""

from __future__ import annotations

from collections.abc import Collection

from coldproof.harness.case.attribution import Candidates, by_repairs, by_signature, tries_of
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.release.requirements.suites import requirements_of
from coldproof.harness.schema.attribution import Attribution
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.harness.schema.results import Calibration
from coldproof.harness.session.causes.forked_replays import ForkedReplays
from coldproof.harness.session.causes.local_engine import LocalEngine
from coldproof.harness.session.causes.replay_job import ReplayEnd, Run, job_of
from coldproof.harness.workload.steps import Workload

ROUNDS = 3  # of a case that takes luck; each has several replays


class SavedReplays:
    """Replays saved cases, one after the other. What one has measured on an engine is not measured again."""

    def __init__(self) -> None:
        self.replays = ForkedReplays()
        self.calibrations: dict[tuple[str, str, str | None], dict[str, tuple[Calibration, Rule]]] = {}

    def run(self, case: Case, workload: Workload, local: LocalEngine, names: Collection[str]) -> ReplayEnd:
        """Replay a case on an engine with the repairs of these names."""
        requirements = requirements_of(case.requirement)
        if not requirements:
            return ReplayEnd(ReplayResult.NOT_RUN, f"{case.requirement} is no requirement of this version")
        kind = (local.options.engine, local.options.worker, local.options.model)
        runs = [Run(workload, case.nonce)]
        job = job_of(case, runs, requirements, local, names, self.calibrations.get(kind, {}))
        end = self.replays.run(job, seconds=local.seconds)
        if end.calibrations:
            self.calibrations[kind] = end.calibrations
        return end

    def attribution(
        self, case: Case, workload: Workload, records: list[FindingRecord], local: LocalEngine | str
    ) -> Attribution:
        """Return the attribution of a case. `local`: the engine for its replays, or why there is none."""
        if isinstance(local, str):
            return by_signature(case, records, local)
        return by_repairs(
            case,
            Candidates.of(case, local.possible(records), local.repairs),
            lambda names: self.run(case, workload, local, names).result,
            basis=local.basis,
            rounds=ROUNDS if tries_of(case, workload) > 1 else 1,
        )
