"""Whose KV a counterexample read, as the title of a cause: what is known where no controls were run.

One fault in a cache's key fails dozens of examples in as many circumstances, and each has a signature of its own.
"""

from __future__ import annotations

import re

from coldproof.harness.schema.case import Case, RequestRow
from coldproof.harness.schema.verdict import FailureClass

# What two identities may differ in, by the first word of the part, gravest first.
TITLES = {
    "adapter": "A request reads the KV of another adapter, or of the base model",
    "salt": "A request reads the KV of another cache salt",
    "weights": "A request reads the KV of other weights",
}
# Who wrote what was read, in a sentence of harness/history/provenance.py.
OF_EARLIER = "KV that a request of an earlier run wrote"
OF_ANOTHER = re.compile(r"^Request (\d+) read .* KV that request (?!\1 )\d+ wrote")
OTHER_POSITION = "wrote for its position"
ANOTHER = "A request reads KV that another request wrote for other tokens, or for another position"
EARLIER = "A request reads KV that was written before the case began, for another prompt or adapter"
ENDPOINT = "at /"


def mix_up(case: Case) -> str:
    """Return whose KV the failing request read; "" where that is not known, or it was of an equal request."""
    where = next((f", {word}" for word in case.signature.split("; ") if word.startswith(ENDPOINT)), "")
    if case.failure_class is FailureClass.STALE_STATE:
        rows = {row.request: row for row in case.requests}
        failing = rows.get(case.failing_request) if case.failing_request is not None else None
        writer = rows.get(writer_of(failing)) if failing is not None else None
        if failing is not None and writer is not None and " or " not in failing.identity + writer.identity:
            return next((f"{TITLES[part]}{where}" for part in TITLES if differs(part, failing, writer)), "")
    if case.failure_class in (FailureClass.CORRUPT, FailureClass.CROSS_REQUEST):
        said = next(iter(case.provenance), "")
        return f"{EARLIER}{where}" if OF_EARLIER in said else f"{ANOTHER}{where}" if OF_ANOTHER.search(said) else ""
    return ""


def is_foreign(case: Case) -> bool:
    """Return whether the failing request read content of another request, by what `mix_up` knows.

    What was written for another position may be of a prefix that both have, such as the state after fewer tokens.
    """
    return bool(mix_up(case)) and not any(OTHER_POSITION in said for said in case.provenance[:1])


def writer_of(failing: RequestRow) -> int:
    """Return the request whose KV this one read or, where only counts show it, with which it shares most; else -1."""
    known = (failing.written_by, failing.shared_with)
    return next((number for number in known if number is not None), -1)


def differs(part: str, one: RequestRow, other: RequestRow) -> bool:
    """Return whether two requests differ in this part of their identities."""
    return words_of(part, one) != words_of(part, other)


def words_of(part: str, row: RequestRow) -> str:
    """Return a part of a request's identity in words; "" if it has none."""
    return next((words for words in row.identity.split(", ") if words.startswith(f"{part} ")), "")
