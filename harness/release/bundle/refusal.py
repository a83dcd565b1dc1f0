"""The reasons for which a bundle is refused."""

from __future__ import annotations

import enum
import functools

import msgspec


class RefusalKind(enum.StrEnum):
    """The kind of a reason."""

    ALTERED = "altered"  # a digest differs, or two recorded facts contradict each other
    NOT_ACCEPTED = "not accepted"  # something is not as in other runs, or cannot be read; there may be a good reason
    LEFT_OUT = "left out"  # a part of the qualification is missing
    OTHER_VERSION = "other version"  # made with another version than the one that verifies
    NOT_SHOWN = "not shown"  # the bundle is valid, but the engine did not pass


class Reason(msgspec.Struct, frozen=True, order=True):
    """One reason, as a sentence that can be read alone."""

    kind: RefusalKind
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.sentence}"


# Each returns a reason of one kind, given its sentence.
altered = functools.partial(Reason, RefusalKind.ALTERED)
not_accepted = functools.partial(Reason, RefusalKind.NOT_ACCEPTED)
left_out = functools.partial(Reason, RefusalKind.LEFT_OUT)
other_version = functools.partial(Reason, RefusalKind.OTHER_VERSION)
not_shown = functools.partial(Reason, RefusalKind.NOT_SHOWN)
