"""Writes cases/ID.md: a bug report to file with the maintainers of the engine.

The structure follows a good manual report (vllm#42125): summary, server command, every request, observed and expected
answer, controls, evidence of the cache, environment, and reproduction with and without Coldproof. The report does not
name the host, the user or the home folder.
"""

from __future__ import annotations

import functools
import getpass
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction
from coldproof.harness.case.replay_command import portable_command
from coldproof.harness.case.reproducer.script import (
    recorded_engine,
    recorded_workload,
    reproduction,
    uses_generated_model,
)
from coldproof.harness.schema.case import Case, ControlRow, RequestRow, Strength
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import Burst
from coldproof.reports.format.markdown import code, escaped, fenced
from coldproof.reports.format.shell import command_line, word
from coldproof.reports.format.text import one_line, tail, visible

TEMPLATE = Path(__file__).with_name("bug_report.md.j2")
SERVER = "http://127.0.0.1:8000"
LOG_LINES = 40
MAX_COMMAND = 100_000
MAX_CHARACTERS = 5000  # characters of a paragraph
Z95 = 1.96
COUNTERS = {
    "queried_tokens": "prompt tokens looked up",
    "hit_tokens": "prompt tokens hit",
    "external_queried_tokens": "looked up in the second tier",
    "external_hit_tokens": "hit in the second tier",
    "resumed_hit_tokens": "hit by resumed requests",
    "failed_loads": "failed loads",
    "preemptions": "preemptions",
}
CONTROL_RESULTS = {
    Strength.NEEDED: "required",
    Strength.NOT_NEEDED: "not required",
    Strength.UNDETERMINED: "undetermined",
}


def bug_report(case: Case, *, statement: str, environment: dict[str, str]) -> str:
    """Return the report as Markdown. Engine text is escaped, or inside a fence that it cannot close."""
    dialect, engine = reproduction(case), recorded_engine(case)
    script = word(f"{case.id}.py")
    call = f"python {script}" if dialect.in_process or dialect.started(engine) else f"python {script} {SERVER}"
    text: str = report_template().render(
        case=case,
        title=title(case),
        sentence=escaped(anonymous(case.sentence), MAX_CHARACTERS),
        statement=escaped(statement, MAX_CHARACTERS),
        requirement=escaped(case.requirement),
        cause=escaped(case.attribution.sentence) if case.attribution is not None else "",
        reproduced=reproduced(case),
        call=code(call),
        replay=code(anonymous(portable_command(case))),
        command=fenced(anonymous(server_command(dialect, engine))),
        tiny_model=uses_generated_model(case),
        note=dialect.note(engine),
        steps=[escaped(words) for words in steps(case)],
        needs=dialect.needs,
        in_process=dialect.in_process,
        requests=[request_line(row, case) for row in case.requests],
        observed=[row.observed for row in case.tokens if row.observed is not None],
        expected=[row.expected for row in case.tokens if row.expected is not None],
        from_position=case.tokens[0].position if case.tokens else 0,
        controls=[control_line(row) for row in case.diagnosis.controls] if case.diagnosis else [],
        conclusion=escaped(case.diagnosis.conclusion, MAX_CHARACTERS) if case.diagnosis else "",
        mechanism=escaped(case.diagnosis.mechanism) if case.diagnosis else "",
        counters=[(COUNTERS[name], f"{value:g}") for name, value in case.counters.items() if name in COUNTERS],
        provenance=[escaped(words) for words in case.provenance],
        findings=[escaped(anonymous(words)) for words in case.findings],
        environment=[*map(environment_line, (*facts(case), *sorted(environment.items())))],
        log=fenced(anonymous(visible(tail(case.log_tail, lines=LOG_LINES)))) if case.log_tail else "",
    )
    return re.sub(r"\n{3,}", "\n\n", text)


@functools.cache
def report_template() -> jinja2.Template:
    """Return the template of the report. It is compiled once."""
    loader = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    return loader.from_string(TEMPLATE.read_text())


def steps(case: Case) -> Iterator[str]:
    """Yield a description of each step."""
    first = 0
    for step in recorded_workload(case).steps:
        yield one_line(describe(step, first), limit=2000)
        first += len(step.requests) if isinstance(step, Burst) else 0


def server_command(dialect: Reproduction, engine: RecordedEngine) -> str:
    """Return the command of the server; of an engine in the script's process, its arguments."""
    return (
        one_line(dialect.command(engine), MAX_COMMAND) if dialect.in_process else command_line(dialect.command(engine))
    )


def facts(case: Case) -> list[tuple[str, str]]:
    """Return what the environment table says of the engine and the comparison."""
    return [
        ("engine", f"{case.engine} {case.engine_version}"),
        ("configuration", case.cell),
        ("oracle", f"{case.oracle}; {case.rule}"),
    ]


def environment_line(fact: tuple[str, str]) -> list[str]:
    """Return a row of the environment table."""
    name, value = fact
    return [escaped(name), escaped(anonymous(value))]


def title(case: Case) -> str:
    """Return a line with the engine, the failure class and the circumstances."""
    what, _, circumstances = case.signature.partition("; ")
    circumstances = f" ({circumstances.replace('; ', ', ')})" if circumstances else ""
    return escaped(one_line(anonymous(f"[Bug] {case.engine} {case.engine_version}: {what}{circumstances}"), 160))


def reproduced(case: Case) -> str:
    """Return how often the case failed, with a confidence interval if it did not always fail."""
    reproduction, rates = case.reproduction, []
    if reproduction.fresh_tries:
        rates.append(f"{rate(reproduction.fresh_failed or 0, reproduction.fresh_tries)} runs on fresh engines")
    if reproduction.running_tries:
        rates.append(f"{rate(reproduction.running_failed or 0, reproduction.running_tries)} runs after other workloads")
    if reproduction.caching_off_tries:
        off = rate(reproduction.caching_off_failed or 0, reproduction.caching_off_tries)
        rates.append(f"{off} runs with prefix caching off")
    summary = f"It failed in {' and '.join(rates)}." if rates else "It was observed once."
    cold = (
        " A fresh engine that gets this prompt first gives the cold answer." if reproduction.fresh_oracle_agrees else ""
    )
    return f"{summary}{cold} {escaped(reproduction.note)}".strip()


def rate(failed: int, tries: int) -> str:
    """Return `failed of tries`, with Wilson's 95 % interval unless none or all failed."""
    if failed in (0, tries):
        return f"{failed} of {tries}"
    share, square = failed / tries, Z95**2
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = Z95 / (1 + square / tries) * (share * (1 - share) / tries + square / (4 * tries**2)) ** 0.5
    return f"{failed} of {tries} (95 %: {100 * (middle - half):.0f} to {100 * (middle + half):.0f} %)"


def request_line(row: RequestRow, case: Case) -> list[str]:
    """Return a request's row: cached tokens, their bounds, and whether the answer was correct."""
    may = f"{row.cached_at_least if row.cached_at_least is not None else '?'} to {row.cached_at_most}"
    answer = "not compared" if row.correct is None else "correct" if row.correct else "**wrong**"
    if row.answers_as and row.correct is False:
        answer += f" ({escaped(row.answers_as)})"
    mark = " ←" if row.request == case.failing_request else ""
    cached = "not reported" if row.cached_tokens is None else str(row.cached_tokens)
    return [f"{row.request}{mark}", escaped(row.identity), str(row.prompt_tokens), cached, may, answer]


def control_line(row: ControlRow) -> list[str]:
    """Return a control's row."""
    if row.not_run:
        return [escaped(row.name), f"not run: {escaped(one_line(anonymous(row.not_run), 120))}", "", "", ""]
    failed = f"fails in {row.failed} of {row.tries}" + (
        f", in a different way in {row.otherwise}" if row.otherwise else ""
    )
    cached = "not reported" if row.cached_tokens is None else str(row.cached_tokens)
    same = "as cold" if row.observed == row.cold else "differs from cold"
    answer = f"`{row.observed[:8]}` {same}" if row.observed or row.cold else "none"
    return [escaped(row.name), failed, cached, answer, CONTROL_RESULTS[row.tells]]


def anonymous(text: str) -> str:
    """Return text without secrets, the home folder, and the user's name in paths."""
    home = str(Path.home())
    text = redacted(text) if home == "/" else redacted(text).replace(home, "~")
    text = text.replace(str(Path.cwd()), ".")
    return re.sub(rf"/{re.escape(user())}(?=/|\b)", "/user", text)


def user() -> str:
    """Return the user's name; 'nobody' without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
