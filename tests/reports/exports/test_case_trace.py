"""A case as a trace: a track for each request, nothing that overlaps in a track, and arrows from writers to readers."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from support import report_samples as samples

from coldproof.harness.case.finding_records import read_findings, read_records
from coldproof.harness.schema.case import Case, QueueRow, RequestRow
from coldproof.reports.exports.case_trace import REQUESTS, STEPS, trace_json

STORED = [one.case for one in read_findings(read_records().values())]
CASES = {"sample": samples.case()} | {case.id: case for case in STORED if case is not None}


def events(case: Case) -> list[dict[str, Any]]:
    """Return the events of the trace of a case."""
    found: list[dict[str, Any]] = json.loads(trace_json(case))["traceEvents"]
    return found


def slices(case: Case, group: int, track: int) -> list[dict[str, Any]]:
    """Return the slices in one track."""
    return [one for one in events(case) if (one["ph"], one["pid"], one.get("tid")) == ("X", group, track)]


@pytest.mark.parametrize("name", CASES)
def test_slices_of_a_track_contain_one_another_or_do_not_overlap(name: str) -> None:
    """Perfetto drops a slice that begins within another one and ends after it."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events(CASES[name]):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert tracks
    for spans in tracks.values():
        for began, ended in spans:
            assert all(
                ended <= other
                or over <= began
                or (other <= began and ended <= over)
                or (began <= other and over <= ended)
                for other, over in spans
            )


def test_a_request_has_its_times_and_facts() -> None:
    """The failing request is marked. Times are in microseconds."""
    case = samples.case()
    row = next(one for one in case.requests if one.request == case.failing_request)
    whole = max(slices(case, REQUESTS, row.request), key=lambda one: one["dur"])
    assert (whole["ts"], whole["dur"]) == (round(row.sent * 1e6), round(row.finished * 1e6) - round(row.sent * 1e6))
    assert whole["args"]["correct"] is False
    assert whole["args"]["prompt_tokens"] == row.prompt_tokens
    names = [one["args"]["name"] for one in events(case) if one["name"] == "thread_name" and one["pid"] == REQUESTS]
    assert [name for name in names if "the failing request" in name] == [
        f"r{row.request} {row.identity} WRONG (the failing request)"
    ]


def test_a_preemption_divides_the_answer() -> None:
    """What it waited is a slice of its own."""
    row = request(sent=0.0, first_token=0.1, preempted_at=[0.2, 0.5], resumed_at=[0.3, 0.6], finished=1.0)
    case = msgspec.structs.replace(samples.case(), requests=[row], failing_request=None)
    parts = [(one["name"], one["ts"]) for one in slices(case, REQUESTS, 0) if one["name"] in ("decode", "preempted")]
    assert parts == [
        ("decode", 100_000),
        ("preempted", 200_000),
        ("decode", 300_000),
        ("preempted", 500_000),
        ("decode", 600_000),
    ]


def test_an_arrow_leads_from_the_request_that_computed_kv_to_the_one_that_read_it() -> None:
    """A known wrong read is called so; a hit on a shared prefix is a read."""
    rows = [
        request(0, finished=0.2),
        request(1, sent=0.3, cached_tokens=32, shared_with=0, shared_tokens=40),
        request(2, sent=0.4, cached_tokens=32, written_by=0, wrong_kv=[16, 31]),
        request(3, sent=0.5, cached_tokens=0, shared_with=0),
    ]
    found = events(msgspec.structs.replace(samples.case(), requests=rows, failing_request=2, block_size=16))
    arrows = [(one["ph"], one["tid"], one["name"]) for one in found if one["ph"] in "sf"]
    assert arrows == [("s", 0, "KV"), ("f", 1, "KV"), ("s", 0, "wrong KV"), ("f", 2, "wrong KV")]
    reads = [one["name"] for one in found if one["ph"] == "i" and "reads" in one["name"]]
    assert [name.split(" reads ")[-1] for name in reads[:1]] == ["tokens 0 to 31 (blocks 0 to 1)"]
    assert reads[1].endswith("reads WRONGLY tokens 16 to 31 (blocks 1 to 1)")


def test_steps_that_ran_at_the_same_time_are_in_several_tracks() -> None:
    """Steps one after the other share a track."""
    step = samples.case().steps[0]
    times = [(0.0, 1.0), (0.5, 0.8), (0.8, 2.0), (1.0, 1.5)]
    steps = [msgspec.structs.replace(step, step=n, started=a, finished=b) for n, (a, b) in enumerate(times)]
    found = events(msgspec.structs.replace(samples.case(), steps=steps))
    assert [one["tid"] for one in found if one["ph"] == "X" and one["pid"] == STEPS] == [0, 1, 1, 0]


def test_the_queue_and_the_pool_are_counters() -> None:
    """What the engine does not report is left out."""
    queue = [QueueRow(at=0.0, running=1, waiting=None, pool_usage=0.25), QueueRow(at=0.1)]
    found = [one for one in events(msgspec.structs.replace(samples.case(), queue=queue)) if one["ph"] == "C"]
    assert [(one["ts"], one["args"]) for one in found] == [(0, {"running": 1}), (0, {"percent": 25.0})]


def request(number: int = 0, **changes: Any) -> RequestRow:
    """Return a request."""
    return msgspec.structs.replace(
        samples.request(number), request=number, **({"finished": 1.0, "sent": 0.0} | changes)
    )
