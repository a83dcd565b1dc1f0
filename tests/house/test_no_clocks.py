"""No test depends on the speed of the machine, or on a port that another process may take.

Tests wait with `support.waiting.until`, an event or `Popen.wait()`, without a limit of seconds. They order two
events by a handshake. Measurements of time belong in benchmarks/.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

TESTS = ROOT / "tests"
CLOCKS = {"monotonic", "perf_counter", "time", "process_time", "monotonic_ns", "perf_counter_ns", "time_ns"}
LIMITS = {"timeout"}  # keywords of subprocess, queues and requests
WAITS = {"wait", "join", "result", "communicate", "get", "acquire"}
# How often a file may, and why no test fails by it.
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("support/waiting.py", "sleep"): (1, "polls, without an end"),
    ("support/fake_server.py", "sleep"): (2, "a server that is slow: a test may expect that much and more"),
    ("support/crashing_engine.py", "clock"): (1, "the time of a crash, next to the times of events"),
    ("adapters/common/test_forked.py", "limit"): (1, "of a process that does not end: the limit is what is tested"),
    ("harness/session/test_report_folder.py", "limit"): (1, "between two looks at a process, without an end"),
    ("harness/session/test_signals.py", "limit"): (1, "the pause between two signals, in any number"),
    ("adapters/protocol/test_checked.py", "clock"): (2, "the time of the whole bounds the time of its parts"),
    ("adapters/protocol/test_checked.py", "sleep"): (4, "lower bounds of what is measured"),
    ("adapters/vllm/test_prefill_decode.py", "clock"): (2, "a lower bound"),
    ("adapters/vllm/test_prefill_decode.py", "sleep"): (1, "a process that does not end"),
    ("adapters/vllm/test_prefill_decode.py", "free_port"): (2, "the router's own, which is what is tested"),
    ("adapters/transformers/test_loading.py", "sleep"): (1, "gives a defect time to show; the test passes without it"),
    ("contract/rules.py", "clock"): (2, "the end of the patience with an engine that breaks a rule"),
    ("contract/rules.py", "sleep"): (1, "polls an engine"),
    ("contract/test_contract_weights.py", "clock"): (2, "how long nothing may happen, at least"),
    ("contract/test_contract_weights.py", "sleep"): (1, "waits until tokens that are on their way have arrived"),
    ("adapters/protocol/test_contract_rules.py", "clock"): (
        2,
        "an engine whose clock is wrong, and one whose answers vary",
    ),
    ("harness/execution/runner/test_kv_events_in_a_run.py", "clock"): (1, "the clock of the scripted engine"),
    ("harness/proof/minimise/test_on_fresh_engines.py", "clock"): (2, "a moment that is an hour ahead, or over"),
    ("harness/session/test_budget.py", "clock"): (1, "a moment in the past"),
    ("suites/test_resets_can_fail.py", "clock"): (1, "the time of an event, as the engine writes it"),
}


def findings(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each use of clocks, limits and ports in a file, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = called(node)
            if name == "sleep" and of_time(node):
                yield "sleep", node.lineno
            elif name in CLOCKS and of_time(node):
                yield "clock", node.lineno
            elif name == "free_port":
                yield "free_port", node.lineno
            elif has_limit(node):
                yield "limit", node.lineno
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.timeout":
            yield "limit", node.lineno


def has_limit(node: ast.Call) -> bool:
    """Return whether a call waits for so many seconds at most."""
    first = node.args[0] if node.args and isinstance(node.func, ast.Attribute) and called(node) in WAITS else None
    return any(limits(one) for one in (first, *(word.value for word in node.keywords if word.arg in LIMITS)))


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def of_time(node: ast.Call) -> bool:
    """Return whether a function of the module `time` is called."""
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "time"


def limits(value: ast.expr | None) -> bool:
    """Return whether a value is a number of seconds. 0 is none: such a call does not wait, or waits forever."""
    return isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value != 0


def test_no_test_depends_on_a_clock_or_a_free_port() -> None:
    """Exceptions are listed with the reason why they cannot fail because of it."""
    found: dict[tuple[str, str], list[int]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for kind, line in findings(path):
            found.setdefault((path.relative_to(TESTS).as_posix(), kind), []).append(line)
    more = {place: lines for place, lines in found.items() if len(lines) > ALLOWED.get(place, (0, ""))[0]}
    assert more == {}
    assert {place: count for place, (count, _) in ALLOWED.items() if len(found.get(place, [])) < count} == {}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("time.sleep(0.3)", "sleep"),
        ("began = time.monotonic()", "clock"),
        ("subprocess.run(['x'], timeout=120)", "limit"),
        ("process.wait(30)", "limit"),
        ("port = free_port()", "free_port"),
        ("mark = pytest.mark.timeout(300)", "limit"),
        ("process.wait()", None),
        ("until(lambda: done)", None),
        ("found = pool.get('name')", None),
    ],
)
def test_the_rule_can_fail(line: str, kind: str | None, tmp_path: Path) -> None:
    """Each kind is found, and nothing else."""
    (tmp_path / "test_it.py").write_text(line)
    assert [one for one, _ in findings(tmp_path / "test_it.py")] == ([kind] if kind else [])
