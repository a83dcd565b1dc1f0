"""The matrix file: kinds of machines, and the runs on them; and the units of work that follow from it.

The file is validated before anything starts. Unknown keys, engines, cells, requirements and machines are refused with
one line. On a fleet, a misspelt word could cost hours or silently leave something out.

A unit is one cell and one seed of a run, on one kind of machine: a separate `pytest suites`. Its id describes it and is
the same at every start of the fleet. Its digest also covers the sources and the known issues: a finished unit is not
run again while its digest is the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from coldproof.harness.case.known_issues import named_issues, read_known_issues
from coldproof.harness.fleet.node import KNOWN_ISSUES
from coldproof.harness.option_table import option_value, option_words
from coldproof.harness.options import FINGERPRINT, QUALIFY, Options, UsageError
from coldproof.harness.release.requirements.statements import statements
from coldproof.harness.release.run.record import digest_of
from coldproof.harness.schema.stored_files import read_toml
from coldproof.harness.selection.command_line import default_oracle
from coldproof.harness.selection.select import cells_named, check_cells
from coldproof.harness.selection.validation import check_options

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]  # it becomes part of a folder's name
PROFILE_CELLS = "profile"  # replaces the cell's name if the profile chooses the cells
Share = Annotated[float, msgspec.Meta(ge=0)]
# Options that the fleet sets itself, that would change the kind of run, or that an unattended run cannot use.
FORBIDDEN_OPTIONS = (
    *("--engine", "--engine-url", "--cells", "--requirements", "--profile", "--budget", "--hypothesis-seed"),
    *("--known-issues", "--shard", "--report-dir", "--worker", "--oracle"),
    *("--fault", "--repairs", "--replay", "--pdb", "--collect-only"),
)


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine: the resources that one run needs on a node. The report has columns for each kind.

    `runtime_env` is Ray's option for what a run needs there: pip packages, environment variables, a container image.
    """

    name: Name
    num_cpus: Share = 1
    num_gpus: Share = 0
    accelerator_type: str = ""
    resources: dict[str, Share] = {}
    runtime_env: dict[str, Any] = {}


class MatrixRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine: a unit for each of its cells, seeds and machines. Without cells, one unit runs the profile's cells.

    `shards`: the number of shards of each unit. `python`: the interpreter, if Ray's own has no engine installed.
    """

    engine: str
    machines: tuple[str, ...]
    name: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z")] = ""  # "": the engine's
    cells: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...] = (1,)
    shards: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    requirements: tuple[str, ...] = ()
    profile: str = "smoke"
    budget: str = ""
    worker: str = "model"
    oracle: str = ""
    engine_url: str = ""
    known_issues: str = ""  # an engine, a path relative to the matrix file, or an absolute path
    options: tuple[str, ...] = ()
    python: str = ""

    @property
    def label(self) -> str:
        """The name in the report."""
        return self.name or self.engine

    @property
    def attached(self) -> str | None:
        """The URL of an attached server; None if Coldproof starts the engine."""
        return self.engine_url or None


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a matrix file."""

    machine: tuple[Machine, ...]
    run: tuple[MatrixRun, ...]


def read_matrix(path: Path) -> Matrix:
    """Read and check the file. Raises UsageError that names the place of the error."""
    try:
        matrix = msgspec.convert(read_toml(path), Matrix)
        check(matrix, path.parent)
    except (OSError, msgspec.MsgspecError, UsageError) as problem:
        said = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise UsageError(f"cannot use the matrix {path}: {said}") from problem
    return matrix


def check(matrix: Matrix, folder: Path) -> None:
    """Raise UsageError if a run could not start, or if a name occurs twice."""
    if not matrix.run:
        raise UsageError("there is no [[run]]")
    known = unique_names("machine", (machine.name for machine in matrix.machine))
    unique_names("run", (run.label for run in matrix.run))
    for run in matrix.run:
        try:
            for machine in run.machines:
                if machine not in known:
                    raise UsageError(
                        f"there is no [[machine]] {machine!r}; existing machines: {', '.join(known) or 'none'}"
                    )
            check_run(run, folder)
        except UsageError as problem:
            raise UsageError(f"run {run.label!r}: {problem}") from problem


def unique_names(what: str, names: Iterable[str]) -> list[str]:
    """Return the names. Raises UsageError if a name occurs twice."""
    counted = Counter(names)
    twice = [name for name, times in counted.items() if times > 1]
    if twice:
        raise UsageError(f"two {what}s have the name {twice[0]!r}; give them different names")
    return list(counted)


def check_run(run: MatrixRun, folder: Path) -> None:
    """Raise UsageError for a run that a single machine would refuse too."""
    for what, values in (("machines", run.machines), ("seeds", run.seeds)):
        if not values or len(set(values)) < len(values):
            raise UsageError(f"{what} = {list(values)}: give at least one, and each only once")
    given = [word.partition("=")[0] for word in run.options]
    for word in given:
        if word in FORBIDDEN_OPTIONS:
            raise UsageError(f"options: {word} cannot be used in a fleet; see the keys of [[run]]")
    noise = option_value("--noise", run.options)
    exact = run.worker == FINGERPRINT and noise is None
    options = Options(
        engine=run.engine,
        engine_url=run.attached,
        profile=run.profile,
        budget=run.budget or None,
        worker=run.worker,
        oracle=run.oracle or default_oracle(run.engine, run.attached, exact),
        model=option_value("--model", run.options),
        noise=noise,
        report_dir=folder,
    )
    check_options(options)
    if run.profile == QUALIFY and (run.cells or run.requirements):
        raise UsageError("profile 'qualify' runs the whole suite: leave out cells and requirements")
    unique_names("cell", run.cells)
    if run.cells and run.attached:
        raise UsageError("an attached server has one cell of its own: leave out cells")
    check_cells(cells_named(run.cells), engine=run.engine, worker=run.worker)
    check_requirements(run.requirements)
    read_known_issues(known_issues_path(run, folder))


def check_requirements(names: tuple[str, ...]) -> None:
    """Raise UsageError for a requirement that the suites do not have."""
    known = {name for one in statements() for name in (one, one.rpartition("-")[0])}
    for name in names:
        if name not in known:
            raise UsageError(f"no requirement {name!r}; give ids such as LORA-3, or an area such as LORA")


def known_issues_path(run: MatrixRun, folder: Path) -> Path | None:
    """Return the path of a run's known issues. `folder` is the folder of the matrix file."""
    return named_issues(run.known_issues, folder) if run.known_issues else None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suites. `cell`: "" for the profile's cells; `shard`: "" for a whole run; `waivers`: their file."""

    machine: Machine
    run: MatrixRun
    cell: str
    seed: int
    shard: str
    waivers: Path | None

    @property
    def id(self) -> str:
        """The id, which is also the name of the unit's folder."""
        part = f"-{self.shard.replace('/', 'of')}" if self.shard else ""
        return f"{self.run.label}-{self.machine.name}-{self.cell or PROFILE_CELLS}-seed{self.seed}{part}"

    def column(self, cell: str) -> str:
        """Return the name of a cell's column in the merged report."""
        return f"{self.machine.name} / {self.run.label} / {cell}"

    def digest(self, sources: str) -> str:
        """Return the digest of everything that defines the unit: machine, run, cell, seed, shard, waivers, sources."""
        waivers = digest_of(self.waivers) if self.waivers is not None else ""
        definition = (self.machine, self.run, self.cell, self.seed, self.shard, waivers, sources)
        return hashlib.sha256(msgspec.json.encode(definition, order="deterministic")).hexdigest()

    def words(self, report: str) -> list[str]:
        """Return the arguments of `coldproof run` on a node. `report`: the report folder, from the run's own folder."""
        run = self.run
        words = option_words(
            engine=run.engine,
            engine_url=run.engine_url,
            cells=self.cell,
            requirements=run.requirements,
            profile=run.profile,
            budget=run.budget,
            worker=run.worker,
            oracle=run.oracle,
            shard=self.shard,
            report_dir=report,
            known_issues=KNOWN_ISSUES if self.waivers is not None else None,
        )
        return [*words, f"--hypothesis-seed={self.seed}", *run.options]


def units_of(matrix: Matrix, folder: Path) -> list[Unit]:
    """Return all units, ordered by run, machine, cell, seed and shard. `folder` is the folder of the matrix file.

    Raises UsageError if two units have the same id, which names with dashes can cause.
    """
    machines = {machine.name: machine for machine in matrix.machine}
    units = [
        Unit(
            machine=machines[name],
            run=run,
            cell=cell,
            seed=seed,
            shard=f"{number}/{run.shards}" if run.shards > 1 else "",
            waivers=known_issues_path(run, folder),
        )
        for run in matrix.run
        for name in run.machines
        for cell in run.cells or ("",)
        for seed in run.seeds
        for number in range(1, run.shards + 1)
    ]
    unique_names("unit", (unit.id for unit in units))
    return units
