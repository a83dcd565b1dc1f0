"""What a run writes on a terminal besides its progress, as lines of plain text.

Invariant: the end of a run has at most MOST_LINES lines whatever happened, and the last one is the path of the report.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from coldproof.harness.schema.results import Results
from coldproof.harness.schema.switches import ServerSwitches
from coldproof.reports.format.text import many, one_line
from coldproof.reports.views import switches
from coldproof.reports.views.cause_view import SIGN, CauseView, State
from coldproof.reports.views.causes import cause_views, listed, unconfirmed_words
from coldproof.reports.views.notes import notes
from coldproof.reports.views.verdict_sentence import verdict_sentence

MOST_LINES = 40
MOST_NOTES = 6
_TITLE, _SENTENCE = 120, 600  # characters


def switch_lines(found: ServerSwitches) -> list[str]:
    """Return what an attached server lets the run test, and a line for each switch that it lacks."""
    return switches.switch_lines(found)


def closing_lines(results: Results, page: Path, *, own: Sequence[str] = ()) -> list[str]:
    """Return the end of a run: the verdict, the causes, worst first, and the path of the report, which comes last.

    `own`: the options that `coldproof prove` needs for this run.
    """
    causes = cause_views(results)
    sentence = verdict_sentence(results, causes)
    mark = f"{results.conclusion}: " if results.conclusion else ""
    head = [f"{mark}{one_line(sentence.lead, _SENTENCE)}"]
    head += [one_line(sentence.more, _SENTENCE)] if sentence.more else []
    end = first(notes(results), MOST_NOTES, "notes are in the report")
    end += [f"stopped: {one_line(results.problem, _SENTENCE)}"] if results.problem else []
    waiting = sum(case.unfinished is not None for case in results.cases)
    if waiting:
        command = shlex.join(["coldproof", "prove", str(page.parent), *own])
        end.append(f"{many(waiting, 'proof')} left for lack of time: {command}")
    left = MOST_LINES - len(head) - len(end) - 1
    return [*head, *cause_lines(causes, left), *end, f"report: {page}"]


def cause_lines(causes: Sequence[CauseView], most: int) -> list[str]:
    """Return the causes in at most this many lines. One that fails the run has its replay in a second line."""
    shown: list[str] = []
    own, folded = listed(causes)
    last = [f"  {State.UNCONFIRMED.value.upper()} {unconfirmed_words(folded)}"] if folded else []
    most -= len(last)
    for place, cause in enumerate(own):
        lines = lines_of(cause)
        if len(shown) + len(lines) > most - (place < len(own) - 1):  # a line is kept for the number of the others
            return [*shown, f"  and {many(len(own) - place, 'more cause')} in the report", *last]
        shown += lines
    return [*shown, *last]


def lines_of(cause: CauseView) -> list[str]:
    """Return the lines of one cause."""
    state = "" if cause.is_waived else f"{cause.state.value.upper()} "
    title = one_line(cause.title, _TITLE)
    facts = [cause.broke, cause.counted, cause.attributed, cause.releases, cause.mending, cause.link]
    line = f"  {state}{SIGN[cause.severity]} {cause.severity.value}: {title} ({'; '.join(filter(None, facts))})"
    return [line] if not cause.fails or not cause.replay else [line, f"      {cause.replay}"]


def first(lines: Sequence[str], most: int, what: str) -> list[str]:
    """Return the first lines, and how many more there are."""
    return list(lines) if len(lines) <= most else [*lines[: most - 1], f"{len(lines) - most + 1} more {what}"]
