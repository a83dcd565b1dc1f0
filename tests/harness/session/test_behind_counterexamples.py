"""A trial draws on behind a counterexample, so that neither a known issue nor a loud failure hides another one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, core, given, settings
from hypothesis import strategies as st
from support import report_samples
from support.across import Tampering, replaced, two_engines
from support.histories import ask, burst, contents

from coldproof.adapters.protocol.engine import EngineDied, EngineError
from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.harness.case.known_issues import Waivers
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import KEPT_ALIKE, Failing, Mark, PutAside, Trial
from coldproof.harness.judgement.verdict import verdict_of_case
from coldproof.harness.options import PROFILES, Options
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import UNPROVED, Case, Reproduction, Unfinished
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.budget import Budget, ProofTime, RunClock, TrialEnded
from coldproof.harness.session.causes.attributor import Behind
from coldproof.harness.session.conductor import ConformanceRun, Role
from coldproof.harness.session.proofs import Proofs, beside
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.steps import Workload

ENOUGH = 40  # examples that a trial draws
SHORT, MIDDLE, LONG = 20, 60, 110  # lengths from which on a prompt is of its kind; no calibration uses the last two
SHORTER, MANY = range(SHORT, MIDDLE), 12
KNOWN = """
[[issue]]
requirement = "REUSE-1"
signature = "{signature}"
versions = ">=0"
link = "none known"
reason = "it counts too many"
{more}
"""


def counts_too_many(request: CompletionRequest, answer: Completion) -> Completion:
    """Report a block more than was hit of a prompt of the middle length."""
    if not answer.cached_tokens or len(request.prompt) not in range(MIDDLE, LONG):
        return answer
    return msgspec.structs.replace(answer, cached_tokens=answer.cached_tokens + 8)


def counts_too_many_and_answers_wrongly(request: CompletionRequest, answer: Completion) -> Completion:
    """Do that, and answer a long prompt wrongly that hit."""
    if answer.cached_tokens and len(request.prompt) >= LONG:
        return replaced(answer, 1, gap=5.0)
    return counts_too_many(request, answer)


def honest(_: CompletionRequest, answer: Completion) -> Completion:
    """Return the answer unchanged."""
    return answer


class Dying(Tampering):
    """An engine that counts too many, and ends at a prompt of a middle length that hit."""

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Answer, wrongly where the prompt is long, or end."""
        answer = super().send(request, on_token)
        if self.dead or (answer.cached_tokens and len(request.prompt) in range(MIDDLE, LONG)):
            self.dead = True
            raise EngineDied("the scripted engine has terminated")
        return answer


class Outcome(msgspec.Struct):
    """What a trial ended with: the fields of its verdict, its cases, and the workloads of its examples."""

    verdict: dict[str, Any]
    cases: list[Case]
    drawn: list[Workload]

    @property
    def signatures(self) -> list[str]:
        """Return the signatures of the cases."""
        return [case.signature for case in self.cases]


def twice(length: int) -> Workload:
    """Return a workload that sends a prompt twice."""
    prompt = ("stem", length)
    return Workload((burst(ask(prompt, max_tokens=4)), burst(ask(prompt, max_tokens=4))))


@contextmanager
def opened(
    folder: Path, start: Callable[[Any], Any], *, most: int, known: str, diagnose: str
) -> Iterator[tuple[Any, SystemUnderTest]]:
    """Yield a run whose trials look for `most` counterexamples, and its cell."""
    folder.mkdir()
    issues = folder / "known.toml"
    issues.write_text(known)
    options = Options(
        report_dir=folder / "run",
        cache_dir=folder,
        model="none",
        engine="left",
        cells=("left",),
        known_issues=issues,
        findings="off",
        diagnose=diagnose,
        seed="7",
    )
    profile = msgspec.structs.replace(PROFILES["smoke"], counterexamples=most, replays=2, shrink_seconds=1)
    with pytest.MonkeyPatch.context() as patch, two_engines(start, start):
        patch.setitem(PROFILES, "smoke", profile)
        patch.setattr(EnginePool, "has_room", lambda _: False)
        patch.setattr(Budget, "is_spent", lambda _, trial: trial.drawn_examples >= ENOUGH)
        patch.setattr(core, "global_force_seed", 7)
        patch.setattr(SystemUnderTest, "minimising_timed_out", lambda *_: False)  # the same examples each time
        run = ConformanceRun(options, Role.ALONE)
        run.pool = EnginePool(options, run.log)
        run.pool.files.contents[ModelLayers.FULL] = contents(folder)
        try:
            yield run, SystemUnderTest(CellEngines.open(run.pool, CELLS["left"]), Budget(600.0, 1.0))
        finally:
            run.close(interrupted=False)
            run.folder.close()


def outcome_of(
    folder: Path,
    start: Callable[[Any], Any],
    lengths: range,
    *,
    most: int = 3,
    known: str = "",
    attributor: Any = None,
    diagnose: str = "none",
) -> Outcome:
    """Return the outcome of a trial of prompts with these lengths that are sent twice."""
    drawn: list[Workload] = []

    @settings(max_examples=4 * ENOUGH, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test(sut: SystemUnderTest, data: st.DataObject) -> None:
        workload = twice(data.draw(st.integers(lengths.start, lengths.stop - 1)))
        drawn.append(workload)
        sut.check(workload)

    with opened(folder, start, most=most, known=known, diagnose=diagnose) as (run, sut):
        run.trials.proofs.attributor = attributor or run.trials.proofs.attributor
        events: list[tuple[str, dict[str, Any]]] = []
        run.log.subscribe(lambda kind, fields: events.append((kind, fields)))
        trial = Trial(Requirement("REUSE-1", "sent again", (), (Requests.REQUESTS,)), "left", "a statement", "a_test")
        problem: BaseException | None = None
        try:  # as the plugin does
            run.trials.begin(sut, trial, test)(sut=sut)
        except TrialEnded:
            problem = trial.problem
        except (AssertionError, EngineError) as failure:
            problem = failure
        with suppress(pytest.fail.Exception, pytest.xfail.Exception, pytest.exit.Exception):
            run.trials.conclude(sut, trial, problem)
    (verdict,) = (fields for kind, fields in events if kind == "verdict")
    return Outcome(verdict, [fields["case"] for kind, fields in events if kind == "case"], drawn)


def tampering(tamper: Callable[[CompletionRequest, Completion], Completion]) -> Callable[[Any], Tampering]:
    """Return a function that starts an engine whose answers pass through `tamper` where it has a cache."""
    return lambda setting: Tampering(tamper if setting.caching else honest, caching=setting.caching)


def known(signature: str, more: str = "") -> str:
    """Return known issues that waive a signature."""
    return KNOWN.format(signature=signature, more=more)


def test_behind_a_known_issue_another_failure_is_a_violation(tmp_path: Path) -> None:
    """The loud one comes first, and both have a case; the new one decides the verdict and is first in its reason."""
    found = outcome_of(
        tmp_path / "two",
        tampering(counts_too_many_and_answers_wrongly),
        range(MIDDLE, 200),
        known=known("accounting; *"),
    )
    assert sorted(found.signatures) == ["accounting; no reload", "corrupt; no reload"]
    waived, new = sorted(found.cases, key=lambda case: case.signature)
    assert (waived.known_issue is not None, new.known_issue) == (True, None)
    assert found.verdict["verdict"] is Verdict.VIOLATED
    assert found.verdict["case"] == new.id
    assert found.verdict["further"] == [{"case": waived.id, "verdict": Verdict.KNOWN_ISSUE}]
    assert found.verdict["reason"].startswith("corrupt: ")
    assert "besides it, KNOWN ISSUE: it counts too many" in found.verdict["reason"]


def test_until_now_the_known_issue_hid_it(tmp_path: Path) -> None:
    """A profile may still ask for one counterexample of each trial."""
    found = outcome_of(
        tmp_path / "one",
        tampering(counts_too_many_and_answers_wrongly),
        range(MIDDLE, 200),
        known=known("accounting; *"),
        most=1,
    )
    assert found.verdict["verdict"] is Verdict.KNOWN_ISSUE
    assert (found.verdict["further"], len(found.cases)) == ([], 1)


def test_a_signature_that_was_seen_is_one_case(tmp_path: Path) -> None:
    """Its examples are counted, and neither minimised nor confirmed again."""
    found = outcome_of(tmp_path / "same", tampering(counts_too_many), range(MIDDLE, LONG), known=known("accounting; *"))
    assert found.signatures == ["accounting; no reload"]
    assert found.verdict["verdict"] is Verdict.KNOWN_ISSUE
    assert found.verdict["case"] == found.cases[0].id
    assert found.verdict["further"] == []
    assert "failed so, and none failed otherwise" in found.verdict["reason"]
    assert len(found.drawn) >= ENOUGH


def test_what_was_seen_once_hides_no_failure_of_its_signature(tmp_path: Path) -> None:
    """The first one fails in no replay. The second one does, and decides."""
    wrong = ["once"]

    def tamper(request: CompletionRequest, answer: Completion) -> Completion:
        if not answer.cached_tokens or len(request.prompt) < MIDDLE:
            return answer
        fails = len(request.prompt) >= LONG or bool(wrong and wrong.pop())
        return replaced(answer, 1, gap=5.0) if fails else answer

    found = outcome_of(tmp_path / "once", tampering(tamper), range(MIDDLE, 200))
    assert set(found.signatures) == {"corrupt; no reload"}
    assert found.verdict["verdict"] is Verdict.VIOLATED
    assert found.verdict["further"] == []


def test_without_a_waiver_both_are_violations(tmp_path: Path) -> None:
    """A loud fault of counts hides no wrong answer."""
    found = outcome_of(tmp_path / "both", tampering(counts_too_many_and_answers_wrongly), range(MIDDLE, 200))
    assert found.verdict["verdict"] is Verdict.VIOLATED
    assert sorted(found.signatures) == ["accounting; no reload", "corrupt; no reload"]
    (further,) = found.verdict["further"]
    assert {found.verdict["case"], further["case"]} == {case.id for case in found.cases}
    assert further["verdict"] is Verdict.VIOLATED


def test_behind_a_crash_the_trial_goes_on(tmp_path: Path) -> None:
    """Each example that ends the engine gets another one, and what answers wrongly is found."""

    def start(setting: Any) -> Dying:
        return Dying(counts_too_many_and_answers_wrongly if setting.caching else honest, caching=setting.caching)

    found = outcome_of(tmp_path / "crash", start, range(MIDDLE, 200), known=known("crash; *"))
    assert sorted(found.signatures) == ["corrupt; no reload", "crash; no reload"]
    assert found.verdict["verdict"] is Verdict.VIOLATED


def test_a_waiver_that_names_words_does_not_take_a_failure_without_them(tmp_path: Path) -> None:
    """Both failures have one signature: the waiver is a part of what tells them apart."""

    def tamper(request: CompletionRequest, answer: Completion) -> Completion:
        if not answer.cached_tokens or len(request.prompt) < MIDDLE:
            return answer
        more = 8 if len(request.prompt) < LONG else 16
        return msgspec.structs.replace(answer, cached_tokens=answer.cached_tokens + more)

    said = 'says = "Request 1 hit 64 cached tokens"'
    found = outcome_of(tmp_path / "words", tampering(tamper), range(MIDDLE, 200), known=known("accounting; *", said))
    assert {case.signature for case in found.cases} == {"accounting; no reload"}
    assert found.verdict["verdict"] is Verdict.VIOLATED
    assert {case.known_issue is None for case in found.cases} == {True, False}


FINDING = "vllm/adapter-key-lacks-the-contents"
ACCEPTED = f'[[accepted]]\nfinding = "{FINDING}"\nversions = ">=0"\nreason = "it counts too many"\n'


class AlwaysOne:
    """An attributor for which each case vanishes with one repair. `behind`: what it says of the first that is alike.

    `remark`: of a remark. `only`: the class of the cases that do.
    """

    def __init__(self, behind: str | None, *, remark: bool = False, only: str = "") -> None:
        self.said, self.only = behind, only
        self.found = Attribution(basis=Basis.REPAIR, finding=FINDING, remark=remark)

    def attribution(self, case: Case, *_: Any, **__: Any) -> Attribution:
        """Return the one."""
        return self.found if case.failure_class.startswith(self.only) else Attribution(basis=Basis.NEW)

    def known(self, place: tuple[str, str, str]) -> Attribution:
        """Return the one."""
        return self.found if place[2].startswith(self.only) else Attribution(basis=Basis.NEW)

    def behind(self, _: Case, alike: list[Failing], __: Requirement, ___: Collection[str]) -> Behind:
        """Return the first example, if there is anything to say."""
        return Behind(passed=len(alike)) if self.said is None else Behind(failing=alike[0], words=self.said)


def test_what_fails_like_a_known_cause_with_its_repair_too_is_a_violation(tmp_path: Path) -> None:
    """It has a case of its own under the same signature, whose replay has the repair."""
    found = outcome_of(
        tmp_path / "beside",
        tampering(counts_too_many),
        range(MIDDLE, LONG),
        known=ACCEPTED,
        attributor=AlwaysOne("too many"),
    )
    waived, new = sorted(found.cases, key=lambda case: case.known_issue is None)
    assert (waived.signature, waived.known_issue) == (new.signature, f"it counts too many ({FINDING})")
    assert (found.verdict["verdict"], found.verdict["case"]) == (Verdict.VIOLATED, new.id)
    assert found.verdict["further"] == [{"case": waived.id, "verdict": Verdict.KNOWN_ISSUE}]
    assert waived.id != new.id
    assert f"{new.id}.json" in new.replay
    assert new.replay.endswith(f"--repairs {FINDING}")
    said = f"It has no known cause: it fails like {FINDING}, and with the repair of that finding as well: too many."
    assert said in found.verdict["reason"]


@pytest.mark.parametrize(
    ("as_shipped", "with_repair", "expected", "rate"),
    [
        (0, (3, 3), Verdict.VIOLATED, (3, 3)),
        (0, (0, 3), Verdict.INCONCLUSIVE, (0, 2)),
        (2, (3, 3), Verdict.VIOLATED, (2, 2)),
    ],
)
def test_what_the_known_cause_hides_is_proved_with_its_repair(
    as_shipped: int, with_repair: tuple[int, int], expected: Verdict, rate: tuple[int, int]
) -> None:
    """As it is shipped, the engine fails first in the known way. Replays with the repair are replays all the same."""
    tried = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1, fresh_failed=as_shipped, fresh_tries=2)
    cause = Attribution(basis=Basis.NEW, words="it fails with the repair as well", tried=[FINDING])
    seen = report_samples.case("c", reproduction=tried)
    case = beside(seen, cause, set(), with_repair)
    assert verdict_of_case(case)[0] is expected
    assert (case.reproduction.fresh_failed, case.reproduction.fresh_tries) == rate
    assert (FINDING in case.reproduction.note) is (rate == with_repair)
    assert case.replay.endswith(f"--repairs {FINDING}")


@pytest.mark.parametrize(("basis", "controlled"), [(Basis.REPAIR, False), (Basis.SIGNATURE, True), (Basis.NEW, True)])
def test_a_case_that_vanishes_with_a_known_repair_needs_no_controls(
    basis: Basis, tmp_path: Path, *, controlled: bool
) -> None:
    """Accepted or not: they would tell nothing new, and take a quarter of a first run on a server."""
    one = AlwaysOne(None)
    one.found = msgspec.structs.replace(one.found, basis=basis, finding=FINDING if basis is not Basis.NEW else "")
    found = outcome_of(
        tmp_path / "run", tampering(counts_too_many), range(MIDDLE, LONG), most=1, attributor=one, diagnose="new"
    )
    assert found.verdict["verdict"] is Verdict.VIOLATED
    (case,) = found.cases
    assert (case.diagnosis is not None) is controlled


def test_a_known_issue_says_how_many_passed_with_its_repair(tmp_path: Path) -> None:
    """A dozen of those that failed like it."""
    found = outcome_of(
        tmp_path / "behind",
        tampering(counts_too_many),
        range(MIDDLE, LONG),
        known=ACCEPTED,
        attributor=AlwaysOne(None),
    )
    assert found.verdict["verdict"] is Verdict.KNOWN_ISSUE
    assert "it vanishes with the repair of this finding (by repair)" in found.verdict["reason"]
    assert f"with that repaired, {KEPT_ALIKE} of them were replayed and passed" in found.verdict["reason"]


def test_examples_of_another_class_than_their_case_are_replayed_as_well(tmp_path: Path) -> None:
    """Only the controls of a case tell that the cache is not its cause, and no other example has any."""
    seen, waivers = Mark("crash; no reload"), Waivers([], version="1", today=datetime.date(2026, 1, 1))
    attribution = Attribution(basis=Basis.REPAIR, finding=FINDING)
    case = report_samples.case("c", signature="not the cache; no reload", known_issue="x", attribution=attribution)
    trial = Trial(Requirement("REUSE-1", "sent again", (), ()), "left", "a statement", "a_test")
    trial.aside = [PutAside(Verdict.KNOWN_ISSUE, "x", case, frozenset({seen}))]
    trial.alike = {seen: [cast(Failing, None)]}
    options = Options(report_dir=tmp_path, engine="left")
    proofs = Proofs(
        options,
        EventLog(tmp_path / "events"),
        waivers=lambda _: waivers,
        save_case=lambda *_: None,
        time=ProofTime(lambda: RunClock(60.0, strict=False)),
        attributor=cast(Any, AlwaysOne(None)),
    )
    sut = SimpleNamespace(engines=SimpleNamespace(engine=SimpleNamespace(version="1")))
    proofs.look_behind(cast(SystemUnderTest, sut), trial)
    assert trial.looked_behind == 1


@pytest.mark.parametrize("accepted", ["", ACCEPTED])
def test_a_remark_is_named_and_makes_nothing_violated(tmp_path: Path, accepted: str) -> None:
    """It is no known issue either, also where the known issues accept it. Examples without it are needed."""
    found = outcome_of(
        tmp_path / "remark",
        tampering(counts_too_many),
        range(SHORT, LONG),
        known=accepted,
        attributor=AlwaysOne(None, remark=True),
    )
    (case,) = found.cases
    assert (case.is_remark, case.known_issue) == (True, None)
    assert found.verdict["verdict"] is Verdict.CONFORMS, found.verdict["reason"]
    assert (found.verdict["known"], found.verdict["remarks"]) == ([case.id], [FINDING])
    assert f"failed as a remark says, which no contract forbids: {FINDING}" in found.verdict["reason"]
    assert "that failed so passed with the repair" in found.verdict["reason"]


def test_behind_a_remark_another_failure_is_a_violation(tmp_path: Path) -> None:
    """The remark stays in the reason."""
    found = outcome_of(
        tmp_path / "two",
        tampering(counts_too_many_and_answers_wrongly),
        range(MIDDLE, 200),
        attributor=AlwaysOne(None, remark=True, only="accounting"),
    )
    assert found.verdict["verdict"] is Verdict.VIOLATED
    assert found.verdict["remarks"] == [FINDING]
    assert found.verdict["further"] == []
    assert found.verdict["reason"].startswith("corrupt: ")
    assert f"besides it, a remark: {FINDING}" in found.verdict["reason"]


def test_what_fails_like_a_remark_with_its_repair_too_is_a_violation(tmp_path: Path) -> None:
    """An equal signature does not make it a remark."""
    found = outcome_of(
        tmp_path / "beside", tampering(counts_too_many), range(SHORT, LONG), attributor=AlwaysOne("x", remark=True)
    )
    assert {case.is_remark for case in found.cases} == {True, False}
    assert found.verdict["verdict"] is Verdict.VIOLATED


def test_a_proof_that_the_end_of_the_run_cuts_off_is_left_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an ERROR of the requirement, although nothing was wrong with the test."""

    def cut_off(*_: object) -> None:
        raise RequestOverdue("the time is over")

    monkeypatch.setattr(Proofs, "proved", cut_off)
    found = outcome_of(tmp_path / "cut", tampering(counts_too_many), range(SHORT, LONG))
    (case,) = found.cases
    assert found.verdict["verdict"] is Verdict.INCONCLUSIVE
    assert found.verdict["reason"].startswith(UNPROVED)
    assert case.unfinished is Unfinished.PROOF


@pytest.mark.parametrize("most", [1, 3])
def test_without_a_counterexample_the_same_examples_are_drawn(tmp_path: Path, most: int) -> None:
    """The seed alone decides."""
    found = outcome_of(tmp_path / "clean", tampering(honest), range(SHORT, 200), most=most)
    again = outcome_of(tmp_path / "again", tampering(honest), range(SHORT, 200), most=4 - most)
    assert found.verdict["verdict"] is Verdict.CONFORMS
    assert found.drawn == again.drawn
    assert len(found.drawn) == ENOUGH + 1  # the last one is not sent


def test_the_same_seed_finds_the_same_behind_a_counterexample(tmp_path: Path) -> None:
    """Every round behind a counterexample has a seed that follows from the run's."""
    one, other = (
        outcome_of(tmp_path / name, tampering(counts_too_many_and_answers_wrongly), range(MIDDLE, 200))
        for name in ("one", "other")
    )
    assert one.drawn == other.drawn
    assert one.signatures == other.signatures


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_what_was_put_aside_is_no_problem_of_its_trial(
    found: bool, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LORA-6 was an ERROR where a counterexample turned out to be a replayed finding, so that no case was left of it.
    Behind what is no counterexample, the failure stays one.
    """
    with opened(tmp_path / "run", tampering(honest), most=1, known="", diagnose="none") as (run, sut):
        trial: Any = SimpleNamespace(search=SimpleNamespace(best=object() if found else None), waits=False)
        monkeypatch.setattr(Proofs, "put_aside", lambda *_: goes_on)
        ends = pytest.raises(TrialEnded) if found and not goes_on else nullcontext()
        with ends:
            assert run.trials.proofs.go_on_behind(sut, trial, AssertionError("fails")) is goes_on
