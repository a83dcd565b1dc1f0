"""The shape of results.json and of a saved case: what every report is drawn from.

Ids and field names are a contract with other tools; a change of meaning raises `SCHEMA_VERSION`. Both directions are
strict: what does not validate is neither written nor read.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class Verdict(enum.StrEnum):
    """What a run may say about one requirement. `worst` knows their order."""

    CONFORMS = "CONFORMS"
    UNSUPPORTED = "UNSUPPORTED"
    KNOWN_ISSUE = "KNOWN ISSUE"
    NOT_EXERCISED = "NOT EXERCISED"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"
    VIOLATED = "VIOLATED"


VERDICT_MEANING = {
    Verdict.CONFORMS: "Exercised, with the evidence shown, and no counterexample found.",
    Verdict.UNSUPPORTED: "The engine or this way of reaching it lacks something that the requirement needs.",
    Verdict.KNOWN_ISSUE: "Violated, and waived by name in the known-issues file.",
    Verdict.NOT_EXERCISED: "Nothing failed, but the risky path was not shown to have been taken: no pass.",
    Verdict.INCONCLUSIVE: "The engine is not deterministic enough here to tell, or the case did not reproduce.",
    Verdict.ERROR: "The harness or the set-up broke; nothing is said about the engine.",
    Verdict.VIOLATED: "A counterexample was found and confirmed as the case says.",
}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict of several cells together: the last of them in declaration order; nothing at all was not exercised.

    A requirement that some cell supports is not called unsupported because of another that does not.
    """
    supported = [v for v in verdicts if v is not Verdict.UNSUPPORTED]
    if not supported:
        return Verdict.UNSUPPORTED if verdicts else Verdict.NOT_EXERCISED
    return max(supported, key=list(Verdict).index)


class FailureClass(enum.StrEnum):
    """What kind of wrong it is. A positive match with a known wrong answer is the strongest evidence there is."""

    STALE_STATE = "stale state"
    CROSS_REQUEST = "cross-request"
    CORRUPT = "corrupt"
    NOT_THE_CACHE = "not the cache"
    ACCOUNTING = "accounting"
    LOST_REUSE = "lost reuse"
    HANG = "hang"
    CRASH = "crash"
    API = "api"


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One output position of the failing request. Text is illustration; ids are authoritative."""

    position: int
    expected: int | None
    observed: int | None
    expected_text: str = ""
    observed_text: str = ""
    expected_gap: float | None = None  # the oracle's top-2 logprob gap, nats
    observed_gap: float | None = None  # the engine's own, where it was asked for


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a prompt: the same name stands for the same tokens, as far as both reach.

    `changed` and `swapped` are indices within it; `inherited`: taken over from that request, which this one goes on
    from.
    """

    name: str
    tokens: int
    changed: int | None = None
    swapped: int | None = None
    inherited: int | None = None


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a case as it ran, times in seconds since the workload began."""

    request: int
    step: int
    model: str
    identity: str
    prompt_in_words: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    cached_at_least: int | None
    cached_at_most: int | None
    sent: float
    finished: float
    correct: bool | None  # None: not compared
    answers_as: str = ""  # whose cold answer it equals, in words
    error: str = ""
    answer: list[int] = []  # the token ids, which a next turn goes on from
    answer_text: str = ""
    adapter: str = ""  # the name that the steps use; "": the base model, or not recorded
    first_token: float | None = None
    wrong_token: int | None = None  # the first position of the answer that is not as cold
    wrong_token_at: float | None = None
    preempted_at: list[float] = []
    resumed_at: list[float] = []  # the next token's time, one for each preemption
    aborted: str = ""  # how far it had come when its client hung up
    segments: list[SegmentRow] = []  # the prompt from its start
    shared_tokens: int = 0  # the longest beginning that an earlier request had computed, under whichever identity
    shared_with: int | None = None
    written_by: int | None = None  # the request that wrote what this one wrongly read, where known
    wrong_kv: list[int] = []  # first and last position of the prompt and answer whose KV was wrong, where known


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step in words, when it ran, and its error if it had one."""

    step: int
    words: str
    started: float
    finished: float
    error: str = ""


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was put behind a name, or a reset of the cache, and when. `content` is "" where nothing is left there."""

    step: int
    kind: str  # the route, "unload" or "reset"
    name: str = ""
    content: str = ""
    began: float
    ended: float
    refused: bool = False


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the engine's queue and pool; None: not told."""

    at: float
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """How often it failed: while it was being minimised, on a fresh engine, and with prefix caching off.

    `workloads_before`: so many others had to run before it on a fresh engine, and then it failed.
    """

    while_shrinking_failed: int
    while_shrinking_tries: int
    fresh_failed: int | None = None
    fresh_tries: int | None = None
    caching_off_failed: int | None = None
    caching_off_tries: int | None = None
    fresh_oracle_agrees: bool | None = None
    workloads_before: int | None = None
    note: str = ""


class Strength(enum.StrEnum):
    """What a control tells about the thing that it takes away."""

    NEEDED = "needed"
    NOT_NEEDED = "not needed"
    NOT_TOLD = "not told"


class ControlRow(msgspec.Struct, frozen=True, kw_only=True):
    """The case once more with one thing changed: how often it failed as the case does, and what was answered.

    `otherwise`: runs that failed in another way, which says nothing about this failure. `observed` and `cold` are the
    last run's; `not_run`: why there is no run.
    """

    name: str
    removes: str  # what the case has and this control has not, as the conclusion names it
    tells: Strength = Strength.NOT_TOLD
    tries: int = 0
    failed: int = 0
    otherwise: int = 0
    observed: list[int] = []
    cold: list[int] = []
    cached_tokens: int | None = None
    not_run: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the controls say together: in words, and which kind of mechanism that points at ("" where none)."""

    conclusion: str
    mechanism: str
    controls: list[ControlRow]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A saved counterexample: everything needed to replay it and to draw it.

    `workload` is the harness's own JSON of the workload and `recipes` that of the adapter contents by symbolic name;
    reports do not look inside either.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    requirement: str
    cell: str
    failure_class: FailureClass
    sentence: str
    signature: str  # stable over runs: class; routes of change; path; moment; what else happened
    engine: str
    engine_version: str | None
    oracle: str
    rule: str
    nonce: str
    workload: dict[str, Any]
    recipes: dict[str, dict[str, Any]]
    contents: dict[str, str]  # symbolic content -> digest
    engine_config: dict[str, str]
    failing_request: int | None
    first_difference: int | None
    steps: list[StepRow]
    requests: list[RequestRow]
    tokens: list[TokenRow]
    findings: list[str]
    reproduction: Reproduction
    history_dependent: bool = False
    replay: str
    log_tail: str = ""
    known_issue: str | None = None
    provenance: list[str] = []  # whose KV each request read, where the engine can tell; the failing request first
    counters: dict[str, float] = {}  # how much the engine's own counters grew while it ran
    diagnosis: Diagnosis | None = None
    changes: list[ChangeRow] = []
    queue: list[QueueRow] = []
    block_size: int | None = None  # the unit that hits come in, where the engine states it
    noise_nats: float | None = None  # what the rule lets pass; None: every token counts
    band: NoiseBand | None = None  # where answers are judged by their scores


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one signature, whichever requirement and cell they were found under: one finding with a count."""

    fingerprint: str  # of the signature; stable over runs
    signature: str
    sentence: str  # the first case's
    requirements: list[str]
    cells: list[str]
    cases: list[str]
    waived: int  # so many of the cases are known issues


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement in one cell."""

    cell: str
    verdict: Verdict
    reason: str
    examples: int
    requests: int
    evidence: dict[str, float]
    seconds: float
    drawn: float = 0.0  # seconds of these that went into drawing examples
    share: float = 0.0  # seconds that the budget had given for that


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of a distribution: which values, and how many of them."""

    label: str
    count: int


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """How something was spread over a requirement's examples; `unit` is what the bins count."""

    name: str
    unit: str
    bins: list[Bin]


class RequirementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement over all cells that ran."""

    id: str
    title: str
    statement: str
    verdict: Verdict
    reason: str
    examples: int
    evidence: dict[str, float]
    needed: list[str] = []  # the evidence without which the requirement was not exercised
    cells: list[CellResult]
    cases: list[str]
    upstream: list[str] = []  # addresses of public reports of engines that broke it
    fails_on: list[str] = []  # what would have counted as a failure, in words
    distributions: list[Distribution] = []


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The engine under test. `capabilities`: name -> {present, evidence}."""

    name: str
    version: str | None
    adapter: str
    worker: str
    config: dict[str, str]
    capabilities: dict[str, dict[str, Any]]


class NoiseBand(msgspec.Struct, frozen=True, kw_only=True):
    """How far the scores of a right answer may lie from a cold start's of the same tokens, in nats.

    `error_rate`: so many requests in one are outside without any fault, by the law fitted to `positions` scores of
    `answers` cold answers; of these, half lay within `half_nats`, 99 % within `most_nats` and all within `all_nats`.
    `flips`: at most this share of positions chooses another token than the cold side would.
    """

    score_nats: float  # of a token of the answer
    margin_nats: float  # of the lead that one token has over another
    prompt_nats: float  # of a token of the prompt
    error_rate: float
    positions: int
    answers: int
    flips: float
    half_nats: float
    most_nats: float
    all_nats: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How exact the comparisons may be, and which mixtures of requests the ground rule broke on."""

    oracle: str
    rule: str  # in words
    exact: bool
    noise_nats: float | None
    probes: int
    differing: int
    mixtures: dict[str, bool]  # "base with adapter" -> the same alone and together, caching off
    notes: list[str]
    latency_seconds: float | None = None  # of a cold answer of twelve tokens, on average
    stall_seconds: float = 60.0  # nothing moving for so long is a stall
    cell: str = ""  # whose cold engine was asked; it answers for all cells that are alike
    band: NoiseBand | None = None  # where answers are judged by their scores; None: token by token, or by the margin


class SelfTestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One planted bug (or the clean engine) and whether the detector was right about it."""

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
    """What the run's examples had come to by a moment, in seconds since the run began; all sums only grow."""

    at: float
    examples: int = 0
    requests: int = 0
    hit_tokens: float = 0.0
    evicted_tokens: float = 0.0
    preemptions: float = 0.0
    telling: float = 0.0  # requests that would have answered otherwise, had they hit another identity's blocks
    failing: int = 0  # examples, those of minimising among them


class EngineLoss(msgspec.Struct, frozen=True, kw_only=True):
    """An engine died or hung and was started again, so many seconds after the run began."""

    at: float
    cell: str


class UsagePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a process held at a moment, in seconds since the run began: bytes of memory, or open files."""

    at: float
    value: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a process came to hold more and more of something over a soak: medians early and late, and whether the
    second is larger than a flat line explains; `grows` is None where it was watched too shortly to tell.

    `seconds` and `requests` lie between the two.
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
    """A bug that was injected into the engines on purpose. `acted`: whether it ever made a difference to them."""

    name: str
    summary: str
    stands_for: str
    acted: bool


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the runs that a fleet's results are of. `state`: done, failed or missing; `report`: its folder, from here.

    `lost`: why earlier tries count for nothing.
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
    lost: list[str] = []
    report: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run: results.json."""

    schema_version: int = SCHEMA_VERSION
    coldproof_version: str
    started: str  # ISO 8601, UTC
    duration_s: float
    complete: bool
    headline: str
    exit_code: int
    problem: str = ""  # the one clear line when the run could not go on
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
    causes: list[Cause] = []
    waivers: list[Waiver]
    totals: dict[str, int]
    timing: Timing
    fault: InjectedFault | None = None
    progress: list[ProgressPoint] = []  # at most a hundred moments; empty in files from before there was this
    losses: list[EngineLoss] = []
    growth: list[Growth] = []  # of a soak
    fleet: list[FleetRow] = []  # of many runs as one; empty in a run's own results


def write_results(results: Results, path: Path) -> None:
    """Validate, then write with sorted keys: the same results give the same bytes.

    Raises msgspec.ValidationError if a value does not fit the schema, OSError if the file cannot be written.
    """
    path.write_bytes(encode(results))


def read_results(path: Path) -> Results:
    """Read and validate. Raises msgspec.ValidationError or OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def read_case(path: Path) -> Case:
    """Read and validate a saved case. Raises msgspec.ValidationError, msgspec.DecodeError or OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Case)


def encode(value: msgspec.Struct) -> bytes:
    """JSON of a result, a case or a measurement, validated by reading it back, keys sorted, two spaces of indent."""
    raw = msgspec.json.encode(value, order="sorted")
    msgspec.json.decode(raw, type=type(value))
    return msgspec.json.format(raw, indent=2) + b"\n"
