"""Writes cases/ID.py: a script that shows the violation with `requests` alone, without Coldproof.

The scenario stands at the top, a line per step; the cold answer is asked of the same server, under an adapter name, a
folder and a cache salt that nothing used before. Exit 1 while the bug is there, 0 once it is gone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from adapters.base import PLAIN
from adapters.completions import asked_for
from harness.checkers.noisy import MATCHED, flips_needed
from harness.dialects.dialect import HERE, is_sliding, made_on_the_spot, source_of
from harness.dialects.dialects import dialect_of
from harness.models import forge
from harness.rewriting import all_changed, as_timed
from harness.workload import (
    Burst,
    Idle,
    Prompt,
    Request,
    Reset,
    RestoreState,
    SaveState,
    Segment,
    SetAdapter,
    Unload,
    Workload,
)
from reports.schema import Case, FailureClass
from reports.text import one_line

TEMPLATE = "script.py.j2"
# Without a wrong token these are wrong counts; any other class is something about the answer.
COUNTED = (FailureClass.ACCOUNTING, FailureClass.LOST_REUSE, FailureClass.STALE_STATE)


def reproducer(case: Case) -> str:
    """The script's source. Text from the engine only enters as Python literals and as comment-safe single lines."""
    workload = as_it_ran(case)
    dialect = dialect_of(case)
    carried = [source_of(forge), *dialect.carries]
    loader = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), keep_trailing_newline=False, undefined=jinja2.StrictUndefined
    )
    template = loader.get_template(TEMPLATE)
    row = next((r for r in case.requests if r.request == case.failing_request), None)
    by_count = row is not None and case.first_difference is None and case.failure_class in COUNTED
    source: str = template.render(
        case_id=case.id,
        sentence=plain(case.sentence),
        dialect=dialect.template,
        command=repr(dialect.command(case)),
        needs=dialect.needs,
        in_process=dialect.in_process,
        serves=any(path.name.endswith("_server.py") for path in carried),
        translates="def translate_files(" in (HERE / dialect.template).read_text(),
        imports=imports(carried, dialect.packages),
        noise=repr(noise(case)),
        judge=f"judge_{'exact' if case.noise_nats is None else 'noisy'}.py.j2",
        tiny_model=made_on_the_spot(case),
        maker="make_sliding_window_model" if is_sliding(case) else "make_model",
        recipes=repr(case.recipes),
        scenario="\n".join(f"    {line}" for line in scenario(workload)),
        failing=repr(case.failing_request),
        at_most=repr(row.cached_at_most if row is not None and by_count else None),
        at_least=repr(row.cached_at_least if row is not None and by_count else None),
        carried="\n\n".join(map(body, carried)),
    )
    return source


def as_it_ran(case: Case) -> Workload:
    """The case's workload, whose clients hang up when they did, and ask for scores where those tell what noise is."""
    took = {row.request: row.finished - row.sent for row in case.requests}
    workload = as_timed(msgspec.convert(case.workload, Workload), took)
    return workload if case.noise_nats is None else all_changed(workload, scored)


def scored(request: Request) -> Request:
    """The request with scores asked for, as a run on a noisy engine asks for them."""
    return msgspec.structs.replace(request, surface=request.surface.with_scores())


def noise(case: Case) -> dict[str, float | None] | None:
    """How far right answers lie apart, for the script's own judgement: what `harness.checkers.noisy` goes by."""
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


def plain(text: str) -> str:
    """Text that can stand in a docstring: one line, no quote or backslash that could end it."""
    return re.sub(r'["\\]', "'", one_line(text, limit=20_000))


def scenario(workload: Workload) -> list[str]:
    """The workload as calls of the script's small server class."""
    lines, number = [], 0
    for step in workload.steps:
        match step:
            case SetAdapter():
                lines.append(f"server.{change_call(step)}")
            case Unload(name=name):
                lines.append(f"server.unload({name!r})")
            case Reset():
                lines.append("server.reset()")
            case SaveState(name=name):
                lines.append(f"server.save({name!r})")
            case RestoreState(name=name):
                lines.append(f"server.restore({name!r})")
            case Idle(ms=ms):
                lines.append(f"time.sleep({ms / 1000})")
            case Burst(requests=requests, meanwhile=meanwhile):
                asked = ", ".join(request_call(number + i, r) for i, r in enumerate(requests))
                during = ""
                if meanwhile is not None:
                    made = meanwhile.change
                    change = f"lambda: server.{change_call(made) if isinstance(made, SetAdapter) else 'reset()'}"
                    during = f", after_tokens={meanwhile.after_tokens}, change={change}"
                lines.append(f"server.ask([{asked}]{during})")
                number += len(requests)
    return lines


def change_call(step: SetAdapter) -> str:
    """One adapter change as a call."""
    return f"set_adapter({step.name!r}, content={step.content!r}, path={step.path!r}, route={step.route.value!r})"


def request_call(number: int, request: Request) -> str:
    """One request as a dictionary display."""
    fields = f"n={number}, to={request.adapter!r}, {prompt_fields(request.prompt)}, tokens={request.max_tokens}"
    if request.salt is not None:
        fields += f", salt={request.salt!r}"
    if request.offset_ms:
        fields += f", offset_ms={request.offset_ms}"
    if request.chat:
        fields += ", chat=True"
    if request.abort is not None:
        fields += f", abort=({request.abort.after_tokens}, {request.abort.after_ms})"
    if extra := extra_fields(request):
        fields += f", extra={extra!r}"
    return f"dict({fields})"


def extra_fields(request: Request) -> dict[str, Any]:
    """What the body of this request says beside the usual, as Coldproof sends it."""
    extra: dict[str, Any] = {"priority": request.priority} if request.priority else {}
    if request.surface != PLAIN:
        extra |= asked_for(request.surface, chat=request.chat)
    if request.surface.answers > 1:
        extra["temperature"] = 1
    if request.surface.stop or request.surface.pattern is not None:
        extra["ignore_eos"] = False
    return extra


def prompt_fields(prompt: Prompt) -> str:
    """A prompt's segments as plain tuples."""
    segments = ", ".join(map(segment_literal, prompt.segments))
    return f"prompt=[{segments}], continues={prompt.continues!r}"


def segment_literal(segment: Segment) -> str:
    """A Python literal; names come from our generators or a case file and are quoted all the same."""
    swapped = "" if segment.swapped is None else f", {segment.swapped!r}"
    return f"({segment.name!r}, {segment.length!r}, {segment.changed!r}{swapped})"


STANDARD = ("hashlib", "json", "os", "queue", "random", "secrets", "shutil", "sys", "threading", "time")


def imports(carried: list[Path], packages: tuple[str, ...]) -> str:
    """What the script imports: the standard library's for itself and for the sources that it carries, then packages."""
    lines = {f"import {module}" for module in STANDARD} | {"from pathlib import Path"}
    for path in carried:
        lines |= set(re.findall(r"^(?:import|from) (?!__future__).+$", path.read_text(), re.MULTILINE))
    ordered = sorted(lines, key=lambda line: (line.startswith("from "), line))
    beside = "".join(f"\nimport {package}" for package in packages if package == "requests")
    return "\n".join(ordered) + (f"\n{beside}" if beside else "")


def body(path: Path) -> str:
    """A file's source without its docstring, its imports and what it does when it is run."""
    source = path.read_text()
    last = list(re.finditer(r"^(?:import|from) .+$", source, re.MULTILINE))[-1]
    return source[last.end() :].partition('\nif __name__ == "__main__":')[0].strip() + "\n"
