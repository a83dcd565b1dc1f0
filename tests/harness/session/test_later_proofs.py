"""The proof of a counterexample waits until the other tests of its cell have drawn their examples."""

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
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_HARNESS
from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.session import later_proofs
from coldproof.harness.session.later_proofs import UNCONFIRMED, LaterProofs, waits_for_proof

VIOLATED, AFTER = "SALT-1", "CHAT-1"  # in this order: the engine keeps chats apart and ignores salts


def run(folder: Path, *more: str) -> int:
    """Run both requirements on a scripted engine that ignores salts, and return the exit code."""
    words = ["-p", "support.flawed_engine", "suites", "--engine", "scripted"]
    words += ["--cells", "scripted", "--requirements", f"{VIOLATED},{AFTER}", "--findings", "off", "--diagnose", "none"]
    words += [*COUNTED, "--report-dir", str(folder), *more]
    done = run_pytest(words, {"COLDPROOF_FLAW": "SALT_DROPPED", "COLDPROOF_FINDINGS": str(folder.parent)})
    assert (folder / "results.json").is_file(), done.stdout
    return done.returncode


def verdicts(folder: Path) -> list[tuple[str, str]]:
    """Return the requirements with their verdicts, in the order in which these were reached."""
    events = map(json.loads, (folder / "events.ndjson").read_text().splitlines())
    return [(one["requirement"], one["verdict"]) for one in events if one["event"] == "verdict"]


def test_a_proof_waits_for_the_other_tests_of_its_cell(tmp_path: Path) -> None:
    """It is as complete as one that is made at once, and its seconds of waiting are not among those of its trial."""
    assert run(tmp_path / "run") == EXIT_FAILED
    reached = [one for one in verdicts(tmp_path / "run") if one[1] != Verdict.UNSUPPORTED]
    assert reached[-1] == (VIOLATED, Verdict.VIOLATED)
    assert {name for name, _ in reached[:-1]} == {AFTER}
    (case,) = read_results(tmp_path / "run" / "results.json").cases
    assert case.requirement == VIOLATED
    assert case.reproduction.fresh_failed == case.reproduction.fresh_tries


def test_a_run_up_to_its_first_failure_proves_it_at_once(tmp_path: Path) -> None:
    """Otherwise it would draw everything before it can stop."""
    assert run(tmp_path / "run", "--maxfail", "1") == EXIT_FAILED
    assert verdicts(tmp_path / "run") == [(VIOLATED, Verdict.VIOLATED)]


def test_an_interrupted_run_says_what_it_found_and_did_not_confirm(tmp_path: Path) -> None:
    """What was not confirmed is no violation, and it is not forgotten either."""
    assert run(tmp_path / "run", "-p", "support.interrupted_before_proofs") == EXIT_HARNESS
    (found,) = [one for one in read_results(tmp_path / "run" / "results.json").requirements if one.id == VIOLATED]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.startswith(UNCONFIRMED)


def trial(name: str = "REUSE-1") -> Trial:
    """Return a trial of a requirement."""
    return Trial(Requirement(id=name, title="", needs=(), shows=()), "default", "", "test")


def test_what_keeps_others_from_being_tested_is_proved_at_once() -> None:
    """An engine that dies of a kind of request gets no more of them, and mixtures depend on GROUND-1."""
    later, plain = LaterProofs(), trial()
    later.is_open = True
    plain.may_wait = later.may_wait(plain)
    assert waits_for_proof(plain, [FailureClass.STALE_STATE, FailureClass.LOST_REUSE])
    assert not waits_for_proof(plain, [FailureClass.STALE_STATE, FailureClass.CRASH])
    assert not waits_for_proof(plain, [FailureClass.HANG])
    assert not later.may_wait(trial("GROUND-1"))
    later.is_open = False
    assert not later.may_wait(plain)


def test_the_gravest_failure_is_proved_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them come behind the tests that have not run."""
    monkeypatch.setattr(later_proofs, "in_one_cell", lambda *_: True)
    later, items = LaterProofs(), [SimpleNamespace(nodeid=name) for name in ("lost", "stale", "also lost", "not run")]
    classes = {"lost": FailureClass.LOST_REUSE, "stale": FailureClass.STALE_STATE, "also lost": FailureClass.LOST_REUSE}
    for at, (name, failure_class) in enumerate(classes.items()):
        found: Any = SimpleNamespace(judgement=SimpleNamespace(worst=lambda one=failure_class: failing(one)))
        waiting = trial()
        waiting.search.best = found
        later.put(name, waiting, lambda: None)
        items.insert(later.place(name, cast("list[pytest.Item]", items), at), items[at])
    assert [item.nodeid for item in items[3:]] == ["not run", "stale", "lost", "also lost"]


def failing(failure_class: FailureClass) -> Finding:
    """Return a finding of this class."""
    return Finding(checker="tokens", failure_class=failure_class, request=0, sentence="It differs.")
