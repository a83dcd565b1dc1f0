"""Whose KV a request read, in words: for an engine that keeps digests, each of which names its writer.

Pure functions of a history. The numbers of requests and steps are the case's own.
"""

from __future__ import annotations

from adapters.provenance import NEVER_WRITTEN, NO_BLOCK, ZEROED, Writer, WrongRead
from harness.history import History
from harness.workload import Burst, SetAdapter, Unload

MOST_SENTENCES = 5


def tag(nonce: str, number: int) -> str:
    """What marks a request in the engine's own name for it."""
    return f"{nonce}.{number}."


def sentences(history: History, about: int | None) -> list[str]:
    """What each request of the history read wrong, that of request `about` first."""
    numbered = [(number_of(read.request, history), read) for read in history.wrong_reads]
    mine = [(number, read) for number, read in numbered if number is not None]
    mine.sort(key=lambda pair: (pair[0] != about, pair[0]))
    return [sentence(number, read, history) for number, read in mine[:MOST_SENTENCES]]


def whereabouts(history: History, about: int | None) -> str:
    """Where in its blocks a request read wrong KV first: words without figures, for a signature; empty if unknown.

    A block that nobody wrote or that is somebody else's is wrong from its start; one that was written or copied in part
    is wrong within.
    """
    read = next((r for r in history.wrong_reads if number_of(r.request, history) == about), None)
    if about is None or read is None:
        return ""
    if read.block == NO_BLOCK:
        return "read no block"
    known = read.group < len(history.shape.groups)
    if not known and read.column:
        return ""
    start = read.column * history.shape.groups[read.group].block if known else 0
    return "wrong from a block's start" if read.first <= start else "wrong within a block"


def number_of(name: str, history: History) -> int | None:
    """The history's number of a request that the engine names so; None for somebody else's."""
    return next((o.request for o in history.outcomes if tag(history.nonce, o.request) in name), None)


def sentence(number: int, read: WrongRead, history: History) -> str:
    """Which block was wrong, and what it held instead."""
    place = f"block {read.column} of group {read.group}, physical block {read.block}, layer {read.layer}"
    where = f"Request {number} read wrong KV at {span(read.first, read.last)} ({place})"
    return f"{where}: {held(number, read, history)}."


def span(first: int, last: int) -> str:
    """One position or several."""
    return f"position {first}" if first == last else f"positions {first}-{last}"


def held(number: int, read: WrongRead, history: History) -> str:
    """What lay there."""
    if read.block == NO_BLOCK:
        return "its block table holds no block there"
    if read.found == NEVER_WRITTEN:
        return "nobody ever wrote there"
    if read.found == ZEROED:
        return "zeroed, and not written since"
    if read.writer is None:
        return "it holds what no request is known to have written"
    return f"it holds what {writer_words(number, read, read.writer, history)}"


def writer_words(number: int, read: WrongRead, writer: Writer, history: History) -> str:
    """Who wrote it, and under what."""
    who = number_of(writer.request, history)
    name = "a request of an earlier run" if who is None else "it wrote itself" if who == number else f"request {who}"
    wrote = name if who == number else f"{name} wrote"
    aside = "" if writer.position == read.first else f" for its position {writer.position}"
    version = f", weights version {writer.version}" if writer.version else ""
    if writer.adapter is None or writer.content is None:
        return f"{wrote}{aside} for the base model{version}"
    return f"{wrote}{aside} under adapter content {writer.content} ({life(writer, history)}){version}"


def life(writer: Writer, history: History) -> str:
    """The name that the adapter was loaded as, and the step that has put another in its place since."""
    name = (writer.adapter or "").removesuffix(f"-{history.nonce}")
    loaded, replaced = False, ""
    for number, step in enumerate(history.workload.steps):
        change = step.meanwhile.change if isinstance(step, Burst) and step.meanwhile is not None else step
        if isinstance(change, SetAdapter) and change.name == name:
            is_it = history.contents.get(change.content) == writer.content
            if loaded and not is_it and not replaced:
                replaced = f", replaced at step {number}"
            loaded = loaded or is_it
        elif isinstance(change, Unload) and change.name == name and loaded and not replaced:
            replaced = f", unloaded at step {number}"
    return f"loaded as '{name}'{replaced}"
