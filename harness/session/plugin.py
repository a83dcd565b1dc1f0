"""The pytest plugin: turns options into a run of requirements, with reports and an exit code.

The steps of a run:
1. Read and check the options (exit code 4 if they are wrong).
2. Create the report folder and write the first event, before any engine starts.
3. Run the self-test of the detector.
4. For each cell, start the engines and calibrate the comparison rule.
5. For each requirement, draw workloads. Confirm, waive or report a violation. Emit the verdict as an event.
6. Stop the engines. Write the reports from the events, also after Ctrl-C or a failure of the harness.
The plugin does not affect tests without a requirement, such as the project's own tests.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import call_and_report
from hypothesis import settings

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.registry import ATTACHED, ENGINES, fault_listing
from coldproof.harness.case.load import load_case
from coldproof.harness.options import SOAK, UsageError
from coldproof.harness.release.run.rules import check_items, check_qualify_options, is_qualification
from coldproof.harness.schema.exit_codes import EXIT_HARNESS, EXIT_USAGE
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.selection.command_line import add_options, read_options, report_folder, shard_of
from coldproof.harness.selection.layers import is_covered, layers_of, use_layers
from coldproof.harness.selection.order import place_in_cell
from coldproof.harness.selection.select import (
    area_of,
    cell_name,
    cells_for,
    engine_name,
    format_cells,
    is_fingerprint,
    is_selected,
    requirement_of,
    selected_cells,
    selected_requirements,
    test_name,
    trial_of,
)
from coldproof.harness.selection.shards import assign_shards
from coldproof.harness.selection.user_input import check_empty, check_names
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.autoload import names_our_suites
from coldproof.harness.session.budget import OutOfTime, TrialEnded
from coldproof.harness.session.conductor import ConformanceRun, Role
from coldproof.harness.session.hypothesis_profile import database, load_settings
from coldproof.harness.session.pytest_command import SUITES_FOLDER
from coldproof.harness.session.schedule import Schedule
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.session.terminal.quiet import is_quiet, leave_out_test_reports, quieten
from coldproof.harness.session.unfinished import Place, open_cases
from coldproof.reports.format.text import one_line

RUN = pytest.StashKey[ConformanceRun]()
MARKER = "requirement(id, needs, shows): the requirement that a conformance test stands for"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a run."""
    add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Handle `--cells list` and `--fault list`, and check some options before anything is collected."""
    for option, text in (("--cells", format_cells), ("--fault", fault_listing)):
        if config.getoption(option) == "list":
            sys.stdout.write(text() + "\n")
            return 0
    try:
        check_empty(config)
        check_names(config)
        use_layers(config)
        if is_qualification(config):
            check_qualify_options(config)
        shard_of(config)
        database(config.getoption("--examples-from"))
        selected_cells(config)
        if config.getoption("--profile") == SOAK and getattr(config.option, "numprocesses", None):
            raise UsageError("--profile soak monitors the memory and files of one process; remove -n")
    except UsageError as problem:
        sys.stderr.write(f"coldproof: {one_line(str(problem))}\n")
        return EXIT_USAGE
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed so that the run can be repeated, and load the hypothesis profile."""
    config.addinivalue_line("markers", MARKER)
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))
    spec = ENGINES.get(engine_name(config))
    quick = is_fingerprint(config) or (spec is not None and spec.many_examples)
    if is_quiet(config):
        quieten(config)
    load_settings(config.getoption("--profile"), quick=quick, examples_from=config.getoption("--examples-from"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test for each chosen cell that suits the requirement."""
    if "sut" in metafunc.fixturenames:
        cells = selected_cells(metafunc.config)
        mark = metafunc.definition.get_closest_marker("requirement")
        if mark is not None:
            cells = cells_for(mark.args[0], cells)
        metafunc.parametrize("sut", cells, indirect=True, scope="session", ids=[cell.name for cell in cells])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by cell, so that each engine starts once, and deselect the tests that the options exclude.

    --replay keeps one test of the case's requirement (`replaying`).
    """
    order = {cell.name: i for i, cell in enumerate(selected_cells(config))}
    attached = ATTACHED.name in order

    def place(item: pytest.Item) -> tuple[int, ...]:
        requirement = requirement_of(item)
        if requirement is None:
            return (-1,)
        return order.get(cell_name(item), -1), place_in_cell(requirement, attached=attached)

    items.sort(key=place)
    wanted = selected_requirements(config)
    if wanted is not None:
        keep_items(config, items, [item for item in items if is_selected(item, wanted.split(","))])
    keep_items(config, items, [i for i in items if (r := requirement_of(i)) is None or is_covered(config, r)])
    if config.getoption("--replay") is not None:
        case, _ = load_case(Path(config.getoption("--replay")), follow=True)
        able = [item for item in items if is_selected(item, [case.requirement])]
        keep_items(config, items, replaying(able, case.test))
    if config.getoption("--prove") is not None:
        keep_unfinished(config, items, Path(config.getoption("--prove")))
    try:
        if is_qualification(config) and not config.option.collectonly:
            check_items(config, items)
        keep_shard(config, items)
    except UsageError as problem:
        items.clear()  # otherwise pytest would finish the collection and open the run
        if hasattr(config, "workerinput"):  # a worker's output is not shown; write to the controller's report
            open_run(config, Role.WORKER, ()).log.emit("problem", message=str(problem), usage=True)
        pytest.exit(f"coldproof: {problem}", EXIT_USAGE)


def keep_unfinished(config: pytest.Config, items: list[pytest.Item], report: Path) -> None:
    """Deselect the tests of which the report has no unfinished case, and sort the others: the gravest cells first."""
    layers = layers_of(config)
    left = open_cases(report, layers[0].name if len(layers) == 1 else "")
    gravest: dict[str, tuple[bool, int]] = {}
    for one, cases in left.items():
        gravest[one.cell] = min(cases[0].gravity, gravest.get(one.cell, cases[0].gravity))
    if in_layers(config):
        return  # each layer's process selects its own
    kept = {item: place for item in items if (place := place_of(item)) is not None and place in left}
    keep_items(config, items, list(kept))
    items.sort(key=lambda one: (gravest[kept[one].cell], kept[one].cell, left[kept[one]][0].gravity))


def place_of(item: pytest.Item) -> Place | None:
    """Return which test of which requirement in which cell an item is; None for one without a requirement."""
    requirement = requirement_of(item)
    return None if requirement is None else Place(requirement.id, cell_name(item), test_name(item))


def keep_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --shard, deselect the tests of the other shards. Raises UsageError."""
    shard = shard_of(config)
    if shard is None:
        return
    order = {cell.name: i for i, cell in enumerate(selected_cells(config))}
    own = [(requirement, item) for item in items if (requirement := requirement_of(item)) is not None]
    own.sort(key=lambda pair: (order[cell_name(pair[1])], pair[0].id, test_name(pair[1])))
    numbers = assign_shards([requirement.weight for requirement, _ in own], shard.of)
    others = {item.nodeid for (_, item), number in zip(own, numbers, strict=True) if number != shard.number}
    keep_items(config, items, [item for item in items if item.nodeid not in others])


def replaying(items: list[pytest.Item], test: str) -> list[pytest.Item]:
    """Return the one of a requirement's tests that replays a case of one of them.

    It has the fewest needs of those that need nothing else than the case's own test. An engine without chats, say, can
    replay a case of token ids; but it need not have what another test of the requirement is about.
    """
    own = next((needs_of(item) for item in items if test_name(item) == test), None)
    able = [item for item in items if own is None or needs_of(item) <= own]
    return sorted(able, key=lambda item: len(needs_of(item)))[:1]


def needs_of(item: pytest.Item) -> frozenset[Capability]:
    """Return the capabilities that a test needs from the engine; none for one that stands for no requirement."""
    requirement = requirement_of(item)
    return frozenset() if requirement is None else frozenset(requirement.needs)


def keep_items(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    """Deselect all tests but `kept`."""
    kept_set = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept_set])
    items[:] = kept


def pytest_sessionstart(session: pytest.Session) -> None:
    """With xdist, the controlling process opens and closes the report; workers only add events to it. It collects
    nothing itself, so the test paths say whether requirements are going to be tested.
    """
    config = session.config
    parallel = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if parallel and asks_for_suites(config):
        open_run(config, Role.CONTROLLER, ())


def in_layers(config: pytest.Config) -> bool:
    """Return whether this process runs several layers, each in a process of its own."""
    return len(layers_of(config)) > 1 and not config.option.collectonly


def asks_for_suites(config: pytest.Config) -> bool:
    """Return whether a test path lies in the folder of the suites, or that folder in it."""
    return names_our_suites(config.args) or any(
        Path(word.split("::")[0]).resolve() in SUITES_FOLDER.parents for word in config.args
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open the run if any requirement will be tested, and emit the requirements."""
    config = session.config
    for name in (selected_requirements(config) or "").split(","):
        if name and not any(is_selected(item, [name]) for item in session.items) and not config.getoption("--joined"):
            pytest.exit(
                f"coldproof: unknown requirement {name!r}; --requirements takes ids like LORA-3 or areas like PRESS",
                EXIT_USAGE,
            )
    items = [(item, trial) for item in session.items if (trial := trial_of(item)) is not None]
    if config.option.collectonly or not items:
        return
    if is_quiet(config) and len(items) == len(session.items):
        leave_out_test_reports(config)
    if in_layers(config):
        open_run(config, Role.CONTROLLER, ())  # the layers' processes announce and run their own tests
        return
    parallel = getattr(config, "workerinput", {})
    worker = parallel.get("workerid")
    cells = tuple(dict.fromkeys(trial.cell for _, trial in items))
    run = open_run(config, Role.WORKER if worker or config.getoption("--joined") else Role.ALONE, cells)
    run.plan.workers = parallel.get("workercount", 1)
    # A worker of xdist takes its tests one by one, and a run up to its first failure has to prove it at once.
    single = config.option.maxfail or run.options.profile == SOAK or run.options.replay is not None
    single = single or run.options.prove is not None
    run.trials.schedule.in_rounds = worker is None and not single
    run.replays_shipped = worker in (None, "gw0")
    run.plan.expected = [(trial.cell, trial.requirement) for _, trial in items]
    if worker in (None, "gw0"):  # every worker collects the same tests
        for item, trial in items:
            run.announce(trial, area=area_of(item))


def open_run(config: pytest.Config, role: Role, cells: tuple[str, ...]) -> ConformanceRun:
    """Check the options and open the report folder. A problem ends pytest with one line.

    `cells`: the names of the cells that will be opened.
    """
    try:
        options = read_options(config, cells)
        check_options(options)
        run = ConformanceRun(options, role)
    except UsageError as problem:
        pytest.exit(f"coldproof: {problem}", returncode=EXIT_USAGE)
    except OSError as problem:
        pytest.exit(
            f"coldproof: cannot write reports to {report_folder(config)} ({problem.strerror}): "
            "choose another folder with --report-dir",
            returncode=EXIT_HARNESS,
        )
    config.stash[RUN] = run
    run.signals.install()
    config.pluginmanager.register(SignalPlugin(run))
    plugins = config.pluginmanager
    terminal = run.attach_terminal(plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager"))
    if terminal is not None:
        plugins.register(terminal)
    return run


@pytest.hookimpl(tryfirst=True)  # xdist's workers replace the loop, and a later hook would never be called
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Before the first test, run the self-test and prepare model and adapters. A failure ends the run with one line.

    Several layers run here, each with a loop of its own.
    """
    run = session.config.stash.get(RUN, None)
    if run is not None and in_layers(session.config):
        run.run_layers([*map(str, session.config.invocation_params.args), f"--hypothesis-seed={run.options.seed}"])
        return True
    if run is not None and run.role is not Role.CONTROLLER:
        run.begin()
    return None


@pytest.fixture(scope="session")
def sut(request: pytest.FixtureRequest) -> Iterator[SystemUnderTest | None]:
    """Open a cell: its engines and oracle. If they cannot start, all requirements of the cell get the verdict ERROR.

    None if no time is left for what tests of a cell that was visited before wait for.
    """
    run = request.config.stash[RUN]
    opened = run.open_cell(request.param)
    yield opened
    if opened is not None:
        run.close_cell(opened)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Begin the trial before a requirement's test, and conclude it afterwards, however the test function ended."""
    trial = trial_of(pyfuncitem)
    if trial is None:
        return (yield)
    run = pyfuncitem.config.stash[RUN]
    opened = pyfuncitem.funcargs["sut"]
    waiting = run.trials.schedule.take(pyfuncitem.nodeid)
    if waiting is not None and opened is None:
        pyfuncitem.obj = lambda **_: run.trials.conclude_unvisited(waiting)
        return (yield)
    assert isinstance(opened, SystemUnderTest)
    if waiting is not None:
        trial, test = waiting.trial, waiting.test
        pyfuncitem.obj = run.trials.resume(opened, waiting)
    else:
        test = pyfuncitem.obj
        pyfuncitem.obj = run.trials.begin(opened, trial, test)
    problem: BaseException | None = None
    ended = False
    try:
        yield
        trial.exhausted = 0 < trial.examples < settings().max_examples and not trial.aside
    except pytest.exit.Exception:
        raise
    except TrialEnded:
        problem, ended = trial.problem, True
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - it becomes the trial's verdict
        problem = failure
    if trial.waits or (ended and run.trials.has_more(trial, problem)):
        run.trials.suspend(opened, pyfuncitem.nodeid, trial, test)
    else:
        run.trials.conclude(opened, trial, problem)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test that may wait for a second visit of its cell. Only when it does not, there is a report of it."""
    run = item.config.stash.get(RUN, None)
    if run is None or requirement_of(item) is None or not run.trials.schedule.in_rounds:
        return None
    again, reports = item.nodeid in run.trials.schedule.placed, run_phases(item, run.trials.schedule)
    if again or item.nodeid not in run.trials.schedule.placed:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def run_phases(item: pytest.Item, schedule: Schedule) -> list[pytest.TestReport]:
    """Run the phases of a test as pytest does, but for the test that follows: it is known when this one has run."""
    function: Any = item
    if not function._request:  # it has run before
        function._initrequest()
    reports = [call_and_report(item, "setup", log=False)]
    if reports[0].passed:
        reports.append(call_and_report(item, "call", log=False))
    following: Any = schedule.next_after(item, item.session.items)
    if following is item:  # it is set up anew; what is above it stays
        following = item.parent
    reports.append(call_and_report(item, "teardown", log=False, nextitem=following))
    function._request, function.funcargs = False, None
    return reports


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Turn a failure to start a cell's engines into the verdict ERROR for each of its requirements.

    If a cell was not opened because the time of the run was over, they are NOT EXERCISED or UNSUPPORTED. What is known
    of one that has waited stays.
    """
    try:
        return (yield)
    except pytest.exit.Exception:
        raise
    except Exception as failure:
        trial = trial_of(item)
        if trial is not None:
            trials = item.config.stash[RUN].trials
            waiting = trials.schedule.take(item.nodeid)
            if waiting is not None:
                trials.emit_conclusion(waiting, f"its cell could not be opened again: {failure}")
                raise
            if isinstance(failure, OutOfTime):
                trials.conclude_unopened(trial, str(failure))
            trials.emit_verdict(trial, Verdict.ERROR, str(failure), None, left=None)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remove secrets from what pytest is going to print about a test: a server may have repeated them."""
    report = yield
    said = str(report.longrepr or "")
    if isinstance(report.longrepr, tuple):  # of a skipped test
        report.longrepr = (*report.longrepr[:2], redacted(report.longrepr[2]))
    elif redacted(said) != said:
        report.longrepr = redacted(said)
    report.sections = [(title, redacted(content)) for title, content in report.sections]
    return report


class SignalPlugin:
    """A pytest plugin for one run: ignores signals while the report is written, and then restores the handlers."""

    def __init__(self, run: ConformanceRun) -> None:
        self.run = run

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ignore further signals: an interrupt has reached pytest, which will now finish the session."""
        self.run.signals.finishing()
        if self.run.signals.received is not None:
            # pytest prints only the last entry; reading the sources of all entries takes seconds.
            excinfo.traceback = excinfo.traceback[-1:]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Ignore further signals: the session is finishing."""
        self.run.signals.finishing()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print the end of the run, restore the handlers, and end the process if threads would keep it."""
        self.run.reports.print_end()
        self.run.signals.restore()
        self.run.signals.leave(self.run.exit_code)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the reports and set the exit code of the run."""
    run = session.config.stash.get(RUN, None)
    if run is not None:
        session.exitstatus = run.finish(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
