"""Replays findings for `coldproof findings --replay`: one run of the suites for each engine, worker and model.

All cases of a cell share the engine of that run. A case whose engine is not installed is not replayed, with the reason,
nor is one that needs a trained model which nobody has fetched.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.registry import ATTACHED, CELLS, ENGINES
from coldproof.harness.case.finding_records import is_regression, waivers_of
from coldproof.harness.case.repairs import NONE, chosen_repairs
from coldproof.harness.cli.io import USAGE
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.trained import TRAINED, folder_of
from coldproof.harness.option_table import option_words
from coldproof.harness.options import ONLY
from coldproof.harness.schema.exit_codes import CONCLUDED
from coldproof.harness.schema.findings import FindingRecord, FindingReplay, ReplayResult
from coldproof.harness.schema.results import results_in
from coldproof.harness.session.pytest_command import pytest_command


class Outcome(msgspec.Struct, frozen=True):
    """The result of a replay. `version`: of the engine. `broken`: the run itself failed.

    `repaired`: the engine had a repair that removes the case.
    """

    record: FindingRecord
    result: ReplayResult
    words: str = ""
    version: str = ""
    seconds: float = 0.0
    broken: bool = False
    repaired: bool = False

    @property
    def as_recorded(self) -> bool:
        """Return whether the replay shows what the record says. A finding that takes luck may also pass."""
        fixed = self.repaired or is_regression(self.record, self.version)
        if self.result is ReplayResult.PASSES:
            return fixed or self.record.rate is not None
        return self.result is ReplayResult.FAILS and not fixed


def replays_of(
    records: Sequence[FindingRecord], folder: Path, say: Callable[[str], None], repairs: str = NONE
) -> Iterator[Outcome]:
    """Yield the outcome of each finding, engine by engine. `repairs`: the option --repairs.

    Raises UsageError for repairs that fit none of these engines.
    """
    groups: dict[tuple[str, str, str], list[FindingRecord]] = defaultdict(list)
    for record in records:
        if why := obstacle(record) or (repairs != NONE and no_repairs(record)):
            yield Outcome(record, ReplayResult.NOT_RUN, why)
        else:
            groups[record.found.adapter, record.found.worker, record.found.model or ""].append(record)
    for key, group in groups.items():
        name = "-".join(filter(None, key))
        say(f"replaying findings of {name}: {len(group)}")
        yield from run_group(group, folder / name, repairs)


def obstacle(record: FindingRecord) -> str:
    """Return why a finding cannot be replayed here; empty if it can."""
    if record.no_case is not None:
        return record.no_case
    if record.found.cell == ATTACHED.name:
        return "found on a server that was attached to: its case names the command for a server of yours"
    spec, cell = ENGINES.get(record.found.adapter), CELLS.get(record.found.cell)
    if spec is None or spec.start is None or cell is None:
        return f"Coldproof does not start {record.found.adapter} in the cell {record.found.cell}"
    if not spec.installed:
        return f"not installed: {', '.join(spec.packages)}"
    if not cell.installed:
        return f"the cell {cell.name} needs the package {cell.package}"
    model = record.found.model
    if model and not folder_of(TRAINED[model], generated_files()).is_dir():
        return f"it needs a trained model: coldproof model {model}"
    return cell.obstacle(spec.name, record.found.worker) or ""


def no_repairs(record: FindingRecord) -> str:
    """Return why the engine of a finding takes no repairs; empty if it does."""
    spec = ENGINES.get(record.found.adapter)
    return "" if spec is not None and spec.repairs is not None else f"{record.found.adapter} takes no repairs"


def run_group(group: Sequence[FindingRecord], folder: Path, repairs: str = NONE) -> Iterator[Outcome]:
    """Replay the findings of one engine, worker and model in one run, and yield their outcomes."""
    planted = chosen_repairs(group[0].found.adapter, repairs)
    words = command_of(group, folder, repairs=repairs if planted else None)
    code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    results = None if code.returncode == USAGE else results_in(folder)  # another run's, if this one was refused
    if results is None or code.returncode not in CONCLUDED:
        why = (
            results.problem
            if results is not None and results.problem
            else f"its run ended with exit code {code.returncode}"
        )
        if results is None or not results.findings:
            yield from (Outcome(record, ReplayResult.NOT_RUN, f"{why}; see {folder}", broken=True) for record in group)
            return
    replays = {(one.finding): one for one in results.findings}
    version = results.engine.version if results.engine is not None and results.engine.version else ""
    mended = {name for repair in planted for name in repair.mends}
    for record in group:
        yield outcome(record, replays.get(record.id), version, repaired=record.id in mended)


def outcome(record: FindingRecord, replay: FindingReplay | None, version: str, *, repaired: bool = False) -> Outcome:
    """Return the outcome of one finding of a run. `repaired`: a repair that removes its case was in the engine."""
    if replay is None:
        return Outcome(record, ReplayResult.NOT_RUN, "the run ended before its turn", version, broken=True)
    return Outcome(record, replay.result, replay.words, version, replay.seconds, repaired=repaired)


def command_of(group: Sequence[FindingRecord], folder: Path, *, repairs: str | None = None) -> list[str]:
    """Return the command of a run that replays these findings and draws nothing."""
    found = group[0].found
    words = option_words(
        engine=found.adapter,
        worker=found.worker,
        findings=ONLY,
        diagnose="none",
        repairs=repairs,
        model=found.model,
        cells=tuple(sorted({record.found.cell for record in group})),
        requirements=tuple(sorted({record.requirement for record in group})),
        known_issues=waivers_of(group[0].engine),
        allow_not_exercised=True,
        allow_inconclusive=True,
        report_dir=folder.absolute(),
    )
    return pytest_command(["-q", *words])
