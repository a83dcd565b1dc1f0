"""The distance between two cold engines: noise is tolerated, a larger difference is reported, and then nothing
counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import across
from support import report_samples as samples
from support.across import NAME, IgnoresAdapters, Tampering, honest, scores_moved_by
from support.histories import contents, tokens
from support.page import Page

from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.harness.execution.calibration.calibrate import calibrate, earlier_calibration
from coldproof.harness.execution.calibration.cross_engine import (
    APART,
    LEAST,
    TIMES,
    TOKENS,
    calibrate_between,
    distance,
)
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer
from coldproof.harness.options import UsageError
from coldproof.harness.schema.results import Calibration, write_results
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine
from coldproof.reports.run_report.run_report import render_html


def measured(left: ScriptedEngine, right: ScriptedEngine, folder: Path, **own: Any) -> tuple[Calibration, Rule]:
    """Return the calibration and the rule of two cold engines."""
    files = contents(folder / secrets.token_hex(4))
    mine, theirs = (EngineOracle("one", engine, list(files.values()), memo={}) for engine in (left, right))
    names = {one.digest: name for name, one in files.items()}
    found, _ = calibrate(mine, [], cell="left", block=BLOCK, slots=1)
    found = msgspec.structs.replace(found, **own)
    return calibrate_between(mine, theirs, names, name=NAME, block=BLOCK, found=found)


def cold(tamper: Callable[[CompletionRequest, Completion], Completion] = honest) -> Tampering:
    """Return an engine with its cache off."""
    return Tampering(tamper, caching=False)


def test_engines_that_agree_are_compared_by_a_margin_all_the_same(tmp_path: Path) -> None:
    """A few hundred tokens do not show the rarest differences. The report names the engine and its version."""
    found, rule = measured(cold(), cold(), tmp_path)
    assert rule == Rule(exact=False, noise=LEAST, cold=found.cold)
    assert (found.oracle, found.exact, found.noise_nats, found.differing) == (NAME, False, LEAST, 0)
    assert found.probes == 4 * 4  # lengths, and the base model and three adapters
    assert found.rule == f"margin rule: a divergence counts if the oracle's top-2 logprob margin exceeds {LEAST} nats"
    assert any("GROUND-1" in note for note in found.notes)


def test_the_margin_follows_the_difference_of_the_engines(tmp_path: Path) -> None:
    """The margin is a multiple of the largest difference. A difference that float32 does not explain gets a note."""
    found, rule = measured(cold(), cold(scores_moved_by(0.01)), tmp_path)
    assert rule.noise == pytest.approx(TIMES * 0.01)
    assert any("by at most 0.01 nats in 16 answers" in note for note in found.notes)
    assert any("float32 differ" in note for note in found.notes)
    assert not any(
        "float32 differ" in note for note in measured(cold(), cold(scores_moved_by(0.0001)), tmp_path)[0].notes
    )


def test_the_engines_own_noise_is_noise_between_the_two(tmp_path: Path) -> None:
    """Warm answers of the engine come from batches; those of the other engine never do."""
    assert measured(cold(), cold(), tmp_path, noise_nats=0.02)[1].noise == pytest.approx(TIMES * 0.02)
    unsteady, rule = measured(cold(), cold(), tmp_path, noise_nats=None)
    assert rule.noise is None
    assert "nondeterministic by an unknown" in unsteady.rule


def test_near_ties_that_are_decided_differently_are_noise(tmp_path: Path) -> None:
    """The overcome margin is part of the noise."""

    def close(request: CompletionRequest, answer: Completion) -> Completion:
        return across.replaced(answer, 3, gap=0.004) if len(request.prompt) == 32 else answer

    def honest_close(request: CompletionRequest, answer: Completion) -> Completion:
        return across.with_margins_of(close(request, answer), answer)

    found, rule = measured(cold(close), cold(honest_close), tmp_path)
    assert found.differing == 4
    assert rule.noise == pytest.approx(TIMES * 0.004)


def test_with_an_ignored_adapter_no_divergence_counts(tmp_path: Path) -> None:
    """Instead of many violations, the run says which adapters differ and that no divergence counts."""
    found, rule = measured(IgnoresAdapters(caching=False), cold(), tmp_path)
    assert rule.noise is None
    assert not rule.counts(100.0)
    assert all(f"under adapter {name}" in rule.why for name in "ABC")
    assert "without any adapter" not in rule.why
    (first, *_) = found.notes
    assert first.startswith("Under adapter A 4 answers differ, for a prompt of ")
    assert first.endswith("the answers diverge; the engine under test gives the answers of the base model.")
    assert any("One of the two engines is wrong without any cache" in note for note in found.notes)
    blamed, _ = measured(cold(), IgnoresAdapters(caching=False), tmp_path)
    assert blamed.notes[0].endswith(f"{NAME} gives the answers of the base model.")


def test_wrong_weights_are_named_with_the_base_model(tmp_path: Path) -> None:
    """All answers differ, with and without adapters."""
    found, rule = measured(cold(), cold(lambda _, answer: across.replaced(answer, 0, gap=5.0)), tmp_path)
    assert "differ without any adapter, under adapter A" in rule.why
    assert found.notes[0].startswith("Without any adapter 4 answers differ")
    assert "as without" not in found.notes[0]


def test_scores_that_are_far_apart_are_no_noise_although_tokens_agree(tmp_path: Path) -> None:
    """The cause may be another scale of the adapter."""
    found, rule = measured(cold(), cold(scores_moved_by(2 * APART)), tmp_path)
    assert rule.noise is None
    assert found.differing == 0
    assert "by 0.4 nats" in found.notes[0]


def test_without_margins_there_is_no_rule(tmp_path: Path) -> None:
    """The rule is made of margins, and those of one engine are enough."""
    assert (
        "reports top-2 logprobs" in measured(cold(across.without_scores), cold(across.without_scores), tmp_path)[1].why
    )
    found, rule = measured(cold(), cold(across.without_scores), tmp_path)
    assert rule == Rule(exact=False, noise=APART, cold=found.cold)
    assert any(f"{NAME} reports no top-2 margins" in note for note in found.notes)


def test_an_engine_without_scores_gets_the_largest_tolerance(tmp_path: Path) -> None:
    """Its noise cannot be measured."""
    rule = measured(cold(across.without_scores), cold(), tmp_path)[1]
    assert (rule.exact, rule.noise) == (False, APART)


def test_probes_fit_into_both_engines(tmp_path: Path) -> None:
    """The smaller engine decides, and part of its pool is left to other requests."""
    for changes in ({"max_model_tokens": 50}, {"pool_blocks": 2 * 50 // BLOCK}):
        small = cold()
        small.shape = msgspec.structs.replace(small.shape, **changes)
        assert measured(cold(), small, tmp_path)[1].noise == LEAST
        assert max(map(len, small.prompts)) <= 50 - TOKENS


def test_answers_of_different_lengths_diverge() -> None:
    """They diverge where the shorter one ends; without margins the distance is unknown."""
    short, long = Answer(tokens(1, 2)), Answer(tokens(1, 2, 3, gap=0.5))
    assert (distance(short, long).parted, distance(short, long).nats) == (2, 0.5)
    assert distance(Answer(tokens(1, gap=None)), Answer(tokens(2, gap=None))).nats is None


def test_the_report_names_the_engine_that_answers_were_compared_with(tmp_path: Path) -> None:
    """The report has the engine, its version and the rule, or that no divergence counts."""
    by_margin = "by margin: a divergence counts if the logprob margin exceeds the noise floor"
    for right, said in ((cold(), by_margin), (IgnoresAdapters(caching=False), "none")):
        found, rule = measured(cold(), right, tmp_path)
        page = Page(render_html(msgspec.structs.replace(samples.results(), calibration=found))).text
        assert f"Oracle{NAME}Rule{said}" in page.replace(" Rule", "Rule").replace(f"{NAME} ", NAME)
        assert str(rule) in page
        assert all(note in page for note in found.notes)


def test_a_rule_between_two_engines_is_no_rule_of_one(tmp_path: Path) -> None:
    """Taking it for the engine's own noise would hide smaller differences."""
    engine = msgspec.structs.replace(samples.results().engine, version="1")
    results = msgspec.structs.replace(
        samples.results(), calibration=measured(cold(), cold(), tmp_path)[0], engine=engine
    )
    write_results(results, tmp_path / "results.json")
    with pytest.raises(UsageError, match=f"compared with {NAME}"):
        earlier_calibration(tmp_path / "results.json", cell="left", version="1")
