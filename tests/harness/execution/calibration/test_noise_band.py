"""The tolerance is measured on the cold engine, and only if that is nondeterministic."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import Tampered, contents

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Token
from coldproof.harness.execution.calibration.calibrate import TIMES_ROUNDING, calibrate, earlier_calibration, lengths
from coldproof.harness.execution.calibration.calibrate import TOKENS as ANSWER
from coldproof.harness.execution.calibration.noise_band import (
    LEAST_EACH,
    LONGEST_ANSWER,
    PROMPTS,
    TOKENS,
    WAYS,
    Pace,
    Samples,
    band_of,
    fitted,
    margin_differences,
    measure_band,
    rounded_up,
    shapes,
    together,
)
from coldproof.harness.execution.calibration.pareto_tail import ParetoTail, fit_tail
from coldproof.harness.execution.calibration.repeats import REPEATED_NATS
from coldproof.harness.execution.calibration.second_calibration import second_calibration
from coldproof.harness.execution.calibration.sensitivity import EDITS
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.results import Calibration, write_results
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine
from coldproof.harness.workload.generators.prompts import whole_unit
from coldproof.harness.workload.request_kinds import RequestKind

SIGMA = 0.1


def noisy(seed: int, *, nats: float = SIGMA) -> ScriptedEngine:
    """Return a cold engine whose scores vary slightly."""
    source = random.Random(seed)

    def moved(score: float | None) -> float | None:
        return None if score is None else score + source.gauss(0.0, nats)

    def vary(_: CompletionRequest, honest: Completion) -> Completion:
        reported = [msgspec.structs.replace(t, logprob=moved(t.logprob), gap=moved(t.gap)) for t in honest.tokens]
        prompt = honest.prompt_logprobs
        scores = None if prompt is None else tuple(moved(score) for score in prompt)
        return msgspec.structs.replace(honest, tokens=tuple(reported), prompt_logprobs=scores)

    return Tampered(vary, caching=False)


def oracle_over(engine: ScriptedEngine, folder: Path) -> EngineOracle:
    """Return an oracle that knows three adapter contents."""
    return EngineOracle("cold-engine", engine, list(contents(folder).values()), memo={})


def calibrated(oracle: EngineOracle, **more: Any) -> tuple[Calibration, Rule]:
    """Return the calibration and the rule of an oracle's engine."""
    return calibrate(oracle, list(oracle.adapters), cell="default", block=BLOCK, slots=4, **more)


def band(engine: ScriptedEngine, folder: Path) -> NoiseBand | str:
    """Return the tolerance that is measured for the base model and two contents."""
    oracle = oracle_over(engine, folder)
    return measure_band(oracle, [None, *list(oracle.adapters)[:2]], BLOCK)


def test_the_band_follows_the_noise(tmp_path: Path) -> None:
    """Scores differ by sqrt(2) sigma between two computations, and the tolerance is about eight times that."""
    for nats in (SIGMA, 3 * SIGMA):
        found = band(noisy(1, nats=nats), tmp_path / str(nats))
        assert isinstance(found, NoiseBand)
        for reach in (found.score_nats, found.margin_nats, found.prompt_nats):
            assert 5 * 2**0.5 < reach / nats < 16 * 2**0.5
        assert found.positions == 2 * 3 * (
            12 * LONGEST_ANSWER + (PROMPTS - 12) * TOKENS
        )  # four prompts of each are short
        assert found.half_nats == pytest.approx(0.954 * nats, rel=0.1)  # the half-normal's median
        assert found.all_nats < found.score_nats


def test_margins_that_happen_to_repeat_have_the_tolerance_of_scores() -> None:
    """Otherwise the first token that flips at a margin of one step of bfloat16 would be a violation."""
    source = random.Random(1)
    scores = [abs(source.gauss(0.0, 0.01)) for _ in range(2000)]
    found = band_of(Samples(scores=scores, margins=[0.0] * 2000, prompts=scores, positions=2000, answers=50))
    assert isinstance(found, NoiseBand)
    assert found.margin_nats == found.score_nats > max(scores)


@pytest.mark.parametrize(("small", "rounds"), [(True, 2), (False, 1)])
def test_a_small_sample_is_doubled_before_it_has_no_tolerance(small: bool, rounds: int) -> None:
    """This holds for a slow model. The sample of a fast model is large enough to decide."""
    rounds_measured: list[Samples] = []

    def measured() -> Samples:
        rounds_measured.append(Samples(scores=[0.1] * 600, flips=1, positions=600))
        return rounds_measured[-1]

    law = fitted(measured, lambda found: fit_tail(found.scores), small=small)
    assert len(rounds_measured) == rounds
    assert isinstance(law, ParetoTail) is small
    if isinstance(law, ParetoTail):
        assert law.count == 1200
    both = together(rounds_measured[0], rounds_measured[-1])
    assert (len(both.scores), both.flips, both.positions) == (1200, 2, 1200)


def test_without_other_tokens_a_margin_is_the_difference_of_two_scores(tmp_path: Path) -> None:
    """OpenVINO GenAI scores the tokens of prompts and answers, but no other tokens."""
    scored = noisy(1).tamper  # type: ignore[attr-defined]

    def bare(request: CompletionRequest, honest: Completion) -> Completion:
        answer: Completion = scored(request, honest)
        tokens = tuple(msgspec.structs.replace(token, gap=None) for token in answer.tokens)
        return msgspec.structs.replace(answer, tokens=tokens, prompt_best=None)

    found = band(Tampered(bare, caching=False), tmp_path)
    assert isinstance(found, NoiseBand)
    assert found.margin_nats == pytest.approx(2 * found.score_nats, rel=0.01)
    assert 5 * 2**0.5 < found.score_nats / SIGMA < 16 * 2**0.5


@pytest.mark.parametrize("slow", [False, True])
def test_noise_that_grows_with_an_answer_is_measured(slow: bool, tmp_path: Path) -> None:
    """With OpenVINO's 8-bit KV, two correct answers of 131 tokens reached 0.99 of a tolerance from 24 tokens."""
    source = random.Random(1)

    def growing(_: CompletionRequest, honest: Completion) -> Completion:
        late = [msgspec.structs.replace(t, logprob=t.logprob + source.gauss(0.0, SIGMA)) for t in honest.tokens[32:]]
        return msgspec.structs.replace(honest, tokens=(*honest.tokens[:32], *late))

    oracle = oracle_over(Tampered(growing, caching=False), tmp_path)
    pace = Pace(1.0, 1.0) if slow else Pace(0.0)
    found = measure_band(oracle, [None, *list(oracle.adapters)[:2]], BLOCK, pace)
    assert isinstance(found, NoiseBand)
    assert found.score_nats > 5 * SIGMA


@pytest.mark.parametrize("room", [100, 200, 400, 4000])
def test_prompts_and_answers_of_the_calibration_fit(room: int) -> None:
    """They fit engines of any size, and the shortest prompt gets a long answer if there is room."""
    drawn = shapes(32, room, slow=False)
    assert all(prompt + answer <= room for prompt, answer in drawn)
    assert drawn[0] == (31, LONGEST_ANSWER)


def test_a_slow_model_answers_fewer_prompts(tmp_path: Path) -> None:
    """There are as many as the time allows, and enough for a tolerance."""
    oracle = oracle_over(noisy(1), tmp_path)
    found = measure_band(oracle, [None, *list(oracle.adapters)[:2]], BLOCK, Pace(1.0, 1.0))
    assert isinstance(found, NoiseBand)
    assert found.answers == 3 * 3 * LEAST_EACH
    assert found.positions >= 1000


def test_a_slow_model_without_adapters_has_a_tolerance(tmp_path: Path) -> None:
    """Gemma 3 in bfloat16 had 636 margins of six prompts, and therefore no rule."""
    assert isinstance(measure_band(oracle_over(noisy(1), tmp_path), [None], BLOCK, Pace(1.0, 1.0)), NoiseBand)


@pytest.mark.parametrize(
    ("latency", "seconds", "most"), [(0.0, 1.0, 16), (0.01, 1.0, 10), (0.001, 1.0, 16), (1.0, 1.0, 3)]
)
def test_a_pace_limits_what_is_measured(latency: float, seconds: float, most: int) -> None:
    """Sixteen units of ten answers each are limited to what the time allows, but never below three."""
    assert Pace(latency, seconds).most(16, latencies=10, least=3) == most
    assert Pace(latency).most(16, latencies=10, least=3) == 16


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("long", [True, False])
def test_a_second_measurement_finds_noise_that_the_first_did_not_show(long: bool, slow: bool, tmp_path: Path) -> None:
    """Long prompts vary although the short probes do not; if nothing varies, the rule is kept."""
    varying = noisy(5)
    longest = max(lengths(whole_unit(BLOCK))) + ANSWER

    def vary(request: CompletionRequest, honest: Completion) -> Completion:
        return varying.tamper(request, honest) if long and len(request.prompt) > longest else honest  # type: ignore[attr-defined]

    oracle = oracle_over(Tampered(vary, caching=False), tmp_path)
    found, rule = calibrated(oracle)
    assert rule.exact
    found = msgspec.structs.replace(found, answer_seconds=float(slow))
    measured_again, rule = second_calibration(oracle, list(oracle.adapters), found, block=BLOCK, seconds=1.0)
    assert (rule.exact, rule.band is None) == (not long, not long)
    assert (measured_again.exact, measured_again.rule, measured_again.mixtures) == (
        rule.exact,
        str(rule),
        found.mixtures,
    )
    assert (measured_again.band, measured_again.cold, measured_again.rounding) == (rule.band, rule.cold, rule.rounding)
    assert measured_again.cold.rate.tokens > found.cold.rate.tokens
    assert measured_again.cold.sensitivity == found.cold.sensitivity
    assert any("A counterexample led to more" in note for note in measured_again.notes)


def test_made_up_prompt_scores_do_not_relax_the_rule(tmp_path: Path) -> None:
    """A server made up prompt scores, while every generated token and score was repeated."""

    def claim(request: CompletionRequest, honest: Completion) -> Completion:
        if not request.options.prompt_logprobs:
            return honest
        scores = (None, *(-3.0 - token / 100 for token in request.prompt[1:]))
        return msgspec.structs.replace(honest, prompt_logprobs=scores, prompt_best=scores)

    oracle = oracle_over(Tampered(claim, caching=False), tmp_path)
    found, before = calibrated(oracle)
    measured_again, rule = second_calibration(oracle, list(oracle.adapters), found, block=BLOCK)
    assert (rule.exact, rule.band, rule.noise) == (True, None, None)
    assert (rule.rounding, before.rounding) == (0.0, 0.0)
    assert measured_again.exact


@pytest.mark.parametrize(("gap", "rounds"), [(4e-4, False), (0.1, True), (None, True)])
def test_tokens_that_are_always_close_and_never_change_leave_nothing_to_rounding(
    gap: float | None, rounds: bool, tmp_path: Path
) -> None:
    """An engine that reports a margin of 0.0004 nats for every token repeats all tokens."""
    calls = itertools.count()

    def close(_: CompletionRequest, honest: Completion) -> Completion:
        moved = [msgspec.structs.replace(t, logprob=-0.1 - 1e-4 * (next(calls) % 7), gap=gap) for t in honest.tokens]
        return msgspec.structs.replace(honest, tokens=tuple(moved))

    oracle = oracle_over(Tampered(close, caching=False), tmp_path)
    found, rule = calibrate(oracle, [], cell="default", block=BLOCK, slots=4)
    assert rule.rounding is not None
    assert (rule.rounding > 4e-4) is rounds
    _, after = second_calibration(oracle, [], found, block=BLOCK)
    assert after.rounding is not None
    assert (after.rounding > 4e-4) is rounds


def test_more_answers_measure_more_rounding(tmp_path: Path) -> None:
    """The largest difference of all answers counts, and no margin beyond the difference of scores."""
    calls = itertools.count()

    def rounded(_: CompletionRequest, honest: Completion) -> Completion:
        nats = 1e-6 if next(calls) < 200 else 1e-5
        moved = tuple(msgspec.structs.replace(t, logprob=-0.1 - nats * (next(calls) % 7)) for t in honest.tokens)
        return msgspec.structs.replace(honest, tokens=moved)

    oracle = oracle_over(Tampered(rounded, caching=False), tmp_path)
    found, before = calibrate(oracle, [], cell="default", block=BLOCK, slots=4)
    _, rule = second_calibration(oracle, [], found, block=BLOCK)
    assert before.rounding == pytest.approx(TIMES_ROUNDING * (before.cold.nats or 0.0))
    assert before.rounding is not None
    assert rule.rounding is not None
    assert 0 < before.rounding < rule.rounding <= REPEATED_NATS


def test_a_slow_model_that_is_exact_is_not_measured_in_full(tmp_path: Path) -> None:
    """SmolLM2 in float32 spent 274 s of a budget of six minutes on a tolerance that it does not need."""
    rounds_measured: list[int] = []

    def honest(request: CompletionRequest, answer: Completion) -> Completion:
        rounds_measured.append(request.max_tokens)
        return answer

    oracle = oracle_over(Tampered(honest, caching=False), tmp_path)
    found, _ = calibrated(oracle)
    rounds_measured.clear()
    slow = msgspec.structs.replace(found, answer_seconds=1.0)
    assert second_calibration(oracle, list(oracle.adapters), slow, block=BLOCK, seconds=1.0)[1].exact
    assert len(rounds_measured) == 3 * (WAYS + 1) * LEAST_EACH  # three identities: alone, in batches, and continued


class Crashes(Tampered):
    """A cold engine that crashes on some requests, alone, and on some that are sent at once."""

    def __init__(
        self,
        alone: Callable[[CompletionRequest], bool] = lambda _: False,
        at_once: Callable[[list[CompletionRequest]], bool] = lambda _: False,
        tamper: Callable[[CompletionRequest, Completion], Completion] = lambda _, honest: honest,
    ) -> None:
        super().__init__(tamper, caching=False)
        self.alone, self.at_once, self.crashes = alone, at_once, 0

    def crash_if(self, crashes: bool) -> None:
        """Crash, and count it."""
        self.crashes += crashes
        if crashes:
            raise EngineDied(f"the engine's process has ended, death {self.crashes}")

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Crash on requests that are sent at once, or answer."""
        self.crash_if(self.at_once([one.request for one in arrivals]))
        return super().serve(arrivals, on_token, between)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Crash on a request, or answer."""
        self.crash_if(self.alone(request))
        return super().send(request, on_token)


def crashes_on_scores(*, alone: bool) -> Crashes:
    """Return a cold engine with noisy scores that crashes on requests for prompt scores: on all, or beside others."""
    return Crashes(
        lambda one: alone and one.options.prompt_logprobs,
        lambda sent: len(sent) > 1 and any(one.options.prompt_logprobs for one in sent),
        noisy(1).tamper,  # type: ignore[attr-defined]
    )


def crashes_on_adapters(*, beside: bool) -> Crashes:
    """Return a cold engine that crashes on every request with an adapter, or only next to another request."""
    if beside:
        return Crashes(at_once=lambda sent: len({one.model for one in sent}) > 1)
    return Crashes(lambda one: one.model != "base")


def test_a_second_measurement_survives_an_engine_that_crashes_on_scores(tmp_path: Path) -> None:
    """The full measurement finds which scores crash the engine. Without any scores the rule uses margins."""
    oracle = oracle_over(crashes_on_scores(alone=True), tmp_path)
    crashes: list[RequestKind] = []
    exact = report_samples.results().calibration
    assert exact is not None
    found = msgspec.structs.replace(exact, cell="default", answer_seconds=1.0)
    measured_again = second_calibration(
        oracle,
        list(oracle.adapters),
        found,
        block=BLOCK,
        seconds=1.0,
        renew=lambda: oracle.use(crashes_on_scores(alone=True)),
        on_death=lambda kind, _: crashes.append(kind),
    )
    assert (measured_again[1].exact, measured_again[1].band) == (False, None)
    assert crashes == [RequestKind.SCORES]


@pytest.mark.parametrize(("alone", "renewed"), [(False, 1), (True, 2)])
def test_an_engine_that_crashes_on_scores_keeps_its_run(alone: bool, renewed: int, tmp_path: Path) -> None:
    """The next best rule is used, and the report says why. vLLM 0.32.0's CPU build crashes on such a batch."""
    oracle, renewals = oracle_over(crashes_on_scores(alone=alone), tmp_path), []
    crashes: list[tuple[RequestKind, str]] = []
    found, rule = calibrated(
        oracle,
        renew=lambda: renewals.append(oracle.use(crashes_on_scores(alone=alone))),  # type: ignore[func-returns-value]
        on_death=lambda kind, why: crashes.append((kind, why)),
    )
    assert len(renewals) == renewed
    ((kind, why),) = crashes
    assert kind is (RequestKind.SCORES if alone else RequestKind.SCORES_BESIDE)
    assert "process has ended" in why
    assert oracle.scores_prompts is not alone
    assert not rule.exact
    assert (rule.band is None) is alone
    assert rule.noise is not None
    assert rule.noise > 5 * SIGMA
    assert any("scores of prompts in batches" in note and "process has ended" in note for note in found.notes)


@pytest.mark.parametrize("alone", [False, True])
def test_a_calibration_sends_no_kind_of_request_that_the_run_has_dropped(alone: bool, tmp_path: Path) -> None:
    """An engine of another cell would crash on it again."""
    oracle = oracle_over(crashes_on_scores(alone=alone), tmp_path)
    kinds = (RequestKind.SCORES_BESIDE, RequestKind.SCORES)[: 1 + alone]
    found, rule = calibrated(
        oracle,
        renew=lambda: pytest.fail("the engine died"),
        dropped=kinds,
    )
    assert (rule.band is None) is alone
    assert sum("the engine died of such requests" in note for note in found.notes) == len(kinds)


def test_an_engine_that_crashes_on_logprobs_is_calibrated_by_its_tokens(tmp_path: Path) -> None:
    """The tokens are the same each time."""
    oracle, crashes = oracle_over(Crashes(lambda one: one.options.logprobs), tmp_path), []
    _, rule = calibrated(
        oracle,
        renew=lambda: None,
        on_death=lambda kind, why: crashes.append(kind),
    )
    assert rule.exact
    assert crashes == [RequestKind.LOGPROBS]
    assert not oracle.scores


@pytest.mark.parametrize("beside", [False, True])
def test_an_engine_that_crashes_on_adapters_is_calibrated_without_them(beside: bool, tmp_path: Path) -> None:
    """Scores that were measured without adapters are used again. Adapters that crash next to others are not mixed."""
    oracle, crashes = oracle_over(crashes_on_adapters(beside=beside), tmp_path), []
    found, rule = calibrated(
        oracle,
        renew=lambda: oracle.use(crashes_on_adapters(beside=beside)),
        on_death=lambda kind, why: crashes.append(kind),
    )
    assert rule.exact
    assert oracle.scores
    assert crashes == ([] if beside else [RequestKind.ADAPTER])
    assert found.probes == (36 if beside else 12)
    assert any(found.mixtures.values()) is not beside
    assert any("several adapters together" in note for note in found.notes) is beside


def test_an_engine_that_crashes_on_everything_ends_the_run(tmp_path: Path) -> None:
    """The error is that of the first crash."""
    oracle = oracle_over(Crashes(lambda _: True), tmp_path)
    with pytest.raises(OracleError, match="death 1"):
        calibrated(oracle, renew=lambda: None)


def test_an_attached_engine_that_crashes_cannot_be_replaced(tmp_path: Path) -> None:
    """The run ends with the engine's own error."""
    oracle = oracle_over(crashes_on_scores(alone=True), tmp_path)
    with pytest.raises(OracleError, match="process has ended"):
        calibrated(oracle)


@pytest.mark.parametrize("lacking", [Capability.LOGPROBS, Capability.PROMPT_LOGPROBS])
def test_an_engine_without_scores_has_no_tolerance(lacking: Capability, tmp_path: Path) -> None:
    """The text says what is missing, and no request is sent."""
    engine = noisy(1)
    engine.capabilities[lacking] = Support(False, "this server says no")
    said = band(engine, tmp_path)
    assert said == f"the engine does not report {lacking.value} (this server says no)"
    assert engine.queried == 0


class ScoredBesideTheScheduler(Tampered):
    """An engine that reports no prompt logprobs, but whose model scores a text directly."""

    scored = 0

    def score(self, request: CompletionRequest) -> Completion:
        """Count a direct score, and return it."""
        self.scored += 1
        return super().complete(request)

    def complete(self, request: CompletionRequest) -> Completion:
        """Refuse requests for prompt scores."""
        assert not request.options.prompt_logprobs
        return super().complete(request)


def test_direct_scores_make_a_band_where_no_request_gets_prompt_logprobs(tmp_path: Path) -> None:
    """No request for scores is sent to the engine, alone or in batches, and its answers are judged by scores."""
    plain = noisy(1)
    assert isinstance(plain, Tampered)
    engine = ScoredBesideTheScheduler(plain.tamper, caching=False)
    engine.capabilities[Capability.PROMPT_LOGPROBS] = Support(False, "this engine says no")
    engine.capabilities[Capability.DIRECT_SCORES] = Support(True, "a forward pass")
    found = band(engine, tmp_path)
    assert isinstance(found, NoiseBand)
    assert found.all_nats > 0
    assert engine.scored >= PROMPTS


def test_calibration_takes_the_band_for_its_rule(tmp_path: Path) -> None:
    """The report has the noise and what it hides."""
    oracle = oracle_over(noisy(2), tmp_path)
    found, rule = calibrated(oracle)
    assert rule == Rule(exact=False, noise=found.noise_nats, band=found.band, cold=found.cold)
    assert found.band is not None
    assert rule.cold.rate == found.band.repeats
    assert found.noise_nats == found.band.margin_nats
    assert found.rule == str(rule)
    assert any("scores of 144 answers" in note and "is not detected" in note for note in found.notes)


def test_a_deterministic_engine_gets_no_more_requests_than_before(tmp_path: Path) -> None:
    """There are three probes, each three times and with half its answer, and five about prompts; none for a
    tolerance.
    """
    steady, varying = noisy(3, nats=0.0), noisy(3)
    for engine, exact in ((steady, True), (varying, False)):
        oracle = oracle_over(engine, tmp_path / str(exact))
        found, rule = calibrate(oracle, [], cell="default", block=BLOCK, slots=4)
        assert (rule.exact, found.band is None) == (exact, exact)
    about_prompts = (1 + len(EDITS)) * (3 * whole_unit(BLOCK) - 1)
    assert steady.queried == 4 * sum(lengths(whole_unit(BLOCK))) + 3 * ANSWER // 2 + about_prompts
    assert varying.queried > 50 * steady.queried


def test_the_band_of_an_earlier_run_is_taken_over(tmp_path: Path) -> None:
    """--calibration does the same with any rule."""
    measured = band(noisy(4), tmp_path)
    assert isinstance(measured, NoiseBand)
    results = report_samples.results()
    assert results.calibration is not None
    was: Calibration = msgspec.structs.replace(
        results.calibration, cell="default", exact=False, noise_nats=measured.margin_nats, band=measured
    )
    engine = msgspec.structs.replace(results.engine, version="0.32.0")
    write_results(msgspec.structs.replace(results, calibration=was, engine=engine), tmp_path / "results.json")
    found = earlier_calibration(tmp_path / "results.json", cell="default", version="0.32.0")
    assert found is not None
    assert found[1] == Rule(exact=False, noise=measured.margin_nats, band=measured)


def test_too_few_scores_make_no_band() -> None:
    """The text says which of them are too few."""
    said = band_of(Samples(scores=[0.1] * 10, margins=[0.1] * 5000, prompts=[0.1] * 5000, positions=5000))
    assert isinstance(said, str)
    assert said.startswith("10 scores are too few")


@pytest.mark.parametrize(("largest", "margin"), [(0.1, 0.2), (0.5, 0.5)])
def test_few_margins_are_bounded_by_two_scores(largest: float, margin: float) -> None:
    """With Gemma 3 in bfloat16, answers in batches diverged so early that there were 908 margins and 2,448 scores."""
    margins = [0.1] * 907 + [largest]
    found = band_of(Samples(scores=[0.1] * 5000, margins=margins, prompts=[0.1] * 5000, positions=5000))
    assert isinstance(found, NoiseBand)
    assert found.margin_nats == margin


def test_an_infinite_margin_makes_no_band() -> None:
    """The quality of the scores does not matter."""
    said = band_of(Samples(scores=[0.1] * 5000, margins=[math.inf] * 5000, prompts=[0.1] * 5000, positions=5000))
    assert said == "scores are missing or infinite, so that noise cannot be measured"


def test_noise_as_large_as_a_wrong_answer_is_no_tolerance() -> None:
    """vLLM's KV in bfloat16 on a CPU had a defect that shows without any cache and gave a tolerance of 27.7 nats."""
    source = random.Random(1)
    noise = [abs(source.gauss(0.0, 3.0)) for _ in range(3000)]
    said = band_of(Samples(scores=noise, margins=noise, prompts=noise, positions=3000))
    assert isinstance(said, str)
    assert said.startswith("cold answers differ so much that a tolerance of")


def test_prompts_that_repeat_alone_have_the_tolerance_of_answers() -> None:
    """With SmolLM2 in bfloat16, two scores of a prompt differ by 0 nats alone and by 0.28 in a batch."""
    source = random.Random(1)
    noise = [abs(source.gauss(0.0, SIGMA)) for _ in range(3000)]
    found = band_of(Samples(scores=noise, margins=noise, prompts=[0.0] * 3000, positions=3000))
    assert isinstance(found, NoiseBand)
    assert found.prompt_nats == found.score_nats > max(noise)


def test_margins_of_two_answers_are_compared_while_they_agree() -> None:
    """Where the best tokens swap, both margins were overcome; after that nothing can be compared."""
    one = tuple(Token(id=i, at=0.0, gap=gap) for i, gap in ((1, 1.0), (2, 0.3), (3, 2.0)))
    two = tuple(Token(id=i, at=0.0, gap=gap) for i, gap in ((1, 0.9), (7, 0.2), (3, 9.0)))
    assert margin_differences(one, two) == pytest.approx([0.1, 0.5])
    assert margin_differences(one, one) == [0.0, 0.0, 0.0]
    assert margin_differences(one, tuple(msgspec.structs.replace(t, gap=None) for t in two)) == []


@pytest.mark.parametrize(("nats", "up"), [(0.12345, 0.124), (1.2301, 1.24), (0.0, 0.0), (123.4, 124.0), (0.5, 0.5)])
def test_a_threshold_is_rounded_to_the_safe_side(nats: float, up: float) -> None:
    """The threshold has three digits and is rounded up."""
    assert rounded_up(nats) == pytest.approx(up)
