"""Weight updates and pauses of a case are rows of its timeline and calls of its script."""

from __future__ import annotations

from pathlib import Path

from support.histories import ask, burst, contents

from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.harness.case.reproducer.script import scenario
from coldproof.harness.case.rows.changes import change_rows
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_versions
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import (
    Burst,
    Meanwhile,
    Pause,
    Reset,
    Resume,
    Sleep,
    UpdateWeights,
    Wake,
    Workload,
)

PAUSE = Pause(mode=PauseMode.KEEP, clear=True)
TO_A = UpdateWeights(version="A", route=WeightRoute.SAME_PATH)
IN_FLIGHT = Burst(
    requests=(ask(),), meanwhile=Meanwhile(change=PAUSE, after_tokens=3, then=(TO_A, Resume()), gap_ms=30)
)


def test_a_script_makes_the_same_calls() -> None:
    """The calls are in the same order with the same gaps, also during a burst."""
    deep = (Sleep(2), Wake(SleepPart.WEIGHTS), TO_A, Wake(SleepPart.KV))
    assert scenario(Workload((*deep, burst(ask()))))[:4] == [
        "story.client.sleep(2)",
        "story.client.wake('weights')",
        "story.client.update_weights('A', same_path=True)",
        "story.client.wake('kv_cache')",
    ]
    lines = scenario(Workload((TO_A, Sleep(1), Wake(), Reset(), IN_FLIGHT)))
    assert lines[:4] == [
        "story.client.update_weights('A', same_path=True)",
        "story.client.sleep(1)",
        "story.client.wake()",
        "story.client.reset()",
    ]
    change = (
        "story.client.pause('keep', clear=True), time.sleep(0.03), story.client.update_weights('A', same_path=True)"
    )
    assert lines[4].startswith(f"story.during(lambda: [{change}, time.sleep(0.03), story.client.resume()], 3, dict(")


def test_a_description_has_all_changes() -> None:
    """The description is one line."""
    assert describe(IN_FLIGHT, 0).endswith(
        "after 3 tokens pause with mode keep, clear the cache, then new weights 'A': reload from the same path with "
        "changed files, then resume (30 ms apart)"
    )


def test_changes_during_a_burst_are_rows_of_the_timeline(tmp_path: Path) -> None:
    """The row has no name, so that no adapter seems to change. A separate update is a step and has no row."""
    meanwhile = Meanwhile(change=TO_A, after_tokens=1)
    steps = (Burst(requests=(ask(), ask()), meanwhile=meanwhile), UpdateWeights(version="start"))
    history = WorkloadRun(
        ScriptedEngine(),
        Workload(steps),
        "n",
        contents(tmp_path),
        tmp_path / "run",
        versions=write_versions(tmp_path),
    ).history()
    (row,) = change_rows(history)
    assert (row.step, row.kind, row.name, row.content, row.refused) == (0, "new weights 'A'", "", "", False)
