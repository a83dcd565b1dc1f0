"""The pytest plugin: options in, a run of requirements through, reports and an exit code out.

A run, step by step:
1. options are read and checked (exit code 4 says what is wrong with them);
2. the report folder is made and the first event written, before any engine costs time;
3. the detector's self-test;
4. for each cell: engines start, the comparison rule is calibrated;
5. each requirement's test draws workloads; what it broke is confirmed, waived or reported; its verdict is an event;
6. engines stop; the reports are drawn from the events, also after Ctrl-C or a failure of the harness.
Tests without a requirement (the project's own) are left alone.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.budget import BudgetSpent
from harness.cases import load_case
from harness.cells import cells_for, listing
from harness.command_line import add_options, read_options, shard_of
from harness.conduct import Conductor, Role
from harness.engines.kinds import KINDS
from harness.faults import catalogue as faults
from harness.lab import Lab
from harness.options import SOAK, UsageError
from harness.qualify.rules import check_given, check_items, is_qualification
from harness.requirement import Trial
from harness.selection import (
    cell_name,
    cells_of,
    engine_of,
    is_fingerprint,
    is_wanted,
    requirement_of,
    statement_of,
    test_name,
    wanted_requirements,
)
from harness.settings import database, load_settings
from harness.shards import cut

CONDUCTOR = pytest.StashKey[Conductor]()
EXIT_HARNESS, EXIT_USAGE = 3, 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ours, in a group of their own."""
    add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """`--cells list` prints and ends; a cell or case that does not exist ends before anything is collected."""
    for option, text in (("--cells", listing), ("--fault", faults.listing)):
        if config.getoption(option) == "list":
            sys.stdout.write(text() + "\n")
            return 0
    try:
        if is_qualification(config):
            check_given(config)
        shard_of(config)
        database(config.getoption("--examples-from"))
        cells_of(config)
        if config.getoption("--profile") == SOAK and getattr(config.option, "numprocesses", None):
            raise UsageError("--profile soak watches one run's memory and files: leave out -n")
    except UsageError as problem:
        sys.stderr.write(f"coldproof: {problem}\n")
        return EXIT_USAGE
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed so that the run can be repeated, and have hypothesis keep to our profile."""
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))
    quick = is_fingerprint(config) or engine_of(config) in KINDS
    load_settings(config.getoption("--profile"), quick=quick, examples_from=config.getoption("--examples-from"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each cell that its requirement is for."""
    if "lab" in metafunc.fixturenames:
        cells = cells_of(metafunc.config)
        mark = metafunc.definition.get_closest_marker("requirement")
        if mark is not None:
            cells = cells_for(mark.args[0].id, cells)
        metafunc.parametrize("lab", cells, indirect=True, scope="session", ids=[cell.name for cell in cells])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a cell run together, so that its engine starts once. With --requirements theirs stay, with --replay one
    test of the case's requirement."""
    order = {cell.name: i for i, cell in enumerate(cells_of(config))}
    items.sort(key=lambda item: order.get(cell_name(item), -1) if requirement_of(item) is not None else -1)
    wanted = wanted_requirements(config)
    if wanted is not None:
        keep(config, items, [item for item in items if is_wanted(item, wanted.split(","))])
    if config.getoption("--replay") is not None:
        case, _ = load_case(Path(config.getoption("--replay")))
        keep(config, items, [item for item in items if is_wanted(item, [case.requirement])][:1])
    try:
        if is_qualification(config) and not config.option.collectonly:
            check_items(config, items)
        keep_shard(config, items)
    except UsageError as problem:
        items.clear()  # or pytest, which ends a collection in any case, would have the run opened
        if hasattr(config, "workerinput"):  # nobody reads what a worker says; the controller's report is open by now
            open_run(config, Role.WORKER, ()).log.emit("problem", message=str(problem), usage=True)
        pytest.exit(f"coldproof: {problem}", EXIT_USAGE)


def keep_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --shard the tests of the other shards go; all machines cut alike. Raises UsageError."""
    shard = shard_of(config)
    if shard is None:
        return
    order = {cell.name: i for i, cell in enumerate(cells_of(config))}
    own = [(requirement, item) for item in items if (requirement := requirement_of(item)) is not None]
    own.sort(key=lambda pair: (order[cell_name(pair[1])], pair[0].id, test_name(pair[1])))
    numbers = cut([requirement.weight for requirement, _ in own], shard.of)
    others = {item.nodeid for (_, item), number in zip(own, numbers, strict=True) if number != shard.number}
    keep(config, items, [item for item in items if item.nodeid not in others])


def keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    """Deselect all others."""
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_sessionstart(session: pytest.Session) -> None:
    """With xdist, the controlling process opens and closes the report; workers only add events to it. It collects
    nothing itself, so what Coldproof's own tests are it has to tell by their folder."""
    parallel = getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput")
    if parallel and not are_own_tests(session.config):
        open_run(session.config, Role.CONTROLLER, ())


def are_own_tests(config: pytest.Config) -> bool:
    """Whether nothing but the project's own tests is asked for, in which no requirement is tested."""
    own = Path(config.rootpath) / "tests"
    asked = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return bool(asked) and all(own in (path, *path.parents) for path in asked)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open the run if any requirement is going to be tested, and announce what will be."""
    config = session.config
    for name in (wanted_requirements(config) or "").split(","):
        if name and not any(is_wanted(item, [name]) for item in session.items):
            pytest.exit(
                f"coldproof: no requirement {name!r} here: --requirements takes ids, such as LORA-3", EXIT_USAGE
            )
    items = [(item, requirement_of(item)) for item in session.items]
    if config.option.collectonly or not any(r for _, r in items):
        return
    parallel = getattr(config, "workerinput", {})
    worker = parallel.get("workerid")
    cells = tuple(dict.fromkeys(cell_name(item) for item, requirement in items if requirement is not None))
    conductor = open_run(config, Role.WORKER if worker else Role.ALONE, cells)
    conductor.workers = parallel.get("workercount", 1)
    conductor.expected = [(cell_name(item), r) for item, r in items if r is not None]
    for item, requirement in items:
        if requirement is not None and worker in (None, "gw0"):  # every worker collects the same tests
            conductor.announce(requirement, cell_name(item), statement_of(item), test_name(item))


def open_run(config: pytest.Config, role: Role, cells: tuple[str, ...]) -> Conductor:
    """Check options and open the report folder. What is wrong with them ends the run here, in one line.

    `cells`: those that are going to be opened.
    """
    try:
        options = read_options(config, cells)
        options.check()
        conductor = Conductor(options, Path(config.rootpath), role)
    except UsageError as problem:
        pytest.exit(f"coldproof: {problem}", returncode=EXIT_USAGE)
    except OSError as problem:
        pytest.exit(
            f"coldproof: cannot write reports to {config.getoption('--report-dir')} ({problem.strerror}): "
            "choose another folder with --report-dir",
            returncode=EXIT_HARNESS,
        )
    config.stash[CONDUCTOR] = conductor
    plugins = config.pluginmanager
    conductor.attach_terminal(plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager"))
    if conductor.terminal is not None:
        plugins.register(conductor.terminal)
    return conductor


def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first test: the self-test, model and adapters. A failure becomes the report's one clear line."""
    conductor = session.config.stash.get(CONDUCTOR, None)
    if conductor is not None and conductor.role is not Role.CONTROLLER:
        conductor.begin()


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The cell's engines and oracle. A failure to start them concerns every requirement of the cell."""
    conductor = request.config.stash[CONDUCTOR]
    opened = conductor.open_lab(request.param)
    yield opened
    conductor.close_lab(opened)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Around a requirement's test: begin its trial, and conclude it whatever way the test function ended."""
    requirement = requirement_of(pyfuncitem)
    if requirement is None:
        return (yield)
    conductor = pyfuncitem.config.stash[CONDUCTOR]
    opened = pyfuncitem.funcargs["lab"]
    assert isinstance(opened, Lab)
    trial = Trial(requirement, cell_name(pyfuncitem), statement_of(pyfuncitem), test_name(pyfuncitem))
    pyfuncitem.obj = conductor.what_to_run(opened, trial, pyfuncitem.obj)
    problem: BaseException | None = None
    try:
        yield
    except pytest.exit.Exception:
        raise
    except BudgetSpent:
        pass
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - it becomes the trial's verdict
        problem = failure
    conductor.conclude(opened, trial, problem)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Whatever keeps a cell's engines from starting is an ERROR of each of its requirements."""
    try:
        return (yield)
    except pytest.exit.Exception:
        raise
    except Exception as failure:
        requirement = requirement_of(item)
        if requirement is not None:
            trial = Trial(requirement, cell_name(item), statement_of(item), test_name(item))
            item.config.stash[CONDUCTOR].fail_trial(trial, failure)
        raise


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the reports and set the exit code of the contract."""
    conductor = session.config.stash.get(CONDUCTOR, None)
    if conductor is not None:
        session.exitstatus = conductor.finish(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
