"""A counterexample is confirmed with the tokens that failed before it is tried with others."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from support.confirmation import ATTACHED, COLD, CONTROL, FRESH, WRONG, ScriptedObserver, judgement
from support.histories import ask, burst, history

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.no_hits import NO_HIT
from coldproof.harness.judgement.oracle import Answer
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.proof.confirm.confirm import confirm, fresh_answer_agrees
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import RestartSide, Workload


class ColdAnswers:
    """The oracle of a fresh engine, which always gives the same answer."""

    def __init__(self, *, salted: bool = True) -> None:
        self.salted = salted

    def ask_without_memo(self, _: Any) -> Answer:
        """Return the cold answer."""
        return Answer(COLD)


def confirmed(observe: ScriptedObserver, *, salted: bool = True, **engines: CheckedEngine | None) -> Any:
    """Return the confirmation of a failure under the nonce `first`."""
    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    given = {"fresh": None, "control": None, "running": None, **engines}
    oracle = cast(EngineOracle, ColdAnswers(salted=salted)) if given["fresh"] is not None else None
    return confirm(failing, observe=observe, fresh_oracle=oracle, replays=3, **given)


def test_the_tokens_that_failed_come_first_and_then_others() -> None:
    """The fresh engine and the control run them first, because a fault may depend on the answers' tokens."""
    observe = ScriptedObserver(fresh={"first"})
    made = confirmed(observe, fresh=FRESH, control=CONTROL)
    assert observe.seen == [(name, nonce) for name in ("fresh", "control") for nonce in ("first", None, None)]
    assert (made.reproduction.fresh_failed, made.reproduction.fresh_tries) == (1, 3)
    assert made.reproduction.caching_off_failed == 0
    assert made.reproduction.fresh_oracle_agrees
    assert not made.history_dependent
    assert made.failure_class is FailureClass.CORRUPT
    assert made.judgement.history.nonce == "first"


def test_a_failure_under_a_new_nonce_is_the_one_to_show() -> None:
    """The request to the fresh oracle does not affect it, even if the engine ignores salts."""
    made = confirmed(ScriptedObserver(fresh={"first", None}), fresh=FRESH)
    assert made.reproduction.fresh_failed == 3
    assert made.judgement.history.nonce == "new"


def test_an_engine_that_has_seen_the_prompt_unsalted_is_not_given_it_again() -> None:
    """Its blocks would already be cached, which is not the history that failed."""
    observe = ScriptedObserver(fresh={None})
    confirmed(observe, salted=False, fresh=FRESH)
    assert observe.seen == [("fresh", None)] * 3


def test_an_attached_server_is_not_given_the_failed_tokens_again() -> None:
    """The attached server has already answered the run that failed, so it gets new tokens only."""
    observe = ScriptedObserver(attached={None})
    made = confirmed(observe, running=ATTACHED)
    assert observe.seen == [("attached", None)] * 3
    assert (made.reproduction.running_failed, made.reproduction.running_tries) == (3, 3)
    assert made.reproduction.fresh_failed is None
    assert not made.history_dependent


def test_what_an_attached_server_does_once_depends_on_its_history() -> None:
    """The cause may be the machine: a stall of a busy server looks like a hang."""
    made = confirmed(ScriptedObserver(), running=ATTACHED)
    assert (made.reproduction.running_failed, made.reproduction.running_tries) == (0, 3)
    assert made.history_dependent
    assert not confirmed(ScriptedObserver()).history_dependent  # nothing was tried again


def test_a_replay_that_fails_in_another_way_is_no_replay_of_the_failure() -> None:
    """A wrong token and a stall of a busy machine are two failures that were each seen once."""
    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    stalled = Finding(checker="liveness", failure_class=FailureClass.HANG, sentence="No progress.", request=0)

    def observe(_: CheckedEngine, __: Workload, nonce: str | None = None) -> Judgement:
        return msgspec.structs.replace(judgement(nonce or "new", failed=False), findings=(stalled,))

    made = confirm(failing, observe=observe, fresh=FRESH, fresh_oracle=None, control=None, running=None, replays=2)
    assert (made.reproduction.fresh_failed, made.reproduction.fresh_tries) == (0, 2)
    assert not made.reproduction.failed_again
    assert made.judgement.findings == (WRONG,)


MISSED = msgspec.structs.replace(WRONG, failure_class=FailureClass.NOT_THE_CACHE, sentence=f"As A.{NO_HIT}")


@pytest.mark.parametrize(
    ("fails", "off", "named"),
    [
        ({"first", None}, set(), FailureClass.ACCOUNTING),  # only a hit explains it: the count is wrong
        ({"first", None}, {"first"}, FailureClass.NOT_THE_CACHE),  # a reload that never took effect
        ({"first"}, set(), FailureClass.NOT_THE_CACHE),  # as often as by chance: undecided
    ],
)
def test_an_answer_without_a_hit_is_a_wrong_count_only_if_it_needs_the_cache(
    fails: set[str | None], off: set[str | None], named: FailureClass
) -> None:
    """All replays must fail with the cache, and none of as many replays without it."""
    tried = ScriptedObserver(fresh=fails, control=off)

    def observe(engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        seen = tried(engine, workload, nonce)
        return msgspec.structs.replace(seen, findings=(MISSED,) if seen.findings else ())

    first = msgspec.structs.replace(judgement("first", failed=True), findings=(MISSED,))
    failing = Failing(history().workload, first, failed=1, tries=1)
    made = confirm(failing, observe=observe, fresh=FRESH, fresh_oracle=None, control=CONTROL, running=None, replays=3)
    assert made.failure_class is named
    assert ("the count is wrong" in made.judgement.worst().sentence) is (named is FailureClass.ACCOUNTING)
    assert made.reproduction.failed_again


def test_what_fails_without_the_cache_too_is_not_the_caches() -> None:
    """One failure with caching off is enough."""
    made = confirmed(ScriptedObserver(fresh={"first"}, control={"first"}), fresh=FRESH, control=CONTROL)
    assert made.failure_class is FailureClass.NOT_THE_CACHE


def test_a_control_that_reuses_kv_is_no_control() -> None:
    """With prefix caching off, SGLang goes on with the KV of a streaming session: its wrong answer is the cache's."""

    def observe(engine: CheckedEngine, _: Workload, nonce: str | None = None) -> Judgement:
        return judgement(nonce or "new", failed=True, cached=32 if engine is CONTROL else 0)

    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    made = confirm(failing, observe=observe, fresh=FRESH, fresh_oracle=None, control=CONTROL, running=None, replays=3)
    assert made.failure_class is FailureClass.CORRUPT
    assert (made.reproduction.caching_off_failed, made.reproduction.caching_off_tries) == (None, None)
    assert made.caching_off == ()


def test_a_control_that_also_fails_without_a_hit_is_one() -> None:
    """One wrong answer without cached tokens shows that it does not take the cache."""

    def observe(engine: CheckedEngine, _: Workload, nonce: str | None = None) -> Judgement:
        one = judgement(nonce or "new", failed=True, cached=32 if engine is CONTROL else 0)
        return msgspec.structs.replace(one, findings=(WRONG, msgspec.structs.replace(WRONG, request=1)))

    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    made = confirm(failing, observe=observe, fresh=FRESH, fresh_oracle=None, control=CONTROL, running=None, replays=3)
    assert made.failure_class is FailureClass.NOT_THE_CACHE
    assert (made.reproduction.caching_off_failed, made.reproduction.caching_off_tries) == (3, 3)


@pytest.mark.parametrize(("has", "tried"), [(True, 1), (False, 0)])
def test_a_control_without_the_tier_that_ends_is_no_control(*, has: bool, tried: int) -> None:
    """The step that restarts the tier would fail there, which says nothing about the cache."""
    engine = ScriptedEngine(caching=False)
    engine.capabilities = engine.capabilities | {Capability.TIER_FAILURES: Support(has, "as the test wants it")}
    workload = Workload((burst(ask()), RestartSide(Side.TIER)))
    failing = Failing(workload, judgement("first", failed=True), failed=1, tries=1)
    seen: list[Workload] = []

    def observe(_: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        seen.append(workload)
        return judgement(nonce or "new", failed=True)

    control = CheckedEngine(engine)
    made = confirm(failing, observe=observe, fresh=None, fresh_oracle=None, control=control, running=None, replays=1)
    assert len(seen) == tried
    assert made.failure_class is (FailureClass.NOT_THE_CACHE if has else FailureClass.CORRUPT)
    assert made.reproduction.caching_off_tries == (1 if has else None)


def test_what_never_fails_again_depends_on_its_history() -> None:
    """The case then shows the run that failed."""
    made = confirmed(ScriptedObserver(), fresh=FRESH)
    assert made.history_dependent
    assert made.judgement.findings == (WRONG,)
    assert (made.reproduction.fresh_failed, made.reproduction.fresh_tries) == (0, 3)


def test_several_answers_are_not_cold_even_when_sent_first() -> None:
    """Several answers share the blocks of their prompt, so the fresh oracle cannot check the engine's answers."""
    failing = judgement("first", failed=True, answers=2)
    oracle = cast(EngineOracle, ColdAnswers())
    assert fresh_answer_agrees(Failing(failing.history.workload, failing, failed=1, tries=1), oracle) is None


def test_an_engine_that_is_lost_ends_the_replays() -> None:
    """The replays before the loss count."""
    made = confirmed(ScriptedObserver(dies_after=2, fresh={"first", None}), fresh=FRESH)
    assert (made.reproduction.fresh_failed, made.reproduction.fresh_tries) == (2, 2)
