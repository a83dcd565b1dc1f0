"""The abstract states: families of cells, each a table of what happens by the circumstances. docs/reach.md explains it.

A cell is identified by `family/row/column`. These keys are data: reports and stored workloads use them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec


class Needs(enum.StrEnum):
    """What a history must have so that a family can be seen in it."""

    COUNTS = "the engine reports cached-token counts"
    STEPS = "the engine's steps are recorded, as vLLM's are in process"
    TIER = "the engine has a second KV tier"
    NOTHING = ""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A table of cells. `rows`, `columns`: key -> title. `absent`: cells that cannot exist, and why."""

    id: str
    title: str
    row_is: str
    column_is: str
    rows: dict[str, str]
    columns: dict[str, str]
    absent: dict[str, str] = {}
    needs: Needs = Needs.NOTHING

    def cells(self) -> Iterator[str]:
        """Yield the identifiers of all cells that can exist."""
        for row in self.rows:
            for column in self.columns:
                if f"{row}/{column}" not in self.absent:
                    yield f"{self.id}/{row}/{column}"


HIT = {"none": "no hit", "part": "partial hit", "most": "longest possible hit"}
END = {
    "inside": "inside a block",
    "before": "one token before its end",
    "at": "at its end",
    "behind": "one token behind",
}
COUNT = {"0": "none", "1": "1", "2": "2", "3": "3 to 15", "16": "16 or more"}
NTH = {"1": "1st", "2": "2nd", "3": "3rd to 15th", "16": "16th to 63rd", "64": "64th or later"}
PART = {"whole": "whole prompt", "first": "first chunk", "middle": "middle chunk", "last": "last chunk"}
PROGRESS = {
    "prefill": "in prefill",
    "first": "with its first token",
    "few": "with less than a block of tokens",
    "many": "with a block of tokens or more",
}
QUEUE = {"0": "nobody waits", "1": "one request waits", "2": "two or more wait"}

LOOKUPS = (
    Family(
        id="lookup",
        title="Lookup of a new request",
        row_is="hit",
        column_is="the prompt ends",
        rows=HIT,
        columns=END,
        needs=Needs.COUNTS,
    ),
    Family(
        id="writer",
        title="Hit, by the request that wrote the blocks",
        row_is="the writer",
        column_is="the hit ends",
        rows={
            "over": "has ended",
            "decode": "is decoding",
            "prefill": "is in prefill",
            "preempted": "is preempted",
            "aborted": "was aborted",
        },
        columns={"prompt": "in its prompt", "answer": "in its answer"},
        absent={"prefill/answer": "a request in prefill has no answer"},
        needs=Needs.COUNTS,
    ),
    Family(
        id="again",
        title="Lookup of a known prefix, by what happened since",
        row_is="since it was written",
        column_is="hit",
        rows={
            "nothing": "nothing",
            "eviction": "blocks were evicted",
            "reset": "the cache was reset",
            "preemption": "its writer was preempted",
            "abort": "its writer was aborted",
            "load": "an adapter was loaded",
            "update": "the weights were updated and restored",
            "restart": "the engine restarted",
        },
        columns=HIT,
        needs=Needs.COUNTS,
    ),
    Family(
        id="conflict",
        title="Lookup of tokens that another identity has computed",
        row_is="the other one has",
        column_is="under its own identity, of these tokens",
        rows={
            "content": "the same name, another content",
            "adapter": "another adapter name",
            "base": "the base model against an adapter",
            "salt": "another salt, or none",
            "weights": "other weights",
        },
        columns={"nothing": "nothing is known", "less": "a shorter prefix", "more": "as much or more"},
    ),
    Family(
        id="pair",
        title="Two requests admitted in one step",
        row_is="their prompts",
        column_is="hits",
        rows={
            "equal": "are equal",
            "extends": "one begins with the other",
            "block": "share a block",
            "other": "share a block under another identity",
            "apart": "share no block",
        },
        columns={"0": "neither", "1": "one", "2": "both"},
        needs=Needs.STEPS,
    ),
    Family(
        id="turn",
        title="Prompt that continues an earlier prompt and its answer",
        row_is="hit",
        column_is="the earlier answer ends",
        rows={"none": "no hit", "part": "less than all whole blocks", "most": "all whole blocks"},
        columns=END,
        needs=Needs.COUNTS,
    ),
)
SCHEDULING = (
    Family(
        id="chunk",
        title="Prefill by chunks",
        row_is="computed",
        column_is="it ends",
        rows=PART,
        columns=END,
        needs=Needs.STEPS,
    ),
    Family(
        id="beside",
        title="Prefill beside other requests",
        row_is="computed",
        column_is="in the same step",
        rows=PART,
        columns={
            "alone": "nothing else",
            "decode": "others decode",
            "prefill": "others are in prefill",
            "both": "others decode, others are in prefill",
        },
        needs=Needs.STEPS,
    ),
    Family(
        id="admitted",
        title="Requests admitted in one step",
        row_is="new requests",
        column_is="in the same step",
        rows={"1": "1", "2": "2", "3": "3 to 7", "8": "8 or more"},
        columns={
            "alone": "nothing else",
            "decode": "others decode",
            "prefill": "others continue a prefill",
            "resumed": "others are resumed",
        },
        needs=Needs.STEPS,
    ),
    Family(
        id="running",
        title="Requests that run at the same time, at an admission",
        row_is="running requests",
        column_is="identities",
        rows={"2": "2", "3": "3 to 7", "8": "8 to 15", "16": "16 or more"},
        columns={
            "one": "one",
            "adapters": "several adapters",
            "base": "base model and adapter",
            "salts": "several salts",
        },
    ),
    Family(
        id="pool",
        title="Admission, by the free blocks that are left",
        row_is="admitted",
        column_is="the pool",
        rows={"miss": "without a hit", "hit": "with a hit", "resumed": "again, after a preemption"},
        columns={
            "alone": "has no other running request",
            "room": "has a quarter or more free",
            "scarce": "has less than a quarter free",
            "full": "has at most one free block",
        },
        needs=Needs.STEPS,
    ),
    Family(
        id="eviction",
        title="Step that evicts cached blocks",
        row_is="evicted",
        column_is="the step",
        rows={"first": "the first block of a prompt", "later": "later blocks only"},
        columns={
            "miss": "admits a request without a hit",
            "hit": "admits a request with a hit",
            "chunk": "only continues prefills",
            "decode": "only decodes",
        },
        needs=Needs.STEPS,
    ),
    Family(
        id="queue",
        title="Queue",
        row_is="event",
        column_is="other requests",
        rows={
            "admission": "admission",
            "preemption": "preemption",
            "resumption": "resumption",
            "abort": "abort of a running request",
            "end": "end of an answer",
            "reset": "reset",
        },
        columns=QUEUE,
        needs=Needs.STEPS,
    ),
    Family(
        id="preemption",
        title="Preemption",
        row_is="of a request",
        column_is="of this request, its",
        rows=PROGRESS,
        columns={"1": "1st", "2": "2nd", "3": "3rd or later"},
    ),
    Family(
        id="resumption",
        title="Resumption",
        row_is="of a request that was preempted",
        column_is="hit",
        rows=PROGRESS,
        columns={"none": "no hit", "part": "partial hit", "most": "longest possible hit"},
        needs=Needs.STEPS,
    ),
    Family(
        id="priority",
        title="Priorities",
        row_is="priority",
        column_is="the request",
        rows={"negative": "negative", "zero": "0 beside others", "positive": "positive"},
        columns={
            "order": "starts in the order of arrival",
            "overtakes": "starts before an earlier one",
            "overtaken": "starts after a later one",
            "preempted": "is preempted",
        },
        needs=Needs.STEPS,
    ),
    Family(
        id="sharers",
        title="Other running requests with the same first block",
        row_is="event",
        column_is="others",
        rows={
            "hit": "hit of a new request",
            "end": "end of an answer",
            "abort": "abort of a running request",
            "preemption": "preemption",
            "resumption": "resumption",
        },
        columns=COUNT,
    ),
)
CHANGES = (
    Family(
        id="abort",
        title="Abort",
        row_is="of a request",
        column_is="later, its prefix",
        rows={
            "new": "that never ran",
            "preempted": "that is preempted",
            "first-chunk": "in prefill, after at most one chunk",
            "later-chunk": "in prefill, after several chunks",
            "first": "after its first token",
            "middle": "in between",
            "last": "one token before its end",
        },
        columns={"never": "is not sent again", "none": "is sent without a hit", "hit": "is hit"},
        needs=Needs.STEPS,
    ),
    Family(
        id="reset",
        title="Reset",
        row_is="other requests",
        column_is="the reset",
        rows={"idle": "none", "queued": "only wait", "prefill": "are in prefill", "decode": "decode"},
        columns={
            "done": "of the prefix cache is done",
            "refused": "is refused",
            "running": "also discards running requests",
            "tier": "also covers the second tier",
        },
        absent={
            "idle/refused": "nothing holds blocks",
            "queued/refused": "nothing holds blocks",
            "prefill/done": "an engine refuses while requests hold blocks",
            "decode/done": "an engine refuses while requests hold blocks",
            "idle/running": "nothing runs: it is a plain reset",
            "queued/running": "nothing runs: it is a plain reset",
        },
    ),
)
SIZES = (
    Family(
        id="length",
        title="Lengths of prompts and where they differ",
        row_is="prompt",
        column_is="from its nearest earlier prompt (with its answer) it differs",
        rows={
            "0": "less than a block",
            "1": "1 or 2 blocks",
            "3": "3 to 8 blocks",
            "9": "9 to 32 blocks",
            "33": "33 blocks or more",
            "longest": "the longest that fits (90% or more)",
        },
        columns={
            "new": "there is none",
            "first": "in the first block",
            "middle": "in a middle block",
            "last": "in its last block",
            "equal": "not at all",
            "continues": "by going on",
            "shorter": "by ending earlier",
        },
        absent={"0/middle": "it has one block", "0/last": "it has one block"},
    ),
    Family(
        id="answer",
        title="Lengths of answers",
        row_is="tokens",
        column_is="prompt and answer end",
        rows={
            "1": "1",
            "2": "2",
            "short": "less than a block",
            "block": "1 to 3 blocks",
            "long": "4 blocks or more",
        },
        columns=END,
    ),
    Family(
        id="variety",
        title="Identities in one workload",
        row_is="different",
        column_is="number",
        rows={"names": "adapter names", "contents": "adapter contents", "salts": "salts"},
        columns={"1": "1", "2": "2", "3": "3 or 4", "5": "5 to 15", "16": "16 or more"},
    ),
    Family(
        id="age",
        title="The n-th time in the life of an engine",
        row_is="event",
        column_is="number",
        rows={
            "requests": "request",
            "aborts": "abort",
            "preemptions": "preemption",
            "evictions": "evicted block",
            "resets": "reset",
            "loads": "load of an adapter",
            "updates": "update of the weights",
            "names": "adapter name",
            "salts": "salt",
        },
        columns=NTH,
    ),
)
