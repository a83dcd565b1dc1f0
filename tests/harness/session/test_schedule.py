"""A run visits its cells in rounds: floors first, then proofs, the gravest first, then further examples."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.paths import COUNTED
from support.suite_runs import run_pytest

from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.schema.case import UNPROVED, Unfinished, read_case
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_HARNESS
from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.session import schedule as schedules
from coldproof.harness.session.schedule import LONG_START, WORTH, Conclusion, Schedule, Stage, waits_for_proof

VIOLATED, AFTER = "SALT-1", "CHAT-1"  # in this order: the engine keeps chats apart and ignores salts


def run(folder: Path, *more: str, **variables: str) -> int:
    """Run both requirements on a scripted engine that ignores salts, and return the exit code."""
    words = ["-p", "support.flawed_engine", "suites", "--engine", "scripted"]
    words += ["--cells", "scripted", "--requirements", f"{VIOLATED},{AFTER}", "--findings", "off", "--diagnose", "none"]
    words += [*COUNTED, "--report-dir", str(folder), *more]
    flaw = {"COLDPROOF_FLAW": "SALT_DROPPED", "COLDPROOF_FINDINGS": str(folder.parent)}
    done = run_pytest(words, {**flaw, **variables})
    assert (folder / "results.json").is_file(), done.stdout
    return done.returncode


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind in their order."""
    every = map(json.loads, (folder / "events.ndjson").read_text().splitlines())
    return [one for one in every if one["event"] == kind]


def verdicts(folder: Path) -> list[tuple[str, str]]:
    """Return the requirements with their verdicts, in the order in which these were reached."""
    return [(one["requirement"], one["verdict"]) for one in events(folder, "verdict")]


def test_a_proof_waits_for_the_other_tests(tmp_path: Path) -> None:
    """It is as complete as one that is made at once, and its seconds of waiting are not among those of its trial."""
    assert run(tmp_path / "run") == EXIT_FAILED
    waiting = [(one["requirement"], one["stage"]) for one in events(tmp_path / "run", "waits")]
    assert waiting[0] == (VIOLATED, "proof")
    assert {name for name, stage in waiting if stage == "more"} == {AFTER}
    reached = [one for one in verdicts(tmp_path / "run") if one[1] != Verdict.UNSUPPORTED]
    assert reached[0] == (VIOLATED, Verdict.VIOLATED)
    assert set(reached[1:]) == {(AFTER, Verdict.CONFORMS)}
    case, *_ = read_results(tmp_path / "run" / "results.json").cases
    assert case.requirement == VIOLATED
    assert case.unfinished is None
    assert case.reproduction.fresh_failed == case.reproduction.fresh_tries


def test_a_second_visit_goes_on_with_engines_of_its_own(tmp_path: Path) -> None:
    """All cells have their floors before the first proof. Those that ran at the first visit have been stopped."""
    assert run(tmp_path / "run", "--cells", "scripted,scripted-too") == EXIT_FAILED
    every = [json.loads(line) for line in (tmp_path / "run" / "events.ndjson").read_text().splitlines()]
    kinds = [one["event"] for one in every if one["event"] in ("waits", "case", "engine")]
    assert kinds.index("case") > max(place for place, kind in enumerate(kinds) if kind == "waits")
    reached = {(one["cell"], one["requirement"], one["verdict"]) for one in events(tmp_path / "run", "verdict")}
    cells = ("scripted", "scripted-too")
    assert reached >= {(cell, VIOLATED, Verdict.VIOLATED) for cell in cells}
    assert reached >= {(cell, AFTER, Verdict.CONFORMS) for cell in cells}


def test_the_only_test_of_a_run_is_its_next_one(tmp_path: Path) -> None:
    """It is set up a second time, on the engines that run."""
    assert run(tmp_path / "run", "--requirements", VIOLATED) == EXIT_FAILED
    assert verdicts(tmp_path / "run") == [(VIOLATED, Verdict.VIOLATED)]
    assert len(events(tmp_path / "run", "engine")) == 1


def test_a_run_up_to_its_first_failure_proves_it_at_once(tmp_path: Path) -> None:
    """Otherwise it would draw everything before it can stop."""
    assert run(tmp_path / "run", "--maxfail", "1") == EXIT_FAILED
    assert verdicts(tmp_path / "run") == [(VIOLATED, Verdict.VIOLATED)]


def test_what_is_known_stays_when_a_cell_cannot_be_opened_again(tmp_path: Path) -> None:
    """Each test has one verdict. That its engines started once is as good as before."""
    words = ("--cells", "scripted,scripted-too", "-p", "support.no_second_start")
    assert run(tmp_path / "run", *words) == EXIT_FAILED
    again = [one for one in events(tmp_path / "run", "verdict") if "no memory is left" in one["reason"]]
    assert {(one["requirement"], one["verdict"]) for one in again} == {
        (VIOLATED, Verdict.INCONCLUSIVE),
        (AFTER, Verdict.CONFORMS),
    }
    places = [(one["cell"], one["test"]) for one in events(tmp_path / "run", "verdict")]
    assert len(set(places)) == len(places)


def test_a_cell_may_be_opened_twice_by_a_run_without_rounds(tmp_path: Path) -> None:
    """Its tests run for the first time then, and wait for nothing."""
    words = ("--cells", "scripted,scripted-too", "-p", "support.cells_by_turns", "--maxfail", "9")
    assert run(tmp_path / "run", *words) == EXIT_FAILED
    assert {(name, verdict) for name, verdict in verdicts(tmp_path / "run") if verdict != Verdict.UNSUPPORTED} == {
        (VIOLATED, Verdict.VIOLATED),
        (AFTER, Verdict.CONFORMS),
    }


def test_an_interrupted_run_says_what_it_found_and_did_not_confirm(tmp_path: Path) -> None:
    """What was not confirmed is no violation, and it is not forgotten either: its case is there for later."""
    assert run(tmp_path / "run", "-p", "support.interrupted_before_proofs") == EXIT_HARNESS
    results = read_results(tmp_path / "run" / "results.json")
    (found,) = [one for one in results.requirements if one.id == VIOLATED]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.startswith(UNPROVED)
    (case,) = results.cases
    assert case.unfinished is Unfinished.PROOF
    assert read_case(tmp_path / "run" / "cases" / f"{case.id}.json") == case


def test_a_proof_that_an_interrupt_cuts_off_is_left_for_later(tmp_path: Path) -> None:
    """The counterexample was found before the run was interrupted."""
    assert run(tmp_path / "run", "-p", "support.interrupted_in_a_proof") == EXIT_HARNESS
    results = read_results(tmp_path / "run" / "results.json")
    (found,) = [one for one in results.requirements if one.id == VIOLATED]
    assert found.verdict is Verdict.INCONCLUSIVE
    (case,) = results.cases
    assert case.unfinished is Unfinished.PROOF


def test_what_is_confirmed_is_a_violation_when_its_controls_are_interrupted(tmp_path: Path) -> None:
    """Its case is saved by then."""
    words = ("-p", "support.interrupted_in_a_proof", "--diagnose", "all")
    assert run(tmp_path / "run", *words, INTERRUPTED="with_controls") == EXIT_FAILED
    results = read_results(tmp_path / "run" / "results.json")
    assert not results.complete
    (found,) = [one for one in results.requirements if one.id == VIOLATED]
    assert found.verdict is Verdict.VIOLATED
    assert [case.unfinished for case in results.cases] == [None]


def test_what_was_not_proved_fails_the_run_whatever_is_allowed(tmp_path: Path) -> None:
    """A budget that is too small for the proof of a violation must not make the run pass."""
    assert run(tmp_path / "run", "--allow-inconclusive", "-p", "support.no_time_for_proofs") == EXIT_FAILED
    results = read_results(tmp_path / "run" / "results.json")
    assert (results.exit_code, results.conclusion) == (EXIT_FAILED, "NOT SHOWN TO CONFORM")


def trial(name: str = "REUSE-1", *, cell: str = "default", failure_class: FailureClass | None = None) -> Trial:
    """Return a trial of a requirement, with a counterexample of this class if one is given."""
    made = Trial(Requirement(id=name, title="", needs=(), shows=()), cell, "", "test")
    if failure_class is not None:
        finding = Finding(checker="tokens", failure_class=failure_class, request=0, sentence="It differs.")
        made.search.best = cast(Any, SimpleNamespace(judgement=SimpleNamespace(worst=lambda: finding)))
    return made


def test_what_keeps_others_from_being_tested_is_proved_at_once() -> None:
    """An engine that dies of a kind of request gets no more of them."""
    schedule, plain = Schedule(60.0, quick=True), trial()
    schedule.in_rounds = True
    plain.may_wait = schedule.proof_may_wait(plain)
    assert waits_for_proof(plain, [FailureClass.STALE_STATE, FailureClass.LOST_REUSE])
    assert not waits_for_proof(plain, [FailureClass.STALE_STATE, FailureClass.CRASH])
    assert not waits_for_proof(plain, [FailureClass.HANG])
    schedule.in_rounds = False
    assert not schedule.proof_may_wait(plain)


class Session:
    """Tests of a session by name, as `CELL NAME`, that run in a schedule."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, schedule: Schedule, *names: str) -> None:
        monkeypatch.setattr(schedules, "cell_name", lambda item: item.nodeid.split()[0])
        monkeypatch.setattr(schedules, "requirement_of", lambda item: item)
        self.schedule = schedule
        self.items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
        self.at = 0

    def ran(self, failure_class: FailureClass | None = None, *, waits: bool = False) -> None:
        """Run the next test, which waits if it has failed, or if it `waits` for more examples."""
        item = self.items[self.at]
        self.schedule.take(item.nodeid)
        if waits or failure_class is not None:
            stage = Stage.MORE if failure_class is None else Stage.PROOF
            made = trial(cell=item.nodeid.split()[0], failure_class=failure_class)
            self.schedule.put(item.nodeid, made, lambda: None, stage, lambda: Conclusion(Verdict.CONFORMS, ""))
        following = self.schedule.next_after(item, self.items)
        self.at += 1
        assert following is (self.items[self.at] if self.at < len(self.items) else None)

    def left(self) -> list[str]:
        """Return the tests to come."""
        return [one.nodeid for one in self.items[self.at :]]


def test_all_cells_have_their_floors_before_the_gravest_proof_and_more_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each cell, what waits for the same is together, so that its engines start once for it."""
    schedule = Schedule(600.0, quick=True)
    tests = Session(monkeypatch, schedule, "a lost", "a more", "a done", "b lost", "b stale", "b more")
    for cell in "ab":
        schedule.opened(cell, 0.1)
    tests.ran(FailureClass.LOST_REUSE)
    tests.ran(waits=True)
    assert tests.left() == ["a done", "b lost", "b stale", "b more", "a lost", "a more"]
    tests.ran()
    tests.ran(FailureClass.LOST_REUSE)
    tests.ran(FailureClass.STALE_STATE)
    tests.ran(waits=True)
    assert tests.left() == ["b stale", "b lost", "a lost", "a more", "b more"]
    assert [schedule.proofs(), schedule.proofs("a"), schedule.has_more("a")] == [3, 1, True]
    for _ in range(5):
        tests.ran()
    assert tests.left() == []
    assert not schedule.waiting


def test_the_proofs_of_a_slow_server_follow_its_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start it again would take longer than they do."""
    schedule = Schedule(60.0, quick=False)
    tests = Session(monkeypatch, schedule, "a stale", "a done", "b done")
    schedule.opened("a", LONG_START + 1)
    tests.ran(FailureClass.STALE_STATE)
    assert tests.left() == ["a done", "a stale", "b done"]


def test_a_second_visit_has_to_be_worth_the_start_of_its_engines() -> None:
    """The first start in a process imports the engine as well, which a second one does not."""
    server, in_process = Schedule(600.0, quick=False), Schedule(600.0, quick=True)
    server.opened("slow", 40.0)
    server.opened("quick", 1.0)
    assert server.is_visited_once("slow")
    assert not server.is_worth_a_visit("slow", 10_000.0)
    assert server.is_worth_a_visit("quick", WORTH)
    assert not server.is_worth_a_visit("quick", WORTH - 1.0)
    in_process.opened("first", 40.0)
    in_process.opened("second", 2.0)
    assert in_process.is_worth_a_visit("first", WORTH)
    assert not in_process.is_worth_a_visit("second", WORTH)
    assert not in_process.is_visited_once("second")


def test_a_test_is_put_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its second visit fails before it is taken up, it is not tried for ever."""
    schedule = Schedule(600.0, quick=True)
    tests = Session(monkeypatch, schedule, "a lost")
    tests.ran(FailureClass.LOST_REUSE)
    assert tests.left() == ["a lost"]
    assert schedule.next_after(tests.items[1], tests.items) is None


def test_the_openings_to_come_take_as_long_as_those_before() -> None:
    """A second visit needs no calibration."""
    schedule = Schedule(600.0, quick=True)
    assert schedule.openings_expected(5) == 0
    schedule.opened("a", 0.5, calibration=3.0)
    schedule.opened("b", 0.7, calibration=1.0)
    assert schedule.openings_expected(5) == pytest.approx(3 * 2.6)
    schedule.put("one", trial(cell="a"), lambda: None, Stage.MORE, lambda: Conclusion(Verdict.CONFORMS, ""))
    assert schedule.openings_expected(2) == pytest.approx(0.6)


def test_a_trial_that_waits_does_not_use_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock stands still."""
    now = [100.0]
    monkeypatch.setattr(schedules.time, "monotonic", lambda: now[0])
    schedule, made = Schedule(60.0, quick=True), trial(failure_class=FailureClass.CORRUPT)
    made.started, made.search.since = 90.0, 95.0
    schedule.put("one", made, lambda: None, Stage.PROOF, lambda: Conclusion(Verdict.INCONCLUSIVE, ""))
    now[0] = 150.0
    assert schedule.take("other") is None
    assert schedule.take("one") is not None
    assert (made.started, made.search.since) == (140.0, 145.0)
