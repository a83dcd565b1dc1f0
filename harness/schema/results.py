"""The schema of results.json, from which every report is generated.

Ids and field names are a contract with other tools. A change of meaning raises `SCHEMA_VERSION`. Reading and writing
are strict: a value that does not validate is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coldproof.harness.schema.case import SCHEMA_VERSION, Case, NoiseBand
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.findings import FindingFacts, FindingReplay
from coldproof.harness.schema.layout import indented
from coldproof.harness.schema.reach import StateTable
from coldproof.harness.schema.stored_files import check_depth, read_json
from coldproof.harness.schema.switches import ServerSwitches
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.schema.weight_updates import UpdateCount


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one signature, whichever requirement and cell they were found under: one finding with a count."""

    fingerprint: str  # of the signature; stable over runs
    signature: str
    sentence: str  # the first case's
    requirements: list[str]
    cells: list[str]
    cases: list[str]
    waived: int  # how many of the cases are known issues
    remarks: int = 0  # how many of the cases show a remark, which makes no requirement violated
    finding: str = ""  # to which they belong, as far as the run could tell; "": they have one signature


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement in one cell."""

    cell: str
    layer: str = ""  # the layer that ran the cell
    column: str = ""  # the cell's name in tables, with the layer if the run has several; "": the cell's own name
    verdict: Verdict
    reason: str
    examples: int
    requests: int
    evidence: dict[str, float]
    seconds: float
    drawn: float = 0.0  # seconds of these that went into drawing examples
    share: float = 0.0  # seconds that the budget had given for that
    exhausted: bool = False  # there were no other examples to draw
    absent: list[str] = []  # capabilities that the requirement needs and the engine is not known to have
    missing: list[str] = []  # evidence without which it was not exercised
    remarks: list[str] = []  # findings that no contract forbids, and that examples showed

    @property
    def label(self) -> str:
        """Return the name of the cell in tables."""
        return self.column or self.cell


class LayerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement in all cells of one layer."""

    layer: str
    verdict: Verdict
    examples: int
    requests: int


class LayerResult(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of a run: what ran there, and how the answers were compared."""

    layer: str
    engine: EngineResult | None
    calibration: Calibration | None
    verdicts: dict[str, int]  # how many requirements have each verdict there
    examples: int
    requests: int
    seconds: float | None  # from its first cell to its end
    engine_idle_share: float | None


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of a distribution: which values, and how many of them."""

    label: str
    count: int


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a quantity over a requirement's examples. `unit`: what the bins count."""

    name: str
    unit: str
    bins: list[Bin]


class StatementParts(msgspec.Struct, frozen=True, kw_only=True):
    """A statement's sentences by topic. A requirement of several tests has several of each."""

    required: list[str] = []
    why_it_can_break: list[str] = []
    oracle: list[str] = []
    vacuous: list[str] = []


class RequirementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement over all cells that ran."""

    id: str
    title: str
    area: str = ""  # the title of its area, which the first part of the id names
    statement: str
    parts: StatementParts  # of the statement
    verdict: Verdict
    reason: str
    examples: int
    requests: int = 0
    evidence: dict[str, float]
    layers: list[LayerVerdict] = []  # of a run of several layers
    needed: list[str] = []  # the evidence without which the requirement was not exercised
    cells: list[CellResult]
    cases: list[str]
    known_causes: list[str] = []  # findings that the engine has as it is shipped; the examples are without them
    remarks: list[str] = []  # findings that no contract forbids, and that it showed: they make it not violated
    upstream: list[str] = []  # addresses of public reports of engines that broke it
    fails_on: list[str] = []  # what counts as a failure, as text
    distributions: list[Distribution] = []
    reach: dict[str, int] = {}  # cell of `Results.reach` -> examples that reached it; only those that were reached


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The engine under test. `capabilities`: name -> {present, evidence}."""

    name: str
    version: str | None
    adapter: str
    worker: str
    config: dict[str, str]
    capabilities: dict[str, dict[str, Any]]
    weight_promise: str = ""  # what it promises about its cache after an update of its weights, as the run tests it


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How exact the comparison can be, and which mixtures of requests changed cold answers."""

    oracle: str
    rule: str  # in words
    exact: bool
    noise_nats: float | None
    probes: int
    differing: int
    mixtures: dict[str, bool]  # "base with adapter" -> whether answers are the same alone and in a batch, caching off
    notes: list[str]
    latency_seconds: float | None = None  # average for a cold answer of twelve tokens, on the engine's clock
    answer_seconds: float | None = None  # of a short one that is sent again, on the wall
    stall_seconds: float = 60.0  # no progress for this long is a stall
    cell: str = ""  # the cell whose cold engine was used, also for similar cells
    band: NoiseBand | None = None  # where answers are judged by their scores; None: token by token, or by the margin
    pooled: float | None = None  # by how much a value of a pooled answer may differ from the cold one
    cold: ColdAnswers = ColdAnswers()
    rounding: float | None = 0.0  # token by token: the margin, in nats, within which rounding may choose the token
    repeated: bool = False  # measured a second time, because of a counterexample


class SelfTestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One planted bug (or no bug) and whether the detector's result was right."""

    planted: str
    caught: bool
    said: str


class Waiver(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the known-issues file as this run used it: used, stale, expired or not applicable."""

    requirement: str
    cell: str
    signature: str
    versions: str
    reason: str
    link: str
    expires: str | None
    state: str
    cases: list[str] = []
    fingerprint: str | None = None
    finding: str | None = None  # the root cause, a folder of `findings/`
    says: str | None = None  # words of what failed or of the engine's log

    @property
    def state_text(self) -> str:
        """The state as text, with a hint if it needs action."""
        if self.state == "expired" and self.expires:
            return f"expired on {self.expires}: it no longer waives anything"
        if self.state == "stale":
            return "stale: the known issue did not occur in this run; this does not fail the run"
        return self.state

    @property
    def place(self) -> str:
        """What it waives: a finding by its name, or failures."""
        return self.finding or f"{self.requirement} in {self.cell}, '{self.scope}'"

    @property
    def scope(self) -> str:
        """Which failures it matches."""
        marks = (("fingerprint", self.fingerprint), ("saying", self.says))
        return ", ".join([self.signature, *(f"{word} {mark}" for word, mark in marks if mark)])


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went. Seconds; idle is the share of the suites' time with no request in the engine."""

    command_to_first_verdict: float | None = None
    engine_start: list[float] = []
    calibration: float | None = None
    suites: float | None = None
    engine_idle_share: float | None = None
    requests_per_minute: float | None = None
    examples_per_minute: float | None = None


class ProgressPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the run's examples up to a time, in seconds since the start of the run."""

    at: float
    examples: int = 0
    requests: int = 0
    hit_tokens: float = 0.0
    evicted_tokens: float = 0.0
    preemptions: float = 0.0
    discriminating: float = 0.0  # requests that would have answered otherwise, had they hit another identity's blocks
    failing: int = 0  # examples, those of minimising among them


class EngineLoss(msgspec.Struct, frozen=True, kw_only=True):
    """An engine crashed or hung and was restarted. `at`: seconds since the start of the run."""

    at: float
    cell: str


class DroppedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request that the run stopped sending, because the engine died of it. `at`: seconds since the start.

    `requirement`, `case`: of the confirmed crash; "" if the engine died in the calibration and no case confirmed it.
    `narrows`: the requirements whose later tests drew or need such requests.
    """

    kind: str
    at: float
    cell: str
    layer: str = ""
    requirement: str = ""
    case: str = ""
    why: str
    narrows: list[str] = []


class UsagePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The resource usage of a process at a time (seconds since the start): bytes of memory, or open files."""

    at: float
    value: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a process used more and more of a resource over a soak: an early and a late median.

    `grows` is None if the process was sampled too briefly. `seconds` and `requests` lie between the two medians.
    """

    process: str
    what: str  # "memory" (bytes) or "files"
    early: float
    late: float
    seconds: float = 0.0
    requests: int = 0
    grows: bool | None = None
    points: list[UsagePoint]


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was injected into the engines. `acted`: whether it ever changed their behaviour."""

    name: str
    summary: str
    stands_for: str
    acted: bool


class PlantedRepair(msgspec.Struct, frozen=True, kw_only=True):
    """A repair that was planted into the engines. `name`: its finding; `also`: others that it mends."""

    name: str
    title: str
    also: list[str] = []


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a fleet. `state`: done, failed or missing; `report`: its report folder, relative to this one.

    `lost`: the number of attempts that were lost with their node.
    """

    unit: str
    machine: str
    run: str
    cells: str
    engine: str
    seed: str
    state: str
    said: str  # its headline, or why there is none
    seconds: float = 0.0
    node: str = ""
    lost: int = 0
    report: str = ""


class FeaturePairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of values of two dimensions of a configuration, such as "window+tier-offload".

    `dimensions`: their names. `possible`: how many pairs there are, without those that are refused. `missing`: those
    that no decided cell of the run had.
    """

    dimensions: str
    possible: int
    missing: list[str]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run: results.json."""

    schema_version: int = SCHEMA_VERSION
    coldproof_version: str
    started: str  # ISO 8601, UTC
    duration_s: float
    complete: bool
    headline: str
    conclusion: str = ""  # the headline's first words, such as NOT CONFORMANT
    summary: str = ""  # the rest of the headline
    exit_code: int
    problem: str = ""  # why the run stopped
    command: str
    profile: str
    seed: str
    shard: str = ""  # "2/3": a part of a run
    engine: EngineResult | None
    environment: dict[str, str]
    selftest: list[SelfTestRow]
    calibration: Calibration | None
    requirements: list[RequirementResult]
    cases: list[Case]
    causes: list[Cause]
    waivers: list[Waiver]
    totals: dict[str, int]
    timing: Timing
    fault: InjectedFault | None = None
    repairs: list[PlantedRepair] = []  # the engine under test is not the one that is shipped
    progress: list[ProgressPoint] = []  # at most a hundred moments
    losses: list[EngineLoss] = []
    dropped_kinds: list[DroppedKind] = []
    growth: list[Growth] = []  # of a soak
    weight_updates: list[UpdateCount] = []  # requests after updates of the weights, in judged examples
    layers: list[LayerResult] = []  # of a run of several layers; the last one's engine and calibration are the run's
    findings: list[FindingReplay] = []  # the known findings that the run replayed first
    records: list[FindingFacts] = []  # of the findings that the run met
    reach: list[StateTable] = []  # which states of the engine the examples reached
    pairs: list[FeaturePairs] = []  # which features the run has shown at once
    switches: ServerSwitches | None = None  # of an attached server
    fleet: list[FleetRow] = []  # of many runs as one; empty in a run's own results


def write_results(results: Results, path: Path) -> None:
    """Validate the results and write them with sorted keys. Equal results give equal bytes.

    Raises msgspec.ValidationError if a value does not fit the schema, OSError if the file cannot be written.
    """
    path.write_bytes(encode(results))


def read_results(path: Path, *, follow: bool = False) -> Results:
    """Read and validate results. `follow`: the file may be a link. Raises msgspec.DecodeError or OSError."""
    results = read_json(path, Results, follow=follow)
    check_depth([[case.workload, case.recipes] for case in results.cases])
    return results


def results_in(folder: Path) -> Results | None:
    """Return the results in a report folder; None if there are none that can be read."""
    try:
        return read_results(folder / "results.json")
    except (OSError, msgspec.MsgspecError):
        return None


def encode(value: msgspec.Struct) -> bytes:
    """Return a value as indented JSON with sorted keys. It is validated by decoding it again."""
    raw = msgspec.json.encode(value, order="sorted")
    msgspec.json.decode(raw, type=type(value))
    return indented(msgspec.json.decode(raw)).encode() + b"\n"
