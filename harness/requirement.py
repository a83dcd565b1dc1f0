"""What a suite's test declares about the requirement it stands for, and what became of it while it ran."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection

import msgspec
import pytest

from adapters.base import Capability
from harness.evidence import Evidence
from harness.judge import Judgement
from harness.upstream import address
from harness.workload import Workload


class Requirement(msgspec.Struct, frozen=True):
    """An id, a short title, the capabilities it needs and the evidence without which it was not exercised.

    `overlapped_too` False: answers of requests that an adapter change overlapped are another requirement's matter.
    `hashes_too`: so are hashes that do not follow from their events, unless said otherwise.
    Both belong to the requirement, so that a replayed case is judged as it was when it was found.
    `upstream`: addresses of public reports of engines that broke it.
    `shows_where`: more evidence, asked for where the engine has what it takes to tell.
    """

    id: str
    title: str
    needs: tuple[Capability, ...]
    shows: tuple[Evidence, ...]
    overlapped_too: bool = True
    hashes_too: bool = False
    weight: float = 1.0  # shares of the budget for drawing examples
    upstream: tuple[str, ...] = ()
    shows_where: dict[Capability, Evidence] = {}

    def on(self, present: Collection[Capability]) -> Requirement:
        """The requirement as an engine with these capabilities is held to it."""
        told = (evidence for capability, evidence in self.shows_where.items() if capability in present)
        return msgspec.structs.replace(self, shows=(*self.shows, *told), shows_where={})


def requirement(
    requirement_id: str,
    title: str,
    *,
    needs: tuple[Capability, ...] = (),
    shows: tuple[Evidence, ...],
    overlapped_too: bool = True,
    hashes_too: bool = False,
    weight: float = 1.0,
    upstream: tuple[str, ...] = (),
    shows_where: dict[Capability, Evidence] | None = None,
) -> pytest.MarkDecorator:
    """Mark a test as standing for a requirement. Its docstring is the statement, read aloud by the report.

    `upstream` names public reports in short, as "vllm#42125".
    """
    if not shows:
        raise ValueError(f"{requirement_id} names no evidence: it could pass on nothing")
    declared = Requirement(
        id=requirement_id,
        title=title,
        needs=needs,
        shows=shows,
        overlapped_too=overlapped_too,
        hashes_too=hashes_too,
        weight=weight,
        upstream=tuple(address(report) for report in upstream),
        shows_where=shows_where or {},
    )
    return pytest.mark.requirement(declared)


class Violation(AssertionError):
    """A workload broke the requirement under test."""


class Ran(msgspec.Struct, frozen=True):
    """A workload that an engine has run, and how long that took."""

    workload: Workload
    nonce: str
    seconds: float


class Failing(msgspec.Struct, frozen=True):
    """A counterexample, how often it failed out of how many tries, and what its engine had run before."""

    workload: Workload
    judgement: Judgement
    failed: int
    tries: int
    earlier: tuple[Ran, ...] = ()


class Trial:
    """One requirement in one cell while it runs: evidence so far, and the smallest counterexample."""

    def __init__(self, requirement: Requirement, cell: str, statement: str, test: str) -> None:
        self.requirement, self.cell, self.statement, self.test = requirement, cell, statement, test
        self.started = time.monotonic()
        self.evidence: Counter[str] = Counter()
        self.examples = self.requests = self.noise = self.permitted = 0
        self.explained = 0  # differences that both sides' scores show to be noise
        self.first: Failing | None = None  # counterexample that was found
        self.best: Failing | None = None  # the smallest one
        self.failed: set[bytes] = set()
        self.passed: set[bytes] = set()
        self.shrinking_since: float | None = None
        self.renewed = 0  # engines replaced for what a failure may have left in them
        self.share = self.drawn = 0.0  # seconds given for drawing examples, and used
        self.replaying = False
        self.familiar = False  # a known issue may waive what it finds, and nobody reads that again
        self.remark = ""  # what was seen, beside the evidence
        self.hint = ""  # what would have exercised it, where it was not
        self.lossy = ""  # what the cell's mode may change in answers by design
        self.uncounted = ""  # why the engine's hits are not known, where they are not

    def seconds(self) -> float:
        """Since the trial began."""
        return round(time.monotonic() - self.started, 3)

    def add(self, judgement: Judgement) -> None:
        """Count an example's evidence."""
        self.examples += 1
        self.requests += len(judgement.history.outcomes)
        self.noise += sum(not found.explained for found in judgement.noise)
        self.explained += sum(found.explained for found in judgement.noise)
        self.permitted += len(judgement.permitted)
        self.lossy = judgement.rule.lossy
        self.evidence.update(judgement.evidence)

    def missing(self) -> list[Evidence]:
        """Evidence that the requirement cannot do without and that stayed at zero."""
        return [name for name in self.requirement.shows if not self.evidence[name]]
