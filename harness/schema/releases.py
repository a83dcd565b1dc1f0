"""The schema of history.json: the verdicts of several releases of one engine. Written by `coldproof history`."""

from __future__ import annotations

import msgspec

from coldproof.harness.schema.verdict import Verdict

HISTORY_SCHEMA_VERSION = 1


class ReleaseCase(msgspec.Struct, frozen=True, kw_only=True):
    """A counterexample of one release. `file`: its case, relative to history.json.

    `cause` and `link`: what is known of it; "" if nothing is.
    """

    id: str
    signature: str
    sentence: str
    file: str
    cause: str = ""
    link: str = ""


class ReleaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement on one release. `errors`: the cells in which it could not be tested; another may be violated."""

    verdict: Verdict
    reason: str
    examples: int
    requests: int
    cases: list[ReleaseCase] = []
    errors: list[str] = []


class ReleaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One release. `problem`: why it has no verdicts, "" if it has. `report`: its own, relative to history.json."""

    version: str
    verdicts: dict[str, ReleaseVerdict]
    requests: int = 0
    seconds: float = 0.0
    report: str = ""
    problem: str = ""

    @property
    def errors(self) -> list[str]:
        """The cells in which a requirement could not be tested, sorted."""
        return sorted({cell for one in self.verdicts.values() for cell in one.errors})


class RequirementHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a requirement says, and public reports of engines that broke it."""

    title: str
    upstream: list[str] = []


class ReleaseHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Releases of one engine, oldest first, under one profile. `requirements`: by id, in the order of the table."""

    engine: str
    worker: str
    profile: str
    command: str
    coldproof_version: str
    requirements: dict[str, RequirementHead]
    releases: list[ReleaseRow]
    complete: bool = True
    schema_version: int = HISTORY_SCHEMA_VERSION
