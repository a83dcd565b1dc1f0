"""`coldproof findings --matrix` shows which repair removes which case, and what is off the diagonal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from coldproof.harness.case.finding_records import StoredFinding, read_findings, read_records
from coldproof.harness.case.repairs import NONE, read_repairs
from coldproof.harness.cli import finding_matrix
from coldproof.harness.cli import findings as command
from coldproof.harness.cli.finding_matrix import Square, drawn, square_of
from coldproof.harness.cli.finding_runs import Outcome
from coldproof.harness.cli.main import main
from coldproof.harness.options import UsageError
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.session.causes import local_engine
from coldproof.harness.session.causes.replay_job import ReplayEnd
from coldproof.harness.session.causes.saved_replays import SavedReplays

HEADS, WAITS, SESSION = (
    "vllm/failed-load-heads-the-queue",
    "vllm/failed-load-waits-for-itself",
    "vllm/idle-reset-is-not-announced",
)
NAMES = (HEADS, WAITS, SESSION)
RECORDS = [read_records()[name] for name in NAMES]
REPAIRS = [read_repairs()[name] for name in NAMES]
FAILS, PASSES, OTHERWISE, NOT_RUN = (
    ReplayResult.FAILS,
    ReplayResult.PASSES,
    ReplayResult.OTHERWISE,
    ReplayResult.NOT_RUN,
)


def square(**changed: Outcome) -> Square:
    """Return the square in which each repair does what it says. `changed`: other outcomes, by column and row."""
    outcomes = {}
    for repair in (NONE, *NAMES):
        mended = next((one.mends for one in REPAIRS if one.name == repair), ())
        for record in RECORDS:
            result = PASSES if record.id in mended else FAILS
            outcomes[repair, record.id] = Outcome(record, result, version=record.last_release)
    for place, outcome in changed.items():
        column, row = (int(number) for number in place.removeprefix("at").split("_"))
        outcomes[(NONE, *NAMES)[column], NAMES[row]] = outcome
    return Square(records=RECORDS, repairs=REPAIRS, outcomes=outcomes)


def test_a_square_in_which_each_repair_does_what_it_says_is_diagonal() -> None:
    """A repair may name a second finding."""
    assert WAITS in REPAIRS[0].also
    assert list(square().off()) == []
    text = drawn(square())
    assert f"  1  {HEADS}" in text
    (row,) = (line for line in text.splitlines() if line.startswith(WAITS))
    assert row.split()[1:] == ["F", "[.]", "[.]", "F"]


def test_a_case_whose_engine_starts_only_with_its_repair_is_in_its_place() -> None:
    """Without the repair, the replay ends with the start of the engine."""
    dead = Outcome(RECORDS[2], NOT_RUN, "the engine ended", broken=True)
    assert list(square(at0_2=dead, at1_2=dead, at2_2=dead).off()) == []


@pytest.mark.parametrize(
    ("place", "outcome", "said"),
    [
        (
            "at1_0",
            Outcome(RECORDS[0], FAILS, "still hangs"),
            f"{HEADS} is not removed by {HEADS}: still there: still hangs",
        ),
        ("at1_1", Outcome(RECORDS[1], FAILS), f"{WAITS} is not removed by {HEADS}: still there"),
        ("at3_0", Outcome(RECORDS[0], PASSES), f"{HEADS} is gone under {SESSION}, which does not name it"),
        ("at3_0", Outcome(RECORDS[0], OTHERWISE, "x"), f"{HEADS} is fails in a different way under {SESSION}"),
        ("at3_0", Outcome(RECORDS[0], NOT_RUN, "no engine", broken=True), f"{HEADS} under {SESSION} could not be run"),
        ("at0_2", Outcome(RECORDS[2], PASSES, version="0.32.0"), f"{SESSION} is gone under none"),
    ],
)
def test_what_no_repair_declares_is_named(place: str, outcome: Outcome, said: str) -> None:
    """The first column is the engine that is shipped, where each case must fail as its record says."""
    assert any(line.startswith(said) for line in square(**{place: outcome}).off())


def test_what_cannot_run_or_takes_luck_is_not_off_the_diagonal() -> None:
    """It shows nothing about a repair."""
    lucky = msgspec.structs.replace(RECORDS[2], rate="one in ten")
    assert list(square(at3_0=Outcome(RECORDS[0], NOT_RUN, "needs a model")).off()) == []
    assert list(square(at1_2=Outcome(lucky, PASSES)).off()) == []


def test_each_case_is_replayed_under_each_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--only` chooses the repairs."""
    asked: list[tuple[str, str]] = []

    def replayed(finding: StoredFinding, repairs: Sequence[str], _replays: object) -> Outcome:
        (repair,) = repairs
        asked.append((repair, finding.id))
        return square().outcomes[repair, finding.id]

    monkeypatch.setattr(finding_matrix, "replayed", replayed)
    monkeypatch.setattr(finding_matrix, "obstacle", lambda _record: "")
    monkeypatch.setattr(finding_matrix, "installed_release", lambda _spec: "0.32.0")
    found = square_of(RECORDS, [HEADS, SESSION], lambda _words: None)
    assert asked == [(repair, name) for repair in (NONE, HEADS, SESSION) for name in NAMES]
    assert list(found.off()) == []
    with pytest.raises(UsageError, match="'vllm/no-such' has no repair"):
        square_of(RECORDS, ["vllm/no-such"], lambda _words: None)
    monkeypatch.setattr(finding_matrix, "obstacle", lambda _record: "not installed")
    with pytest.raises(UsageError, match="no case and repair of an engine that is installed"):
        square_of(RECORDS, [], lambda _words: None)


def square_together(
    answer: Callable[[str, Sequence[str]], ReplayResult],
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[str], None] = lambda _words: None,
) -> tuple[Square, list[tuple[str, ...]]]:
    """Return the square with the other repairs at once, and the repairs of each replay. `answer`: how one ends."""
    asked: list[tuple[str, ...]] = []

    def replayed(finding: StoredFinding, repairs: Sequence[str], _replays: object) -> Outcome:
        asked.append(tuple(repairs))
        return Outcome(finding.record, answer(finding.id, repairs), version=finding.record.last_release)

    monkeypatch.setattr(finding_matrix, "replayed", replayed)
    monkeypatch.setattr(finding_matrix, "obstacle", lambda _record: "")
    monkeypatch.setattr(finding_matrix, "installed_release", lambda _spec: "0.32.0")
    return square_of(RECORDS, [], say, together=True), asked


def mends(finding: str, repairs: Sequence[str]) -> bool:
    """Return whether one of these repairs says that it removes a case."""
    return any(finding in read_repairs()[name].mends for name in repairs if name != NONE)


def test_the_other_repairs_are_planted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three replays of a case, or one more for each further repair that names it, tell as much as all."""
    found, asked = square_together(lambda name, repairs: PASSES if mends(name, repairs) else FAILS, monkeypatch)
    assert list(found.off()) == []
    assert len(found.repairs) > 30
    assert len(asked) == 3 * len(NAMES) + 1  # one case is removed by two of them
    (row,) = (line for line in drawn(found).splitlines() if line.startswith(SESSION))
    assert sorted(row.split()[1:]) == sorted(["F", "[.]", *["f"] * (len(found.repairs) - 1)])


def test_a_repair_that_removes_another_case_is_singled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of the others tell which it is. A row is said as soon as it is complete."""
    lines: list[str] = []
    found, asked = square_together(
        lambda name, repairs: PASSES if mends(name, repairs) or (name == SESSION and WAITS in repairs) else FAILS,
        monkeypatch,
        lines.append,
    )
    others = len(found.repairs) - 1
    assert lines == [
        f"1 of 3 cases: {HEADS}  F [.]  {others} as shipped",
        f"2 of 3 cases: {WAITS}  F [.] [.]  {others - 1} as shipped",
        f"3 of 3 cases: {SESSION}  F [.]  {others - 1} as shipped, . {WAITS}",
    ]
    assert list(found.off()) == [f"{SESSION} is gone under {WAITS}, which does not name it"]
    assert len(asked) < 3 * len(NAMES) + 20


def test_what_only_several_repairs_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place of the square shows it."""
    found, _ = square_together(
        lambda name, repairs: PASSES if mends(name, repairs) or (name == SESSION and len(repairs) > 30) else FAILS,
        monkeypatch,
    )
    (line,) = found.off()
    assert line.startswith(
        f"{SESSION} is gone under {len(found.repairs) - 1} repairs at once, and under no half of them"
    )


@pytest.mark.parametrize(
    ("end", "broken"),
    [(ReplayEnd(NOT_RUN, "no engine", broken=True), True), (ReplayEnd(NOT_RUN, "needs a server"), False)],
)
def test_a_replay_plants_the_repair_alone(end: ReplayEnd, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose engine does not start is told from one that nothing could replay here."""
    asked: list[tuple[str, ...]] = []

    def run(_self: object, _case: object, _workload: object, _local: object, names: tuple[str, ...]) -> ReplayEnd:
        asked.append(names)
        return end

    monkeypatch.setattr(local_engine, "installed_release", lambda _spec: "0.32.0")
    monkeypatch.setattr(finding_matrix, "installed_release", lambda _spec: "0.32.0")
    monkeypatch.setattr(SavedReplays, "run", run)
    (finding,) = read_findings([RECORDS[0]])
    outcome = finding_matrix.replayed(finding, (SESSION,), SavedReplays())
    assert asked == [(SESSION,)]
    assert (outcome.result, outcome.words, outcome.broken) == (NOT_RUN, end.words, broken)


@pytest.mark.parametrize(
    ("changed", "code"),
    [({}, 0), ({"at3_0": Outcome(RECORDS[0], PASSES)}, 1)],
)
def test_the_exit_code_says_whether_it_is_diagonal(
    changed: dict[str, Outcome], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line has the number of cases and repairs."""
    monkeypatch.setattr(command, "square_of", lambda *_, **__: square(**changed))
    assert main(["findings", "--matrix"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == f"3 cases under 3 repairs: {len(changed)} off the diagonal"
