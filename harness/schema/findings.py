"""The schema of a finding's record: one root cause in an engine, with how it was found and what became of it.

`record.toml` in a finding's folder is read strictly: an unknown or absent field is refused.
"""

from __future__ import annotations

import datetime
import enum
import fnmatch
from typing import Annotated

import msgspec

from coldproof.harness.schema.verdict import FailureClass

Text = Annotated[str, msgspec.Meta(min_length=1)]
Link = Annotated[str, msgspec.Meta(pattern=r"^https://\S+$")]


class Severity(enum.StrEnum):
    """The worst effect of a finding that was shown, the worst first."""

    FOREIGN_DATA = "foreign data"  # an answer has content of another request, adapter or tenant
    WRONG_ANSWER = "wrong answer"
    CRASH_OR_HANG = "crash or hang"  # also requests that are dropped because of others
    LOST_REUSE = "lost reuse"
    WRONG_COUNT = "wrong count or event"
    API = "API"  # a call does not do what it documents or reports
    REMARK = "remark"  # nothing that the engine documents forbids it


class FindingStatus(enum.StrEnum):
    """What is publicly known of a finding, or what became of it."""

    NEW = "new"  # a search in issues, pull requests and documentation found no report of this cause
    PULL_REQUEST = "pull request open"  # a public change that is not merged mends it
    REPORTED = "reported"
    BY_DESIGN = "by design"  # the engine's maintainers or its code say that this is intended
    LIMITATION = "documented limitation"  # the engine's documentation describes it
    FIXED = "fixed"
    NOT_SEARCHED = "not searched"


class Contract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine itself says of the behaviour: the sentence, quoted, and where it stands."""

    sentence: Text
    place: Text


class Hit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public page that a search found, and in one line how it is related to the finding."""

    link: Link
    note: Text


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search for public reports of a finding's cause: the queries with their corpus, and the nearest results."""

    date: datetime.date
    queries: Annotated[list[Text], msgspec.Meta(min_length=1)]
    nearest: list[Hit] = []


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


class Shows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a finding shows itself where only its signature can tell that a failure is of this cause.

    It has no repair, or it is in the process of a server, in whose layer nothing is replayed with repairs. Of a remark
    with a repair: what else it does to the same requirement, since what vanishes with its repair may be another fault.

    `cell` and `signature` are shell patterns. `says`: words of what failed or of the engine's log: a signature tells
    crashes apart by what was sent, and these words by how the engine ended. `rate`: how often runs find it, if not
    every run does; then the verdict must not depend on whether this one did.
    """

    requirement: Text
    signature: Text
    cell: Text = "*"
    says: Text | None = None
    rate: Text | None = None


OR = " or "  # between alternatives of what a cause needs


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One root cause. `id`: its folder, as `vllm/some-name`; not in the file.

    `source`: files and functions of the engine. `distinct`: why it is no other finding of this engine.
    `first_release`, `last_release`: the first and the last release on which it was seen. `rate`: how often a run or a
    replay meets it, if that takes luck. `no_case`: why the folder has no case. `shows`: of a finding without a repair,
    or of a remark.

    `only_with`: shell patterns of parts of a signature without which this cause cannot act, each with alternatives
    behind " or ". A case without one of them is not its case, also if its repair, which may lead around another fault,
    makes the case vanish.

    `needs_earlier_blocks`: it acts by blocks that stand in the prefix cache before the request. Behind a reset that
    emptied the cache, another fault has left them there.

    `upstream`: links of public reports or changes of the same cause. `with_pull_request`: whether the case passes with
    the open pull request, or why that was not tried. `contract`: the sentence by which it is intended or documented.
    `prints`: the line that its hand-made script prints while the bug is there: what is seen, and what is expected.
    """

    id: str = ""
    title: Text
    engine: Text
    requirement: Text
    failure_class: FailureClass
    signature: Text
    severity: Severity
    status: FindingStatus
    first_release: Text
    last_release: Text
    fixed_in: str | None = None
    upstream: list[Link] = []
    with_pull_request: Text | None = None
    cause: Text
    source: Annotated[list[Text], msgspec.Meta(min_length=1)]
    distinct: Text
    rate: str | None = None
    no_case: str | None = None
    contract: Contract | None = None
    prints: str | None = None
    search: Search | None = None
    shows: list[Shows] = []
    only_with: list[Text] = []
    needs_earlier_blocks: bool = False
    found: FoundBy

    @property
    def is_root_cause(self) -> bool:
        """Return whether it counts as a root cause: a remark does not."""
        return self.severity is not Severity.REMARK

    def may_act_in(self, signature: str) -> bool:
        """Return whether a case of this signature has all that the cause needs to act."""
        parts = signature.split("; ")
        return all(any(fnmatch.filter(parts, one) for one in needed.split(OR)) for needed in self.only_with)

    @property
    def adapter(self) -> str:
        """Return the engine option with which its case is replayed."""
        return self.found.adapter

    @property
    def link(self) -> str:
        """Return the first public report of its cause; "" without one."""
        return self.upstream[0] if self.upstream else ""

    @property
    def releases(self) -> str:
        """Return the releases on which it was seen, in words."""
        seen = (
            self.first_release
            if self.first_release == self.last_release
            else f"{self.first_release} to {self.last_release}"
        )
        return f"{seen}; fixed in {self.fixed_in}" if self.fixed_in else seen


class FindingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a finding that a run met, from its record. `repair`: Coldproof can mend it. `fixed`: the
    record says that this release has it no more.
    """

    id: str
    title: str
    severity: Severity
    status: FindingStatus
    releases: str
    upstream: list[str]
    repair: bool
    fixed: bool = False


class ReplayResult(enum.StrEnum):
    """What the replay of a finding's case showed."""

    FAILS = "still there"
    OTHERWISE = "fails in a different way"
    PASSES = "gone"
    NOT_RUN = "cannot run here"


class FindingReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of one finding in a run. `words`: the failure, or why it could not be run.

    `repaired`: on the engine with the run's repairs; otherwise it is the engine as it is shipped. `case`: the id of the
    case that shows the failure.
    """

    finding: str
    requirement: str
    cell: str
    layer: str = ""
    result: ReplayResult
    words: str = ""
    seconds: float = 0.0
    regression: bool = False  # it is recorded as fixed in this release, and fails
    repaired: bool = False
    case: str = ""
