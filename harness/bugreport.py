"""Writes cases/ID.md: an issue that is ready to file with the engine's maintainers.

It follows the best hand-made report of the field (vllm#42125): one paragraph, the server's command, every request, what
was observed against what a cold start answers, the controls, the cache's own evidence, the environment, and how to see
it again with and without Coldproof. No host, user or home folder is named.
"""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import jinja2

from adapters.redact import redacted
from harness.dialects.dialect import made_on_the_spot
from harness.dialects.dialects import dialect_of
from harness.dialects.openai import needs_worker
from harness.shells import shell_of
from reports.markdown import escaped, fenced
from reports.schema import Case, ControlRow, RequestRow, Strength
from reports.text import one_line, tail, visible

TEMPLATE = Path(__file__).with_name("bugreport.md.j2")
LOG_LINES = 40
LONGEST = 5000  # characters of a paragraph
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
TELLS = {Strength.NEEDED: "gone without it", Strength.NOT_NEEDED: "comes without it", Strength.NOT_TOLD: "not told"}


def bug_report(case: Case, *, statement: str, environment: dict[str, str]) -> str:
    """The Markdown. Engine text enters escaped, or inside a fence that it cannot close."""
    shell, dialect = shell_of(case), dialect_of(case)
    loader = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    template = loader.from_string(TEMPLATE.read_text())
    text: str = template.render(
        case=case,
        title=title(case),
        sentence=escaped(anonymous(case.sentence), LONGEST),
        statement=escaped(statement, LONGEST),
        reproduced=reproduced(case),
        command=fenced(anonymous(dialect.command(case))),
        tiny_model=made_on_the_spot(case),
        worker=needs_worker(case),
        variables="" if dialect.in_process else fenced("\n".join(shell.variables())),
        steps=[(escaped(step.words), fenced(step.commands) if step.commands else "") for step in shell.steps()],
        needs=dialect.needs,
        in_process=dialect.in_process,
        requests=[request_line(row, case) for row in case.requests],
        observed=[row.observed for row in case.tokens if row.observed is not None],
        expected=[row.expected for row in case.tokens if row.expected is not None],
        from_position=case.tokens[0].position if case.tokens else 0,
        controls=[control_line(row) for row in case.diagnosis.controls] if case.diagnosis else [],
        conclusion=escaped(case.diagnosis.conclusion, LONGEST) if case.diagnosis else "",
        mechanism=escaped(case.diagnosis.mechanism) if case.diagnosis else "",
        counters=[(COUNTERS[name], f"{value:g}") for name, value in case.counters.items() if name in COUNTERS],
        provenance=[escaped(words) for words in case.provenance],
        findings=[escaped(anonymous(words)) for words in case.findings],
        environment=[(escaped(name), escaped(anonymous(value))) for name, value in sorted(environment.items())],
        log=fenced(anonymous(visible(tail(case.log_tail, lines=LOG_LINES)))) if case.log_tail else "",
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def title(case: Case) -> str:
    """One line that names the engine, what went wrong and in which story."""
    what, _, story = case.signature.partition("; ")
    story = f" ({story.replace('; ', ', ')})" if story else ""
    return escaped(one_line(anonymous(f"[Bug] {case.engine} {case.engine_version}: {what}{story}"), 160))


def reproduced(case: Case) -> str:
    """How often it failed where, with a confidence interval where it did not always."""
    seen, said = case.reproduction, []
    if seen.fresh_tries:
        said.append(f"{rate(seen.fresh_failed or 0, seen.fresh_tries)} runs on an engine started for this alone")
    if seen.caching_off_tries:
        said.append(f"{rate(seen.caching_off_failed or 0, seen.caching_off_tries)} with prefix caching off")
    told = f"It failed in {' and '.join(said)}." if said else "It was seen once."
    cold = (
        " An engine that was asked this prompt first of all gives the cold answer." if seen.fresh_oracle_agrees else ""
    )
    return f"{told}{cold} {escaped(seen.note)}".strip()


def rate(failed: int, tries: int) -> str:
    """Failures of tries; between none and all with Wilson's 95 % interval."""
    if failed in (0, tries):
        return f"{failed} of {tries}"
    share, square = failed / tries, Z95**2
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = Z95 / (1 + square / tries) * (share * (1 - share) / tries + square / (4 * tries**2)) ** 0.5
    return f"{failed} of {tries} (95 %: {100 * (middle - half):.0f} to {100 * (middle + half):.0f} %)"


def request_line(row: RequestRow, case: Case) -> list[str]:
    """A request's row: what it hit, what it may have hit, and whether it was right."""
    may = f"{row.cached_at_least if row.cached_at_least is not None else '?'} to {row.cached_at_most}"
    answer = "not compared" if row.correct is None else "as cold" if row.correct else "**wrong**"
    if row.answers_as and row.correct is False:
        answer += f" ({escaped(row.answers_as)})"
    mark = " ←" if row.request == case.failing_request else ""
    cached = "not told" if row.cached_tokens is None else str(row.cached_tokens)
    return [f"{row.request}{mark}", escaped(row.identity), str(row.prompt_tokens), cached, may, answer]


def control_line(row: ControlRow) -> list[str]:
    """A control's row."""
    if row.not_run:
        return [escaped(row.name), f"not run: {escaped(one_line(anonymous(row.not_run), 120))}", "", "", ""]
    failed = f"fails in {row.failed} of {row.tries}" + (f", otherwise in {row.otherwise}" if row.otherwise else "")
    cached = "not told" if row.cached_tokens is None else str(row.cached_tokens)
    same = "as cold" if row.observed == row.cold else "differs from cold"
    return [escaped(row.name), failed, cached, f"`{row.observed[:8]}` {same}", TELLS[row.tells]]


def anonymous(text: str) -> str:
    """Text without secrets, the home folder or the user's name in a path."""
    home = str(Path.home())
    text = redacted(text) if home == "/" else redacted(text).replace(home, "~")
    text = text.replace(str(Path.cwd()), ".")
    return re.sub(rf"/{re.escape(user())}(?=/|\b)", "/user", text)


def user() -> str:
    """Who runs this; somebody without a name is called so."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
