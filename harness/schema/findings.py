"""The schema of a finding's record: one root cause in an engine, with how it was found and what became of it.

`record.toml` in a finding's folder is read strictly: an unknown or absent field is refused.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from coldproof.harness.schema.verdict import FailureClass

NOT_REPORTED = "not reported"
Text = Annotated[str, msgspec.Meta(min_length=1)]


class FindingStatus(enum.StrEnum):
    """What became of a finding."""

    NEW = "new"  # no public report is known
    REPORTED = "reported elsewhere"
    LIMITATION = "documented limitation"  # the engine's documentation describes it
    FIXED = "fixed"


class FoundBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a finding was found: where, the requests of its trial, and the seconds that it drew until it failed.

    `adapter` and `worker` are the options --engine and --worker. `environment`: the versions of what ran. `model`: the
    trained model (--model) that the case needs; None for the generated one.
    """

    adapter: Text
    worker: Text
    layer: Text
    cell: Text
    requests: int
    seconds: float
    environment: dict[str, str]
    model: str | None = None


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One root cause. `id`: its folder, as `vllm/some-name`; not in the file.

    `source`: files and functions of the engine. `distinct`: why it is no other finding of this engine.
    `first_release`, `last_release`: the first and the last release on which it was seen. `rate`: how often a run or a
    replay meets it, if that takes luck. `no_case`: why the folder has no case.
    """

    id: str = ""
    title: Text
    engine: Text
    requirement: Text
    failure_class: FailureClass
    signature: Text
    status: FindingStatus
    first_release: Text
    last_release: Text
    fixed_in: str | None = None
    upstream: Text
    cause: Text
    source: Annotated[list[Text], msgspec.Meta(min_length=1)]
    distinct: Text
    rate: str | None = None
    no_case: str | None = None
    found: FoundBy

    @property
    def adapter(self) -> str:
        """Return the engine option with which its case is replayed."""
        return self.found.adapter

    @property
    def releases(self) -> str:
        """Return the releases on which it was seen, in words."""
        seen = (
            self.first_release
            if self.first_release == self.last_release
            else f"{self.first_release} to {self.last_release}"
        )
        return f"{seen}; fixed in {self.fixed_in}" if self.fixed_in else seen


class ReplayResult(enum.StrEnum):
    """What the replay of a finding's case showed."""

    FAILS = "still there"
    OTHERWISE = "fails in a different way"
    PASSES = "gone"
    NOT_RUN = "cannot run here"


class FindingReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of one finding in a run. `words`: the failure, or why it could not be run."""

    finding: str
    requirement: str
    cell: str
    layer: str = ""
    result: ReplayResult
    words: str = ""
    seconds: float = 0.0
    regression: bool = False  # it is recorded as fixed in this release, and fails
