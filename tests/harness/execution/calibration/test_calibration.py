"""Calibration finds how exact comparisons can be, and which mixtures of models fail without any cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import Tampered, contents, history, outcome, tokens

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Token
from coldproof.harness.execution.calibration.calibrate import (
    MIXED_TOKENS,
    ROUNDS,
    TIMES_ROUNDING,
    TOKENS,
    calibrate,
    earlier_calibration,
    lengths,
)
from coldproof.harness.execution.calibration.repeats import REPEATED_NATS, compare
from coldproof.harness.execution.calibration.sensitivity import EDITS
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.checkers.tokens import check_tokens
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer, OracleError, Question, question
from coldproof.harness.options import UsageError
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.results import Calibration, write_results
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER


class Mixed(ScriptedEngine):
    """A cold engine that answers wrongly if a burst has models of two kinds."""

    def __init__(self, breaks: Callable[[set[str]], bool]) -> None:
        super().__init__(caching=False)
        self.breaks = breaks

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve the burst, and change its answers if the mixture of models breaks."""
        served = super().serve(arrivals, on_token, between)
        if not self.breaks({arrival.request.model for arrival in arrivals}):
            return served
        honest = [one.result for one in served if isinstance(one.result, Completion)]
        return [
            msgspec.structs.replace(one, result=changed(right, 3)) for one, right in zip(served, honest, strict=True)
        ]


def changed(honest: Completion, position: int, by: float = 0.0) -> Completion:
    """Return an answer with another token in a near tie at one position, and all logprobs moved."""
    answer = [msgspec.structs.replace(t, logprob=(t.logprob or 0.0) - by, gap=0.1) for t in honest.tokens]
    answer[position] = msgspec.structs.replace(answer[position], id=answer[position].id ^ 1)
    return msgspec.structs.replace(honest, tokens=tuple(answer))


def oracle_over(engine: ScriptedEngine, folder: Path, *, itself: bool = False) -> EngineOracle:
    """Return an oracle that knows three adapter contents."""
    return EngineOracle("cold-engine", engine, list(contents(folder).values()), memo={}, itself=itself)


def calibrated(
    engine: ScriptedEngine, folder: Path, *, itself: bool = False, stepped: bool = False
) -> tuple[Calibration, Rule]:
    """Calibrate an engine with four slots and without prompt scores, so that answers are judged by the margin."""
    engine.capabilities[Capability.PROMPT_LOGPROBS] = Support(False, "left out")
    oracle = oracle_over(engine, folder, itself=itself)
    return calibrate(oracle, list(oracle.adapters), cell="default", block=BLOCK, slots=4, stepped=stepped)


def test_an_engine_that_repeats_itself_is_compared_token_by_token(tmp_path: Path) -> None:
    """There is no noise, no difference and no note, and every mixture works."""
    found, rule = calibrated(ScriptedEngine(caching=False), tmp_path)
    assert rule == Rule(exact=True, cold=found.cold)
    # Nine probes again and in a batch, and half of each continued; one pair of each kind shows that prompts matter.
    assert found.cold.rate == Rate(9 * (2 * TOKENS + TOKENS // 2), 0)
    assert [(one.changed, one.pairs) for one in found.cold.sensitivity] == [(1, 1)] * (len(EDITS) + 1)
    assert found.cold.insensitive(adapters=True) == ""
    assert (found.exact, found.noise_nats, found.differing, found.notes) == (True, 0.0, 0, [])
    assert found.mixtures == {ADAPTERS_TOGETHER: True, BASE_WITH_ADAPTER: True}
    assert found.probes == 4 * 9


def test_a_slow_model_gets_fewer_requests(tmp_path: Path) -> None:
    """Answers are shorter and there are fewer rounds of concurrent requests; the probes that find the rule are kept."""

    def requests_of_a_calibration(latency: float, seconds: float) -> list[CompletionRequest]:
        requests: list[CompletionRequest] = []
        engine = Tampered(lambda request, honest: requests.append(request) or honest, caching=False)
        engine.capabilities[Capability.PROMPT_LOGPROBS] = Support(False, "left out")
        oracle, ticks = oracle_over(engine, tmp_path / str(latency)), itertools.count()
        found, _ = calibrate(
            oracle,
            list(oracle.adapters),
            cell="default",
            block=BLOCK,
            slots=4,
            seconds=seconds,
            wall=lambda: next(ticks) * 9 * latency,
        )
        assert found.latency_seconds < latency  # on the engine's own clock, for whoever waits for its answers
        assert found.probes == 4 * 9
        return requests

    quick, slow = requests_of_a_calibration(0.01, 240), requests_of_a_calibration(4.0, 240)
    assert sum(one.max_tokens == MIXED_TOKENS for one in quick) > 9 * ROUNDS
    assert not any(one.max_tokens == MIXED_TOKENS for one in slow)
    assert len(slow) == 4 * 9 + (1 + len(EDITS) + 1) + 6 + 9


def test_the_first_answers_are_not_timed(tmp_path: Path) -> None:
    """An engine that is slow only before its first answers is not a slow model."""
    calls, wall = itertools.count(), [0.0]

    def answered(_: CompletionRequest, honest: Completion) -> Completion:
        wall[0] += 10.0 if next(calls) < 9 else 0.25
        return honest

    engine = Tampered(answered, caching=False)
    engine.capabilities[Capability.PROMPT_LOGPROBS] = Support(False, "left out")
    oracle = oracle_over(engine, tmp_path)
    found, _ = calibrate(oracle, list(oracle.adapters), cell="default", block=BLOCK, slots=4, wall=lambda: wall[0])
    assert found.answer_seconds == 0.25


def test_an_engine_that_varies_is_compared_by_margin(tmp_path: Path) -> None:
    """The noise is the largest logprob difference that was measured while the tokens still agreed."""
    calls = itertools.count()

    def vary(_: CompletionRequest, honest: Completion) -> Completion:
        position = 5 if next(calls) % 2 else 6
        return changed(honest, position, by=0.25 * (position == 5))

    found, rule = calibrated(Tampered(vary, caching=False), tmp_path)
    assert not rule.exact
    assert rule.noise == pytest.approx(0.25)
    assert found.noise_nats == rule.noise
    assert found.differing > 0
    assert "margin rule" in found.rule


def test_an_engine_whose_prefill_and_decode_differ_is_not_exact(tmp_path: Path) -> None:
    """Equal requests repeat, but a hit on what decode wrote would look like a wrong block."""

    def by_prompt(request: CompletionRequest, honest: Completion) -> Completion:
        begun = len(request.prompt) not in lengths(BLOCK * 2)
        return changed(honest, 0, by=0.2) if begun else honest

    found, rule = calibrated(Tampered(by_prompt, caching=False), tmp_path)
    assert not rule.exact
    assert found.differing == 0
    assert any("prefill and decode differ" in note for note in found.notes)


@pytest.mark.parametrize(("by", "exact"), [(1e-5, True), (REPEATED_NATS / 2, True), (0.1, False)])
def test_logprobs_that_vary_under_equal_tokens(by: float, exact: bool, tmp_path: Path) -> None:
    """Differences by the order of additions change nothing. With larger ones the equal tokens were a coincidence.

    The noise is reported in either case.
    """
    calls = itertools.count()

    def vary(_: CompletionRequest, honest: Completion) -> Completion:
        score = -by * (1 + next(calls) % 2)
        moved = tuple(msgspec.structs.replace(t, logprob=score) for t in honest.tokens)
        return msgspec.structs.replace(honest, tokens=moved)

    found, rule = calibrated(Tampered(vary, caching=False), tmp_path)
    assert (rule.exact, rule.noise) == (exact, None if exact else pytest.approx(by))
    assert rule.rounding == (pytest.approx(min(REPEATED_NATS, TIMES_ROUNDING * by)) if exact else 0.0)
    assert found.noise_nats == pytest.approx(by)


def test_an_engine_that_varies_from_its_first_token_on_is_not_exact(tmp_path: Path) -> None:
    """No logprobs can be compared. Without prompt scores it is judged by the margin, and the report says why."""
    calls = itertools.count()
    found, rule = calibrated(Tampered(lambda _, honest: changed(honest, next(calls) % 2), caching=False), tmp_path)
    assert (rule.exact, found.exact, rule.band) == (False, False, None)
    assert any("not report prompt logprobs" in note and "left out" in note for note in found.notes)


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("broken", [BASE_WITH_ADAPTER, ADAPTERS_TOGETHER])
def test_a_mixture_that_breaks_is_named_and_the_rest_stays_exact(broken: str, stepped: bool, tmp_path: Path) -> None:
    """The fault belongs to the engine and not to its cache (GROUND-1)."""

    def breaks(company: set[str]) -> bool:
        if broken == BASE_WITH_ADAPTER:
            return "base" in company and len(company) > 1
        return len(company - {"base"}) > 1

    found, rule = calibrated(Mixed(breaks), tmp_path, stepped=stepped)
    assert rule.exact
    assert found.mixtures[broken] is False
    assert found.mixtures[ADAPTERS_TOGETHER] is (broken != ADAPTERS_TOGETHER)
    assert any(broken in note and "GROUND-1" in note for note in found.notes)


def test_every_slot_is_in_use_while_mixtures_are_checked(tmp_path: Path) -> None:
    """Some faults show only when the last slot is in use."""
    engine = ScriptedEngine(caching=False)
    calibrated(engine, tmp_path)
    assert sum(name.startswith("slot-") for name in engine.contents) == 4


def test_an_oracle_with_a_cache_is_refused(tmp_path: Path) -> None:
    """The second question about the same prompt reports a hit."""
    with pytest.raises(OracleError, match="not cold"):
        calibrated(ScriptedEngine(caching=True), tmp_path)


def test_an_oracle_by_unused_salts_reports_its_limitation(tmp_path: Path) -> None:
    """The oracle cannot detect that salts are ignored, and the report says so."""
    found, rule = calibrated(ScriptedEngine(caching=True), tmp_path, itself=True)
    assert rule.exact
    assert ["cannot detect ignored salts" in note for note in found.notes] == [True]


def test_a_crashed_engine_gives_no_rule(tmp_path: Path) -> None:
    """An oracle that cannot answer is a failure of the harness, not of the engine under test."""

    def crash(_: CompletionRequest, honest: Completion) -> Completion:
        raise EngineDied("gone")

    with pytest.raises(OracleError, match=r"cold-engine oracle cannot answer: gone"):
        calibrated(Tampered(crash, caching=False), tmp_path)


def test_an_oracle_stores_its_answers(tmp_path: Path) -> None:
    """Answers are stored by content, and the adapter is loaded once under a name of the oracle."""
    engine = ScriptedEngine(caching=False)
    oracle = oracle_over(engine, tmp_path)
    question = Question(tuple(range(40, 60)), next(iter(oracle.adapters)), 4)
    assert oracle.ask(question) == oracle.ask(question)
    assert engine.queried == 20
    assert list(engine.contents) == [oracle.loaded[str(question.adapter)]]


def answer(*said: tuple[int, float | None]) -> Answer:
    """Return an answer of ids and logprobs, with every token in a tie with its runner-up."""
    return Answer(tuple(Token(id=i, at=0.0, logprob=logprob, gap=0.0) for i, logprob in said))


def test_answers_are_compared_while_they_agree() -> None:
    """After the first difference the logprobs belong to different texts."""
    left, right = answer((1, -1.0), (2, -1.0), (3, -1.0)), answer((1, -1.1), (2, -1.3), (9, -9.0))
    assert compare(left, left) == (0.0, True)
    delta, same = compare(left, right)
    assert delta == pytest.approx(0.3)
    assert not same


def test_an_answer_without_logprobs_shows_no_noise() -> None:
    """Without logprobs no noise can be measured."""
    assert compare(answer((1, None), (2, None)), answer((1, None), (3, None))) == (0.0, False)


@pytest.mark.parametrize("gap", [0.01, None])
def test_the_margin_at_a_divergence_is_noise(gap: float | None, tmp_path: Path) -> None:
    """The margin was overcome without any cache. If it is unknown, no divergence counts."""
    calls = itertools.count()

    def part(_: CompletionRequest, honest: Completion) -> Completion:
        first = msgspec.structs.replace(honest.tokens[0], id=200 + next(calls) % 2, gap=gap)
        return msgspec.structs.replace(honest, tokens=(first, *honest.tokens[1:]))

    found, rule = calibrated(Tampered(part, caching=False), tmp_path)
    assert (rule.exact, rule.noise, rule.band) == (False, gap, None)
    assert (found.exact, found.noise_nats) == (False, gap)
    differing = f"{found.differing} of {found.probes} cold answers differ when asked for again"
    assert (differing in found.rule) is (gap is None)
    one = outcome(0, range(9), (1, 2, 3))
    for certainty, counts in ((0.01, False), (5.0, gap is not None)):
        cold = {question(one, one.identities[0]): Answer(tokens(9, 2, 3, gap=certainty))}
        assert [not f.noise for f in check_tokens(history(one), cold, rule)] == [counts]


def test_the_larger_gap_of_the_two_sides_counts() -> None:
    """An unknown margin counts as infinite, also after the end of the shorter answer."""
    small, large, unknown = (Answer(tokens(i, gap=gap)) for i, gap in ((1, 0.01), (2, 0.3), (3, None)))
    assert compare(small, large) == compare(large, small) == (0.3, False)
    assert compare(small, unknown) == (math.inf, False)
    assert compare(small, Answer(tokens(1, 2, gap=0.2))) == (0.2, False)


@pytest.mark.parametrize("block", [8, 16, 32, 64])
def test_probes_are_around_block_boundaries(block: int) -> None:
    """Probes are just below a block, at its boundary, and just after it."""
    assert [length % block for length in lengths(block)] == [block - 1, 0, 1]
    assert ROUNDS > 1


def run_of(folder: Path, **changes: Any) -> Path:
    """Return the results.json of a run that found its rule in the default cell."""
    found = msgspec.structs.replace(report_samples.results().calibration, cell="default")
    engine = msgspec.structs.replace(report_samples.results().engine, version="0.32.0")
    results = msgspec.structs.replace(report_samples.results(), **{"calibration": found, "engine": engine, **changes})
    write_results(results, folder / "results.json")
    return folder / "results.json"


@pytest.mark.parametrize(("exact", "noise"), [(True, 0.0), (False, 0.25), (False, None)])
def test_the_rule_of_an_earlier_run_is_the_rule_it_had(tmp_path: Path, exact: bool, noise: float | None) -> None:
    """The report says where the rule is from."""
    was = msgspec.structs.replace(
        report_samples.results().calibration, cell="default", exact=exact, noise_nats=noise, notes=["As it was."]
    )
    found = earlier_calibration(run_of(tmp_path, calibration=was), cell="default", version="0.32.0")
    assert found is not None
    assert found[1] == Rule(exact=exact, noise=None if exact else noise)
    assert found[0].notes[0] == "As it was."
    assert "not measured again" in found[0].notes[1]
    assert msgspec.structs.replace(found[0], notes=was.notes) == was


def test_it_holds_for_no_other_cell(tmp_path: Path) -> None:
    """Another cell finds its own rule."""
    assert earlier_calibration(run_of(tmp_path), cell="bfloat16", version="0.32.0") is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"calibration": None}, "no comparison rule"), ({"engine": None}, "no comparison rule"), ({}, "is of version")],
)
def test_a_rule_of_another_engine_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """A run without a rule is refused as well."""
    with pytest.raises(UsageError, match=says):
        earlier_calibration(run_of(tmp_path, **changes), cell="default", version="0.33.0")


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    """The error is one line."""
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(UsageError, match=r"not a results\.json of this version"):
        earlier_calibration(tmp_path / "results.json", cell="default", version="0.32.0")
