"""The reasons for which a bundle is refused."""

from __future__ import annotations

import enum

import msgspec


class RefusalKind(enum.StrEnum):
    """The kind of a reason."""

    ALTERED = "altered"  # something differs from what a run writes
    LEFT_OUT = "left out"  # a part of the qualification is missing
    OTHER_VERSION = "other version"  # made with another version than the one that verifies
    NOT_SHOWN = "not shown"  # the bundle is valid, but the engine did not pass


class Reason(msgspec.Struct, frozen=True, order=True):
    """One reason, as a sentence that can be read alone."""

    kind: RefusalKind
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.sentence}"


def altered(sentence: str) -> Reason:
    """Return a reason of the kind ALTERED."""
    return Reason(RefusalKind.ALTERED, sentence)


def left_out(sentence: str) -> Reason:
    """Return a reason of the kind LEFT_OUT."""
    return Reason(RefusalKind.LEFT_OUT, sentence)


def other_version(sentence: str) -> Reason:
    """Return a reason of the kind OTHER_VERSION."""
    return Reason(RefusalKind.OTHER_VERSION, sentence)


def not_shown(sentence: str) -> Reason:
    """Return a reason of the kind NOT_SHOWN."""
    return Reason(RefusalKind.NOT_SHOWN, sentence)
