"""The matrix file: kinds of machines and the runs that are to happen on them, read strictly before anything starts.

Unknown keys, engines, cells, requirements or machines are refused with one line: on a fleet a misspelt word would
otherwise cost hours, or quietly leave something out.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.cells import chosen
from harness.command_line import default_oracle
from harness.known_issues import read_known_issues
from harness.options import QUALIFY, Options, UsageError
from harness.qualify.frozen import current
from harness.selection import check_cells

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]  # it becomes part of a folder's name
Share = Annotated[float, msgspec.Meta(ge=0)]
# What the fleet gives each run itself, what would make a run something else, and what no unattended run can use.
OURS = (
    "--engine",
    "--engine-url",
    "--cells",
    "--requirements",
    "--profile",
    "--budget",
    "--hypothesis-seed",
    "--known-issues",
    "--shard",
    "--report-dir",
    "--worker",
    "--oracle",
    "--fault",
    "--replay",
    "--pdb",
    "--collect-only",
)


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine: what Ray has to find free on a node for one run. Each kind is a column of the report.

    `runtime_env` is Ray's own, for what a run needs there: pip packages, environment variables, a container image.
    """

    name: Name
    num_cpus: Share = 1
    num_gpus: Share = 0
    accelerator_type: str = ""
    resources: dict[str, Share] = {}
    runtime_env: dict[str, Any] = {}


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine, each of its cells with each seed on each of these machines. Without cells: the profile's, in one run.

    `shards`: each of these runs is cut into so many parts. `python`: what starts it where Ray's own has no engine.
    """

    engine: str
    machines: tuple[str, ...]
    name: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z")] = ""  # "": the engine's
    cells: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...] = (1,)
    shards: Annotated[int, msgspec.Meta(ge=1)] = 1
    requirements: tuple[str, ...] = ()
    profile: str = "smoke"
    budget: str = ""
    worker: str = "model"
    oracle: str = ""
    engine_url: str = ""
    known_issues: str = ""  # beside the matrix file, or an absolute path
    options: tuple[str, ...] = ()
    python: str = ""

    @property
    def label(self) -> str:
        """What the report calls it."""
        return self.name or self.engine

    @property
    def attached(self) -> str | None:
        """The server's address, where it is somebody else's."""
        return self.engine_url or None


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a fleet is to do."""

    machine: tuple[Machine, ...]
    run: tuple[Run, ...]


def read_matrix(path: Path) -> Matrix:
    """The file, checked. Raises UsageError with the place of the fault."""
    try:
        matrix = msgspec.convert(tomllib.loads(path.read_text()), Matrix)
        check(matrix, path.parent)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, UsageError) as problem:
        said = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise UsageError(f"cannot use the matrix {path}: {said}") from problem
    return matrix


def check(matrix: Matrix, folder: Path) -> None:
    """Raise UsageError for a matrix of which some run could not begin, or that runs something twice."""
    if not matrix.run:
        raise UsageError("it has no [[run]]")
    known = once("machine", (machine.name for machine in matrix.machine))
    once("run", (run.label for run in matrix.run))
    for run in matrix.run:
        try:
            for machine in run.machines:
                if machine not in known:
                    raise UsageError(f"there is no [[machine]] {machine!r}: there are {', '.join(known) or 'none'}")
            check_run(run, folder)
        except UsageError as problem:
            raise UsageError(f"run {run.label!r}: {problem}") from problem


def once(what: str, names: Iterable[str]) -> list[str]:
    """The names. Raises UsageError where one is there twice."""
    counted = Counter(names)
    twice = [name for name, times in counted.items() if times > 1]
    if twice:
        raise UsageError(f"two of its {what}s are called {twice[0]!r}: give them different names")
    return list(counted)


def check_run(run: Run, folder: Path) -> None:
    """Raise UsageError for a run that a single machine would refuse."""
    for what, values in (("machines", run.machines), ("seeds", run.seeds)):
        if not values or len(set(values)) < len(values):
            raise UsageError(f"{what} = {list(values)}: name each once, and at least one")
    given = [word.partition("=")[0] for word in run.options]
    for word in given:
        if word in OURS:
            raise UsageError(f"options: {word} is not for a fleet's run; what a run may have is a key of [[run]]")
    noise = value_of("--noise", run.options)
    exact = run.worker == "fingerprint" and noise is None
    Options(
        engine=run.engine,
        engine_url=run.attached,
        profile=run.profile,
        budget=run.budget or None,
        worker=run.worker,
        oracle=run.oracle or default_oracle(run.engine, run.attached, exact),
        model=value_of("--model", run.options),
        noise=noise,
        report_dir=folder,
    ).check()
    if run.profile == QUALIFY and (run.cells or run.requirements):
        raise UsageError("profile 'qualify' tests everything there is: leave out cells and requirements")
    once("cell", run.cells)
    if run.cells and run.attached:
        raise UsageError("a server that is there already is its own cell: leave out cells")
    check_cells(chosen(run.cells), engine=run.engine, fingerprint=run.worker == "fingerprint")
    check_requirements(run.requirements)
    read_known_issues(known_issues(run, folder))


def value_of(option: str, words: Iterable[str]) -> str | None:
    """What is given with an option, as a word of its own or behind an equals sign; None where it is not given."""
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else next(left, "")
    return None


def check_requirements(names: tuple[str, ...]) -> None:
    """Raise UsageError for a requirement that the suite has not."""
    ids = {test.declared.id for test in current()[0].tests}
    for name in names:
        if name not in ids and name not in {one.rpartition("-")[0] for one in ids}:
            raise UsageError(f"no requirement {name!r}: write ids, such as LORA-3, or an area, such as LORA")


def known_issues(run: Run, folder: Path) -> Path | None:
    """A run's waivers, seen from the matrix file's folder."""
    return folder / run.known_issues if run.known_issues else None
