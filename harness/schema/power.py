"""The schema of power.json: which injected faults the suites detect. Written by `coldproof.harness.power`."""

from __future__ import annotations

import enum

import msgspec

POWER_SCHEMA_VERSION = 1


class Outcome(enum.StrEnum):
    """The outcome of a fault."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    NEVER_ACTED = "never acted"  # the workloads did not trigger it, so that nothing could be detected
    NO_ENGINE = "engine does not run"  # the engine does not start, or the run failed: neither caught nor survived
    EQUIVALENT = "equivalent"  # cannot be distinguished from a correct engine; not counted


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement that was violated, confirmed on a fresh engine.

    `requests` and `seconds`: from the start of the suites to the first example that failed. `steps`: of the minimal
    case; `reproduced`: on a fresh engine, in words; `provenance`: whose KV was read, in words.
    """

    requirement: str
    cell: str
    requests: int
    seconds: float
    failure_class: str
    sentence: str
    steps: int
    reproduced: str
    provenance: str = ""


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of suites against one engine. `verdicts`: requirement -> verdict. `problem`: why it did not end well."""

    detections: list[Detection]
    verdicts: dict[str, str]
    examples: int
    requests: int
    seconds: float
    acted: bool
    command: str
    problem: str = ""

    @property
    def effects(self) -> list[Detection]:
        """The violations that are effects of the injected fault: none in a run in which it never acted."""
        return self.detections if self.acted else []


class FieldReport(msgspec.Struct, frozen=True, kw_only=True):
    """A field report's own script as a fixed workload. `found`: what it detected, "" for nothing."""

    name: str
    found: str


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `aimed`: the requirements that are about it; `wide`: all of them, shallow or as in smoke."""

    name: str
    mechanism: str
    summary: str
    stands_for: str
    about: list[str]
    rare: str
    equivalent: str
    outcome: Outcome
    aimed: SuiteRun | None
    wide: SuiteRun | None
    literal: list[FieldReport]

    @property
    def runs(self) -> list[SuiteRun]:
        """The runs that were made, the aimed one first."""
        return [run for run in (self.aimed, self.wide) if run is not None]

    @property
    def detections(self) -> list[Detection]:
        """What both runs detected of the fault."""
        return [d for run in self.runs for d in run.effects]

    @property
    def first(self) -> Detection | None:
        """The earliest detection of the aimed run, else of the wide run; None if the fault was not detected."""
        for run in self.runs:
            if run.effects:
                return min(run.effects, key=lambda d: d.requests)
        return None

    @property
    def by_its_own(self) -> bool:
        """Whether a requirement about the fault detected it."""
        return any(d.requirement in self.about for d in self.detections)


class PowerResults(msgspec.Struct, frozen=True, kw_only=True):
    """The whole measurement. `clean`: the same suites on the unmodified engine; a detection there is a false
    positive.

    `budgets`: seconds of drawing for each fault by run: "aimed", "wide" or "smoke".
    """

    schema_version: int = POWER_SCHEMA_VERSION
    coldproof_version: str
    started: str  # ISO 8601, UTC
    duration_s: float
    complete: bool
    command: str
    engine: str
    worker: str
    seed: int
    budgets: dict[str, float]
    faults: list[FaultRow]
    clean: list[SuiteRun]
    clean_literal: list[FieldReport]
