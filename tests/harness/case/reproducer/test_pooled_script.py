"""The script of a case about vectors sends the requests that Coldproof sent, and compares by value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.fake_reply import ServerBehaviour
from support.fake_server import serving
from support.histories import ask, burst
from support.scripts import module_of

from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.adapters.server.pooling import PATHS
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.schema.case import Case, VectorRow
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Request, Step, Workload

NO_BUG, BUG, UNTESTED = 0, 1, 2
ROW = VectorRow(token=None, values=4, expected=[0.5], observed=[0.75], largest=0.25, cosine=0.9, tolerance=1e-4)


def request_for_vectors(task: Task, *segments: tuple[str, int], **more: Any) -> Request:
    """Return a request for vectors."""
    return ask(*segments, max_tokens=0, options=ResponseOptions(pooled=task), **more)


def case_of(*steps: Step, **changes: Any) -> Case:
    """Return a case whose last request got a wrong vector."""
    workload = Workload(steps)
    facts: dict[str, Any] = {
        "id": "CASE-1",
        "workload": msgspec.to_builtins(workload),
        "recipes": {},
        "engine_config": {"url": "http://somewhere"},
        "failure_class": FailureClass.CORRUPT,
        "failing_request": sum(1 for _ in workload.requests()) - 1,
        "first_difference": 0,
        "noise_nats": None,
        "band": None,
        "vector": ROW,
    }
    return report_samples.case(**{**facts, **changes})


def play(folder: Path, case: Case, **behaviour: Any) -> tuple[int, str]:
    """Run a case's script against a fake server with this behaviour, and return its exit code and its output."""
    script = folder / "case.py"
    script.write_text(reproducer(case))
    with serving(ServerBehaviour(pools=tuple(PATHS.values()), **behaviour)) as fake:
        done = subprocess.run(
            [sys.executable, str(script), fake.url], cwd=folder, capture_output=True, text=True, check=False
        )
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return done.returncode, output


@pytest.mark.parametrize("task", Task)
def test_right_vectors_are_no_bug_and_wrong_ones_are(task: Task, tmp_path: Path) -> None:
    """Vectors on a hit are compared: those of the prompt, or those of each token, of which some are missing."""
    again = request_for_vectors(task, ("stem", 40), salt="red")
    case = case_of(burst(again), burst(again))
    code, output = play(tmp_path, case)
    assert code == NO_BUG, output
    code, output = play(tmp_path, case, corrupt="tokens")
    assert code == BUG, output
    assert "differs in: vectors" in output


def test_a_difference_within_the_tolerance_is_none(tmp_path: Path) -> None:
    """The tolerance is that of the case."""
    again = request_for_vectors(Task.EMBED, ("stem", 40))
    wide = msgspec.structs.replace(ROW, tolerance=1.0)
    code, output = play(tmp_path, case_of(burst(again), burst(again), vector=wide), corrupt="tokens")
    assert code == NO_BUG, output


def test_a_server_without_the_route_shows_nothing(tmp_path: Path) -> None:
    """The script reports neither that the bug exists nor that it is fixed."""
    script = tmp_path / "case.py"
    script.write_text(reproducer(case_of(burst(request_for_vectors(Task.EMBED, ("stem", 40))))))
    with serving() as fake:
        done = subprocess.run([sys.executable, str(script), fake.url], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == UNTESTED


def counter_case(**changes: Any) -> Case:
    """Return a case about the hit counter: two requests with two salts, the second of which may have hit 33 tokens."""
    steps = (
        burst(request_for_vectors(Task.EMBED, ("stem", 60))),
        burst(request_for_vectors(Task.EMBED, ("stem", 60), salt="red")),
    )
    rows = [
        report_samples.request(number, answer=[], cached_tokens=None, cached_at_most=most)
        for number, most in enumerate((0, 33))
    ]
    facts = {"failure_class": FailureClass.ACCOUNTING, "failing_request": None, "first_difference": None}
    return case_of(*steps, **{"vector": None, "requests": rows, "block_size": 32, **facts, **changes})


@pytest.mark.parametrize(("counted", "too_many"), [(32.0, False), (33.0, True)])
def test_a_case_about_the_counter_is_tested_by_the_counter(counted: float, too_many: bool) -> None:
    """The script uses the increase since the attempt began.

    Whole blocks of what the requests may have hit are allowed.
    """
    names = module_of(counter_case())
    names["time"] = type("Time", (), {"sleep": staticmethod(lambda _seconds: None)})
    client = names["Server"].__new__(names["Server"])
    client.hit_count = lambda: 16.0
    story = names["Story"](client)
    client.hit_count = lambda: 16.0 + counted
    story.ask = lambda *_requests: None
    assert names["scenario"](story) is too_many


def test_a_counter_that_does_not_grow_shows_no_bug(tmp_path: Path) -> None:
    """A missing counter shows nothing."""
    code, output = play(tmp_path, counter_case())
    assert code == NO_BUG, output
    assert "grew by 0 tokens; 32 are allowed" in output
    code, output = play(tmp_path, counter_case(), metrics="")
    assert code == UNTESTED, output


@pytest.mark.parametrize(
    "changes", [{"failing_request": 1}, {"failure_class": FailureClass.CORRUPT}, {"block_size": None}]
)
def test_other_cases_do_not_use_the_counter(changes: dict[str, Any]) -> None:
    """Cases of an engine whose script reads no counter do not use it either."""
    assert "hit_count" not in reproducer(counter_case(**changes))
    assert "hit_count" not in reproducer(counter_case(engine="sglang"))
