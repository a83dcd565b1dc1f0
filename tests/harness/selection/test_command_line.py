"""Bad input ends the run with one clear line, the right exit code and no traceback, and a run that began always
reports.

Each test is a run of its own: `pytest suites ...`. No engine starts, because a stub replaces vLLM. The processes are
forked from one that has imported Coldproof, and the tests that end before a run begins share a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support import report_samples
from support.fake_reply import ServerBehaviour
from support.fake_server import serving
from support.one_after_another import outcomes
from support.paths import ROOT
from support.suite_runs import forked_pytest

from coldproof import IMPORT_ROOT
from coldproof.adapters.common import forked
from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.registry import CELLS
from coldproof.harness.option_table import OPTIONS
from coldproof.harness.option_words import join_values
from coldproof.harness.schema.case import SCHEMA_VERSION
from coldproof.harness.schema.results import Results, encode, read_results
from coldproof.harness.session.pytest_command import PLUGIN

DECLARED = re.compile(r'@requirement\(\s*"([A-Z]+-\d+)"')
# Only what a run needs: other plugins take as long to import as the run itself.
PLUGINS = ("-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "one_look")
# Loaded with `-p`: attaching looks once instead of for ten seconds.
ONE_LOOK = """import tenacity
from coldproof.adapters.server import attach
attach.wait_until_reachable.retry.stop = tenacity.stop_after_attempt(1)
"""
USAGE, HARNESS, NOTHING, NOT_SHOWN = 4, 3, 5, 6


class Run:
    """A finished run of the suites, with its exit code, its output, and its report folder."""

    def __init__(self, code: int, said: str, report: Path) -> None:
        self.code, self.said, self.report = code, said, report

    @property
    def results(self) -> Results:
        """Return the validated data of the report."""
        return read_results(self.report / "results.json")

    def clear_line(self) -> str:
        """Return the one line that says what to do. Fail for several lines, none, or a traceback."""
        assert "Traceback" not in self.said
        assert "INTERNALERROR" not in self.said
        (line,) = [line for line in self.said.splitlines() if "coldproof:" in line]
        return line


def words(report: Path, *arguments: str | Path) -> list[str]:
    """Return the arguments of pytest for a run."""
    return ["suites", *PLUGINS, "--report-dir", str(report), *map(str, arguments)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a run."""
    stub = tmp_path_factory.mktemp("stub")
    (stub / "vllm").mkdir()
    (stub / "vllm" / "__init__.py").write_text("raise SystemExit('the unit tests start no engine')\n")
    (stub / "one_look.py").write_text(ONE_LOOK)
    inherited = {name: text for name, text in os.environ.items() if name not in (KEY_VARIABLE, "PYTEST_ADDOPTS")}
    return {
        **inherited,
        "PYTHONPATH": f"{stub}:{IMPORT_ROOT}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # compiling anew would double the time of each run
    }


Coldproof = Callable[..., Run]


@pytest.fixture(scope="module")
def imported(environment: dict[str, str]) -> str:
    """Return the address of a fork server of that environment, which has imported Coldproof."""
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        server, address = forked.begin(PLUGIN)
        forked.await_imports(server, address)
    return str(address)


@pytest.fixture
def coldproof(tmp_path: Path, environment: dict[str, str], imported: str) -> Coldproof:
    """Return a function that runs the suites with its arguments, and reports into `tmp_path / "report"`."""

    def run(*arguments: str | Path, report: Path = tmp_path / "report", **variables: str) -> Run:
        done = forked_pytest(words(report, *arguments), imported, {**environment, **variables}, ROOT)
        return Run(done.returncode, done.stdout, report)

    return run


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--engine", "nope"], "unknown engine 'nope': choose one of vllm, vllm-inproc, endpoint, "),
    (["--profile", "nope"], "unknown profile 'nope': choose one of smoke, ci, release"),
    (["--oracle", "nope"], "unknown oracle 'nope': choose one of cold-engine, fresh-engine, same-engine"),
    (["--engine", "endpoint"], "requires --engine-url http://HOST:PORT"),
    (["--engine", "vllm", "--engine-url", "http://h:1"], "remove --engine-url, or use --engine endpoint"),
    (["--engine-url", "http://h:1", "--engine-args=--x"], "pass the flags to your own server instead"),
    (["--engine-url", "http://h:1", "--oracle", "cold-engine"], "use --oracle same-engine"),
    (["--examples-from", "vllm"], "--examples-from 'vllm': invalid repository; use OWNER/REPO"),
    (["--adapter", "/tmp"], "give at least two --adapter options with different contents"),
    (
        ["--weight-policy", "never"],
        "choose one of invalidates, on-reset, in-salt",
    ),
    (["--weights", "/no/such/step"], "--weights /no/such/step: no *.safetensors there"),
    (["--cells", "default,nope"], "unknown cell 'nope'; --cells list prints all cells"),
    (["--budget", "soon"], "--budget 'soon': invalid duration; use for example 90s, 20m or 2h"),
    (["--budget", "0m"], "--budget '0m': invalid duration"),
    (["--diagnose", "some"], "unknown --diagnose value 'some': choose one of new, all, none"),
    (["--findings", "some"], "unknown --findings value 'some': choose one of first, only, off"),
    (["--calibration", "no/such.json"], "--calibration no/such.json: no such file; give the results.json"),
    (["--engine-args", '--a "open'], "No closing quotation"),
    (["--known-issues", "/no/such/file"], "cannot use --known-issues /no/such/file"),
    (["--update-known-issues", "README.md"], "README.md: the file name must end in .toml"),
    (
        ["--update-known-issues", "adapters/vllm/known_issues.toml"],
        "file exists and will not be overwritten; choose another name",
    ),
    (["--fault", "nope"], "unknown fault 'nope'; --fault list prints all faults"),
    (
        ["--fault", "a-reset-does-nothing", "--engine-url", "http://h:1"],
        "--fault requires an engine that Coldproof starts",
    ),
    (["--repairs", "known", "--engine-url", "http://h:1"], "--repairs is not supported for --engine endpoint"),
    (["--requirements", "LORA-1,NOPE"], "unknown requirement 'NOPE'; --requirements takes ids"),
    (["--replay", "/no/such/case"], "cannot read the case /no/such/case: No such file"),
    (
        ["--engine-url", "http://h:1", "--shared-dir", "/no/such/dir"],
        "--shared-dir /no/such/dir: no such folder",
    ),
    (["--allow-not-exercised=0"], "--allow-not-exercised=0: give the number of requirements to show, at least 1"),
    (["--allow-not-exercised=x"], "--allow-not-exercised=x: give the number of requirements to show, at least 1"),
]


def test_the_documentation_lists_every_option_and_no_other() -> None:
    """The tables are those of docs/options.md."""
    declared = OPTIONS.keys() - {"--joined", "--prove"}  # which Coldproof gives to processes that it starts
    page = (ROOT / "docs" / "options.md").read_text().partition("## Options of a run")[2]
    assert sorted(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE)) == sorted(declared)


def case_file(**changes: object) -> str:
    """Return a saved case of the default cell that can be loaded, unless the changes prevent that."""
    return encode(msgspec.structs.replace(report_samples.case(), cell="default", **changes)).decode()


BAD_FILES = {
    "toml": ("--known-issues", "[[issue]\n", "Expected"),
    "field": ("--known-issues", '[[issue]]\nrequirement = "LORA-1"\n', "missing required field"),
    "link": (
        "--known-issues",
        '[[issue]]\nrequirement = "R-1"\nsignature = "crash*"\nversions = ""\nreason = "r"\nlink = ""\n',
        "entry 1, for 'R-1', has an empty link",
    ),
    "everything": (
        "--known-issues",
        '[[issue]]\nrequirement = "R-1"\nsignature = "*; *"\nsays = " "\nversions = ""\nreason = "r"\nlink = "l"\n',
        "entry 1, for 'R-1', has a signature that matches every failure",
    ),
    "no-json": ("--replay", "no json", "is not a case file of this version"),
    "no-case": ("--replay", "{}", "is not a case file of this version"),
    "no-workload": ("--replay", case_file(workload={"steps": 3}), "is not a case file of this version"),
    "schema": ("--replay", case_file(schema_version=99), f"has schema version 99; this version reads {SCHEMA_VERSION}"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], imported: str) -> dict[str, Run]:
    """Return the run of each bad option and file."""
    folder = tmp_path_factory.mktemp("bad")
    given: dict[str, list[str]] = {" ".join(arguments): arguments for arguments, _ in BAD_OPTIONS}
    for name, (option, content, _) in BAD_FILES.items():
        (folder / name).write_text(content)
        given[name] = [option, str(folder / name)]
    reports = {name: folder / f"report-{number}" for number, name in enumerate(given)}
    came = outcomes(
        [words(reports[name], *arguments) for name, arguments in given.items()], environment, address=imported
    )
    return {name: Run(*outcome, reports[name]) for name, outcome in zip(given, came, strict=True)}


@pytest.mark.parametrize(("arguments", "says"), BAD_OPTIONS, ids=[" ".join(arguments) for arguments, _ in BAD_OPTIONS])
def test_bad_options_are_usage_in_one_line(ended: dict[str, Run], arguments: list[str], says: str) -> None:
    """It gives exit code 4 before any engine or report."""
    run = ended[" ".join(arguments)]
    assert says in run.clear_line()
    assert run.code == USAGE
    assert not run.report.exists()


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_used_is_named(ended: dict[str, Run], name: str) -> None:
    """The line says what is wrong in the file, and the exit code is 4."""
    option, _, says = BAD_FILES[name]
    run = ended[name]
    line = run.clear_line()
    assert says in line
    assert option == "--replay" or str(run.report.parent / name) in line
    assert run.code == USAGE


def test_a_report_folder_that_is_a_file_is_usage(coldproof: Coldproof, tmp_path: Path) -> None:
    """A verdict that nobody could read is not worth the time of an engine."""
    file = tmp_path / "file"
    file.write_text("mine")
    run = coldproof(report=file)
    assert f"--report-dir {file} is not a folder" in run.clear_line()
    assert run.code == USAGE
    assert file.read_text() == "mine"


def test_a_report_folder_that_cannot_be_made_is_the_harnesses_failure(coldproof: Coldproof) -> None:
    """The message has the reason of the system."""
    run = coldproof(report=Path("/proc/self/report"))
    assert "cannot write reports to /proc/self/report" in run.clear_line()
    assert run.code == HARNESS


def assert_reported(run: Run, problem: str) -> None:
    """Assert that the run could not begin, and that its report says so for every requirement."""
    assert run.code == run.results.exit_code == HARNESS
    assert problem in run.clear_line()
    assert problem in run.results.problem
    declared = {name for suite in (ROOT / "suites").glob("test_*.py") for name in DECLARED.findall(suite.read_text())}
    assert {requirement.id for requirement in run.results.requirements} == declared
    assert {requirement.verdict for requirement in run.results.requirements} == {"NOT EXERCISED"}
    assert not run.results.complete
    assert run.results.headline.startswith("NOT SHOWN TO CONFORM")
    assert problem in (run.report / "index.html").read_text()


def test_a_wrong_model_is_reported(coldproof: Coldproof) -> None:
    """Nothing was tested, so nothing conforms."""
    assert_reported(coldproof("--model", "no-such-model", "--cells", "default"), "no model at no-such-model")


def test_each_cell_reports_why_its_engine_did_not_start(coldproof: Coldproof) -> None:
    """Another cell might have started, so each requirement has its own ERROR, and nothing conforms."""
    run = coldproof("--layers", "server", "--model", "no-such-model", "-k", "salts_isolate or never_fit")
    assert run.code == run.results.exit_code == HARNESS
    assert [cell.cell for r in run.results.requirements for cell in r.cells] == ["tight", "default"]
    assert {r.id: r.verdict for r in run.results.requirements} == {"PRESS-3": "ERROR", "SALT-1": "ERROR"}
    assert all("no model at no-such-model" in r.reason for r in run.results.requirements)


def test_a_server_that_is_not_there_is_reported(coldproof: Coldproof) -> None:
    """The line names the address and what to check."""
    assert_reported(coldproof("--engine-url", "http://127.0.0.1:9"), "no server answers at http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        pytest.param(
            "/v1/completions",
            '{"choices": [{"token_ids": "no"}]}',
            "expected a stream of server-sent events",
            marks=pytest.mark.nightly,
        ),
        ("/v1/completions", 'data: {"choices": [{"token_ids": "no"}]}\n\n', "expected a JSON object whose choices"),
        ("/v1/models", "<html>\n", "expected a list with a model"),
        pytest.param(
            "/metrics",
            "vllm:num_requests_running{ 3",
            "expected metrics in the text format of Prometheus",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["no stream", "no tokens", "models", "metrics"],
)
def test_a_server_that_answers_in_another_form_is_reported(
    coldproof: Coldproof, path: str, body: str, says: str
) -> None:
    """The line has the request, the response and what was expected. Nothing was tested, so nothing conforms."""
    with serving(ServerBehaviour(bodies={path: body})) as fake:
        run = coldproof("--engine-url", fake.url)
    assert_reported(run, f"{path} was answered with HTTP 200 and ")
    assert says in run.clear_line()


def test_an_engine_that_ends_at_once_is_reported(coldproof: Coldproof) -> None:
    """The line has the end of the log, which is kept beside the report."""
    run = coldproof("-k", "test_salts_isolate_the_cache")
    assert run.code == run.results.exit_code == HARNESS
    assert "the unit tests start no engine" in run.results.problem
    logs = sorted(run.report.glob("engine-server-*.log"))
    assert len(logs) == 2  # the engine under test and the cold one, which start side by side
    logged = {log.read_text() for log in logs}
    assert logged - {""} == {"the unit tests start no engine\n"}  # the slower one may be ended before it could say it


def test_verdicts_of_an_earlier_run_do_not_count_for_this_one(coldproof: Coldproof, tmp_path: Path) -> None:
    """The earlier report is moved as a whole. Files of others stay and are not touched."""
    report = tmp_path / "report"
    first = coldproof("--engine-url", "http://127.0.0.1:9", "-k", "salts").results
    (report / "cases" / "thesis.docx").write_text("mine")
    (report / "mine.txt").write_text("mine")
    second = coldproof("--model", "no-such-model", "-k", "salts")
    assert f"keeping the earlier report in {report}.1" in second.said
    assert read_results(tmp_path / "report.1" / "results.json") == first
    assert second.results.problem != first.problem
    assert sorted(path.name for path in (report / "cases").iterdir()) == ["thesis.docx"]
    assert (report / "mine.txt").read_text() == "mine"


def test_a_folder_of_other_files_is_refused_and_not_touched(coldproof: Coldproof, tmp_path: Path) -> None:
    """Only the list of written files decides which files belong to a report, and not their names."""
    report = tmp_path / "report"
    (report / "cases").mkdir(parents=True)
    names = ("cases/thesis.docx", "engine-notes.log", "manifest.json", "results.json")
    for name in names:
        (report / name).write_text("mine")
    run = coldproof("--engine-url", "http://127.0.0.1:9")
    assert "has files that Coldproof did not write, such as 'engine-notes.log'" in run.clear_line()
    assert run.code == USAGE
    assert {name: (report / name).read_text() for name in names} == dict.fromkeys(names, "mine")
    assert sorted(path.name for path in report.iterdir()) == ["cases", *names[1:]]


def assert_kept_secret(run: Run, key: str) -> None:
    """Assert that the key is in no file of the report and on no line of the output."""
    written = [file.read_text() for file in run.report.rglob("*") if file.is_file()]
    assert len(written) >= 5
    assert key not in run.said + "".join(written)


def test_what_is_unsupported_is_no_failure_but_shows_nothing(coldproof: Coldproof) -> None:
    """The server lacks what the requirement needs, the report says what that is, and the exit code differs from that
    of a failure.
    """
    with serving(ServerBehaviour(key="s3cr3t", lora=(404, "Not Found"))) as fake:
        run = coldproof("--engine-url", fake.url, "-k", "test_reload_while", **{KEY_VARIABLE: "s3cr3t"})
    (requirement,) = run.results.requirements
    assert (run.code, requirement.id, requirement.verdict) == (NOT_SHOWN, "LORA-6", "UNSUPPORTED")
    assert "adapter load and unload at run time" in requirement.reason
    assert run.results.conclusion == "NOTHING SHOWN"
    assert run.results.complete
    assert_kept_secret(run, "s3cr3t")


def test_known_issues_are_proposed_on_request(coldproof: Coldproof) -> None:
    """They are written to the report folder, and one line has their number. The exit code does not change."""
    with serving(ServerBehaviour(lora=(404, "Not Found"))) as fake:
        run = coldproof("--engine-url", fake.url, "-k", "test_reload_while", "--update-known-issues")
    path = run.report / "known_issues.proposed.toml"
    assert run.code == NOT_SHOWN
    assert f"0 known issues proposed; review them in {path}\n" in run.said
    assert "No proposals" in path.read_text()


def test_the_results_are_written_for_a_caller_too(coldproof: Coldproof, tmp_path: Path) -> None:
    """They are written to the requested file, and the output has one line for each requirement, even if the run
    could not begin.
    """
    copy = tmp_path / "out" / "coldproof.json"
    with serving(ServerBehaviour(lora=(404, "Not Found"))) as fake:
        run = coldproof("--engine-url", fake.url, "-k", "test_reload_while", "--json", copy)
    assert copy.read_bytes() == (run.report / "results.json").read_bytes()
    assert [line for line in run.said.splitlines() if line.startswith("LORA-6 UNSUPPORTED: ")]
    failed = coldproof("--engine-url", "http://127.0.0.1:9", "-k", "test_reload_while", "--json", copy)
    assert failed.code == read_results(copy).exit_code == HARNESS
    assert "LORA-6 NOT EXERCISED: " in failed.said


def test_results_that_cannot_be_written_for_a_caller_are_usage(coldproof: Coldproof, tmp_path: Path) -> None:
    """This is checked before any engine is tried, because nobody would read the verdict."""
    (tmp_path / "file").touch()
    run = coldproof("--engine-url", "http://127.0.0.1:9", "--json", tmp_path / "file" / "out.json")
    assert (run.code, "out.json: cannot be written" in run.clear_line()) == (USAGE, True)
    mine = tmp_path / "package.json"
    mine.write_text('{"name": "mine"}')
    run = coldproof("--engine-url", "http://127.0.0.1:9", "--json", mine, report=tmp_path / "other")
    assert (run.code, "the file exists and is no results.json" in run.clear_line()) == (USAGE, True)
    assert mine.read_text() == '{"name": "mine"}'


def test_a_wrong_key_is_kept_secret_too(coldproof: Coldproof) -> None:
    """The key may be valid for another server."""
    with serving(ServerBehaviour(key="another")) as fake:
        run = coldproof("--engine-url", fake.url, "-k", "test_reload_while", **{KEY_VARIABLE: "s3cr3t"})
    assert KEY_VARIABLE in run.clear_line()
    assert run.code == HARNESS
    assert_kept_secret(run, "s3cr3t")


def test_cells_can_be_listed(coldproof: Coldproof) -> None:
    """Each cell has a line with its purpose, and nothing else is done."""
    run = coldproof("--cells", "list")
    lines = run.said.splitlines()
    assert run.code == 0
    assert [line.split()[0] for line in lines] == list(CELLS)
    assert all(cell.about in line for cell, line in zip(CELLS.values(), lines, strict=True))
    assert not run.report.exists()


def test_the_ground_comes_first_in_each_cell(coldproof: Coldproof) -> None:
    """Other tests leave out the mixtures that it forbids, so it has to be decided by then."""
    cells = ("default", "groups-five")
    run = coldproof("--collect-only", "-q", "--worker", "fingerprint", "--cells", ",".join(cells))
    names = [line for line in run.said.splitlines() if "::" in line]
    for cell in cells:
        assert "::test_alone_and_in_any_batch[" in next(name for name in names if f"[{cell}]" in name)


def test_nothing_selected_is_not_a_pass(coldproof: Coldproof) -> None:
    """A misspelt -k shows nothing."""
    run = coldproof("-k", "nothing_matches_this")
    assert run.code == NOTHING
    assert not (run.report / "index.html").exists()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["suites", "--engine-args", "--no-x", "-k", "a"], ["suites", "--engine-args=--no-x", "-k", "a"]),
        (["--engine-args", "-a -b", "--engine-args", "-c"], ["--engine-args=-a -b", "--engine-args=-c"]),
        (["suites", "--engine-args"], ["suites", "--engine-args"]),
        (["suites", "-k", "a"], ["suites", "-k", "a"]),
        (["--allow-not-exercised", "suites"], ["--allow-not-exercised=default", "suites"]),
        (["--allow-not-exercised=7", "suites"], ["--allow-not-exercised=7", "suites"]),
    ],
)
def test_a_flag_is_a_value_of_engine_args(given: list[str], read: list[str]) -> None:
    """A value that begins with a dash is not taken for another option, nor a path for a number."""
    assert join_values(given) == read
