"""The schema of a saved case: a counterexample with everything that is needed to replay and to draw it.

Ids and field names are a contract with other tools. A change of meaning raises `SCHEMA_VERSION`, which also applies to
results.json. Reading is strict: a file that does not validate is refused.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

from coldproof.harness.schema.attribution import Attribution
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.oracles import CLOSED_FORM, is_other_engine
from coldproof.harness.schema.stored_files import MEGABYTE, check_depth, read_json
from coldproof.harness.schema.verdict import FailureClass

SCHEMA_VERSION = 2
MOST_CASE = 64 * MEGABYTE  # of a case file
TRACE = ".trace.json"  # the end of the name of its trace, which stands beside it
FILES = (".md", ".json", ".py", TRACE)  # the ends of the names of all its files


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One output position of the failing request. Text is illustration; ids are authoritative."""

    position: int
    expected: int | None
    observed: int | None
    expected_text: str = ""
    observed_text: str = ""
    expected_gap: float | None = None  # the oracle's top-2 logprob gap, nats
    observed_gap: float | None = None  # the engine's own, where it was asked for


class VectorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The first values of a wrong vector of a pooled answer, and of the cold one. None: not a finite number.

    `token`: the prompt's token whose vector it is; None if the prompt has one. `values`: how many values it has.
    `largest`: the largest difference of a value; `tolerance`: what is allowed. `cosine`: of the angle between both.
    """

    token: int | None
    values: int
    expected: list[float]
    observed: list[float | None]
    largest: float | None
    cosine: float | None
    tolerance: float


class ImageRow(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a prompt. `colours`: of its patches, row by row, as numbers of 24 bits; their number is a square.

    `changed`: a pixel differs from the image of this name. `uuid`: the client's name for it. `encoding`: how it is
    sent. `arguments`: what the request tells the engine's processor.
    """

    name: str
    colours: list[int]
    changed: bool = False
    uuid: str = ""
    encoding: str = ""
    arguments: str = ""


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a prompt. Segments with the same name have the same tokens, up to the shorter length.

    `changed` and `swapped` are indices within it; `inherited`: taken over from that request, which this one goes on
    from. `rows`: the ranges of its positions, from the first to one after the last, at which the model gets embedding
    rows in place of tokens. A file leaves `rows` and `image` out of a segment that has none.
    """

    name: str
    tokens: int
    changed: int | None = None
    swapped: int | None = None
    inherited: int | None = None
    rows: list[tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET
    image: ImageRow | msgspec.UnsetType = msgspec.UNSET


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
    overlaps_change: bool = False  # an adapter change overlapped, so that several versions were active
    answers_as: str = ""  # whose cold answer it equals, in words
    error: str = ""
    answer: list[int] = []  # the token ids, which a next turn goes on from
    answer_text: str = ""
    adapter: str = ""  # the name that the steps use; "": the base model
    first_token: float | None = None
    wrong_token: int | None = None  # the first position of the answer that is not as cold
    wrong_token_at: float | None = None
    preempted_at: list[float] = []
    resumed_at: list[float] = []  # the next token's time, one for each preemption
    aborted: str = ""  # the stage at which its client disconnected
    segments: list[SegmentRow] = []  # the prompt from its start
    shared_tokens: int = 0  # the longest prefix that an earlier request had computed, under any identity
    shared_with: int | None = None
    written_by: int | None = None  # the request whose KV this one wrongly read, if known
    wrong_kv: list[int] = []  # first and last position in prompt and answer with wrong KV, if known


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step: its description, its times, and its error if it had one."""

    step: int
    words: str
    started: float
    finished: float
    error: str = ""


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was put behind a name, or a change without a name, and when. `content`: "" where nothing is left there."""

    step: int
    kind: str  # the route, "unload", "reset", or a description of new weights or a pause
    name: str = ""  # of a reset: what it covers besides the prefix cache
    content: str = ""
    began: float
    ended: float
    refused: bool = False


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of the engine's queue and pool. None: not reported."""

    at: float
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """How often it failed: while it was being minimised, on a fresh engine, and with prefix caching off.

    `running_failed`, `running_tries`: replays on an engine that had run other workloads: an attached server, or the
    engine under test. `workloads_before`: the number of prior workloads that a fresh engine needed to fail.
    """

    while_shrinking_failed: int
    while_shrinking_tries: int
    fresh_failed: int | None = None
    fresh_tries: int | None = None
    running_failed: int | None = None
    running_tries: int | None = None
    caching_off_failed: int | None = None
    caching_off_tries: int | None = None
    fresh_oracle_agrees: bool | None = None
    workloads_before: int | None = None
    note: str = ""

    @property
    def failed_again(self) -> bool:
        """Return whether it failed in any replay. What did not was seen once, and accuses nobody."""
        return bool(self.fresh_failed or self.running_failed or self.workloads_before)

    @property
    def with_fresh_engines(self) -> bool:
        """Return whether an engine could be started, to replay it there and without the cache."""
        return bool(self.fresh_tries or self.caching_off_tries or self.workloads_before)

    @property
    def sometimes(self) -> bool:
        """Return whether it failed in some replays on the running engine, and not in others."""
        return 0 < (self.running_failed or 0) < (self.running_tries or 0)


class Strength(enum.StrEnum):
    """Whether the failure requires the factor that a control removes."""

    NEEDED = "needed"
    NOT_NEEDED = "not needed"
    UNDETERMINED = "undetermined"


class ControlRow(msgspec.Struct, frozen=True, kw_only=True):
    """The case once more with one thing changed: how often it failed as the case does, and what was answered.

    `otherwise`: runs that failed in another way, which says nothing about this failure. `observed` and `cold` are the
    last run's; `not_run`: why there is no run.
    """

    name: str
    removes: str  # what the case has and this control has not, as the conclusion names it
    tells: Strength = Strength.UNDETERMINED
    tries: int = 0
    failed: int = 0
    otherwise: int = 0
    observed: list[int] = []
    cold: list[int] = []
    cached_tokens: int | None = None
    not_run: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion from all controls as text, and the kind of mechanism that it indicates ("" if none)."""

    conclusion: str
    mechanism: str
    controls: list[ControlRow]


class NoiseBand(msgspec.Struct, frozen=True, kw_only=True):
    """How far the scores of a right answer may lie from a cold start's of the same tokens, in nats.

    `error_rate`: so many requests in one are outside without any fault, by the law fitted to `positions` scores of
    `answers` cold answers; of these, half lay within `half_nats`, 99 % within `most_nats` and all within `all_nats`.
    `flips`: at most this share of positions chooses another token than the cold side would. `repeats`: how often cold
    answers diverged from one another, or chose another token than a prefill: the larger of both rates.
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
    repeats: Rate = Rate()


UNPROVED = "a counterexample was found, and not confirmed for lack of time; `coldproof prove` does it"


class Unfinished(enum.StrEnum):
    """What a run had no time for. `coldproof prove` goes on with it."""

    PROOF = "proof"  # it was not confirmed, so that it shows no violation
    CAUSE = "cause"  # it was confirmed, and the repairs of known causes were not tried


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A saved counterexample: everything needed to replay it and to draw it.

    `workload` is the harness's own JSON of the workload and `recipes` that of the adapter contents by symbolic name;
    reports do not look inside either.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    requirement: str
    cell: str
    layer: str = ""  # of a run of several layers
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
    attribution: Attribution | None = None  # to which known cause it belongs; None: not asked
    provenance: list[str] = []  # whose KV each request read, where the engine can tell; the failing request first
    counters: dict[str, float] = {}  # how much the engine's own counters grew while it ran
    diagnosis: Diagnosis | None = None
    changes: list[ChangeRow] = []
    queue: list[QueueRow] = []
    block_size: int | None = None  # the unit that hits come in, where the engine states it
    noise_nats: float | None = None  # what the rule lets pass; None: every token counts
    band: NoiseBand | None = None  # where answers are judged by their scores
    vector: VectorRow | None = None  # of the failing request, where it asked for vectors
    test: str = ""  # that drew it; "" in the file of a finding
    unfinished: Unfinished | None = None
    mixtures: list[str] = []  # of models in a batch that may be the cause, if they also fail without the cache

    @property
    def is_remark(self) -> bool:
        """Return whether it shows a remark and nothing else, so that it makes no requirement violated."""
        return self.attribution is not None and self.attribution.remark

    @property
    def may_be_known(self) -> bool:
        """Return whether it may belong to a known cause, which was not found out, as for lack of time."""
        return self.attribution is not None and self.attribution.is_undecided

    @property
    def undecided(self) -> str:
        """Return why it shows no violation, whatever its class and whatever waives it; "" for one that is confirmed.

        What was seen once and failed in no replay accuses nobody: on a fresh engine, on an attached server, after the
        prior workloads, and where no replay could be made. An answer that equals no known one, of a server that cannot
        be started without its cache, has to be wrong in each replay, unless it is also wrong on an engine of the same
        release, where the repair of a known cause ends it: noise does not do that.
        """
        tried = self.reproduction
        shown = self.attribution is not None and self.attribution.is_by_replay
        if self.unfinished is Unfinished.PROOF:
            return f"{UNPROVED}: {self.sentence}"
        if not tried.failed_again:
            where = "on a fresh engine" if tried.fresh_tries else "on the running engine"
            again = (
                f"did not reproduce {where}" if tried.fresh_tries or tried.running_tries else "could not be replayed"
            )
            return f"observed once, {again}: {self.sentence}"
        is_corrupt = self.failure_class is FailureClass.CORRUPT
        if is_corrupt and tried.sometimes and not tried.with_fresh_engines and not shown:
            again = f"it failed in {tried.running_failed} of {tried.running_tries} replays on the running engine"
            return f"{again}, as rare noise without the cache would: {self.sentence}"
        # A computed answer needs no engine: if the engine is wrong without its cache too, it is wrong about the prompt.
        stands = self.oracle == CLOSED_FORM and self.failure_class is FailureClass.NOT_THE_CACHE
        if tried.fresh_oracle_agrees is False and not (stands or is_other_engine(self.oracle)):
            return "a fresh engine does not give the oracle's answer: the oracle may be wrong"
        return ""

    @property
    def accepted(self) -> str:
        """Return the known issue that waives it, and how its cause was found."""
        known = self.known_issue or ""
        return known if self.attribution is None else f"{known}: {self.attribution.how}"

    @property
    def place(self) -> str:
        """Return the name of its cell in tables, with the layer if the run had several."""
        return f"{self.layer}: {self.cell}" if self.layer else self.cell


def read_case(path: Path, *, follow: bool = False) -> Case:
    """Read and validate a saved case. `follow`: the file may be a link. Raises msgspec.DecodeError or OSError."""
    case = read_json(path, Case, most=MOST_CASE, follow=follow)
    check_depth([case.workload, case.recipes])
    return case
