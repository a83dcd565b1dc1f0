"""The list of real bugs, and what is said of their outcomes. README.md explains the fields."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coldproof.harness.schema.verdict import FailureClass

FOLDER = Path(__file__).parent
BUGS, NOTES = FOLDER / "bugs.toml", FOLDER / "notes.toml"


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public bug, tested on releases (`before`, `after`), planted again, or open and found (`finding`)."""

    id: str
    engine: str
    title: str
    reports: list[str]
    mechanism: str
    before: str = ""
    after: str = ""
    has: str = ""
    checked: str = ""
    requirements: list[str]
    failures: list[FailureClass]
    planted: str = ""  # the fault that is the same mechanism in the newest release
    finding: str = ""  # the finding whose repair ends it
    cannot: str = ""
    seen: bool = False


class BugList(msgspec.Struct, frozen=True):
    """bugs.toml."""

    bug: list[Bug]


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a bug was missed, or what else is to be said of its outcome. Written after the tests.

    `others`: how the sentences of counterexamples begin that are of other causes, and do not count.
    """

    bug: str
    text: str
    others: list[str] = []


class Notes(msgspec.Struct, frozen=True):
    """notes.toml."""

    note: list[Note] = []


def read_bugs() -> list[Bug]:
    """Return the list."""
    return msgspec.toml.decode(BUGS.read_bytes(), type=BugList).bug


def read_notes() -> dict[str, Note]:
    """Return the notes by bug."""
    notes = msgspec.toml.decode(NOTES.read_bytes(), type=Notes).note if NOTES.is_file() else []
    return {note.bug: note for note in notes}
