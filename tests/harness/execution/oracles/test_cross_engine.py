"""Another engine as the oracle: it sees what an engine gets wrong warm and cold alike, and takes no noise for a bug."""

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

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import PLAIN, Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.registry import plain_cell, started
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
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER
from coldproof.harness.workload.steps import Route, Workload
from coldproof.reports.schema.verdict import FailureClass, Verdict

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
    """What somebody wrote on the command line."""
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
def test_what_cannot_be_asked_is_one_line(changes: dict[str, Any], said: str) -> None:
    """Before anything is started."""
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
def test_any_engine_that_is_started_may_answer_for_any_other(changes: dict[str, Any]) -> None:
    """For an attached one as well, where the model is at hand."""
    check_options(options(**changes))


@pytest.mark.parametrize("name", started())
def test_an_engine_answers_for_others_in_a_cell_with_adapters(name: str) -> None:
    """Some engines have them in one cell only."""
    assert [area for area in plain_cell(name).areas if area.startswith("LORA")]
    assert plain_cell(name).fits(name, "model")


class Other:
    """An oracle over an engine in name only."""

    def __init__(self, name: str, *, room: int = 100, dies: bool = False) -> None:
        self.name, self.dies, self.up = name, dies, True
        self.engine: Any = self
        self.version = "7"
        self.shape = msgspec.structs.replace(ScriptedEngine().shape, max_model_tokens=room)

    def alive(self) -> bool:
        """Until it dies."""
        return self.up

    def ask(self, _: Question) -> Answer:
        """Its name for a text."""
        if self.dies:
            self.up = False
            raise OracleError("gone")
        return Answer(tokens(1), text=self.name, finish_reason="length")


def asked(surface: ResponseOptions = PLAIN, length: int = 20) -> Question:
    """A question of so many tokens."""
    return Question(tuple(range(length)), None, 10, surface)


@pytest.mark.parametrize(
    ("question", "other"),
    [
        (asked(), True),
        (asked(ResponseOptions(logprobs=True)), True),
        (asked(length=90), True),
        (asked(length=91), False),
        (asked(ResponseOptions(answers=2)), False),
        (asked(ResponseOptions(stop=("x",))), False),
        (asked(ResponseOptions(pattern="a")), False),
        (asked(ResponseOptions(prompt_logprobs=True)), False),
    ],
)
def test_what_two_engines_need_not_agree_on_the_own_one_is_asked(question: Question, other: bool) -> None:
    """Sampling, grammars and texts are an engine's own; so is the longest prompt. Its texts are not the other's."""
    mine: Any = Other("own")
    oracle = OtherEngine(Other("engine:x"), mine, reopen=lambda: pytest.fail("it lives"))  # type: ignore[arg-type]
    assert oracle.name == "engine:x 7"
    answer = oracle.ask(question)
    assert (answer.text, answer.finish_reason) == ((None, None) if other else ("own", "length"))


def test_how_sure_the_other_was_is_taken_from_the_engines_own_cold_answer() -> None:
    """Up to where the two part, and the gap overcome there; what comes behind is another text's."""
    said = with_gaps(Answer(tokens(1, 2, 3, 4, gap=None)), Answer(tokens(1, 2, 9, 4, gap=0.5)))
    assert [token.gap for token in said.tokens] == [0.5, 0.5, 0.5, None]
    assert said.ids == (1, 2, 3, 4)
    assert [t.gap for t in with_gaps(Answer(tokens(1, 2, gap=None)), Answer(tokens(1, gap=0.5))).tokens] == [0.5, None]


def test_another_engine_that_dies_is_started_again() -> None:
    """Its troubles are no verdict; one that lives and does not answer is the harness's."""
    oracle = OtherEngine(Other("engine:x", dies=True), Other("own"), reopen=lambda: Other("engine:x"))  # type: ignore[arg-type]
    assert oracle.ask(asked()).ids == (1,)
    stubborn = Other("engine:x")
    stubborn.ask = refuse  # type: ignore[method-assign]
    with pytest.raises(OracleError, match="no"):
        OtherEngine(stubborn, Other("own"), reopen=lambda: pytest.fail("it lives")).ask(asked())  # type: ignore[arg-type]


def refuse(_: Question) -> Answer:
    """It does not answer."""
    raise OracleError("no")


def test_a_bug_that_the_cold_engine_shares_is_seen_by_another_engine(tmp_path: Path) -> None:
    """Its own cold engine says the same, and so would call it right."""
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
    assert case.replay.endswith(".json --oracle engine:right")
    with crossed_engines(
        tmp_path / "own", tampering(across.wrong_third_token), tampering(honest), oracle="cold-engine"
    ) as alone:
        assert verdict_on(alone, REPEATED)[0] is Verdict.CONFORMS


def test_a_bug_of_the_cache_is_still_the_caches(tmp_path: Path) -> None:
    """Confirmed on a fresh engine, whose cold answer is the other's; with caching off it does not happen."""
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
def test_an_oracle_without_scores_counts_what_the_engine_itself_is_sure_of(
    tamper: across.Tamper, tmp_path: Path
) -> None:
    """A bug is seen all the same, and a close call is none."""

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
    """There would be nothing to compare its answers with."""

    class Picky(ScriptedEngine):
        def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
            if path.endswith("content-C"):
                raise RequestRefused(400, "too large")
            super().load_adapter(name, path, in_place=in_place)

    with crossed_engines(tmp_path, tampering(honest), lambda setting: Picky(caching=setting.caching)) as crossed:
        assert list(crossed.engines.contents) == ["A", "B"]


def test_close_calls_are_never_violations(tmp_path: Path) -> None:
    """They are said to be there, and prove nothing."""
    with crossed_engines(tmp_path, tampering(across.close_call), tampering(across.honest_close_call)) as crossed:
        verdict, reason, case = verdict_on(crossed, REPEATED)
    assert (verdict, case) == (Verdict.INCONCLUSIVE, None)
    assert "below the noise that the calibration measured" in reason


def test_engines_that_agree_conform(tmp_path: Path) -> None:
    """With the scores a little apart."""
    with crossed_engines(tmp_path, tampering(scores_moved_by(1e-5)), tampering(honest)) as crossed:
        assert verdict_on(crossed, RELOADED)[0] is Verdict.CONFORMS
        assert crossed.engines.calibration.oracle == NAME


def test_engines_that_differ_from_the_start_give_no_verdict_and_no_flood(tmp_path: Path) -> None:
    """The reason says which engines, and under which adapters. Without any adapter they agree, and that is shown."""

    def deaf(setting: StartOptions) -> ScriptedEngine:
        return IgnoresAdapters(caching=setting.caching)

    with crossed_engines(tmp_path, deaf, tampering(honest)) as crossed:
        verdict, reason, case = verdict_on(crossed, Workload((put("A"), burst(ask(adapter="tenant")))))
        assert verdict_on(crossed, REPEATED)[0] is Verdict.CONFORMS
    assert (verdict, case) == (Verdict.INCONCLUSIVE, None)
    assert (
        f"none of which counts: the cold answers of the engine under test and {NAME} differ under adapter A" in reason
    )


def test_the_ground_is_the_engines_own(tmp_path: Path) -> None:
    """Alone and in any batch it answers the same, however wrong; mixtures are not to blame for that either."""
    with crossed_engines(tmp_path, tampering(across.wrong_third_token), tampering(honest)) as crossed:
        assert verdict_on(crossed, MIXED, name="GROUND-1")[0] is Verdict.CONFORMS
        assert verdict_on(crossed, MIXED)[0] is Verdict.VIOLATED
        assert crossed.limits.may_mix(BASE_WITH_ADAPTER)


def test_the_engines_have_a_memory_each(tmp_path: Path) -> None:
    """What one answered is no answer of the other's."""
    with crossed_engines(tmp_path, tampering(across.wrong_third_token), tampering(honest)) as crossed:
        question = Question(tuple(range(40, 240)), None, 8)
        assert crossed.engines.oracle.ask(question).ids != crossed.engines.cold.ask(question).ids
        assert crossed.engines.oracle.ask(question).ids != crossed.engines.cold.ask(question).ids


def test_either_engine_is_replaced_where_it_dies(tmp_path: Path) -> None:
    """And the other oracle goes on with what took its place."""
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


def test_an_attached_engine_is_asked_past_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cold engine of its kind to be had: an unused salt does for the calibration, and for the ground."""
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


def test_an_attached_engine_that_differs_past_its_cache_is_not_blamed_for_its_cache() -> None:
    """No fresh engine can be had; the running one is asked under an unused salt."""
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
    """Only what counts in an answer counts in a confirmation."""
    failing = Failing(history().workload, judgement("first", failed=True), failed=1, tries=1)
    near = cast(EngineOracle, SimpleNamespace(ask_without_memo=lambda _: Answer(tokens(1, 9, 9))))
    assert fresh_answer_agrees(failing, near, Rule(exact=False, noise=6.0)) is True
    assert fresh_answer_agrees(failing, near, Rule(exact=False, noise=4.0)) is False
    assert fresh_answer_agrees(failing, near) is False
