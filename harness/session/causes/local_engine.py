"""On which engine a case is replayed under repairs: on one like that of the run, or on a local one of its release."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from coldproof.adapters.registry import ATTACHED, CELLS, ENGINES, plain_cell
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.layer import EXACT_LAYER, SERVER_LAYER, Layer
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.case.replay_command import worker_of
from coldproof.harness.case.tested_engine import tested_engine
from coldproof.harness.option_table import REPORT
from coldproof.harness.options import FINGERPRINT, OFF, Options
from coldproof.harness.schema.attribution import Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord
from coldproof.harness.schema.oracles import CLOSED_FORM, is_other_engine
from coldproof.harness.selection.command_line import default_oracle

IN_PROCESS_SECONDS = 120.0  # for a replay, which takes one or two on an idle machine, and a hang a minute
UNHURRIED_SECONDS = 600.0  # outside a run, also with the starts of servers, which take a minute each on a busy machine

NOT_INSTALLED = "no engine of its release that takes repairs is installed here"


class LocalEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that takes repairs: the options of a run on it, and the cell. `basis`: what its replays show.

    `repairs`: those that its release can have and the run has not planted already. `seconds`: for one replay. `absent`:
    the findings about code that is not installed, which can be no cause of what fails on it.
    """

    options: Options
    cell: str
    basis: Basis
    repairs: list[Repair]
    seconds: float
    absent: frozenset[str] = frozenset()

    def possible(self, records: Iterable[FindingRecord]) -> list[FindingRecord]:
        """Return those of these findings that this engine can have."""
        return [one for one in records if one.id not in self.absent]


def engine_of_case(case: Case, *, model: str | None = None) -> LocalEngine | str:
    """Return the engine for the replays of a saved case, outside a run, or why there is none, as a clause.

    `model`: the trained one that the case needs.
    """
    if (case.cell != ATTACHED.name and case.cell not in CELLS) or case.engine not in ENGINES:
        return f"{case.engine} with the cell {case.cell} is not known here"
    url = "" if case.cell == ATTACHED.name else None  # of a server that is no longer there
    worker = worker_of(case.engine_config)
    other = case.oracle.split()[0] if is_other_engine(case.oracle) else None
    options = Options(
        engine=case.engine,
        engine_url=url,
        worker=worker,
        model=model,
        oracle=other or default_oracle(case.engine, url, worker == FINGERPRINT),
        report_dir=Path(REPORT),  # each replay has a folder of its own
        findings=OFF,
        cells=(case.cell,),
    )
    return local_engine(options, case, hurried=False)


def local_engine(options: Options, case: Case, *, hurried: bool = True) -> LocalEngine | str:
    """Return the engine for the replays of a case of a run with these options, or why there is none, as a clause.

    `hurried`: there is no time to start servers for them, as in a run.
    """
    spec = tested_engine(case)
    if spec is None or spec.repairs is None:
        return f"{case.engine} takes no repairs"
    planted = {one.name for one in options.repairs}
    known = read_repairs(spec.repairs.findings).values()
    release = installed_release(spec)
    if not release:
        return NOT_INSTALLED
    fitting = [one for one in known if one.is_for(release) and not one.absent]
    left = [one for one in fitting if one.name not in planted]
    absent = frozenset(name for one in known if one.absent for name in one.mends)
    seconds = IN_PROCESS_SECONDS if hurried else UNHURRIED_SECONDS
    if not options.attached and (options.layer != SERVER_LAYER or not hurried):
        own = msgspec.structs.replace(options, findings=OFF, known_issues=None, proposals=None, replay=None)
        return LocalEngine(
            options=own, cell=case.cell, basis=Basis.REPAIR, repairs=left, seconds=seconds, absent=absent
        )
    if not fitting or not same_release(release, case.engine_version):
        return NOT_INSTALLED
    if not any(one.name == EXACT_LAYER for one in spec.more_layers):
        return "its repairs are not tried on a server"
    layer = local_layer(spec, None if options.attached else case.cell)
    if layer is None:
        return "its cell takes a server, on which repairs are not tried"
    cell = plain_cell(layer.engine).name if options.attached else case.cell
    within = Options(
        engine=layer.engine,
        worker=layer.worker,
        oracle=CLOSED_FORM if layer.worker == FINGERPRINT else options.oracle,
        profile=options.profile,
        budget=options.budget,
        report_dir=options.report_dir,
        cache_dir=options.cache_dir,
        findings=OFF,
        fault=options.fault if not options.attached else None,
        repairs=options.repairs,
        weight_policy=options.weight_policy,
        cells=(cell,),
    )
    return LocalEngine(options=within, cell=cell, basis=Basis.LOCAL, repairs=left, seconds=seconds, absent=absent)


def local_layer(spec: EngineSpec, cell: str | None) -> Layer | None:
    """Return the layer in process on which what failed on a server is replayed; None if none has its cell.

    `cell`: None: that of an attached server, which no layer has. Some cells need a model that computes.
    """
    if cell is None:
        return next(one for one in spec.more_layers if one.name == EXACT_LAYER)
    having = (one for one in spec.more_layers if cell in CELLS and CELLS[cell].fits(one.engine, one.worker))
    return next(having, None)


def installed_release(spec: EngineSpec) -> str:
    """Return the installed release of an engine; "" if it is not installed."""
    try:
        return importlib.metadata.version(spec.packages[0]) if spec.packages else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def same_release(installed: str, version: str | None) -> bool:
    """Return whether a server's version is the release that is installed. How it was built may differ."""
    try:
        return Version(installed).public == Version(version or "").public
    except InvalidVersion:
        return False
