"""Replays known findings on the engine as it is shipped, before a run draws on the engine with their causes repaired.

A repair lasts as long as its process, and an engine may share the process of the run. So the replays are a run of
their own, in a process without repairs. What it found is emitted here as events and cases.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from coldproof.adapters.common.guard import parent_death_hook
from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.spec.layer import SERVER_LAYER
from coldproof.harness.case.finding_records import StoredFinding
from coldproof.harness.event_log import EventLog
from coldproof.harness.judgement.verdict import remark_of
from coldproof.harness.option_table import option_words
from coldproof.harness.options import FIRST, ONLY, Options
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.exit_codes import CONCLUDED
from coldproof.harness.schema.findings import FindingReplay, ReplayResult
from coldproof.harness.schema.results import Results, results_in
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.known_findings import LEAST_SECONDS, SHARE, applicable
from coldproof.harness.session.pytest_command import pytest_command
from coldproof.reports.format.text import many

UNWAIVED = (Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.VIOLATED)
FAILING = (ReplayResult.FAILS, ReplayResult.OTHERWISE)
FOR_PROOFS = 40.0  # seconds more of the budget of the replays, a part of which is for proofs


class ShippedReplays:
    """The replays of one process of a run. `save_case`: writes the files of a case."""

    def __init__(self, options: Options, log: EventLog, *, save_case: Callable[[Case, str], None]) -> None:
        self.options, self.log, self.save_case = options, log, save_case
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, places: Collection[tuple[str, str]]) -> None:
        """Replay the findings that the repairs of this run remove. `places`: cells and requirements that it tests."""
        findings = repaired_findings(self.options, places)
        if not findings:
            return
        self.log.emit("phase", words=f"replaying {many(len(findings), 'known finding')} on the engine as it is shipped")
        scratch = ScratchFolder()
        try:
            folder = scratch.path / "as-shipped"
            words = shipped_command(self.options, findings, report_dir=str(folder))
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=parent_death_hook(),
            )
            code = self.process.wait()
            self.report(findings, results_in(folder), code, folder=str(folder))
        finally:
            self.stop()
            scratch.remove()

    def stop(self) -> None:
        """End the process of the replays, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def report(self, findings: Sequence[StoredFinding], results: Results | None, code: int, *, folder: str) -> None:
        """Emit what became of each finding, and save the cases. `code`: how the replays' run ended."""
        problem = results.problem if results is not None else ""
        why = problem or ("" if code in CONCLUDED else f"its run ended with exit code {code}")
        replays = {one.finding: one for one in results.findings} if results is not None else {}
        layer, saved = self.options.layer if self.options.joined else "", set()
        for finding in findings:
            replay = replays.get(finding.id) or not_replayed(finding, why or "its run ended before its turn")
            replay = msgspec.structs.replace(replay, layer=layer)
            failing = results is not None and replay.result in FAILING
            verdict, reason = verdict_of(results, replay) if results is not None and failing else (None, "")
            self.log.emit("shipped", replay=replay, verdict=verdict, reason=reason)
            for case, statement in cases_of(results, replay) if results is not None and failing else ():
                if case.id not in saved:  # two findings may show one failure
                    words = case.replay.replace(folder, str(self.options.report_dir))
                    self.save_case(msgspec.structs.replace(case, layer=layer, replay=words), statement)
                saved.add(case.id)


def repaired_findings(options: Options, places: Collection[tuple[str, str]]) -> list[StoredFinding]:
    """Return the findings that a run with these options replays on the engine as it is shipped.

    None on a server, whose second start for each cell would take longer than the replays, and where the run replays
    findings only: then it is about the engine that the options name. `places`: cells and requirements.
    """
    if not options.repaired or options.findings != FIRST or options.layer == SERVER_LAYER:
        return []
    found = (one for one in applicable(options) if one.id in options.repaired)
    return [one for one in found if (one.record.found.cell, one.record.requirement) in places]


def shipped_command(options: Options, findings: Sequence[StoredFinding], *, report_dir: str) -> list[str]:
    """Return the command of a run that replays these findings without repairs, and draws nothing."""
    words = option_words(
        engine=options.engine,
        worker=options.worker,
        model=options.model,
        oracle=options.oracle,
        engine_args=shlex.join(options.engine_args),
        weight_policy=options.weight_policy,
        findings=ONLY,
        diagnose="none",
        cells=tuple(sorted({one.record.found.cell for one in findings})),
        requirements=tuple(sorted({one.record.requirement for one in findings})),
        budget=f"{max(LEAST_SECONDS, SHARE * options.seconds) + FOR_PROOFS:.0f}s",
        known_issues=options.known_issues,
        allow_not_exercised=True,
        allow_inconclusive=True,
        cache_dir=options.cache_dir,
        shared_dir=options.shared_dir,
        report_dir=report_dir,
    )
    return pytest_command(["-q", "-p", "no:cacheprovider", *words])


def not_replayed(finding: StoredFinding, why: str) -> FindingReplay:
    """Return the row of a finding that was not replayed."""
    record = finding.record
    return FindingReplay(
        finding=finding.id,
        requirement=record.requirement,
        cell=record.found.cell,
        result=ReplayResult.NOT_RUN,
        words=why,
    )


def verdict_of(results: Results, replay: FindingReplay) -> tuple[Verdict, str]:
    """Return the verdict of a replay that failed, and the reason.

    The run of replays has drawn nothing, so that another test of the requirement may be NOT EXERCISED there.
    """
    cases = [case for case, _ in cases_of(results, replay)]
    if waived := next((case.known_issue for case in cases if case.known_issue is not None), None):
        return Verdict.KNOWN_ISSUE, waived
    if remark := next((remark_of(case) for case in cases if case.is_remark), None):
        return Verdict.CONFORMS, remark
    cells = (cell for one in results.requirements if one.id == replay.requirement for cell in one.cells)
    cell = next((one for one in cells if one.cell == replay.cell), None)
    if cell is None or cell.verdict not in UNWAIVED:
        return Verdict.INCONCLUSIVE, f"not confirmed: {replay.words}"
    return cell.verdict, cell.reason


def cases_of(results: Results, replay: FindingReplay) -> Iterator[tuple[Case, str]]:
    """Yield the cases of a replay with the statements that they break.

    That is the replay's own, or, where its confirmation showed another failure, all in its place.
    """
    statement = next((one.statement for one in results.requirements if one.id == replay.requirement), "")
    here = [one for one in results.cases if (one.requirement, one.cell) == (replay.requirement, replay.cell)]
    own = [one for one in here if one.id == replay.case] or here
    yield from ((one, statement) for one in own)
