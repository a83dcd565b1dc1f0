"""Which steps of a history changed the content of an adapter name."""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.workload.steps import Route, SetAdapter


def change_of(history: History, step: int) -> SetAdapter | None:
    """Return the adapter change of a step, on its own or during a burst; None if it has none."""
    change = next(iter(history.workload.steps[step].changes), None)
    return change if isinstance(change, SetAdapter) else None


def changes_adapter(history: History, step: int) -> bool:
    """Return whether a step replaces the content of an adapter name. A first load replaces nothing."""
    change = change_of(history, step)
    return change is not None and change.route is not Route.LOAD


def same_path_reloads(history: History) -> int:
    """Return the number of acknowledged loads from a path that had another content's files before."""
    contents: dict[str, str] = {}
    count = 0
    for record in history.steps:
        change = change_of(history, record.step)
        if change is None:
            continue
        count += contents.get(change.path, change.content) != change.content and record.error is None
        contents[change.path] = change.content
    return count


def content_returned(history: History, outcome: Outcome) -> bool:
    """Return whether the request's adapter name had this content before, then another, and has this one again."""
    seen: list[str] = []
    for record in history.steps[: outcome.step]:
        change = change_of(history, record.step)
        same_name = change is not None and change.name == outcome.partition.name and record.error is None
        if change is not None and same_name and seen[-1:] != [change.content]:
            seen.append(change.content)
    return seen[-1:] != [] and seen[-1] in seen[:-1]
