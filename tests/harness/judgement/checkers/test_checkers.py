"""Each checker says what is wrong and how certain it is, and reports nothing if nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.histories import history, outcome, record, shape, tokens

from coldproof.adapters.protocol.requests import Stage
from coldproof.harness.history.records import CachePartition, History, Identity, Outcome, ResetRecord
from coldproof.harness.judgement import judge as judging
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting, check_bounds
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.checkers.tokens import check_tokens, differs
from coldproof.harness.judgement.checks import Check
from coldproof.harness.judgement.criteria import CHECKS
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, Answers, Question, distinguishing_question, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest import selftest
from coldproof.harness.session.selftest.scripted_engine import BlindModel, InjectedBug
from coldproof.harness.session.selftest.selftest import self_test

PROMPT = range(100, 140)
EXACT = Rule(exact=True)
COLD, STALE, OTHER = (1, 2, 3, 4), (1, 5, 6, 7), (9, 9, 9, 9)


def cold(one: Outcome, answer: tuple[int, ...] = COLD, adapter: str | None = None, gap: float | None = 5.0) -> Answers:
    """Return the oracle's answer to one request with one adapter content."""
    return {Question(one.prompt, adapter, one.max_tokens): Answer(tokens(*answer, gap=gap))}


def only_finding(seen: History, answers: Answers, rule: Rule = EXACT) -> Finding:
    """Return the only finding of the token check."""
    (finding,) = check_tokens(seen, answers, rule)
    return finding


def test_an_answer_that_equals_the_cold_one_is_right() -> None:
    """This holds with and without a hit."""
    one = outcome(0, PROMPT, COLD, cached_tokens=32)
    assert check_tokens(history(one), cold(one), EXACT) == []


@pytest.mark.parametrize(
    ("answer", "position"), [((9, 2, 3, 4), 0), ((1, 2, 3, 9), 3), ((1, 2, 3), 3), ((1, 2, 3, 4, 5), 4), ((), 0)]
)
def test_one_differing_token_is_enough(answer: tuple[int, ...], position: int) -> None:
    """Its position does not matter. An answer that is too short or too long differs where the shorter one ends."""
    one = outcome(0, PROMPT, answer, max_tokens=4)
    assert only_finding(history(one), cold(one)).position == position


@pytest.mark.parametrize(
    ("answer", "right"), [((1, 2), True), ((), True), (COLD, True), ((1, 9), False), ((9,), False)]
)
def test_an_aborted_answer_is_compared_as_far_as_it_was_read(answer: tuple[int, ...], right: bool) -> None:
    """Only the tokens that the client read are compared. Tokens that it never read are not missing."""
    one = outcome(0, PROMPT, answer, max_tokens=4, aborted=Stage.DECODE, cached_tokens=None)
    assert (check_tokens(history(one), cold(one), EXACT) == []) is right


def test_a_request_without_an_answer_is_not_compared() -> None:
    """The liveness check reports it."""
    one = outcome(0, PROMPT, (), error="HTTP 500")
    assert check_tokens(history(one), {}, EXACT) == []


@pytest.mark.parametrize(("gap", "noise"), [(0.1, True), (0.2, True), (0.2001, False), (5.0, False), (None, True)])
def test_the_margin_rule_counts_what_exceeds_the_noise(gap: float | None, noise: bool) -> None:
    """A divergence within the noise, or one with an unknown margin, is no corruption."""
    one = outcome(0, PROMPT, OTHER)
    assert only_finding(history(one), cold(one, gap=gap), Rule(exact=False, noise=0.2)).noise is noise


def test_the_exact_rule_has_no_noise() -> None:
    """Another token counts even with a small margin, unless measured rounding explains it."""
    one = outcome(0, PROMPT, OTHER, tokens=tokens(*OTHER, gap=None))
    assert not only_finding(history(one), cold(one, gap=0.1)).noise
    rounded = Rule(exact=True, rounding=1e-5)
    assert not only_finding(history(one), cold(one, gap=0.1), rounded).noise
    assert only_finding(history(one), cold(one, gap=0.0), rounded).noise


def test_noise_is_no_finding() -> None:
    """It makes a verdict inconclusive, and never a violation."""
    one = outcome(0, PROMPT, OTHER)
    judged = judge_again(history(one), cold(one, gap=0.1), Rule(exact=False, noise=0.2), exclusive=True)
    assert (judged.findings, len(judged.noise)) == ((), 1)


def test_the_answer_of_another_content_is_stale_state() -> None:
    """It equals a known wrong answer, and the cached-token count does not matter."""
    one = outcome(0, PROMPT, STALE, adapter="digest-b")
    answers = cold(one, COLD, "digest-b") | cold(one, STALE, "digest-a")
    found = only_finding(history(one), answers)
    assert found.failure_class is FailureClass.STALE_STATE
    assert "it equals the answer of adapter A" in found.sentence


def test_a_prefix_that_another_identity_wrote_is_stale_state() -> None:
    """A partly stale cache gives an answer that equals no cold one, and the cached prefix shows who wrote it."""
    writer = outcome(0, PROMPT, STALE, adapter="digest-a")
    reader = outcome(
        1, PROMPT, OTHER, adapter="digest-b", partition=CachePartition("tenant", 2, None), cached_tokens=32
    )
    answers = cold(writer, STALE, "digest-a") | cold(reader, COLD, "digest-b")
    found = only_finding(history(writer, reader), answers)
    assert (found.request, found.failure_class) == (1, FailureClass.STALE_STATE)
    assert "written by request 0" in found.sentence


def test_a_prefix_that_was_written_during_a_change_is_stale_state() -> None:
    """Its blocks have two contents under one key."""
    mixed = (Identity("digest-a", None), Identity("digest-b", None))
    writer = outcome(0, PROMPT, COLD, adapter="digest-a", identities=mixed)
    reader = outcome(1, PROMPT, OTHER, adapter="digest-a", cached_tokens=32)
    found = only_finding(history(writer, reader), cold(reader, COLD, "digest-a") | cold(reader, STALE, "digest-b"))
    assert found.failure_class is FailureClass.STALE_STATE
    assert "during which the adapter was changed" in found.sentence


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (COLD[:3], FailureClass.CORRUPT, "it ends after the first 3 of the cold answer's 4 tokens"),
        ((*COLD, 9), FailureClass.API, "the whole cold answer followed by 1 more tokens than requested"),
        ((1, 1, *COLD[1:]), FailureClass.CORRUPT, "equals no known cold answer"),
        ((1, 9), FailureClass.CORRUPT, "equals no known cold answer"),
    ],
)
def test_an_answer_that_is_wrong_only_by_its_length_says_so(
    answer: tuple[int, ...], failure: FailureClass, words: str
) -> None:
    """Its tokens equal the cold ones as far as both go, so what was read from the cache was right."""
    one = outcome(0, PROMPT, answer, max_tokens=4)
    found = only_finding(history(one), cold(one))
    assert (found.failure_class, words in found.sentence) == (failure, True)


def test_another_requests_answer_is_cross_request() -> None:
    """Four equal tokens are no chance, but three may be."""
    for answer, expected in ((OTHER, FailureClass.CROSS_REQUEST), (OTHER[:3], FailureClass.CORRUPT)):
        theirs, mine = outcome(0, range(300, 340), answer), outcome(1, PROMPT, answer)
        answers = cold(theirs, answer) | cold(mine, COLD[: len(answer)])
        assert only_finding(history(theirs, mine), answers).failure_class is expected


def test_an_answer_that_equals_no_known_one_is_corrupt() -> None:
    """It is corrupt even if another identity wrote the prefix, because an honest writer is as likely a source."""
    foreign, honest = outcome(0, PROMPT, STALE, adapter="digest-a"), outcome(1, PROMPT, COLD)
    reader = outcome(2, PROMPT, OTHER, cached_tokens=32)
    found = only_finding(history(foreign, honest, reader), cold(reader) | cold(foreign, STALE, "digest-a"))
    assert (found.request, found.failure_class) == (2, FailureClass.CORRUPT)


def test_an_overlapped_answer_may_be_either_version_and_no_mixture() -> None:
    """The whole answer must be of the old version or of the new one."""
    mixed = (Identity("digest-a", None), Identity("digest-b", None))
    for answer, right in ((COLD, True), (STALE, True), ((1, 2, 6, 7), False)):
        one = outcome(0, PROMPT, answer, adapter="digest-a", identities=mixed)
        found = check_tokens(history(one), cold(one, COLD, "digest-a") | cold(one, STALE, "digest-b"), EXACT)
        assert [f.failure_class for f in found] == ([] if right else [FailureClass.CORRUPT])


def test_whether_two_identities_differ_is_unknown_without_both_answers() -> None:
    """An unknown answer is neither yes nor no."""
    one, other = outcome(0, PROMPT, COLD), Identity("digest-a", None)
    known = {question(one, one.identities[0]): Answer(tokens(*COLD))}
    assert differs(one, other, known) is None
    assert differs(one, other, known | {distinguishing_question(one, other): Answer(tokens(*STALE))}) is True
    assert differs(one, other, known | {distinguishing_question(one, other): Answer(tokens(*COLD))}) is False


def bounds_of_repetition(cached: int | None, **changes: Any) -> list[Finding]:
    """Return the findings about the count of a prompt that is sent twice: at least 32 and at most 39 are right."""
    return check_bounds(history(outcome(0, PROMPT), outcome(1, PROMPT, cached_tokens=cached, **changes)))


@pytest.mark.parametrize("cached", [32, 39, None])
def test_a_count_within_its_bounds_is_no_finding(cached: int | None) -> None:
    """An unknown count is no finding either."""
    assert bounds_of_repetition(cached) == []


@pytest.mark.parametrize(
    ("cached", "expected"), [(0, FailureClass.LOST_REUSE), (31, FailureClass.LOST_REUSE), (40, FailureClass.ACCOUNTING)]
)
def test_a_count_out_of_its_bounds_is_a_finding(cached: int, expected: FailureClass) -> None:
    """Too few tokens are lost reuse, and more than was computed are a wrong count."""
    (found,) = bounds_of_repetition(cached)
    assert (found.request, found.failure_class) == (1, expected)


def test_a_hit_on_another_identitys_blocks_is_stale_state() -> None:
    """It is a finding even if the answer is right."""
    (found,) = bounds_of_repetition(32, adapter="digest-a")
    assert found.failure_class is FailureClass.STALE_STATE
    assert found.sentence.endswith("; request 0 wrote them for base model.")
    (found,) = bounds_of_repetition(32, salt="red")
    assert found.sentence.endswith(
        "none were ever computed for base model, salt 'red'; request 0 wrote them for base model without a salt."
    )


def test_a_hit_on_what_a_reset_removed_names_the_writer() -> None:
    """The reset reported success. Without a reset, no request of this workload computed so many tokens."""
    reset = ResetRecord(began=0.6, ended=0.8, success=True)
    first, then = outcome(0, PROMPT), outcome(1, PROMPT, cached_tokens=32)
    (found,) = check_bounds(history(first, then, resets=(reset,)))
    assert "but none were ever computed for base model" in found.sentence
    assert found.sentence.endswith("; request 0 wrote them before a cache reset that reported success.")
    assert bounds_of_repetition(40)[0].sentence.endswith("; no request of this workload wrote them.")


def test_a_lost_hit_in_a_full_pool_is_no_finding() -> None:
    """A hit that may have been evicted is not expected."""
    tight = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=2))
    assert check_bounds(tight) == []


def accounting_findings(
    cached: int | None, grew: float | None, *, exclusive: bool = True, **changes: Any
) -> list[Finding]:
    """Return the findings about one request that reports `cached` tokens while the counter grows by `grew`."""
    after = None if grew is None else 1000.0 + grew
    steps = (record(0, before=1000.0, after=after),)
    seen = history(outcome(0, PROMPT, cached_tokens=cached), steps=steps, **changes)
    return check_accounting(seen, exclusive=exclusive)


def test_counts_and_counter_that_agree_are_no_finding() -> None:
    """The value of the counter at the start does not matter."""
    assert accounting_findings(32, 32) == []


@pytest.mark.parametrize(("cached", "grew"), [(32, 64), (32, 0), (0, 32)])
def test_counts_and_counter_that_disagree_are_a_finding(cached: int, grew: float) -> None:
    """The counter may be too high or too low."""
    (found,) = accounting_findings(cached, grew)
    assert found.failure_class is FailureClass.ACCOUNTING


def test_a_counter_of_several_clients_gives_no_finding() -> None:
    """A missing counter, a missing count and a lost engine give no finding either."""
    assert accounting_findings(32, 64, exclusive=False) == []
    assert accounting_findings(32, None) == []
    assert accounting_findings(None, 40) == []
    assert accounting_findings(32, 64, engine_lost="gone") == []
    assert check_accounting(history(steps=()), exclusive=True) == []


@pytest.mark.parametrize(
    ("changes", "lost", "expected"),
    [
        ({"silent": True}, "no byte for 60 s", FailureClass.HANG),
        ({}, "the engine died", FailureClass.CRASH),
        ({}, None, FailureClass.API),
    ],
)
def test_a_request_without_an_answer_is_a_hang_a_crash_or_a_refusal(
    changes: dict[str, Any], lost: str | None, expected: FailureClass
) -> None:
    """The connection and the process show which of them it is."""
    (found,) = check_liveness(history(outcome(0, PROMPT, (), error="no answer", **changes), engine_lost=lost))
    assert (found.request, found.failure_class) == (0, expected)


def test_an_answer_without_a_token_is_an_api_failure() -> None:
    """A success without a token is no success."""
    (found,) = check_liveness(history(outcome(0, PROMPT, (), finish_reason="stop")))
    assert found.failure_class is FailureClass.API


def test_a_failed_adapter_change_is_a_finding() -> None:
    """The change was refused, or the engine crashed."""
    steps = (record(0, before=0.0, after=0.0, error="HTTP 400"),)
    for lost, expected in ((None, FailureClass.API), ("gone", FailureClass.CRASH)):
        assert [f.failure_class for f in check_liveness(history(steps=steps, engine_lost=lost))] == [expected]


def test_an_adapter_change_that_falls_silent_is_a_hang() -> None:
    """It is a hang even if the engine was given up for it. A refused change beside it is no hang."""
    steps = (record(0, error="no byte for 60 s", silent=True), record(1, error="HTTP 400"))
    for lost, second in ((None, FailureClass.API), ("no byte for 60 s", FailureClass.CRASH)):
        found = check_liveness(history(steps=steps, engine_lost=lost))
        assert [f.failure_class for f in found] == [FailureClass.HANG, second]


def test_a_crashed_engine_is_a_finding() -> None:
    """It is a finding even if no request and no step failed. An engine that answers is none."""
    assert [f.failure_class for f in check_liveness(history(engine_lost="gone"))] == [FailureClass.CRASH]
    assert check_liveness(history(outcome(0, PROMPT))) == []


def test_the_self_test_detects_every_injected_bug_and_has_no_false_positive() -> None:
    """It has one row for each, and each row is right."""
    rows = self_test()
    assert [row.planted for row in rows] == [bug.value for bug in (*InjectedBug, *BlindModel)]
    assert [row.planted for row in rows if not row.caught] == []
    assert [row.planted for row in rows if row.said == "no finding"] == [InjectedBug.CLEAN.value]


def test_the_self_test_detects_that_an_insensitive_model_conforms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the calibration's part or each example's part, such a model conforms.

    A sensitive model always conforms.
    """
    contents = {name: selftest.write_content(tmp_path / name, name) for name in ("A", "B")}
    assert selftest.examine_model(None, contents, tmp_path / "clean").caught
    monkeypatch.setattr(selftest, "measure_sensitivity", lambda *_: ())
    unmeasured = [row.planted for row in self_test() if not row.caught]
    assert unmeasured == [BlindModel.LAST_BLOCK_ONLY.value]


def find_nothing() -> list[Finding]:
    """Return no findings."""
    return []


def checks_with(name: str, other: Callable[[], list[Finding]]) -> list[Check]:
    """Return all checks, with another function in place of the one with this name."""
    checks = {check.function.__name__: check for check in CHECKS}
    return list((checks | {name: msgspec.structs.replace(checks[name], function=other)}).values())


@pytest.mark.parametrize(
    ("checker", "missed"),
    [
        ("check_liveness", InjectedBug.DIES),
        ("check_bounds", InjectedBug.SALT_DROPPED),
        ("check_bounds", InjectedBug.NEVER_HITS),
        ("check_accounting", InjectedBug.COUNTER_TWICE),
        ("check_tokens", InjectedBug.GARBLED_BLOCK),
        ("check_tokens", InjectedBug.ABORT_PUBLISHES),
        ("check_bounds", InjectedBug.RESET_LIES),
        ("check_conservation", InjectedBug.LEAKS),
        ("check_response_options", InjectedBug.SCORES_CUT),
        ("check_weights", InjectedBug.UPDATE_LIES),
    ],
)
def test_a_disabled_checker_fails_the_self_test(
    checker: str, missed: InjectedBug, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of them there is an injected bug that no other checker detects."""
    monkeypatch.setattr(judging, "CHECKS", checks_with(checker, find_nothing))
    assert missed.value in [row.planted for row in self_test() if not row.caught]


def test_a_checker_with_false_positives_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false positive on the clean engine invalidates a run just as a missed bug does."""
    false_positive = Finding(checker="bounds", failure_class=FailureClass.CORRUPT, sentence="wrong")
    monkeypatch.setattr(judging, "CHECKS", checks_with("check_bounds", lambda: [false_positive]))
    assert [row.planted for row in self_test() if not row.caught] == [InjectedBug.CLEAN.value]
