"""Examples that diverge more often than rounding explains run again under a rule that counts every difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.histories import history, outcome, tokens

from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge_again
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import KEPT_DIVERGING, Trial
from coldproof.harness.schema.results import Calibration
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.steps import Workload

PROMPT, COLD, WARM = range(100, 140), (1, 2, 3, 4), (1, 2, 9, 9)
ROUNDED = Rule(exact=True, rounding=1e-4)
EXAMPLES = 30


def judged(rule: Rule, ids: tuple[int, ...] = WARM) -> Judgement:
    """Return the judgement of a prompt that is sent twice, whose answer on the hit differs by default in a near tie."""
    first = outcome(0, PROMPT, COLD)
    one = outcome(1, PROMPT, COLD, tokens=tokens(*ids, gap=None), cached_tokens=32)
    answers = {question(one, one.identities[0]): Answer(tokens(*COLD, gap=1e-5))}
    return judge_again(history(first, one), answers, rule, exclusive=True)


def diverging(rule: Rule = ROUNDED) -> Trial:
    """Return a trial in which every answer on a hit diverged and was explained."""
    trial = Trial(Requirement("REUSE-1", "", (), (Requests.HITS,)), "default", "", "test")
    for _ in range(EXAMPLES):
        trial.add(judged(rule))
    return trial


def system(rule: Rule, seen: list[Rule], answers: tuple[int, ...] = WARM) -> SystemUnderTest:
    """Return a system whose engine always answers with `answers`; `seen` gets the rule of each run."""
    sut = SystemUnderTest.__new__(SystemUnderTest)
    engines: Any = SimpleNamespace(
        rule=rule,
        engine="engine",
        oracle_engine=None,
        live_engine=lambda engine: engine,
        runs_of=lambda _: (),
        standby=SimpleNamespace(order=lambda **_: None),
        oracle_and_rule=lambda **_: (None, engines.rule),
        refute_rounding=lambda: setattr(engines, "rule", msgspec.structs.replace(rule, rounding=None)),
    )

    def observe(_: object, __: Workload) -> Judgement:
        seen.append(engines.rule)
        return judged(engines.rule, answers)

    sut.engines = engines
    sut.observe = observe  # type: ignore[assignment,method-assign]
    sut.emit_example = lambda *_: None  # type: ignore[method-assign]
    return sut


def test_every_answer_on_a_hit_is_too_many_and_some_examples_are_kept() -> None:
    """A few examples are enough to show whether it happens again."""
    trial = diverging()
    assert trial.exceeds
    assert len(trial.diverging) == KEPT_DIVERGING
    assert (trial.explained, trial.noise) == (EXAMPLES, 0)


def test_what_diverges_again_is_a_counterexample() -> None:
    """From the first such example on, rounding explains nothing."""
    trial, seen = diverging(), []
    system(ROUNDED, seen).check_diverging(trial)
    assert [rule.rounding for rule in seen] == [None]
    assert trial.search.best is not None
    assert [found.checker for found in trial.search.best.judgement.findings] == ["tokens"]


def test_what_does_not_diverge_again_is_none() -> None:
    """All kept examples have run again."""
    trial, seen = diverging(), []
    system(ROUNDED, seen, COLD).check_diverging(trial)
    assert len(seen) == KEPT_DIVERGING
    assert trial.search.best is None


def test_under_a_tolerance_nothing_runs_again() -> None:
    """Noise would diverge in every replay."""
    trial, seen = diverging(), []
    system(Rule(exact=False, noise=0.2), seen).check_diverging(trial)
    assert seen == []


@pytest.mark.parametrize("rounding", [1e-4, 0.0])
def test_a_refuted_rule_is_in_the_events(rounding: float) -> None:
    """A stored run can then be judged again by that rule."""
    cell = CellEngines.__new__(CellEngines)
    emitted: list[dict[str, Any]] = []
    cell.rule = cell.own_rule = Rule(exact=True, rounding=rounding)
    cell.calibration = Calibration(
        oracle="cold-engine",
        rule="",
        exact=True,
        noise_nats=0.0,
        probes=1,
        differing=0,
        mixtures={},
        notes=[],
        rounding=rounding,
    )
    cell.calibration_seconds = 0.0
    cell.pool = SimpleNamespace(log=SimpleNamespace(emit=lambda _, **fields: emitted.append(fields)))  # type: ignore[assignment]
    cell.refute_rounding()
    assert (cell.rule.rounding, cell.own_rule.rounding) == (None, None)
    (event,) = emitted
    assert event["calibration"].rounding is None
    assert any("each counts" in note for note in event["calibration"].notes)
