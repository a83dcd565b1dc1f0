"""Another engine as the oracle detects what is wrong with and without a cache, and does not take noise for a fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support import across
from support.across import (
    NAME,
    IgnoresAdapters,
    Tampering,
    crossed_engines,
    honest,
    scores_moved_by,
    tampering,
    verdict_on,
)
from support.confirmation import ATTACHED, ScriptedObserver, judgement
from support.histories import ask, burst, history, put, tokens

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import PLAIN, Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.registry import ENGINES, plain_cell, started
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.harness.execution.calibration.cross_engine import LEAST
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.oracles.cross_engine import OtherEngine, with_gaps
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer, OracleError, Question
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.options import Options, UsageError
from coldproof.harness.proof.confirm.confirm import confirm, fresh_answer_agrees
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER
from coldproof.harness.workload.steps import Route, Workload

RELOADED = Workload(
    (
        put("A"),
        burst(ask(("stem", 40), adapter="tenant", max_tokens=8)),
        put("B", route=Route.IN_PLACE),
        burst(ask(("stem", 40), adapter="tenant", max_tokens=8)),
    )
)
REPEATED = Workload((burst(ask(("stem", 120), max_tokens=8)), burst(ask(("stem", 120), max_tokens=8))))
MIXED = Workload(
    (put("A"), burst(ask(("stem", 120), max_tokens=8), ask(("stem", 120), adapter="tenant", max_tokens=8)))
)


def options(**changes: Any) -> Options:
    """Return the options of a command line."""
    given: dict[str, Any] = {"engine": "llamacpp", "oracle": "engine:llamacpp", "report_dir": Path("out"), **changes}
    return Options(**given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"oracle": "engine:nonsense"},
            r"engine:nonsense: Coldproof cannot start this engine; choose",
        ),
        ({"oracle": "engine:"}, r"cannot start this engine"),
        ({"oracle": "engine:endpoint"}, r"cannot start this engine"),
        ({"oracle": "nonsense"}, r"unknown oracle 'nonsense': choose one of cold-engine, .* or engine:NAME"),
        ({"engine": "vllm", "worker": "fingerprint"}, r"engine:llamacpp requires a model"),
        ({"engine": "endpoint", "engine_url": "http://h:1"}, r"add --model PATH"),
    ],
)
def test_invalid_oracles_are_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    """The error comes before anything is started."""
    with pytest.raises(UsageError, match=said) as refused:
        check_options(options(**changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine": "vllm-inproc"},
        {"oracle": "engine:vllm"},
        {"oracle": "engine:vllm-inproc"},
        {"engine": "endpoint", "engine_url": "http://h:1", "model": "/m"},
    ],
)
def test_any_managed_engine_may_be_the_oracle_of_any_other(changes: dict[str, Any]) -> None:
    """An attached engine can be compared too, if its model is available."""
    check_options(options(**changes))


@pytest.mark.parametrize("name", started())
def test_an_engine_answers_for_others_in_a_cell_with_adapters(name: str) -> None:
    """Some engines have adapters in one cell only, and MAX has none beside its prefix cache."""
    adapters = (CellTrait.ADAPTERS, CellTrait.ADAPTER_CHOICE)
    assert plain_cell(name).suits(adapters) == any(cell.suits(adapters) for cell in ENGINES[name].cells)
    assert plain_cell(name).fits(name, "model")


class Other:
    """A stand-in for an oracle and its engine."""

    def __init__(self, name: str, *, room: int = 100, dies: bool = False) -> None:
        self.name, self.dies, self.up = name, dies, True
        self.engine: Any = self
        self.version = "7"
        self.shape = msgspec.structs.replace(ScriptedEngine().shape, max_model_tokens=room)

    def alive(self) -> bool:
        """Return whether the engine has not crashed."""
        return self.up

    def ask(self, _: Question) -> Answer:
        """Return the oracle's name as the text, or crash."""
        if self.dies:
            self.up = False
            raise OracleError("gone")
        return Answer(tokens(1), text=self.name, finish_reason="length")


def question_of(response_options: ResponseOptions = PLAIN, length: int = 20) -> Question:
    """Return a question with a prompt of this length."""
    return Question(tuple(range(length)), None, 10, response_options)


@pytest.mark.parametrize(
    ("question", "other"),
    [
        (question_of(), True),
        (question_of(ResponseOptions(logprobs=True)), True),
        (question_of(length=90), True),
        (question_of(length=91), False),
        (question_of(ResponseOptions(answers=2)), False),
        (question_of(ResponseOptions(stop=("x",))), False),
        (question_of(ResponseOptions(pattern="a")), False),
        (question_of(ResponseOptions(prompt_logprobs=True)), False),
    ],
)
def test_the_engines_own_oracle_answers_where_engines_need_not_agree(question: Question, other: bool) -> None:
    """Sampling, grammars, texts and the longest prompt are specific to an engine, so its own oracle answers those."""
    mine: Any = Other("own")
    oracle = OtherEngine(Other("engine:x"), mine, reopen=lambda: pytest.fail("it lives"))  # type: ignore[arg-type]
    assert oracle.name == "engine:x 7"
    answer = oracle.ask(question)
    assert (answer.text, answer.finish_reason) == ((None, None) if other else ("own", "length"))


def test_missing_margins_are_taken_from_the_engines_own_cold_answer() -> None:
    """Margins are used up to the divergence, including the one overcome there; later ones belong to another text."""
    said = with_gaps(Answer(tokens(1, 2, 3, 4, gap=None)), Answer(tokens(1, 2, 9, 4, gap=0.5)))
    assert [token.gap for token in said.tokens] == [0.5, 0.5, 0.5, None]
    assert said.ids == (1, 2, 3, 4)
    assert [t.gap for t in with_gaps(Answer(tokens(1, 2, gap=None)), Answer(tokens(1, gap=0.5))).tokens] == [0.5, None]


def test_another_engine_that_crashes_is_started_again() -> None:
    """Its crash gives no verdict. An engine that is alive and does not answer is an error of the harness."""
    oracle = OtherEngine(Other("engine:x", dies=True), Other("own"), reopen=lambda: Other("engine:x"))  # type: ignore[arg-type]
    assert oracle.ask(question_of()).ids == (1,)
    stubborn = Other("engine:x")
    stubborn.ask = refuse  # type: ignore[method-assign]
    with pytest.raises(OracleError, match="no"):
        OtherEngine(stubborn, Other("own"), reopen=lambda: pytest.fail("it lives")).ask(question_of())  # type: ignore[arg-type]


def refuse(_: Question) -> Answer:
    """Raise an OracleError."""
    raise OracleError("no")


def test_a_bug_that_the_cold_engine_shares_is_seen_by_another_engine(tmp_path: Path) -> None:
    """The engine's own cold engine gives the same answer and would confirm it."""
    (tmp_path / "own").mkdir()
    with crossed_engines(tmp_path, tampering(across.wrong_third_token), tampering(honest)) as crossed:
        verdict, reason, case = verdict_on(crossed, REPEATED)
    assert verdict is Verdict.VIOLATED
    assert case is not None
    assert case.failure_class is FailureClass.NOT_THE_CACHE
    assert (case.oracle, case.first_difference, case.noise_nats) == (NAME, 2, LEAST)
    assert case.reproduction.fresh_failed == case.reproduction.fresh_tries == 1
    assert case.reproduction.caching_off_failed == case.reproduction.caching_off_tries == 1
    assert case.reproduction.fresh_oracle_agrees is False
    assert f"the engine also differs from {NAME} on this prompt: one of the two is wrong." in reason
    assert case.replay.endswith(".json --oracle engine:right --engine left --model none")
    with crossed_engines(
        tmp_path / "own", tampering(across.wrong_third_token), tampering(honest), oracle="cold-engine"
    ) as alone:
        assert verdict_on(alone, REPEATED)[0] is Verdict.CONFORMS


def test_a_bug_of_the_cache_is_still_the_caches(tmp_path: Path) -> None:
    """It is confirmed on a fresh engine with the other engine's answer, and does not happen with caching off."""
    with crossed_engines(
        tmp_path, tampering(scores_moved_by(1e-5), InjectedBug.NAME_ONLY_KEY), tampering(honest)
    ) as crossed:
        verdict, _, case = verdict_on(crossed, RELOADED)
    assert verdict is Verdict.VIOLATED
    assert case is not None
    assert case.failure_class is FailureClass.STALE_STATE
    assert case.reproduction.fresh_failed == case.reproduction.fresh_tries == 1
    assert case.reproduction.caching_off_failed == 0
    assert case.reproduction.fresh_oracle_agrees
    assert case.engine_config["plant"] == InjectedBug.NAME_ONLY_KEY.value


@pytest.mark.parametrize("tamper", [across.wrong_third_token, across.close_call])
def test_an_oracle_without_scores_uses_the_margins_of_the_engine(tamper: across.Tamper, tmp_path: Path) -> None:
    """A fault is detected all the same, and a near tie is not a fault."""

    def close(request: CompletionRequest, answer: Completion) -> Completion:
        return tamper(request, scores_moved_by(1e-5)(request, answer))

    def silent(request: CompletionRequest, answer: Completion) -> Completion:
        return msgspec.structs.replace(
            answer, tokens=tuple(msgspec.structs.replace(token, gap=None) for token in answer.tokens)
        )

    with crossed_engines(tmp_path, tampering(close), tampering(silent)) as crossed:
        verdict = verdict_on(crossed, REPEATED)[0]
    assert verdict is (Verdict.VIOLATED if tamper is across.wrong_third_token else Verdict.INCONCLUSIVE)


def test_an_adapter_that_the_other_engine_does_not_take_is_left_out(tmp_path: Path) -> None:
    """There would be no answers to compare with."""

    class RefusesSomeAdapters(ScriptedEngine):
        def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
            if path.endswith("content-C"):
                raise RequestRefused(400, "too large")
            super().load_adapter(name, path, in_place=in_place)

    with crossed_engines(
        tmp_path, tampering(honest), lambda setting: RefusesSomeAdapters(caching=setting.caching)
    ) as crossed:
        assert list(crossed.engines.contents) == ["A", "B"]


def test_close_calls_are_never_violations(tmp_path: Path) -> None:
    """They are counted, and prove nothing."""
    with crossed_engines(tmp_path, tampering(across.close_call), tampering(across.honest_close_call)) as crossed:
        verdict, reason, case = verdict_on(crossed, REPEATED)
    assert (verdict, case) == (Verdict.INCONCLUSIVE, None)
    assert "below the noise that the calibration measured" in reason


def test_engines_that_agree_conform(tmp_path: Path) -> None:
    """Their scores differ slightly."""
    with crossed_engines(tmp_path, tampering(scores_moved_by(1e-5)), tampering(honest)) as crossed:
        assert verdict_on(crossed, RELOADED)[0] is Verdict.CONFORMS
        assert crossed.engines.calibration.oracle == NAME


def test_engines_that_differ_from_the_start_give_no_verdict(tmp_path: Path) -> None:
    """The reason names engines and adapters. Without adapters they agree, and that is verified."""

    def ignoring(setting: StartOptions) -> ScriptedEngine:
        return IgnoresAdapters(caching=setting.caching)

    with crossed_engines(tmp_path, ignoring, tampering(honest)) as crossed:
        verdict, reason, case = verdict_on(crossed, Workload((put("A"), burst(ask(adapter="tenant")))))
        assert verdict_on(crossed, REPEATED)[0] is Verdict.CONFORMS
    assert (verdict, case) == (Verdict.INCONCLUSIVE, None)
    assert (
        f"none of which counts: the cold answers of the engine under test and {NAME} differ under adapter A" in reason
    )


def test_the_ground_requirement_uses_the_engines_own_oracle(tmp_path: Path) -> None:
    """The engine answers the same alone and in any batch, however wrong, and mixtures are not the cause."""
    with crossed_engines(tmp_path, tampering(across.wrong_third_token), tampering(honest)) as crossed:
        assert verdict_on(crossed, MIXED, name="GROUND-1")[0] is Verdict.CONFORMS
        assert verdict_on(crossed, MIXED)[0] is Verdict.VIOLATED
        assert crossed.limits.may_mix(BASE_WITH_ADAPTER)


def test_each_engine_has_its_own_stored_answers(tmp_path: Path) -> None:
    """An answer of one engine is never used for the other."""
    with crossed_engines(tmp_path, tampering(across.wrong_third_token), tampering(honest)) as crossed:
        question = Question(tuple(range(40, 240)), None, 8)
        assert crossed.engines.oracle.ask(question).ids != crossed.engines.cold.ask(question).ids
        assert crossed.engines.oracle.ask(question).ids != crossed.engines.cold.ask(question).ids


def test_either_engine_is_replaced_when_it_crashes(tmp_path: Path) -> None:
    """The other oracle continues with the replacement."""
    with crossed_engines(tmp_path, tampering(honest), tampering(honest)) as crossed:
        oracle, own = crossed.engines.oracle, crossed.engines.oracle_engine
        assert isinstance(oracle, OtherEngine)
        assert own is not None
        other = oracle.other.engine
        for one in (own, other):
            assert isinstance(one, CheckedEngine)
            assert isinstance(one.engine, ScriptedEngine)
            one.engine.dead = True
        assert verdict_on(crossed, REPEATED)[0] is Verdict.CONFORMS
        assert oracle.other.engine is not other
        assert crossed.engines.live_engine(own) is crossed.engines.oracle_engine is not own
        assert oracle.cold is crossed.engines.cold


def test_an_attached_engine_gets_unused_salts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cold engine of its kind is available, so an unused salt serves for the calibration and for GROUND-1."""
    server = Tampering(across.wrong_third_token, caching=True)
    monkeypatch.setattr(EnginePool, "attach", lambda *_, caching: server)
    with crossed_engines(
        tmp_path, tampering(honest), tampering(honest), engine="endpoint", engine_url="http://h:1"
    ) as crossed:
        verdict, reason, case = verdict_on(crossed, REPEATED)
        assert crossed.engines.oracle_engine is None
        assert verdict_on(crossed, REPEATED, name="GROUND-1")[0] is Verdict.CONFORMS
    assert verdict is Verdict.VIOLATED
    assert case is not None
    assert case.failure_class is FailureClass.NOT_THE_CACHE
    assert case.reproduction.fresh_tries is None
    assert (case.reproduction.running_failed, case.reproduction.running_tries) == (1, 1)
    assert "no fresh engine could be started. Without any cache" in reason


def test_an_attached_engine_that_differs_under_a_new_salt_has_no_cache_finding() -> None:
    """No fresh engine is available, so the running one is used under an unused salt."""
    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    for ids, failure in (((9, 9, 9), FailureClass.NOT_THE_CACHE), ((1, 2, 3), FailureClass.CORRUPT)):
        made = confirm(
            failing,
            observe=ScriptedObserver(attached={None}),
            fresh=None,
            fresh_oracle=cast(EngineOracle, SimpleNamespace(ask_without_memo=lambda _, ids=ids: Answer(tokens(*ids)))),
            control=None,
            running=ATTACHED,
            replays=1,
            rule=Rule(exact=False, noise=LEAST),
            across=NAME,
        )
        assert made.failure_class is failure
        assert made.reproduction.fresh_oracle_agrees is None
        assert (NAME in made.reproduction.note) is (failure is FailureClass.NOT_THE_CACHE)


def test_a_fresh_engine_that_differs_by_noise_does_not_doubt_the_oracle() -> None:
    """The confirmation uses the same rule as the comparison of answers."""
    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    near = cast(EngineOracle, SimpleNamespace(ask_without_memo=lambda _: Answer(tokens(1, 9, 9))))
    assert fresh_answer_agrees(failing, near, Rule(exact=False, noise=6.0)) is True
    assert fresh_answer_agrees(failing, near, Rule(exact=False, noise=4.0)) is False
    assert fresh_answer_agrees(failing, near) is False
