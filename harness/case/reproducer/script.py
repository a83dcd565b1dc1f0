"""Writes cases/ID.py: a script that reproduces the violation without Coldproof.

The scenario is at the top, one line for each step; behind it are the definitions that it uses, from Coldproof's own
modules. The cold answer comes from the same engine, under an adapter name, a folder and a cache salt that were not used
before, or from an engine without a cache.
"""

from __future__ import annotations

import enum
import functools
import json
import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.common.wake_route import WAKE_TAGS
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.adapters.registry import CELLS, reproduction_of
from coldproof.adapters.server.completions import headers, option_fields
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.generated_models import MAKERS, OTHER_SEED
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction
from coldproof.harness.case.reproducer.amalgamate import amalgamate
from coldproof.harness.case.reproducer.features import check, features, has_content
from coldproof.harness.case.reproducer.literals import WIDTH, literal
from coldproof.harness.judgement.checkers.noise_tolerance import MATCHED, flips_needed
from coldproof.harness.judgement.checkers.pooled import ROUNDING
from coldproof.harness.workload.steps import (
    Burst,
    Change,
    CloseSession,
    Idle,
    Pause,
    Request,
    Reset,
    Restart,
    RestartSide,
    RestoreState,
    Resume,
    Route,
    SaveState,
    Segment,
    SetAdapter,
    Sleep,
    Step,
    Unload,
    UpdateWeights,
    Wake,
    Workload,
)
from coldproof.harness.workload.transform import change_requests, with_timed_aborts
from coldproof.reports.format.python import docstring_line
from coldproof.reports.schema.case import Case

KIT = "coldproof.harness.case.reproducer.kit"
GENERATED = re.compile(r"/models/[0-9a-f]{16}(?=[/\s]|$)")  # the folder of a generated model; users have others
ATTEMPTS = 5
NEED_STEPS = ("TOGETHER", "ABORTS", "CRASHES", "HANGS", "SESSIONS")  # of a client that can do without


def reproducer(case: Case) -> str:
    """Return the script's source. Text from the engine enters only as Python literals and escaped single lines."""
    workload, how, engine = recorded_workload(case), reproduction(case), recorded_engine(case)
    flags = {name: on and name not in how.lacks for name, on in flags_of(case).items()}
    steps = any(flags[name] for name in NEED_STEPS)
    flags["STEPPED"] = how.stepped or (how.steps and steps)
    flags["ONE_BY_ONE"] = not (flags["STEPPED"] or steps or flags["FAILS"] or flags["DRAFTS"])
    flags["DIES"] &= how.dies_with_it
    module, client = how.client.split(":")
    call = check(case, workload, lacks=how.lacks)
    ways = {word: function.split(":") for word, function in how.modes(engine).items()}
    modes = "".join(f'{name}(sys.argv[2:]) if sys.argv[1:2] == ["{word}"] else ' for word, (_, name) in ways.items())
    lines = [
        f"from {KIT}.checks import main, {call.partition('(')[0]}",
        f"from {KIT}.story import Story",
        f"from {module} import {client}",
        *(["import time"] if any("time.sleep" in line for line in scenario(workload)) else []),
        *imported_content(workload),
        *(f"from {module} import {name}" for module, name in ways.values()),
        *(f"from {module} import {name}" for name, module in how.parts(engine).items()),
        *(f"PARTS = [{name}]  # the engine looks for it in this file" for name in how.parts(engine)),
        "def scenario(story: Story) -> None:",
        *(f"    {line}" for line in scenario(workload) or ["pass"]),
        "def shows_the_bug(story: Story) -> bool:",
        f"    return {call}",
    ]
    return amalgamate(
        f'#!/usr/bin/env python3\n"""{heading(case, how, engine)}\n"""',
        "\n".join(lines),
        flags=flags,
        literals={name: literal(value) for name, value in {**given(case, how, engine), **flags}.items()},
        call=modes + f"main({client}, scenario, shows_the_bug)",
    )


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
    usual = reproduction_of(case.engine)
    used = {name for name, on in flags_of(case).items() if on}
    return usual.otherwise() if usual.otherwise is not None and used & set(usual.lacks) else usual


def flags_of(case: Case) -> dict[str, bool]:
    """Return which features a case uses."""
    return features(case, recorded_workload(case), generated=uses_generated_model(case))


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
    return change_requests(workload, lambda r: msgspec.structs.replace(r, surface=r.surface.with_scores()))


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


def imported_content(workload: Workload) -> Iterator[str]:
    """Yield the imports of what prompts with rows or images are written with."""
    segments = [segment for _, _, request in workload.requests() for segment in request.prompt.segments]
    if any(map(has_content, segments)):
        yield "from coldproof.adapters.protocol.images import Arguments, Encoding"
        yield "from coldproof.harness.workload.steps import Image, Rows, Segment"


def scenario(workload: Workload) -> list[str]:
    """Return the workload as calls of the script, one line for each step."""
    lines: list[str] = []
    loaded: set[str] = set()
    content = next(imported_content(workload), None) is not None
    for step in workload.steps:
        if isinstance(step, SetAdapter) and step.route is Route.UNLOAD_LOAD and step.name in loaded:
            lines.append(f"story.unload({step.name!r})")
        lines.append(step_call(step, loaded, content=content))
        changes = step.meanwhile.changes if isinstance(step, Burst) and step.meanwhile else (step,)
        loaded |= {change.name for change in changes if isinstance(change, SetAdapter)}
        loaded -= {step.name} if isinstance(step, Unload) else set()
    return lines


def step_call(step: Step, loaded: set[str], *, content: bool) -> str:
    """Return a step as a call. `loaded`: the adapters that are. `content`: some prompts have rows or images."""
    match step:
        case Unload(name=name):
            return f"story.unload({name!r})"
        case SaveState(name=name):
            return f"story.save({name!r})"
        case RestoreState(name=name):
            return f"story.restore({name!r})"
        case Restart(before=before):
            return f"story.restart({before.value!r})"
        case Idle(ms=ms):
            return f"time.sleep({ms / 1000})"
        case CloseSession(name=name, aborted=aborted):
            return f"story.close_session({name!r}, aborted={aborted!r})"
        case Burst(requests=requests, meanwhile=meanwhile):
            asked = ", ".join(request_call(request, content=content) for request in requests)
            if meanwhile is None:
                return f"story.ask({asked})"
            wait = f", time.sleep({meanwhile.gap_ms / 1000}), " if meanwhile.gap_ms else ", "
            calls = [f"story.{change_call(change, loaded)}" for change in meanwhile.changes]
            if meanwhile.first:
                both = (meanwhile.first, meanwhile.first.other)
                calls = [calls[0].replace("story.", f"story.side({side.value!r}).", 1) for side in both]
            made = f"[{wait.join(calls)}]" if len(calls) > 1 else calls[0]
            return f"story.during(lambda: {made}, {meanwhile.after_tokens}, {asked})"
        case _:
            return f"story.{change_call(step, loaded)}"


def change_call(step: Change, loaded: set[str]) -> str:
    """Return one change as a call."""
    match step:
        case SetAdapter(name=name, content=content, path=path, route=route):
            how = ", for_all=True" if route is Route.SWITCH else ""
            how += ", in_place=True" if route is Route.IN_PLACE and name in loaded else ""
            return f"load({name!r}, {content!r}, {path!r}{how})"
        case Reset():
            words = [repr(scope.value) for scope in step.scope] + ([] if step.prefix else ["prefix=False"])
            return f"client.reset({', '.join(words)})"
        case UpdateWeights(version=version, route=route):
            same = ", same_path=True" if route is WeightRoute.SAME_PATH else ""
            return f"client.update_weights({version!r}{same})"
        case Pause(mode=mode, clear=clear):
            return f"client.pause({mode.value!r}, clear={clear!r})"
        case Resume():
            return "client.resume()"
        case Sleep(level=level):
            return f"client.sleep({level})"
        case Wake(part=part):
            return f"client.wake({WAKE_TAGS[part]!r})" if part in WAKE_TAGS else "client.wake()"
        case RestartSide(side=side):
            return f"client.restart_side({side.value!r})"


def request_call(request: Request, *, content: bool) -> str:
    """Return one request as a `dict(...)` expression."""
    prompt = ", ".join(segment_literal(segment, content=content) for segment in request.prompt.segments)
    fields: dict[str, Any] = {}
    if request.adapter is not None:
        fields["to"] = request.adapter
    if request.prompt.continues is not None:
        fields["continues"] = request.prompt.continues
    if request.prompt.cuts_history:
        fields["cut"] = (request.prompt.start, request.prompt.end)
    fields |= request_options(request)
    written = "".join(f", {name}={value!r}" for name, value in fields.items())
    return f"dict(prompt=[{prompt}], tokens={request.max_tokens}{written})"


def request_options(request: Request) -> dict[str, Any]:
    """Return what a request has beside its prompt and its adapter."""
    extra, sent = extra_fields(request), sent_headers(request)
    fields = {
        "salt": request.salt,
        "offset_ms": request.offset_ms or None,
        "chat": request.chat or None,
        "door": request.door.value if request.door else None,
        "headers": sent or None,
        "pooled": None if request.surface.pooled is None else request.surface.pooled.value,
        "session": request.session or None,
        "streaming": (request.streaming or None) if request.session else None,
        "abort": None if request.abort is None else (request.abort.after_tokens, request.abort.after_ms),
        "extra": extra or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def sent_headers(request: Request) -> dict[str, str]:
    """Return the headers that this request is sent with, beside the usual ones."""
    return headers(request.rank if isinstance(request.rank, int) else None, request.hand_over_ms or 0)


def extra_fields(request: Request) -> dict[str, Any]:
    """Return the extra fields of this request's body, as Coldproof sends them."""
    extra: dict[str, Any] = {"priority": request.priority} if request.priority else {}
    if request.surface != request.surface.plain():
        extra |= option_fields(request.surface, chat=request.chat)
    if request.surface.answers > 1:
        extra["temperature"] = 1
    if request.surface.stop or request.surface.pattern is not None:
        extra["ignore_eos"] = False
    return extra


def segment_literal(segment: Segment, *, content: bool) -> str:
    """Return a segment as a Python literal. Names may come from a case file, so they are quoted."""
    values: list[Any] = [segment.name, segment.length]
    if segment.changed is not None or segment.swapped is not None:
        values += [segment.changed] + ([] if segment.swapped is None else [segment.swapped])
    if not content:
        return repr(tuple(values))
    words = [repr(value) for value in values]
    words += [f"rows={struct_literal(segment.rows)}"] if segment.rows else []
    words += [f"image={struct_literal(segment.image)}"] if segment.image else []
    return f"Segment({', '.join(words)})"


def struct_literal(value: msgspec.Struct) -> str:
    """Return rows or an image as a call of its class, without what is as usual."""
    fields: Mapping[str, Any] = msgspec.structs.asdict(value)
    usual = {one.name: one.default for one in msgspec.structs.fields(value)}
    own = [f"{name}={plain(field)}" for name, field in fields.items() if field != usual[name]]
    return f"{type(value).__name__}({', '.join(own)})"


def plain(value: Any) -> str:
    """Return a value as a literal, a member of an enumeration as a call of its class."""
    return f"{type(value).__name__}({int(value)})" if isinstance(value, enum.IntEnum) else repr(value)
