"""A counterexample becomes a file that can be read back and a script that runs, whatever text an engine put into it."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.histories import ask, burst, contents, play, put

from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case import replay_command
from coldproof.harness.case.case import make_case
from coldproof.harness.case.load import load_case
from coldproof.harness.case.replay_command import engine_options, portable_command, replay_options
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.case.signature import signature
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import Options, UsageError
from coldproof.harness.schema.case import Case, Reproduction
from coldproof.harness.schema.results import encode
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import (
    Burst,
    Meanwhile,
    Prompt,
    Request,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)

RECIPES = {"A": {"seed": 1, "rank": 8}, "B": {"seed": 2, "rank": 8}, "C": {"seed": 3, "rank": 16}}
STEPS = (
    put("A", path="p"),
    burst(ask(adapter="tenant")),
    put("B", path="p", route=Route.IN_PLACE),
    burst(ask(adapter="tenant")),
)
HOSTILE = [
    '"""\nimport os; os.abort()\n"""',
    "\\",
    'ends in a quote"',
    "'''",
    "{{ 7 * 7 }} {% for x in y %} {# hidden",
    "line\r\nbreaks\n\n# and a comment\u2028and a separator",
    "\\N{BULLET} \\x41 \\",
    "NUL \x00 and half \ud83d a pair",
    '\\"""',
    "astral \U0001f9ca and \U0002070e",
]


@pytest.fixture(scope="module")
def judgement(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """Return the judgement of an engine that keys its cache by adapter name, after a reload from the same path."""
    seen = play(ScriptedEngine(InjectedBug.NAME_ONLY_KEY), tmp_path_factory.mktemp("case"), *STEPS)
    return judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True)


def case_of(judgement: Judgement, **changes: Any) -> Case:
    """Return the case of a judgement."""
    facts: dict[str, Any] = {
        "requirement": Requirement("LORA-3", "reload", (), ()),
        "cell": "default",
        "judgement": judgement,
        "failure_class": judgement.worst().failure_class,
        "reproduction": Reproduction(while_shrinking_failed=1, while_shrinking_tries=1),
        "engine": ScriptedEngine(),
        "oracle": "closed-form",
        "rule": Rule(exact=True),
        "recipes": RECIPES,
        "options": Options(engine="vllm-inproc", report_dir=Path("out")),
        "history_dependent": False,
        "log_tail": "the end",
    }
    return make_case(**{**facts, **changes})


@pytest.fixture
def case(judgement: Judgement) -> Case:
    """Return the case of the judgement, without changes."""
    return case_of(judgement)


def write_case(case: Case, path: Path, **changes: Any) -> Path:
    """Write a case file in which the fields in `changes` are replaced, and return its path."""
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(case), **changes}))
    return path


def test_a_case_is_read_back_as_it_was_made(case: Case, tmp_path: Path) -> None:
    """The case and its workload are equal to those that were written."""
    path = tmp_path / "case.json"
    path.write_bytes(encode(case))
    back, workload = load_case(path)
    assert workload == Workload(STEPS)
    assert encode(back) == encode(case)


def test_a_replayed_case_fails_again(case: Case, tmp_path: Path) -> None:
    """It fails on the same engine with another nonce, and not on an engine without the bug."""
    _, workload = load_case(write_case(case, tmp_path / "case.json"))
    for plant, fails in ((InjectedBug.NAME_ONLY_KEY, True), (InjectedBug.CLEAN, False)):
        folder = tmp_path / plant.name
        seen = WorkloadRun(ScriptedEngine(plant), workload, "another", contents(folder), folder / "run").history()
        judged = judge(seen, ClosedFormOracle(), Rule(exact=True), exclusive=True)
        assert [f.failure_class for f in judged.findings if f.checker == "tokens"] == [FailureClass.STALE_STATE] * fails


def test_a_case_has_what_was_sent_observed_and_expected(case: Case) -> None:
    """It has rows for requests with their bounds, for steps and for tokens around the difference, and all recipes."""
    first, second = case.requests
    assert (first.correct, second.correct) == (True, False)
    assert (second.identity, second.cached_at_most) == ("adapter B", 0)
    assert second.cached_tokens == 40
    assert [row.words.split(":")[0] for row in case.steps] == ["load", "send", "in-place reload", "send"]
    assert case.failing_request == 1
    assert {row.position: row.expected == row.observed for row in case.tokens}[case.first_difference or 0] is False
    assert set(case.recipes) == set(case.contents) == {"A", "B"}
    assert case.replay.endswith(f"coldproof replay out/cases/{case.id}.json")


@pytest.mark.parametrize(
    ("layer", "worker", "oracle", "options"),
    [
        ("", "WorkerOfVllm", "closed-form", []),
        ("", "a.b.FingerprintWorker", "closed-form", ["--worker", "fingerprint"]),
        ("exact", "a.b.FingerprintWorker", "closed-form", ["--layers", "exact"]),
        ("", "WorkerOfVllm", "engine:transformers 5.19.0", ["--oracle", "engine:transformers"]),
    ],
)
def test_a_replay_has_the_worker_and_the_oracle_of_the_case(
    layer: str, worker: str, oracle: str, options: list[str]
) -> None:
    """A cell of the exact layer only does not run under the worker with a model."""
    assert replay_options(layer, oracle, {"flags": f"--worker-cls {worker}"}) == options


def test_a_replay_of_an_attached_server_has_its_address_and_the_calibration_of_the_run(case: Case) -> None:
    """It would take minutes to measure again. Somebody else gets neither."""
    options = Options(
        engine="endpoint",
        engine_url="http://gpu7:8000",
        cold_url="http://gpu7:8001",
        report_dir=Path("out"),
        model="org/m",
    )
    words = engine_options(options)
    assert words == [
        *("--engine", "endpoint", "--engine-url", "http://gpu7:8000", "--cold-url", "http://gpu7:8001"),
        *("--calibration", "out/results.json", "--model", "org/m"),
    ]
    found = msgspec.structs.replace(
        case, replay=shlex.join(["coldproof", "replay", f"out/cases/{case.id}.json", *words])
    )
    assert portable_command(found) == (
        f"coldproof replay {case.id}.json --engine endpoint --engine-url http://HOST:PORT --cold-url http://HOST:PORT "
        "--model org/m"
    )
    for other in ("'", "coldproof findings --replay vllm/one"):
        assert portable_command(msgspec.structs.replace(case, replay=other)) == f"coldproof replay {case.id}.json"


def test_a_replay_has_the_options_that_decide_which_engine_runs() -> None:
    """Another model or other flags would be another engine."""
    options = Options(
        engine="vllm-inproc",
        report_dir=Path("out"),
        model="smollm2",
        engine_args=("--dtype", "bfloat16"),
        adapters=(Path("a"), Path("b")),
        fault="salts-are-ignored",
    )
    assert engine_options(options) == [
        *("--model", "smollm2", "--adapter", "a", "--adapter", "b", "--engine-args=--dtype bfloat16"),
        *("--fault", "salts-are-ignored"),
    ]


def test_all_known_repairs_are_one_word_in_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are forty names, which nobody reads. A few of them are named; of most of them, those that are lacking."""
    known = tuple(Repair(name=f"vllm/{name}", releases=">=0", text="t", path=Path("none")) for name in "abcd")

    def chosen_by(_engine: str, text: str) -> tuple[Repair, ...]:
        without = {word[1:] for word in text.split(",")[1:]}
        return tuple(one for one in known if one.name not in without)

    monkeypatch.setattr(replay_command, "chosen_repairs", chosen_by)
    options = Options(engine="vllm-inproc", report_dir=Path("out"))
    most = (known[0], *known[2:])
    several = ((known, "known"), (known[:2], "vllm/a,vllm/b"), (most, "known,-vllm/b"), (known[:1], "vllm/a"))
    for chosen, words in several:
        given = msgspec.structs.replace(options, repairs=chosen)
        assert engine_options(given) == ["--repairs", words]
    assert engine_options(options) == []


def test_the_same_case_has_the_same_id(judgement: Judgement) -> None:
    """Another cell, class or requirement makes another case. A nonce does not."""
    base = case_of(judgement).id
    renamed = msgspec.structs.replace(judgement, history=msgspec.structs.replace(judgement.history, nonce="m"))
    assert case_of(renamed).id == base
    assert base.startswith("LORA-3-")
    others = [case_of(judgement, cell="sync").id, case_of(judgement, failure_class=FailureClass.CORRUPT).id]
    assert len({base, *others}) == 3


def load_b(route: Route, path: str) -> SetAdapter:
    """Return the step that replaces content A by B."""
    return put("B", path=path, route=route)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([burst(ask())], "stale state; no reload"),
        ([put("A")], "stale state; no reload"),
        (
            [put("A", path="p"), load_b(Route.IN_PLACE, "p")],
            "stale state; in-place reload; same path; between requests",
        ),
        ([put("A"), load_b(Route.UNLOAD_LOAD, "q")], "stale state; unload, then load; other path; between requests"),
        (
            [
                put("A"),
                Burst(requests=(ask(),), meanwhile=Meanwhile(change=load_b(Route.IN_PLACE, "q"), after_tokens=1)),
                load_b(Route.UNLOAD_LOAD, "q"),
            ],
            "stale state; in-place reload and unload, then load; other path; under traffic",
        ),
    ],
)
def test_a_signature_has_class_route_path_and_moment(steps: list[Step], words: str, tmp_path: Path) -> None:
    """A waiver matches it, so it is the same for every run of one fault and has no figures of one run."""
    seen: History = msgspec.structs.replace(play(ScriptedEngine(), tmp_path, *steps), outcomes=())
    assert signature(seen, FailureClass.STALE_STATE) == words


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"case"', "{}", '{"id": 3}', b"\xff\xfe", "[" * 100],
)
def test_what_is_no_case_file_is_refused_in_one_line(text: str | bytes, tmp_path: Path) -> None:
    """The line has the path, so that the user knows the file."""
    path = tmp_path / "case.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_refused(path)


def assert_refused(path: Path) -> None:
    """Check that the file is refused in one line that names it."""
    with pytest.raises(UsageError) as problem:
        load_case(path)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 1},
        {"schema_version": "1"},
        {"workload": {}},
        {"workload": {"steps": [{"type": "dance"}]}},
        {"workload": {"steps": [{"type": "burst", "requests": [{"prompt": "stem"}]}]}},
        {"failure_class": "bad luck"},
        {"requests": None},
    ],
)
def test_a_case_of_another_version_or_shape_is_refused(changes: dict[str, Any], case: Case, tmp_path: Path) -> None:
    """It is not replayed as another case."""
    assert_refused(write_case(case, tmp_path / "case.json", **changes))


TENANT = [put("A"), put("B", route=Route.IN_PLACE)]


@pytest.mark.parametrize(
    "steps",
    [
        [Burst(requests=())],
        [burst(ask(("stem", -1)))],
        [burst(ask(("stem", 0)))],
        [burst(ask(max_tokens=0))],
        [burst(Request(prompt=Prompt((Segment("stem", 9, changed=9),))))],
        [burst(Request(prompt=Prompt((Segment("stem", 9, swapped=8),))))],
        [burst(ask(continues=0))],
        [burst(ask(), ask(continues=0))],
        [burst(ask(continues=1)), burst(ask())],
        [burst(ask(adapter="tenant"))],
        [put("Z")],
        *([put("A", path=path)] for path in ("/etc", "a//b", "..", "../a", "a/..", "a..b", "a/", "a/./b")),
        [*TENANT, Burst(requests=(ask(),), meanwhile=Meanwhile(change=put("A", path="../x"), after_tokens=1))],
    ],
)
def test_a_workload_that_cannot_be_run_here_is_refused(steps: list[Step], case: Case, tmp_path: Path) -> None:
    """It is refused before an engine starts.

    It may be empty, out of bounds, out of order, of unknown contents or outside its folder.
    """
    for early in (steps, [*STEPS, *steps]) if isinstance(steps[0], SetAdapter) else (steps,):
        assert_refused(write_case(case, tmp_path / "case.json", workload=msgspec.to_builtins(Workload(tuple(early)))))


def test_a_case_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    """A missing file and a folder are both refused."""
    assert_refused(tmp_path / "none.json")
    assert_refused(tmp_path)


def statements(source: str) -> str:
    """Return the syntax tree of a script without its docstring and the literal of the server's command."""
    tree = ast.parse(source)
    assert isinstance(tree.body[0], ast.Expr)
    (command,) = [s for s in tree.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "COMMAND"]
    assert isinstance(command.value, ast.Constant)
    command.value = ast.Constant("")
    return ast.dump(ast.Module(tree.body[1:], []))


@pytest.mark.parametrize("text", HOSTILE)
def test_engine_text_stays_in_the_scripts_docstring(text: str, case: Case) -> None:
    """The script compiles, and its statements are those of the harmless case."""
    for hostile in (
        msgspec.structs.replace(case, sentence=text),
        msgspec.structs.replace(case, engine_config={"url": text}),
        msgspec.structs.replace(case, engine_config={"command": f"serve {text}", "environment": text}),
    ):
        source = reproducer(hostile)
        compile(source, "case.py", "exec")
        assert statements(source) == statements(reproducer(case))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("\"'\\{}%#\n\r\t\x00 aN\u2028\ud800"), max_size=12))
def test_mixtures_of_quotes_and_escapes_stay_in_it_too(text: str, case: Case) -> None:
    """The text is not evaluated as the expression of a template either."""
    assert statements(reproducer(msgspec.structs.replace(case, sentence=text))) == statements(reproducer(case))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_and_paths_are_literals_in_the_script(text: str, case: Case) -> None:
    """A case file from elsewhere may have any name, salt, path or recipe."""
    steps = (put("A", name=text, path=text), burst(ask((text, 9), adapter=text, salt=text)))
    source = reproducer(
        msgspec.structs.replace(
            case,
            workload=msgspec.to_builtins(Workload(steps)),
            recipes={"A": {"path": text}},
        )
    )
    compile(source, "case.py", "exec")
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert constants.count(text) == 6


def test_a_long_server_command_is_not_truncated(case: Case) -> None:
    """A truncated command would start another server."""
    command = "serve " + " ".join(f"--option-{i:03} value" for i in range(120))
    assert len(command) > 2000
    source = reproducer(msgspec.structs.replace(case, engine_config={"command": command}))
    assert command in source


def test_the_script_has_the_workload_step_by_step(case: Case) -> None:
    """Every change and every burst is a call, in order."""
    (scenario,) = [
        node
        for node in ast.parse(reproducer(case)).body
        if isinstance(node, ast.FunctionDef) and node.name == "scenario"
    ]
    *steps, check = scenario.body
    assert ast.unparse(check).startswith("return is_wrong(story, ")
    calls = [node.value.func.attr for node in steps]  # type: ignore[attr-defined]
    assert calls == ["load", "ask", "load", "ask"]


def test_a_step_that_was_not_reached_says_so(judgement: Judgement) -> None:
    """If the engine was lost, the rest of the workload did not run, but the case still has all its steps."""
    cut = msgspec.structs.replace(judgement.history, steps=judgement.history.steps[:1])
    rows = case_of(msgspec.structs.replace(judgement, history=cut)).steps
    assert [row.error for row in rows] == ["", "not reached", "not reached", "not reached"]


def test_a_reproducer_that_cannot_run_reports_neither_bug_nor_fix(case: Case, tmp_path: Path) -> None:
    """No server listens, so the exit code is 2: 1 would mean WRONG and 0 would mean fixed."""
    script = tmp_path / "case.py"
    script.write_text(reproducer(case))
    for arguments in ([], ["http://127.0.0.1:9"]):
        done = subprocess.run([sys.executable, str(script), *arguments], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 2, done.stderr
