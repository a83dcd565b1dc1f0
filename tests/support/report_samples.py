"""Results as a run could have written them, for the tests of the reports: conforming, violated, hostile, broken."""

from __future__ import annotations

from typing import Any

import msgspec

from coldproof.harness.schema.case import Case, NoiseBand, Reproduction, RequestRow, StepRow, TokenRow
from coldproof.harness.schema.results import (
    Calibration,
    CellResult,
    EngineLoss,
    EngineResult,
    ProgressPoint,
    RequirementResult,
    Results,
    SelfTestRow,
    StatementParts,
    Timing,
    Waiver,
)
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.reports.assemble.causes import causes

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
HOSTILE = (
    f"{SCRIPT} {IMAGE} '--><svg/onload=alert(1)> {{{{7*7}}}} \x1b[31mred\x1b[0m \u202egnp.exe\u2066 NUL\x00 C1\x85 ]]>"
)
SURROGATE = "half \ud83d pair"


def cell(name: str = "tiny-llama", verdict: Verdict = Verdict.CONFORMS, **changes: Any) -> CellResult:
    """Return the result of one requirement in one cell."""
    row = CellResult(
        cell=name,
        verdict=verdict,
        reason="no counterexample in 40 examples",
        examples=40,
        requests=1312,
        evidence={"cached tokens": 20480.0, "hits": 611.0, "reloads": 88.0, "share hit": 0.4375},
        seconds=14.21,
    )
    return msgspec.structs.replace(row, **changes)


def requirement(id: str, title: str, *cells: CellResult, cases: tuple[str, ...] = ()) -> RequirementResult:
    """Return the result of one requirement. Its verdict and reason are those of its last cell."""
    rows = list(cells) or [cell()]
    return RequirementResult(
        id=id,
        title=title,
        statement=f"A conforming engine {title}.\n\nIt can break where blocks are keyed by a name and not by content.",
        parts=StatementParts(
            required=[
                f"A conforming engine {title}.",
                "It can break where blocks are keyed by a name and not by content.",
            ]
        ),
        verdict=rows[-1].verdict,
        reason=rows[-1].reason,
        examples=sum(row.examples for row in rows),
        evidence=rows[-1].evidence,
        cells=rows,
        cases=list(cases),
    )


def request(number: int, **changes: Any) -> RequestRow:
    """Return one request of a case, which is correct unless `changes` say otherwise."""
    row = RequestRow(
        request=number,
        step=0 if number < 3 else 2,
        model="tenant",
        identity="tenant = adapter A" if number < 3 else "tenant = adapter B",
        prompt_in_words="nonce 5f:3 + prelude a:96 + turn 3:17",
        prompt_tokens=116,
        output_tokens=24,
        cached_tokens=0 if number == 0 else 112,
        cached_at_least=0 if number == 0 else 112,
        cached_at_most=0 if number == 0 else 112,
        sent=0.1 * number,
        finished=0.1 * number + 0.21,
        correct=True,
        answers_as="adapter A",
    )
    return msgspec.structs.replace(row, **changes)


def token(position: int, first: int) -> TokenRow:
    """Return one token position. From position `first` on the answers differ."""
    differs = position >= first
    return TokenRow(
        position=position,
        expected=100 + position,
        observed=(900 if differs else 100) + position,
        expected_text=f" w{position}",
        observed_text="\n" if differs else f" w{position}",
        expected_gap=0.731 + position / 100,
    )


def case(id: str = "7c21a0f3", **changes: Any) -> Case:
    """Return a stale-state case: after a reload under the same name, a request gets an answer of the older adapter."""
    older = "adapter A, which `tenant` named before step 1"
    stale = request(3, correct=False, answers_as=older, sent=0.9, finished=1.13, cached_at_least=0, cached_at_most=0)
    built = Case(
        id=id,
        requirement="LORA-1",
        cell="tiny-llama",
        failure_class=FailureClass.STALE_STATE,
        sentence=(
            "Request r3 (adapter `tenant`, content B) returned, from token 2 on, what content A returns; "
            "112 of its 116 prompt tokens came from the cache, written by r0 before the reload in step 1."
        ),
        signature="LORA-1|stale state|burst,reload,burst",
        engine="vLLM",
        engine_version="0.32.0",
        oracle="cold-engine",
        rule="token-exact",
        nonce="5f",
        workload={"steps": []},
        recipes={"A": {"seed": 1}, "B": {"seed": 2}},
        contents={"A": "sha256:9f2c11d0", "B": "sha256:0b77aa31"},
        engine_config={"block_size": "16", "max_loras": "2", "num_gpu_blocks_override": "64"},
        failing_request=3,
        first_difference=2,
        steps=[
            StepRow(step=0, words="burst of 3 requests to `tenant`", started=0.0, finished=0.41),
            StepRow(step=1, words="reload `tenant` in place: A becomes B", started=0.45, finished=0.83),
            StepRow(step=2, words="burst of 1 request to `tenant`", started=0.9, finished=1.13),
        ],
        requests=[
            request(0),
            request(1),
            request(2),
            stale,
        ],
        tokens=[token(position, 2) for position in range(24)],
        findings=["tokens differ at position 2", "112 cached tokens where at most 0 may be cached"],
        reproduction=Reproduction(
            while_shrinking_failed=11,
            while_shrinking_tries=12,
            fresh_failed=3,
            fresh_tries=3,
            caching_off_failed=0,
            caching_off_tries=3,
            fresh_oracle_agrees=True,
            note="The control with a fresh salt does not fail.",
        ),
        replay=f"coldproof replay coldproof-report/cases/{id}.json",
        log_tail="INFO reload tenant\r\nINFO prefix cache hit 112 tokens\n",
    )
    return msgspec.structs.replace(built, **changes)


def band(**changes: Any) -> NoiseBand:
    """Return the measured noise of an engine that is nondeterministic and correct."""
    row = NoiseBand(
        score_nats=0.5,
        margin_nats=0.8,
        prompt_nats=0.9,
        error_rate=1e-6,
        positions=6912,
        answers=144,
        flips=0.05,
        half_nats=0.03,
        most_nats=0.1,
        all_nats=0.2,
    )
    return msgspec.structs.replace(row, **changes)


def waiver(state: str, **changes: Any) -> Waiver:
    """Return one entry of the known-issues file in the given state."""
    entry = Waiver(
        requirement="CHAT-2",
        cell="tiny-llama",
        signature="CHAT-2|lost reuse|*",
        versions=">=0.33.dev0,<0.34.dev0",
        reason=f"a reason for the {state} one",
        link="https://example.org/issues/1",
        expires="2027-01-31",
        state=state,
    )
    return msgspec.structs.replace(entry, **changes)


def progress_point(place: int) -> ProgressPoint:
    """Return the progress of a run after this many eighths of its time."""
    return ProgressPoint(
        at=50.0 * place,
        examples=40 * place,
        requests=1312 * place,
        hit_tokens=20480.0 * place,
        evicted_tokens=96.0 * max(0, place - 3),
        discriminating=11.0 * place,
        failing=place // 4,
    )


def _others() -> list[RequirementResult]:
    """Return one requirement of each verdict that is neither pass nor violation, and some that pass."""
    missing = cell(
        verdict=Verdict.NOT_EXERCISED,
        reason="no preemption occurred in 40 examples",
        evidence={"hits": 44.0, "preemptions": 0.0},
    )
    unsupported = cell(verdict=Verdict.UNSUPPORTED, reason="needs KV events: the server has no endpoint for them")
    undecided = cell(verdict=Verdict.INCONCLUSIVE, reason="all 3 differences are below the noise floor of 0.02 nats")
    return [
        requirement("GROUND-1", "answers the same alone and in any batch with prefix caching off"),
        requirement("SALT-1", "never shares KV between different salts", cell(), cell("hybrid")),
        requirement("REUSE-1", "hits every whole unit of a prompt sent again while the pool has room"),
        requirement("PRESS-3", "answers as cold after preemption", missing),
        requirement("EVENT-1", "reports its KV events truthfully", unsupported),
        requirement("CHAT-1", "answers chats that share a prelude as cold", undecided),
        requirement("PRESS-1", "answers as cold under eviction", cell(verdict=Verdict.ERROR, reason="port in use")),
    ]


def results(*cases: Case, **changes: Any) -> Results:
    """Return a complete run with these cases, all of LORA-1."""
    found = cell(verdict=Verdict.VIOLATED, reason=f"{len(cases)} distinct counterexamples", seconds=91.5)
    lora = requirement(
        "LORA-1",
        "answers as the new adapter cold after an in-place reload under the same name",
        *([cell("hybrid"), found] if cases else [cell()]),
        cases=tuple(case.id for case in cases),
    )
    verdict = f"VIOLATED: 1 of 8 requirements, {len(cases)} cases" if cases else "No violation in 8 requirements"
    built = Results(
        coldproof_version="0.1.0",
        started="2026-03-01T12:00:00Z",
        duration_s=412.7,
        complete=True,
        headline=f"{verdict}; vLLM 0.32.0 on CPU, float32; 3 conform, 1 not exercised, 1 inconclusive.",
        exit_code=1,
        command="pytest suites --engine vllm --profile ci --known-issues adapters/vllm/known_issues.toml",
        profile="ci",
        seed="20260301",
        engine=EngineResult(
            name="vLLM",
            version="0.32.0",
            adapter="vllm",
            worker="model",
            config={"block_size": "16", "dtype": "float32", "enable_prefix_caching": "True"},
            capabilities={
                "cached-token counts": {"present": True, "evidence": "usage.prompt_tokens_details"},
                "kv events": {"present": False, "evidence": "404 from the probe"},
                "pool size known": {"present": None, "evidence": ""},
            },
        ),
        environment={"python": "3.11.7", "platform": "Linux x86_64", "torch": "2.8.0+cpu"},
        selftest=[
            SelfTestRow(planted="none", caught=True, said="no finding"),
            SelfTestRow(planted="hash without the adapter", caught=True, said="stale state at token 0"),
        ],
        calibration=Calibration(
            oracle="cold-engine",
            rule="Answers are compared token by token: the same prompt gave the same tokens in all 12 probes.",
            exact=True,
            noise_nats=0.0,
            probes=12,
            differing=0,
            mixtures={"base with adapter": True, "adapter with adapter": False},
            notes=["float32, batch-invariant kernels off"],
        ),
        requirements=[lora, *_others()],
        cases=list(cases),
        causes=causes(cases),
        waivers=[waiver("used"), waiver("stale"), waiver("expired")],
        totals={"requests": 10496, "examples": 320, "cached_tokens": 163840},
        timing=Timing(
            command_to_first_verdict=38.2,
            engine_start=[11.9, 12.4],
            calibration=2.3,
            suites=371.0,
            engine_idle_share=0.061,
            requests_per_minute=1697.0,
            examples_per_minute=51.8,
        ),
        progress=[progress_point(place) for place in range(1, 9)],
        losses=[EngineLoss(at=201.4, cell="hybrid")],
    )
    return msgspec.structs.replace(built, **changes)


def many(count: int) -> Results:
    """Return a run with this many cases, the last tenth of them known issues."""
    numbered = (
        case(
            f"{0x7C21A000 + place:08x}",
            known_issue="https://example.org/issues/7" if place >= count * 9 // 10 else None,
            tokens=[token(position, place % 20) for position in range(64)],
            first_difference=place % 20,
            log_tail="INFO a line of the engine's log\n" * 300,
        )
        for place in range(count)
    )
    return results(*numbered)


def poisoned(text: str) -> Results:
    """Return a run with this text wherever an engine, a model or a user could have put it."""
    return msgspec.convert(_poison(msgspec.to_builtins(results(case(known_issue="x"))), text), Results)


# What our own code computes or looks up; all other strings are fair game.
_OURS = frozenset({"verdict", "failure_class", "contents", "recipes", "workload"})


def _poison(value: Any, text: str, key: str = "") -> Any:
    if key in _OURS:
        return value
    if isinstance(value, dict):
        return {_key(name, text, key): _poison(item, text, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_poison(item, text, key) for item in value]
    return text if isinstance(value, str) else value


def _key(name: str, text: str, within: str) -> str:
    open_dicts = {"config", "environment", "evidence", "mixtures", "totals", "engine_config", "capabilities"}
    return f"{name} {text}" if within in open_dicts else name
