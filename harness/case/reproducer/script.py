"""Writes cases/ID.py: a script that reproduces the violation without Coldproof.

The scenario is at the top, one line for each step. The cold answer comes from the same server, under an adapter name, a
folder and a cache salt that were not used before. Exit code 1 if the bug occurs, 0 if it does not.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from coldproof.adapters.common import image_model, seeing_model, state_model, tiny_model
from coldproof.adapters.common.wake_route import WAKE_TAGS
from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.adapters.registry import CELLS, reproduction_of
from coldproof.adapters.server.completions import headers, option_fields
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.generated_models import MAKERS, OTHER_SEED
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, source_of
from coldproof.harness.case.signature import FEWER_DRAFTS
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
    Unload,
    UpdateWeights,
    Wake,
    Workload,
    weight_updates,
)
from coldproof.harness.workload.transform import change_requests, with_timed_aborts
from coldproof.reports.format.python import docstring_line
from coldproof.reports.schema.case import Case, RequestRow
from coldproof.reports.schema.verdict import FailureClass

HERE = Path(__file__).parent
# The files behind tiny_model.py that write the other generated models.
MADE_BEHIND = {ModelLayers.STATE: (state_model,), ModelLayers.IMAGES: (image_model, seeing_model)}
SEEDS = {"start": 0, "A": 1, "B": 2}  # of the generated versions of the weights
GENERATED = re.compile(r"/models/[0-9a-f]{16}(?=[/\s]|$)")  # the folder of a generated model; users have others
TEMPLATE, ENGINE_TEMPLATE = "script.py.j2", "engine.py.j2"
# Classes that mean a wrong count if no token is wrong. All other classes concern the answer.
CACHED_COUNT_FAILURES = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE, FailureClass.STALE_STATE)


def may_have_ended(case: Case, row: RequestRow | None) -> bool:
    """Return whether the engine may have ended in a case. A crash that also happens without a cache is of the class
    NOT_THE_CACHE; its failing request (`row`) has an error in place of an answer.
    """
    failed = row is not None and bool(row.error)
    return case.failure_class is FailureClass.CRASH or (case.failure_class is FailureClass.NOT_THE_CACHE and failed)


def reproducer(case: Case) -> str:
    """Return the script's source. Text from the engine enters only as Python literals and escaped single lines."""
    workload = recorded_workload(case)
    dialect, engine = reproduction(case), recorded_engine(case)
    launcher = dialect.launcher(engine)
    layers = CELLS[case.cell].model if case.cell in CELLS else ModelLayers.FULL
    makers = (tiny_model, *MADE_BEHIND.get(layers, ()))
    carried = list(dict.fromkeys([*map(source_of, makers), *dialect.carries]))
    of_engine = dialect.template.read_text()
    row = next((r for r in case.requests if r.request == case.failing_request), None)
    restarts = [step.before for step in workload.steps if isinstance(step, Restart)]
    by_count = row is not None and case.first_difference is None and case.failure_class in CACHED_COUNT_FAILURES
    source: str = script_template(dialect.template).render(
        case_id=docstring_line(case.id),
        sentence=docstring_line(case.sentence),
        dialect=ENGINE_TEMPLATE,
        command=repr(dialect.command(engine)),
        launcher=None if launcher is None else launcher.name,
        launcher_source="" if launcher is None else launcher.read_text(),
        needs=dialect.needs,
        in_process=dialect.in_process,
        serves=any(path.name.endswith("_server.py") for path in carried),
        translates="def translate_files(" in of_engine,
        imports=imports(carried, dialect.packages),
        noise=repr(noise(case)),
        judge=f"judge_{'exact' if case.noise_nats is None else 'noisy'}.py.j2",
        tiny_model=uses_generated_model(case),
        maker=MAKERS[layers].__name__,
        restarts=restarts,
        other_seed=OTHER_SEED if EngineChange.WEIGHTS in restarts and uses_generated_model(case) else None,
        recipes=repr(case.recipes),
        config=case.engine_config,
        weights=SEEDS if weight_updates(workload) else {},
        scenario="\n".join(f"    {line}" for line in scenario(workload)),
        failing=repr(case.failing_request),
        ignored=was_ignored(case, workload),
        ends="self.url" in of_engine and may_have_ended(case, row),
        hangs=case.failure_class is FailureClass.HANG,
        doors=any(request.door for _, _, request in workload.requests()),
        sessions=any(request.session for _, _, request in workload.requests()),
        chats=any(request.chat for _, _, request in workload.requests()),
        drafts=case.signature.endswith(FEWER_DRAFTS),
        vectors=any(request.surface.pooled for _, _, request in workload.requests()),
        rounding=ROUNDING if case.vector is None else case.vector.tolerance,
        headers=any(sent_headers(request) for _, _, request in workload.requests()),
        most_counted=most_counted(case) if "def hit_count(" in of_engine else None,
        at_most=repr(most_cached(case, row) if row is not None and by_count else None),
        at_least=repr(row.cached_at_least if row is not None and by_count else None),
        carried="\n\n".join(map(source_body, carried)),
    )
    return source


@functools.cache
def script_template(of_engine: Path) -> jinja2.Template:
    """Return the script's template with the part of an engine. It is compiled once."""
    parts = jinja2.DictLoader({ENGINE_TEMPLATE: of_engine.read_text()})
    templates = jinja2.ChoiceLoader([parts, jinja2.FileSystemLoader(HERE)])
    loader = jinja2.Environment(loader=templates, keep_trailing_newline=False, undefined=jinja2.StrictUndefined)
    return loader.get_template(TEMPLATE)


def reproduction(case: Case) -> Reproduction:
    """Return how the script uses the engine of a case."""
    usual = reproduction_of(case.engine)
    requests = [request for _, _, request in msgspec.convert(case.workload, Workload).requests()]
    content = any(s.rows or s.image for request in requests for s in request.prompt.segments)
    sessions = any(request.session for request in requests)
    return usual.with_content if (content or sessions) and usual.with_content is not None else usual


def was_ignored(case: Case, workload: Workload) -> bool:
    """Return whether the case is about a field that the failing request's door ignores and another one refuses."""
    asked = {number: request for number, _, request in workload.requests()}
    failing = asked.get(-1 if case.failing_request is None else case.failing_request)
    return case.failure_class is FailureClass.API and failing is not None and failing.priority == IMPOSSIBLE_PRIORITY


def most_cached(case: Case, row: RequestRow) -> int | None:
    """Return the most cached tokens with which the bug did not occur.

    Lost reuse is too few of them. More than allowed is not that bug, and some engines count only an upper bound.
    """
    return row.prompt_tokens if case.failure_class is FailureClass.LOST_REUSE else row.cached_at_most


def most_counted(case: Case) -> int | None:
    """Return how many tokens the engine may have counted as hits, in a case about its counter: no request reports a
    count of its own. None for other cases.
    """
    reported = any(row.cached_tokens is not None for row in case.requests)
    about_counter = case.failing_request is None and case.failure_class is FailureClass.ACCOUNTING
    if not about_counter or reported or case.block_size is None:
        return None
    return sum((row.cached_at_most or 0) // case.block_size * case.block_size for row in case.requests)


def recorded_engine(case: Case) -> RecordedEngine:
    """Return the facts about the engine that a case records."""
    return RecordedEngine(
        name=case.engine,
        version=case.engine_version,
        config=case.engine_config,
        contents=tuple(case.recipes),
        generated_model=uses_generated_model(case),
        cell=CELLS.get(case.cell),
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


def scenario(workload: Workload) -> list[str]:
    """Return the workload as calls of the script's server class, one line for each step."""
    lines, number = [], 0
    for step in workload.steps:
        match step:
            case Unload(name=name):
                lines.append(f"server.unload({name!r})")
            case SaveState(name=name):
                lines.append(f"server.save({name!r})")
            case RestoreState(name=name):
                lines.append(f"server.restore({name!r})")
            case Restart(before=before):
                lines.append(f"server.restart({before.value!r})")
            case Idle(ms=ms):
                lines.append(f"time.sleep({ms / 1000})")
            case CloseSession(name=name, aborted=aborted):
                lines.append(f"server.close_session({name!r}, aborted={aborted!r})")
            case Burst(requests=requests, meanwhile=meanwhile):
                asked = ", ".join(request_call(number + i, r) for i, r in enumerate(requests))
                during = ""
                if meanwhile is not None:
                    wait = f", time.sleep({meanwhile.gap_ms / 1000}), " if meanwhile.gap_ms else ", "
                    calls = [change_call(change) for change in meanwhile.changes]
                    if meanwhile.first:
                        both = (meanwhile.first, meanwhile.first.other)
                        calls = [f"side({side.value!r}).{calls[0]}" for side in both]
                    made = wait.join(f"server.{call}" for call in calls)
                    several = f"[{made}]" if len(calls) > 1 else made
                    during = f", after_tokens={meanwhile.after_tokens}, change=lambda: {several}"
                lines.append(f"server.ask([{asked}]{during})")
                number += len(requests)
            case _:
                lines.append(f"server.{change_call(step)}")
    return lines


ROUTE_ARGUMENTS = {
    Route.LOAD: "",
    Route.IN_PLACE: ", in_place=True",
    Route.UNLOAD_LOAD: ", unload_first=True",
    Route.SWITCH: ", for_every_request=True",
}


def reset_call(step: Reset) -> str:
    """Return a reset as a call of the script's server class. Only engines whose reset covers more take arguments."""
    words = [repr(scope.value) for scope in step.scope] + ([] if step.prefix else ["prefix=False"])
    return f"reset({', '.join(words)})"


def change_call(step: Change) -> str:
    """Return one change as a call."""
    match step:
        case SetAdapter(name=name, content=content, path=path, route=route):
            return f"set_adapter({name!r}, content={content!r}, path={path!r}{ROUTE_ARGUMENTS[route]})"
        case Reset():
            return reset_call(step)
        case UpdateWeights(version=version, route=route):
            return f"update_weights({version!r}{', same_path=True' if route is WeightRoute.SAME_PATH else ''})"
        case Pause(mode=mode, clear=clear):
            return f"pause({mode.value!r}, clear={clear!r})"
        case Resume():
            return "resume()"
        case Sleep(level=level):
            return f"sleep({level})"
        case Wake(part=part):
            return f"wake({WAKE_TAGS[part]!r})" if part in WAKE_TAGS else "wake()"
        case RestartSide(side=side):
            return f"restart_side({side.value!r})"


def request_call(number: int, request: Request) -> str:
    """Return one request as a `dict(...)` expression."""
    prompt = f"[{', '.join(map(segment_literal, request.prompt.segments))}], continues={request.prompt.continues!r}"
    if request.prompt.cuts_history:
        prompt += f", cut=({request.prompt.start!r}, {request.prompt.end!r})"
    fields = f"n={number}, to={request.adapter!r}, prompt={prompt}, tokens={request.max_tokens}"
    if request.salt is not None:
        fields += f", salt={request.salt!r}"
    if request.offset_ms:
        fields += f", offset_ms={request.offset_ms}"
    if request.chat:
        fields += ", chat=True"
    if request.door:
        fields += f", door={request.door.value!r}"
    if sent := sent_headers(request):
        fields += f", headers={sent!r}"
    if request.surface.pooled is not None:
        fields += f", pooled={request.surface.pooled.value!r}"
    if request.session:
        fields += f", session={request.session!r}{', streaming=True' if request.streaming else ''}"
    if request.abort is not None:
        fields += f", abort=({request.abort.after_tokens}, {request.abort.after_ms})"
    if extra := extra_fields(request):
        fields += f", extra={extra!r}"
    return f"dict({fields})"


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


def segment_literal(segment: Segment) -> str:
    """Return a segment as a Python literal. Names may come from a case file, so they are quoted."""
    content = segment.rows or segment.image
    swapped = "" if segment.swapped is None and not content else f", {segment.swapped!r}"
    if content:
        swapped += f", {msgspec.to_builtins(content)!r}"
    return f"({segment.name!r}, {segment.length!r}, {segment.changed!r}{swapped})"


STANDARD_MODULES = ("hashlib", "json", "os", "queue", "random", "secrets", "shutil", "sys", "threading", "time")


def imports(carried: list[Path], packages: tuple[str, ...]) -> str:
    """Return the script's imports: standard library, then packages, for the script and the sources that it contains."""
    lines = {f"import {module}" for module in STANDARD_MODULES} | {"from pathlib import Path"}
    for path in carried:
        lines |= set(re.findall(r"^(?:import|from) (?!__future__|coldproof).+$", path.read_text(), re.MULTILINE))
    ordered = sorted(lines, key=lambda line: (line.startswith("from "), line))
    beside = "".join(f"\nimport {package}" for package in packages if package == "requests")
    return "\n".join(ordered) + (f"\n{beside}" if beside else "")


def source_body(path: Path) -> str:
    """Return a file's source without docstring, imports and main block."""
    source = path.read_text()
    last = list(re.finditer(r"^(?:import|from) (?:.+ \([^)]*\)|.+)$", source, re.MULTILINE))[-1]
    return source[last.end() :].partition('\nif __name__ == "__main__":')[0].strip() + "\n"
