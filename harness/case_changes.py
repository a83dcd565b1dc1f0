"""What happened around a case's requests: what was put behind which name when, resets, and looks at queue and pool."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.base import Metrics
from harness.history import History, Queue, StepRecord
from harness.workload import Burst, Reset, SetAdapter, Step, Unload
from reports.schema import ChangeRow, QueueRow


def change_rows(history: History) -> list[ChangeRow]:
    """Every change of a name and every reset that was reached, those in a burst's midst included, in order."""
    resets = {reset.began: reset.success for reset in history.resets}
    rows = (change_row(record, history.workload.steps[record.step], resets) for record in history.steps)
    return [row for row in rows if row is not None]


def change_row(record: StepRecord, step: Step, resets: dict[float, bool]) -> ChangeRow | None:
    """The change of one step, if it has one."""
    began, ended = record.started, record.finished
    change = step.meanwhile.change if isinstance(step, Burst) and step.meanwhile is not None else step
    if isinstance(step, Burst):
        if record.change_began is None or record.change_ended is None:
            return None
        began, ended = record.change_began, record.change_ended
    refused = record.error is not None
    match change:
        case SetAdapter(name=name, content=content, route=route):
            kind = route.value
        case Unload(name=name):
            kind, content = "unload", ""
        case Reset():
            kind, name, content = "reset", "", ""
            refused = refused or not any(done for at, done in resets.items() if began <= at <= ended)
        case _:
            return None
    return ChangeRow(step=record.step, kind=kind, name=name, content=content, began=began, ended=ended, refused=refused)


def queue_rows(history: History) -> list[QueueRow]:
    """Every look at queue and pool: at the start, while several requests were in flight, and after each burst."""
    if not history.steps:
        return []
    first = history.steps[0]
    looks = [
        row_of(first.started, first.before),
        *(row for record in history.steps for row in looks_of(record, history)),
    ]
    return [row for row in looks if (row.running, row.waiting, row.pool_usage) != (None, None, None)]


def looks_of(record: StepRecord, history: History) -> Iterator[QueueRow]:
    """The looks of one step: only a burst moves anything."""
    if isinstance(history.workload.steps[record.step], Burst):
        yield from (row_of(look.at, look) for look in record.queue)
        yield row_of(record.finished, record.after)


def row_of(at: float, look: Metrics | Queue) -> QueueRow:
    """One look, in floats: a file that is read back and written again must be the same."""
    running, waiting, usage = (
        None if gauge is None else float(gauge) for gauge in (look.running, look.waiting, look.pool_usage)
    )
    return QueueRow(at=at, running=running, waiting=waiting, pool_usage=usage)
