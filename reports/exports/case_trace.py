"""A case as a trace in Chrome's Trace Event Format, which Perfetto, chrome://tracing and Speedscope open.

A maintainer opens it beside the engine's own trace. Each request is a track; steps, adapter names and the KV that other
requests read are tracks too, and the engine's queue and pool are counters. Times are microseconds since the workload
began. The format does not allow slices of a track to overlap unless one contains the other, so that steps that ran at
the same time are in several tracks.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from coldproof.harness.schema.case import Case, RequestRow, StepRow
from coldproof.reports.format.text import one_line, visible_data
from coldproof.reports.run_report.case.adapter_spans import change_texts, name_spans

Event = dict[str, Any]
REQUESTS, STEPS, NAMES, BLOCKS, POOL = 1, 2, 3, 4, 5  # the groups of tracks, which the format calls processes
GROUPS = {
    REQUESTS: "requests",
    STEPS: "steps",
    NAMES: "adapter names",
    BLOCKS: "KV that other requests read",
    POOL: "queue and KV pool",
}
LONGEST_NAME = 120  # characters
INSTANT = 1  # microseconds: a slice of no length would not be visible


def trace_json(case: Case) -> str:
    """Return the trace as JSON."""
    events = [*_requests(case), *_steps(case), *_names(case), *_blocks(case), *_counters(case)]
    used = {event["pid"] for event in events}
    groups = [_metadata(group, "process_name", name) for group, name in GROUPS.items() if group in used]
    order = [_sort_index(group) for group in GROUPS if group in used]
    facts = {
        "case": case.id,
        "requirement": case.requirement,
        "cell": case.place,
        "engine": f"{case.engine} {case.engine_version or ''}".strip(),
        "sentence": case.sentence,
        "replay": case.replay,
    }
    trace = {"traceEvents": groups + order + events, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(visible_data(trace), ensure_ascii=False, separators=(",", ":")) + "\n"


def _requests(case: Case) -> Iterator[Event]:
    """Return a track for each request: the whole of it, what it waited and computed within, and its first error."""
    for row in case.requests:
        failing = row.request == case.failing_request
        mark = " WRONG" if row.correct is False else ""
        name = f"r{row.request} {row.identity}{mark}"
        yield _metadata(REQUESTS, "thread_name", name + (" (the failing request)" if failing else ""), row.request)
        yield _slice(REQUESTS, row.request, name, row.sent, row.finished, _facts(row))
        first = row.first_token
        if first is not None and row.sent <= first <= row.finished:
            hit = "" if row.cached_tokens is None else f", {row.cached_tokens} cached"
            yield _slice(REQUESTS, row.request, f"queue and prompt{hit}", row.sent, first, {})
            yield from _decode(row, first)
        if row.wrong_token_at is not None:
            yield _instant(REQUESTS, row.request, f"first wrong token (position {row.wrong_token})", row.wrong_token_at)


def _decode(row: RequestRow, first: float) -> Iterator[Event]:
    """Return the slices of the answer, which a preemption divides."""
    began = first
    for left, back in zip(row.preempted_at, row.resumed_at, strict=False):
        if not began <= left <= back <= row.finished:
            continue
        yield _slice(REQUESTS, row.request, "decode", began, left, {})
        yield _slice(REQUESTS, row.request, "preempted", left, back, {})
        began = back
    yield _slice(REQUESTS, row.request, "decode", began, row.finished, {})


def _facts(row: RequestRow) -> dict[str, Any]:
    """Return what a viewer shows beside the slice of a request."""
    facts = {
        "model": row.model,
        "prompt": row.prompt_in_words,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "cached_tokens": row.cached_tokens,
        "cached_at_least": row.cached_at_least,
        "cached_at_most": row.cached_at_most,
        "correct": row.correct,
        "answers_as": row.answers_as,
        "error": row.error,
        "aborted": row.aborted,
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def _steps(case: Case) -> Iterator[Event]:
    """Return the steps, in as few tracks as do not overlap."""
    lanes: list[float] = []  # when the last step of each track ended
    for step in sorted(case.steps, key=lambda one: (one.started, one.step)):
        lane = next((place for place, ended in enumerate(lanes) if ended <= step.started), len(lanes))
        lanes[lane : lane + 1] = [step.finished]
        yield _slice(STEPS, lane, f"step {step.step}: {step.words}", step.started, step.finished, _step_facts(step))


def _step_facts(step: StepRow) -> dict[str, Any]:
    facts = {"step": step.words, "error": step.error}
    return {key: value for key, value in facts.items() if value}


def _names(case: Case) -> Iterator[Event]:
    """Return a track for each adapter name: the contents that it referred to, and one for all changes."""
    ends = [row.finished for row in case.requests] + [step.finished for step in case.steps]
    for track, (name, spans) in enumerate(name_spans(case, max(ends, default=0.0)).items(), start=1):
        yield _metadata(NAMES, "thread_name", name, track)
        for span in spans:
            yield _slice(NAMES, track, f"adapter {span.content}", span.began, span.ended, {})
    for change, words in change_texts(case):
        yield _instant(NAMES, 0, words, change.ended)
    if case.changes:
        yield _metadata(NAMES, "thread_name", "changes", 0)


def _blocks(case: Case) -> Iterator[Event]:
    """Return a track for each request whose KV another one read, with an arrow to each reader."""
    rows = {row.request: row for row in case.requests}
    arrows = count(1)
    named: set[int] = set()
    for reader in case.requests:
        wrong = reader.written_by is not None
        writer = rows.get(source) if (source := _source(reader)) is not None else None
        if writer is None:
            continue
        if writer.request not in named:
            named.add(writer.request)
            yield _metadata(BLOCKS, "thread_name", f"KV of r{writer.request} ({writer.identity})", writer.request)
            yield _slice(BLOCKS, writer.request, f"r{writer.request} computes", writer.sent, writer.finished, {})
        kind = "reads WRONGLY" if wrong else "reads"
        yield _instant(
            BLOCKS, writer.request, f"r{reader.request} ({reader.identity}) {kind} {_read(case, reader)}", reader.sent
        )
        arrow = {"cat": "kv", "name": "wrong KV" if wrong else "KV", "id": next(arrows), "pid": REQUESTS}
        yield arrow | {"ph": "s", "tid": writer.request, "ts": _micros(writer.sent)}
        yield arrow | {"ph": "f", "bp": "e", "tid": reader.request, "ts": _micros(reader.sent)}


def _source(reader: RequestRow) -> int | None:
    """Return the request whose KV this one read: the known writer of wrong KV, or the one that shares a prefix."""
    if reader.written_by is not None:
        return reader.written_by
    return reader.shared_with if reader.cached_tokens else None


def _read(case: Case, reader: RequestRow) -> str:
    """Return what was read in words: tokens, and blocks where the engine states their size."""
    if reader.wrong_kv:
        first, last = reader.wrong_kv[0], reader.wrong_kv[-1]
    else:
        first, last = 0, (reader.cached_tokens or 1) - 1
    blocks = f" (blocks {first // case.block_size} to {last // case.block_size})" if case.block_size else ""
    return f"tokens {first} to {last}{blocks}"


def _counters(case: Case) -> Iterator[Event]:
    """Return the engine's queue and pool, sample by sample."""
    for sample in case.queue:
        queue = {"running": sample.running, "waiting": sample.waiting}
        if known := {name: value for name, value in queue.items() if value is not None}:
            yield _counter("requests", sample.at, known)
        if sample.pool_usage is not None:
            yield _counter("KV pool in use (%)", sample.at, {"percent": round(100 * sample.pool_usage, 3)})


def _slice(group: int, track: int, name: str, began: float, ended: float, facts: dict[str, Any]) -> Event:
    start = _micros(began)
    length = max(_micros(ended) - start, INSTANT)
    return _event("X", group, track, name, start) | {"dur": length} | ({"args": facts} if facts else {})


def _instant(group: int, track: int, name: str, at: float) -> Event:
    return _event("i", group, track, name, _micros(at)) | {"s": "t"}


def _counter(name: str, at: float, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": POOL, "name": name, "ts": _micros(at), "args": values}


def _event(kind: str, group: int, track: int, name: str, at: int) -> Event:
    return {"ph": kind, "pid": group, "tid": track, "name": one_line(name, LONGEST_NAME), "ts": at}


def _metadata(group: int, kind: str, name: str, track: int | None = None) -> Event:
    event = {"ph": "M", "pid": group, "name": kind, "args": {"name": one_line(name, LONGEST_NAME)}}
    return event if track is None else event | {"tid": track}


def _sort_index(group: int) -> Event:
    return {"ph": "M", "pid": group, "name": "process_sort_index", "args": {"sort_index": group}}


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
