"""Writes cases/ID.py: a script that reproduces the violation without Coldproof.

The scenario is at the top, one line for each step; behind it are the definitions that it uses, from Coldproof's own
modules. The cold answer comes from the same engine, under an adapter name, a folder and a cache salt that were not used
before, or from an engine without a cache.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.registry import CELLS, default_engine, reproduction_of
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.generated_models import MAKERS, OTHER_SEED
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction
from coldproof.harness.case.reproducer.amalgamate import amalgamate
from coldproof.harness.case.reproducer.features import ALONE, COMPARED, features, never_true
from coldproof.harness.case.reproducer.halves import half_on_the_tested_engine
from coldproof.harness.case.reproducer.kit.checks import main
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.literals import WIDTH, literal
from coldproof.harness.case.reproducer.modules import offers
from coldproof.harness.case.reproducer.registry import (
    ScriptCase,
    attempts,
    first_call,
    flags_with,
    imports,
    registered_flags,
)
from coldproof.harness.case.reproducer.steps import imported_content, scenario
from coldproof.harness.judgement.checkers.noise_tolerance import MATCHED, flips_needed
from coldproof.harness.judgement.vectors import ROUNDING
from coldproof.harness.schema.case import Case
from coldproof.harness.workload.steps import (
    Restart,
    Workload,
)
from coldproof.harness.workload.transform import change_requests, with_timed_aborts
from coldproof.reports.format.python import docstring_line

GENERATED = re.compile(r"/models/[0-9a-f]{16}(?=[/\s]|$)")  # the folder of a generated model; users have others
ATTEMPTS = 5


def reproducer(case: Case) -> str:
    """Return the script's source. Text from the engine enters only as Python literals and escaped single lines."""
    case = half_on_the_tested_engine(case)
    about, how, engine = script_case(case), reproduction(case), recorded_engine(case)
    flags = script_flags(about, how)
    call, kinds = first_call(about, flags), attempts(flags)
    module, client = how.client.split(":")
    ways = {word: function.split(":") for word, function in how.modes(engine).items()}
    modes = "".join(f'{name}(sys.argv[2:]) if sys.argv[1:2] == ["{word}"] else ' for word, (_, name) in ways.items())
    steps = scenario(about.workload)
    lines = [
        *imports([main, call.function, Story, *kinds]),
        f"from {module} import {client}",
        *(["import time"] if any("time.sleep" in line for line in steps) else []),
        *imported_content(about.workload),
        *(f"from {module} import {name}" for module, name in ways.values()),
        "def scenario(story: Story) -> bool:",
        *(f"    {line}" for line in steps),
        f"    return {call}",
    ]
    return amalgamate(
        f'#!/usr/bin/env python3\n"""{heading(case, how, engine)}\n"""',
        "\n".join(lines),
        flags=flags | never_true(about),
        literals={name: literal(value) for name, value in {**given(case, how, engine), **flags}.items()},
        parts=how.parts(engine),
        call=modes + f"main({client}, {played(kinds)})",
    )


def played(kinds: Sequence[type[Story]]) -> str:
    """Return the scenario as an expression that takes a plain attempt, for attempts that are of all these classes."""
    names = ", ".join(kind.__name__ for kind in kinds)
    match len(kinds):
        case 0:
            return "scenario"
        case 1:
            return f"lambda story: scenario({names}(story.client))"
    return f'lambda story: scenario(type("Attempt", ({names}), {{}})(story.client))'


def script_flags(about: ScriptCase, how: Reproduction) -> dict[str, bool]:
    """Return which branches a case's script has: those of its features, as far as the client has them, and those of the
    shortest way to send its requests and to compare its answers.
    """
    absent = lacks(how)
    flags = {name: on and name not in absent for name, on in features(about).items()}
    flags["DIES"] &= how.dies_with_it
    plain = not any(flags[name] for name in flags_with(lambda one: one.alone) | {*ALONE})
    together = how.together and plain and not any(flags[name] for name in how.steps_for)
    stepped = how.steps and not together
    return flags | {
        "AT_ONCE": together,
        "STEPPED": stepped,
        "ONE_BY_ONE": plain and not (together or stepped or flags["TOGETHER"]),
        "COUNTS": how.counts or stepped,
        "TOKENS_ONLY": not any(flags[name] for name in flags_with(lambda one: one.compared) | {*COMPARED}),
    }


def lacks(how: Reproduction) -> set[str]:
    """Return the flags of what a client has not: what it says, and what needs a method that its class has not."""
    needed = {one.name: one.method for one in registered_flags() if one.method}
    return {*how.lacks, *(name for name, method in needed.items() if not offers(how.client, method))}


def heading(case: Case, how: Reproduction, engine: RecordedEngine) -> str:
    """Return the script's docstring: what it shows, what it needs, how to run it, and its exit codes."""
    name = docstring_line(case.id)
    own = [] if engine.cell is None or engine.cell.package is None else [engine.cell.package]
    needs = " and ".join(["Python 3.11", *how.packages, *own])
    wanted = [f"{needs}. Writes to ./coldproof-files.", how.note(engine)]
    url = f"python {name}.py URL"
    run = f"python {name}.py"
    if how.started(engine):
        run += f"   (starts the server; or, with one that runs: {url})"
    elif not how.in_process:
        run = url
    command = [] if how.in_process else [f"Server: {docstring_line(how.command(engine))}"]
    about = f"{docstring_line(case.engine)} {docstring_line(str(case.engine_version))}. Needs"
    return "\n".join(
        [
            *textwrap.wrap(f"{name}: {docstring_line(case.sentence)}", WIDTH),
            "",
            *textwrap.wrap(f"{about} {' '.join(filter(None, wanted))}", WIDTH),
            *command,
            f"Run: {run}",
            "Exit code: 1 while the bug exists, 0 when it is gone, 2 if the script cannot say.",
        ]
    )


def given(case: Case, how: Reproduction, engine: RecordedEngine) -> dict[str, Any]:
    """Return the values that a case gives its script, by their names in `script/given.py`."""
    restarts = [step.before for step in recorded_workload(case).steps if isinstance(step, Restart)]
    return {
        "ATTEMPTS": 1 if restarts else ATTEMPTS,
        **(generated_model(layers_of(case)) if engine.generated_model else {}),
        **how.settings(engine),
        "ADAPTERS": case.recipes,
        "START_SEED": OTHER_SEED if EngineChange.WEIGHTS in restarts else 0,
        "NOISE": noise(case),
        "ROUNDING": ROUNDING if case.vector is None else case.vector.tolerance,
    }


def layers_of(case: Case) -> ModelLayers:
    """Return the layers of the generated model of a case."""
    return reproduction_of(case.engine).layers(CELLS.get(case.cell))


@functools.cache
def generated_model(layers: ModelLayers) -> dict[str, Any]:
    """Return what a script needs to write a generated model: its config.json, and the shapes of its tensors."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        MAKERS[layers](folder)
        config = dict(json.loads((folder / "config.json").read_text()))
        shapes = tensor_shapes(folder / "model.safetensors")
    patterns = {re.sub(r"layers\.\d+\.", "layers.{}.", name): shape for name, shape in shapes.items()}
    return {"MODEL": config, "SHAPES": patterns, "LAYERS": config.get("num_hidden_layers", 0)}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file."""
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: tuple(facts["shape"]) for name, facts in header.items() if name != "__metadata__"}


def reproduction(case: Case) -> Reproduction:
    """Return how the script uses the engine of a case: with the first client that has what it takes."""
    own = reproduction_of(case.engine)
    usual = own if own.suits(recorded_engine(case)) else reproduction_of(default_engine().name)
    used = {name for name, on in features(script_case(case)).items() if on}
    return usual.otherwise() if usual.otherwise is not None and used & lacks(usual) else usual


def script_case(case: Case) -> ScriptCase:
    """Return a case with what its script plays."""
    return ScriptCase(case=case, workload=recorded_workload(case), generated=uses_generated_model(case))


def recorded_engine(case: Case) -> RecordedEngine:
    """Return the facts about the engine that a case records."""
    return RecordedEngine(
        name=case.engine,
        version=case.engine_version,
        config=case.engine_config,
        contents=tuple(case.recipes),
        generated_model=uses_generated_model(case),
        cell=CELLS.get(case.cell),
        model=generated_model(layers_of(case))["MODEL"] if uses_generated_model(case) else {},
    )


def uses_generated_model(case: Case) -> bool:
    """Return whether the served model was the tiny one that the script can make itself."""
    served = case.engine_config.get("model") or case.engine_config.get("command", "")
    return GENERATED.search(served) is not None and all("seed" in r for r in case.recipes.values())


def recorded_workload(case: Case) -> Workload:
    """Return the case's workload with the recorded disconnect times, and with logprobs if the comparison uses them."""
    took = {row.request: row.finished - row.sent for row in case.requests}
    workload = with_timed_aborts(msgspec.convert(case.workload, Workload), took)
    if case.noise_nats is None:
        return workload
    return change_requests(workload, lambda r: msgspec.structs.replace(r, options=r.options.with_scores()))


def noise(case: Case) -> dict[str, float | None] | None:
    """Return the noise tolerances in nats, as `judgement.checkers.noise_tolerance` uses them; None without noise."""
    if case.noise_nats is None:
        return None
    if case.band is None:
        return {"gap": case.noise_nats}
    return {
        "gap": case.noise_nats,
        "score": case.band.score_nats,
        "margin": case.band.margin_nats,
        "prompt": case.band.prompt_nats,
        "flips": flips_needed(case.band) if case.failure_class in MATCHED else None,
    }
