"""The detector's self-test: planted bugs must be caught, the clean engine must not raise an alarm.

Runs before everything else, through the same runner, reference cache and checkers, in well under two seconds. If an
injected bug is not caught, no other verdict of the run can be trusted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from adapters.base import Abort, Surface
from harness.checkers.finding import Rule
from harness.judge import judge
from harness.models.adapters import AdapterFiles, digest_of
from harness.runner import Run
from harness.scripted import BLOCK, ClosedFormOracle, Plant, ScriptedEngine
from harness.workload import Burst, Idle, Prompt, Request, Reset, Route, Segment, SetAdapter, Step, Workload
from reports.schema import SelfTestRow

STEM = Segment("stem", 5 * BLOCK)


def self_test() -> list[SelfTestRow]:
    """One row for each planted bug and one for the clean engine."""
    with tempfile.TemporaryDirectory(prefix="coldproof-selftest-") as folder:
        contents = {name: write_content(Path(folder) / name, name) for name in ("A", "B")}
        return [examine(plant, contents, Path(folder) / f"run{i}") for i, plant in enumerate(Plant)]


def examine(plant: Plant, contents: dict[str, AdapterFiles], folder: Path) -> SelfTestRow:
    """Run the script against one engine and compare the alarm with the truth."""
    history = Run(
        ScriptedEngine(plant), script(), f"selftest{plant.name}", contents, folder, settle_seconds=0.0
    ).history()
    findings = judge(history, ClosedFormOracle(), Rule(exact=True), exclusive=True).findings
    right = bool(findings) != (plant is Plant.CLEAN)
    return SelfTestRow(planted=plant.value, caught=right, said=findings[0].sentence if findings else "no alarm")


def script() -> Workload:
    """Warm up, reload by each route, go back, differ in one token, differ in salt; hang up, ask for scores, reset."""
    near = Segment(STEM.name, STEM.length, changed=STEM.length - 5)  # with the nonce: a block's last token
    cut = Segment("cut", STEM.length)
    steps: list[Step] = [
        SetAdapter(name="tenant", content="A", path="p"),
        *ask("tenant"),
        *ask("tenant"),
        SetAdapter(name="tenant", content="B", path="p", route=Route.IN_PLACE),
        *ask("tenant"),
        SetAdapter(name="tenant", content="A", path="q", route=Route.UNLOAD_LOAD),
        *ask("tenant"),
        *ask(None),
        *ask(None, salt="red"),
        *ask(None, salt="Red"),
        *ask(None, near),
        *ask(None, cut, abort=Abort(after_tokens=2)),
        *ask(None, cut),
        *ask(None, surface=Surface(prompt_logprobs=True)),
        Idle(0),
        Reset(),
        *ask(None),
    ]
    return Workload(tuple(steps))


def ask(adapter: str | None, stem: Segment = STEM, **more: Any) -> tuple[Burst]:
    """One request with a tail of its own, so that a hit is followed by computed tokens."""
    prompt = Prompt((stem, Segment("tail", 3)))
    return (Burst(requests=(Request(prompt=prompt, adapter=adapter, **more),)),)


def write_content(folder: Path, text: str) -> AdapterFiles:
    """Adapter files that only differ in a byte; the scripted engine reads no weights."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(text.encode())
    return AdapterFiles(folder, digest_of(folder), {})
