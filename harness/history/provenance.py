"""Descriptions of the KV that a request read, for an engine whose KV digests name their writer.

The numbers of requests and steps are those of the history.
"""

from __future__ import annotations

import re

from coldproof.adapters.protocol.provenance import NEVER_WRITTEN, NO_BLOCK, ZEROED, Writer, WrongRead
from coldproof.harness.history.records import History, common_prefix, written_tokens
from coldproof.harness.workload.steps import SetAdapter, Unload

MOST_SENTENCES = 5


def request_tag(nonce: str, number: int) -> str:
    """Return the part of the engine's request name that identifies a request."""
    return f"{nonce}.{number}."


def read_kv_of_run(history: History, nonce: str) -> bool:
    """Return whether a request of the history read wrong KV that a request of the run under `nonce` wrote."""
    tag = re.compile(rf"(?<![\w.]){re.escape(nonce)}\.\d+\.")
    return any(read.writer is not None and tag.search(read.writer.request) for read in history.wrong_reads)


def describe_wrong_reads(history: History, about: int | None) -> list[str]:
    """Return descriptions of the wrong reads of each request of the history, request `about` first."""
    numbered = [(request_number(read.request, history), read) for read in history.wrong_reads]
    mine = [(number, read) for number, read in numbered if number is not None]
    mine.sort(key=lambda pair: (pair[0] != about, pair[0]))
    return [describe_wrong_read(number, read, history) for number, read in mine[:MOST_SENTENCES]]


def wrong_read_position(history: History, about: int | None) -> str:
    """Return where in its blocks a request first read wrong KV: text without numbers, for a signature; empty if
    unknown.

    A block that was never written or belongs to another request is wrong from its start. A block that was written or
    copied in part is wrong within.
    """
    read = next(iter(wrong_reads_of(history, about)), None)
    if about is None or read is None:
        return ""
    if read.block == NO_BLOCK:
        return "read no block"
    known = read.group < len(history.shape.groups)
    if not known and read.column:
        return ""
    start = read.column * history.shape.groups[read.group].block if known else 0
    return "wrong from a block's start" if read.first <= start else "wrong within a block"


def follows_another_prompt(history: History, about: int | None) -> bool:
    """Return whether a request read the KV of another one within a block, from the first token on that differs.

    The block was found although its tokens differ, so its key omits some of them.
    """
    read = next(iter(wrong_reads_of(history, about)), None)
    if read is None or read.writer is None or wrong_read_position(history, about) != "wrong within a block":
        return False
    writer = request_number(read.writer.request, history)
    of = {outcome.request: outcome for outcome in history.outcomes}
    if about is None or writer is None or writer == about:
        return False
    return read.writer.position == read.first == common_prefix(written_tokens(of[writer]), of[about].prompt)


def wrong_reads_of(history: History, about: int | None) -> list[WrongRead]:
    """Return the wrong reads of a request."""
    return [read for read in history.wrong_reads if request_number(read.request, history) == about]


def request_number(name: str, history: History) -> int | None:
    """Return the history's number of a request by its name in the engine; None for requests of other histories.

    All turns of a session have one name there: that of the first. The number is that of the latest.
    """
    found = next((o for o in history.outcomes if request_tag(history.nonce, o.request) in name), None)
    if found is None or not found.session:
        return None if found is None else found.request
    return max(o.request for o in history.outcomes if o.session == found.session)


def describe_wrong_read(number: int, read: WrongRead, history: History) -> str:
    """Return which block was wrong, and what it contained."""
    place = f"block {read.column} of group {read.group}, physical block {read.block}, layer {read.layer}"
    positions = f"position {read.first}" if read.first == read.last else f"positions {read.first}-{read.last}"
    where = f"Request {number} read wrong KV at {positions} ({place})"
    return f"{where}: {describe_content(number, read, history)}."


def describe_content(number: int, read: WrongRead, history: History) -> str:
    """Return what the position contained."""
    if read.block == NO_BLOCK:
        return "its block table has no block there"
    if read.found == NEVER_WRITTEN:
        return "it was never written"
    if read.found == ZEROED:
        return "it was zeroed and not written since"
    if read.writer is None:
        return "it contains KV of an unknown writer"
    return f"it contains KV that {describe_writer(number, read, read.writer, history)}"


def describe_writer(number: int, read: WrongRead, writer: Writer, history: History) -> str:
    """Return who wrote the KV, and with which adapter."""
    by = request_number(writer.request, history)
    name = "a request of an earlier run" if by is None else "the request itself" if by == number else f"request {by}"
    wrote = f"{name} wrote"
    aside = "" if writer.position == read.first else f" for its position {writer.position}"
    version = f", weights version {writer.version}" if writer.version else ""
    if writer.adapter is None or writer.content is None:
        return f"{wrote}{aside} for the base model{version}"
    return f"{wrote}{aside} with {history.describe_adapter(writer.content)} ({describe_load(writer, history)}){version}"


def describe_load(writer: Writer, history: History) -> str:
    """Return the name that the adapter was loaded as, and the step that replaced it."""
    name = (writer.adapter or "").removesuffix(f"-{history.nonce}")
    loaded, replaced = False, ""
    for number, step in enumerate(history.workload.steps):
        change = next(iter(step.changes), None)
        if isinstance(change, SetAdapter) and change.name == name:
            is_it = history.contents.get(change.content) == writer.content
            if loaded and not is_it and not replaced:
                replaced = f", replaced at step {number}"
            loaded = loaded or is_it
        elif isinstance(change, Unload) and change.name == name and loaded and not replaced:
            replaced = f", unloaded at step {number}"
    return f"loaded as '{name}'{replaced}"
