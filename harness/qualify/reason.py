"""Why a bundle is refused."""

from __future__ import annotations

import enum

import msgspec


class Doubt(enum.StrEnum):
    """What kind of reason it is."""

    ALTERED = "altered"  # something is not as a run leaves it
    LEFT_OUT = "left out"  # something that belongs to a qualification is not there
    OTHER_VERSION = "other version"  # made by another suite than the one that verifies
    NOT_SHOWN = "not shown"  # all is in order, and the engine did not show what it must


class Reason(msgspec.Struct, frozen=True, order=True):
    """One reason, in a sentence that needs no other."""

    doubt: Doubt
    sentence: str

    def __str__(self) -> str:
        return f"{self.doubt.value}: {self.sentence}"


def altered(sentence: str) -> Reason:
    """Something is not as a run leaves it."""
    return Reason(Doubt.ALTERED, sentence)


def left_out(sentence: str) -> Reason:
    """Something is not there."""
    return Reason(Doubt.LEFT_OUT, sentence)


def other_version(sentence: str) -> Reason:
    """Made by another suite."""
    return Reason(Doubt.OTHER_VERSION, sentence)


def not_shown(sentence: str) -> Reason:
    """The engine did not show what it must."""
    return Reason(Doubt.NOT_SHOWN, sentence)
