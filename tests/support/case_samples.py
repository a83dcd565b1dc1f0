"""Cases with everything that the pictures draw: a stale prefix, and many requests in a small pool."""

from __future__ import annotations

import random

import msgspec
from support import report_samples
from support.report_samples import case, request

from coldproof.harness.schema.case import Case, ChangeRow, QueueRow, RequestRow, SegmentRow, StepRow

SLOTS = {"request": "n.1.", "step": 3, "layer": 4, "group": 1, "found": 0}

BAND = report_samples.band()

NONCE = SegmentRow(name="nonce", tokens=4)


def stale() -> Case:
    """Return a case in which a request after a reload under one name reads KV that was written before the reload."""
    first = request(
        0,
        adapter="tenant",
        identity="adapter A",
        sent=0.05,
        first_token=0.21,
        finished=0.41,
        segments=[NONCE, SegmentRow(name="stem", tokens=112)],
    )
    second = request(
        1,
        step=2,
        adapter="tenant",
        identity="adapter B",
        sent=0.9,
        first_token=0.96,
        finished=1.13,
        correct=False,
        cached_at_least=0,
        cached_at_most=0,
        wrong_token=2,
        wrong_token_at=1.0,
        segments=[NONCE, SegmentRow(name="stem", tokens=96, changed=90), SegmentRow(name="tail", tokens=16)],
        shared_tokens=94,
        shared_with=0,
        written_by=0,
        wrong_kv=[0, 31],
    )
    return case(
        requests=[first, second],
        failing_request=1,
        changes=[
            ChangeRow(step=0, kind="load", name="tenant", content="A", began=0.0, ended=0.03),
            ChangeRow(step=1, kind="in-place reload", name="tenant", content="B", began=0.45, ended=0.83),
        ],
        queue=[QueueRow(at=0.0, pool_usage=0.0), QueueRow(at=0.41, running=1.0, waiting=0.0, pool_usage=0.25)],
        block_size=16,
    )


def many_requests(count: int) -> Case:
    """Return a case of `count` requests to three names in a small pool: preempted, aborted, refused. The last but two
    is wrong.
    """
    drawn = random.Random(count)
    rows = [one_of_many(number, drawn) for number in range(count)]
    failing = max(0, count - 3)
    rows[failing] = msgspec.structs.replace(
        rows[failing],
        correct=False,
        wrong_token=3,
        wrong_token_at=rows[failing].finished - 0.2,
        written_by=0 if failing else None,
    )
    names = [("red", "A"), ("blue", "B"), ("green", "C")]
    loads = [
        ChangeRow(step=i, kind="load", name=name, content=content, began=0.02 * i, ended=0.02 * i + 0.01)
        for i, (name, content) in enumerate(names)
    ]
    later = [
        ChangeRow(step=3, kind="in-place reload", name="red", content="D", began=1.5, ended=1.58),
        ChangeRow(step=4, kind="reset", began=2.1, ended=2.11),
        ChangeRow(step=5, kind="unload, then load", name="blue", content="A", began=2.6, ended=2.7, refused=True),
        ChangeRow(step=6, kind="unload", name="green", began=3.1, ended=3.11),
    ]
    looks = [
        QueueRow(at=0.2 * i, running=4.0, waiting=2.0, pool_usage=min(1.0, 0.07 * i + 0.1 * (i % 3))) for i in range(20)
    ]
    return case(
        requests=rows,
        failing_request=failing,
        changes=[*loads, *later],
        steps=[StepRow(step=7, words=f"send {count} at once", started=0.06, finished=4.0)],
        queue=looks,
        block_size=16,
        noise_nats=0.75,
    )


def one_of_many(number: int, drawn: random.Random) -> RequestRow:
    """Return one of these requests, sometimes preempted or aborted."""
    name, content = drawn.choice([("red", "A"), ("blue", "B"), ("green", "C"), ("", "")])
    sent = round(0.06 + drawn.random() * 1.5, 3)
    first = round(sent + 0.1 + drawn.random() * 0.6, 3)
    finished = round(first + 0.5 + drawn.random() * 1.2, 3)
    stem, tail = drawn.choice([32, 64, 200]), drawn.choice([1, 17, 40])
    preempted = [round(first + 0.1, 3)] if number % 5 == 3 else []
    return request(
        number,
        step=7,
        model=f"{name}-5f" if name else "base",
        adapter=name,
        identity=f"adapter {content}" if content else "base model",
        prompt_tokens=4 + stem + tail,
        cached_tokens=min(stem, 16 * drawn.randrange(8)),
        cached_at_least=0,
        cached_at_most=stem,
        sent=sent,
        first_token=first,
        finished=finished,
        preempted_at=preempted,
        resumed_at=[at + 0.3 for at in preempted],
        aborted="while decoding" if number % 7 == 2 else "",
        segments=[
            NONCE,
            SegmentRow(name="stem", tokens=stem),
            SegmentRow(name=f"tail {number % 4}", tokens=tail, inherited=0 if number % 6 == 5 else None),
        ],
        shared_tokens=4 + stem if number else 0,
        shared_with=0 if number else None,
    )
