"""Rows for adapter changes, resets, and samples of queue and pool in a case."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.history.records import History, QueueSample, StepRecord
from coldproof.harness.schema.case import ChangeRow, QueueRow
from coldproof.harness.workload.steps import Burst, Step


def change_rows(history: History) -> list[ChangeRow]:
    """Return every adapter change and reset that ran, in order, and what else changed during a burst."""
    resets = {reset.began: reset.success for reset in (*history.resets, *history.side_resets)}
    rows = (change_row(record, history.workload.steps[record.step], resets) for record in history.steps)
    found = [row for row in rows if row is not None]
    return sorted([*found, *rows_during_bursts(history)], key=lambda row: (row.began, row.step))


def rows_during_bursts(history: History) -> Iterator[ChangeRow]:
    """Yield the updates of the weights and the pauses during bursts. On their own they are steps of the case."""
    made = [(u.began, u.ended, f"new weights {u.version!r}", u.error) for u in history.updates]
    made += [(p.began, p.running or p.ended, f"pause with mode {p.mode.value}", p.error) for p in history.pauses]
    for began, ended, kind, error in made:
        for record in history.steps:
            if isinstance(history.workload.steps[record.step], Burst) and record.started < began < record.finished:
                yield ChangeRow(step=record.step, kind=kind, began=began, ended=ended, refused=error is not None)


def change_row(record: StepRecord, step: Step, resets: dict[float, bool]) -> ChangeRow | None:
    """Return the change of one step; None without one."""
    if not isinstance(step, Burst):
        mark, began, ended = step.mark(), record.started, record.finished
    elif step.meanwhile is None or record.change_began is None or record.change_ended is None:
        return None
    else:
        mark, began, ended = step.meanwhile.change.mark(), record.change_began, record.change_ended
    if mark is None:
        return None
    done = not mark.resets or any(success for at, success in resets.items() if began <= at <= ended)
    return ChangeRow(
        step=record.step,
        kind=mark.kind,
        name=mark.name,
        content=mark.content,
        began=began,
        ended=ended,
        refused=record.error is not None or not done,
    )


def queue_rows(history: History) -> list[QueueRow]:
    """Return the samples of queue and pool: at the start, while several requests run, and after each burst."""
    if not history.steps:
        return []
    first = history.steps[0]
    samples = [queue_row(first.started, first.before)]
    for record in history.steps:
        if isinstance(history.workload.steps[record.step], Burst):
            samples += [queue_row(sample.at, sample) for sample in record.queue]
            samples.append(queue_row(record.finished, record.after))
    return [row for row in samples if (row.running, row.waiting, row.pool_usage) != (None, None, None)]


def queue_row(at: float, sample: Metrics | QueueSample) -> QueueRow:
    """Return one sample. Values are floats, so that a file does not change when it is read and written again."""
    running, waiting, usage = (
        None if gauge is None else float(gauge) for gauge in (sample.running, sample.waiting, sample.pool_usage)
    )
    return QueueRow(at=at, running=running, waiting=waiting, pool_usage=usage)
