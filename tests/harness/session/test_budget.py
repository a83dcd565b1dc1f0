"""A run's time is divided by weight among the remaining trials, and a trial that lacks evidence may take more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from coldproof.adapters.spec.layer import SERVER_LAYER, Layer
from coldproof.harness.event_log import EventLog
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.leads import MOST_TRIES
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import PROFILES, Options, UsageError, parse_duration
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session import budget as budgets
from coldproof.harness.session.budget import (
    CUT_SECONDS,
    ENDING,
    FEW,
    LEAST_DRAWN,
    LEAST_EXTRA,
    LEAST_PROOFS,
    OPENINGS_OF_A_PROOF,
    PATIENCE_FACTOR,
    PATIENT_EXAMPLES,
    PATIENT_RUN,
    RESERVED,
    USUAL_PROOF,
    USUAL_PROOFS,
    Budget,
    ProofTime,
    RunClock,
    TrialEnded,
)
from coldproof.harness.session.trials import RunPlan, TrialRunner
from coldproof.reports.assemble.evidence_floor import MIN_REQUESTS, MIN_SERVER_EXAMPLES

SHOWN = {Requests.HITS.value: 1.0}


def trial(*, used: float, examples: int = LEAST_DRAWN, evidence: dict[str, float] | None = None) -> Trial:
    """Return a trial that has been drawing for `used` seconds and needs a hit."""
    made = Trial(Requirement("R-1", "title", (), (Requests.HITS,)), "default", "statement", "test")
    made.started = time.monotonic() - used
    made.examples = examples
    made.evidence.update(evidence or {})
    return made


def options(*, budget: str | None = None, profile: str = "smoke") -> Options:
    """Return the options of a run with this budget and profile."""
    return Options(engine="vllm", report_dir=Path("out"), profile=profile, budget=budget)


def test_shares_are_equal_where_each_is_used_up() -> None:
    """Four trials share a hundred seconds."""
    budget = Budget(100, 4)
    for _ in range(4):
        assert budget.begin(1) == pytest.approx(25)
        budget.settle(25)
    assert budget.left == pytest.approx(0)


def test_unused_time_of_a_trial_is_redistributed() -> None:
    """The time is divided among the remaining trials."""
    budget = Budget(100, 4)
    budget.begin(1)
    budget.settle(1)
    assert budget.begin(1) == pytest.approx(33)
    budget.settle(33)
    assert budget.begin(1) == pytest.approx(33)


def test_the_time_of_dropped_trials_goes_to_the_others() -> None:
    """The time is redistributed at once."""
    budget = Budget(100, 4)
    budget.drop(2)
    assert budget.begin(1) == pytest.approx(50)
    budget.settle(500)
    assert budget.begin(1) == pytest.approx(RESERVED * 50)


def test_time_that_a_trial_overruns_is_taken_from_the_others() -> None:
    """The loss is shared equally, and never below the reserve of each trial."""
    budget = Budget(100, 4)
    budget.begin(1)
    budget.settle(40)
    assert budget.begin(1) == pytest.approx(20)
    budget.settle(500)
    assert budget.begin(1) == pytest.approx(RESERVED * 25)


def test_a_trial_goes_on_while_examples_are_drawn_for_what_it_lacks() -> None:
    """Others of its cell need not have shown it. It ends when these examples were in vain."""
    budget = Budget(100, 10)
    budget.begin(1)
    assert budget.longest < budget.patience
    made = trial(used=(budget.longest + budget.patience) / 2)
    assert budget.is_spent(made)
    made.leads.choose((Requests.HITS,), 0)
    assert not budget.is_spent(made)
    for number in range(1, MOST_TRIES):
        made.leads.choose((Requests.HITS,), number)
    assert budget.is_spent(made)


@pytest.mark.parametrize(
    ("examples", "evidence", "spent"), [(7, SHOWN, False), (8, SHOWN, True), (8, {}, False), (23, {}, False)]
)
def test_a_small_profiles_examples_are_enough_unless_evidence_is_missing(
    examples: int, evidence: dict[str, float], *, spent: bool
) -> None:
    """An abort in prefill is a matter of milliseconds, so eight examples may have none."""
    budget = Budget(100, 10)
    made = trial(used=0.5 * budget.begin(1), examples=examples, evidence=evidence)
    made.enough = 8
    assert budget.is_spent(made) is spent


def test_extensions_leave_time_for_later_trials() -> None:
    """This holds even if many trials before lacked evidence or examples."""
    budget = Budget(100, 10)
    shares = []
    for _ in range(10):
        shares.append(budget.begin(1))
        budget.settle(budget.longest)
    assert budget.left == pytest.approx(0)
    assert min(shares) >= RESERVED * 10 - 0.01
    assert shares[0] == pytest.approx(10)


@pytest.mark.parametrize(("examples", "requests", "spent"), [(29, 99, False), (30, 29, True), (2, 100, True)])
def test_a_trial_with_too_few_examples_goes_on(examples: int, requests: int, spent: bool) -> None:
    """With fewer examples its requirement does not conform. Ten requests may take as long as a thousand of another."""
    budget = Budget(1000, 10, lambda: 2000.0)
    share = budget.begin(1)
    made = trial(used=1.1 * share, examples=examples, evidence=SHOWN)
    made.requests, made.least_examples, made.least_requests = requests, 30, 100
    assert budget.is_spent(made) is spent
    made.started -= budget.patience
    assert budget.is_spent(made)


def test_a_heavier_trial_has_a_larger_share() -> None:
    """Weights are relative: a trial of weight three and three trials of weight one get half each."""
    budget = Budget(100, 6)
    assert budget.begin(3) == pytest.approx(50)
    budget.settle(50)
    assert [budget.begin(1), budget.begin(2)] == [pytest.approx(50 / 3), pytest.approx(50)]


def test_a_trial_more_than_planned_still_gets_a_share() -> None:
    """With xdist the number of trials per worker is not known in advance."""
    budget = Budget(100, 1)
    budget.begin(1)
    budget.settle(10)
    assert budget.begin(1) == pytest.approx(90)


@pytest.mark.parametrize(
    ("used", "spent"), [(0.0, False), (0.9, False), (1.1, True), (PATIENCE_FACTOR + 0.1, True)], ids=str
)
def test_a_trial_that_has_shown_what_it_must_ends_at_its_share(used: float, spent: bool) -> None:
    """The time is measured in shares."""
    budget = Budget(100, 10)
    share = budget.begin(1)
    assert budget.is_spent(trial(used=used * share, evidence=SHOWN)) is spent


@pytest.mark.parametrize("evidence", [{}, {Requests.HITS.value: 0.0}, {Requests.REQUESTS.value: 9.0}])
@pytest.mark.parametrize(
    ("used", "spent"), [(1.1, False), (PATIENCE_FACTOR - 0.1, False), (PATIENCE_FACTOR + 0.1, True)]
)
def test_a_trial_that_lacks_evidence_may_go_on_for_a_while(
    evidence: dict[str, float], used: float, spent: bool
) -> None:
    """Only the needed evidence counts, and the extension is limited."""
    budget = Budget(1000, 100)
    share = budget.begin(1)
    assert budget.is_spent(trial(used=used * share, evidence=evidence)) is spent


@pytest.mark.parametrize(("examples", "spent"), [(1, False), (LEAST_DRAWN - 1, False), (LEAST_DRAWN, True)])
def test_a_trial_that_lacks_evidence_draws_a_few_examples_however_long_they_take(examples: int, spent: bool) -> None:
    """On a busy machine the first example may use up the time. A trial with its evidence ends there."""
    budget = Budget(1000, 10)
    budget.begin(1)
    assert budget.is_spent(trial(used=1100, examples=examples)) is spent
    assert budget.is_spent(trial(used=1100, examples=examples, evidence=SHOWN))


@pytest.mark.parametrize(("examples", "least", "spent"), [(4, 5, False), (5, 5, True), (29, 30, False), (30, 30, True)])
def test_a_trial_whose_requirement_would_have_too_few_examples_goes_on(
    examples: int, least: int, *, spent: bool
) -> None:
    """On a busy machine a trial gets its part of the time that the whole run has left, not only of the budget."""
    budget = Budget(100, 10, lambda: 5000.0)
    budget.begin(1)
    made = trial(used=490, examples=examples, evidence=SHOWN)
    made.least_examples, made.least_requests = least, 100
    assert budget.is_spent(made) is spent
    made.started -= 20
    assert budget.is_spent(made)


@pytest.mark.parametrize("examples", [0, 1])
@pytest.mark.parametrize("slow", [True, False])
def test_the_clock_of_the_run_ends_every_trial(examples: int, slow: bool) -> None:
    """This is the only limit of the whole run, whatever a trial lacks and however slow the model is."""
    clock = Clock()
    run = RunClock(100, strict=True, clock=clock)
    budget = Budget(100, 10, run.left)
    budget.slow = slow
    budget.begin(1)
    made = trial(used=0, examples=examples)
    made.least_examples, made.least_requests = 5, 100
    clock.now += 139 - ENDING
    assert not budget.is_spent(made)
    clock.now += 2
    assert budget.is_spent(made)


def test_every_trial_draws_at_least_one_example() -> None:
    """This holds even if no time is left."""
    budget = Budget(0, 1)
    budget.begin(1)
    assert not budget.is_spent(trial(used=1e6, examples=0))
    assert budget.is_spent(trial(used=1e-3, evidence=SHOWN))


def test_hypothesis_does_not_take_the_end_of_the_budget_for_a_counterexample() -> None:
    """Hypothesis minimises every Exception."""
    assert issubclass(TrialEnded, BaseException)
    assert not issubclass(TrialEnded, Exception)
    assert budgets.PATIENCE_FACTOR > 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("20m", 1200), ("2h", 7200), ("1.5h", 5400), (" 20m ", 1200), ("0", 0), ("0.5s", 0.5)],
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    """Without a unit a number is in seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "m", "-5", "5d", "5 m", "1h30m", "1e3", "5M", "٣s\n5", ".5h", "5."])
def test_an_invalid_duration_is_none(text: str) -> None:
    """An invalid duration is not guessed."""
    assert parse_duration(text) is None


@pytest.mark.parametrize("text", ["soon", "0", "0h", "-1m"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    """A budget of zero is refused too."""
    with pytest.raises(UsageError, match="invalid duration; use for example 90s, 20m or 2h"):
        check_options(options(budget=text))


@pytest.mark.parametrize("profile", PROFILES)
def test_without_a_budget_the_profile_has_one(profile: str) -> None:
    """A given budget takes precedence."""
    assert options(profile=profile).seconds == PROFILES[profile].seconds
    assert options(profile=profile, budget="7m").seconds == 420


def test_the_budget_estimates_the_remaining_time() -> None:
    """The estimate follows the pace so far: the least examples of the trials to come are drawn beyond the budget, too,
    as long as the run has time.
    """
    left = 1000.0
    budget = Budget(100, 4, lambda: left)
    assert budget.expected() == pytest.approx(100)
    budget.begin(1)
    budget.settle(5)
    assert budget.expected() == pytest.approx(15)
    budget.begin(1)
    budget.settle(90)
    assert budget.expected() == pytest.approx(95)
    left = 60.0
    assert budget.expected() == pytest.approx(60)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "strict", "limit"),
    [
        (240, True, 336 - ENDING),
        (30, True, 30 + LEAST_EXTRA),
        (10, True, 10 + LEAST_EXTRA),
        (240, False, 240 * PATIENT_RUN),
    ],
)
def test_a_run_as_a_whole_ends_within_one_and_a_half_times_its_budget(
    seconds: float, *, strict: bool, limit: float
) -> None:
    """Engine starts do not count. A profile's own budget is an estimate with a looser limit."""
    clock, starts = Clock(), [0.0]
    run = RunClock(seconds, strict=strict, starts=lambda: sum(starts), clock=clock)
    clock.now += limit - 1
    assert run.left() == pytest.approx(1)
    starts.append(5.0)
    clock.now += 5
    assert run.left() == pytest.approx(1)
    clock.now += 3
    assert run.left() == 0


def test_a_slow_model_does_not_use_up_the_run_with_its_first_trials() -> None:
    """An example takes longer than a share, so the minimum number of examples would take many shares."""
    left = [200.0]
    budget = Budget(100, 10, lambda: left[0])
    budget.begin(1)
    assert budget.longest < 50
    assert not budget.is_spent(trial(used=budget.longest - 1, examples=1))
    assert budget.is_spent(trial(used=budget.longest + 1, examples=1))
    assert not budget.is_spent(trial(used=budget.longest + 1, examples=0))
    left[0] = 0.0
    assert budget.is_spent(trial(used=0, examples=0))
    assert budget.expected() == 0


@pytest.mark.parametrize(
    ("used", "examples", "evidence", "spent"),
    [
        (0.9, 1, SHOWN, False),
        (1.1, 1, SHOWN, True),
        (0.1, 8, SHOWN, True),
        (1.1, 1, {}, False),
        (1.9, 9, {}, False),
        (2.1, 1, {}, True),
        (9.0, 0, {}, False),
    ],
)
def test_with_a_slow_model_all_trials_have_equal_parts_of_the_time_left(
    used: float, examples: int, evidence: dict[str, float], *, spent: bool
) -> None:
    """Without evidence a trial has twice its part. Too few examples are no reason, because others have none."""
    budget = Budget(100, 10, lambda: 200.0)
    budget.slow = True
    assert budget.begin(1) == pytest.approx(20)
    made = trial(used=20 * used, examples=examples, evidence=evidence)
    made.least_examples, made.least_requests, made.enough = 30, 100, 8
    assert budget.is_spent(made) is spent


def test_unused_time_of_a_slow_models_trial_is_redistributed() -> None:
    """The remaining time is that of the whole run, including proofs and controls."""
    left = [200.0]
    budget = Budget(100, 10, lambda: left[0])
    budget.slow = True
    budget.begin(1)
    left[0] = 198.0
    assert budget.begin(1) == pytest.approx(22)
    assert budget.expected() == pytest.approx(198)


@pytest.mark.parametrize("slow", [True, False])
def test_a_trial_with_too_few_examples_gets_what_the_others_will_hardly_need(*, slow: bool) -> None:
    """The first trials took one second each, and the last but one leaves the last one twice that."""
    left = [400.0]
    budget = Budget(100, 4, lambda: left[0])
    budget.slow = slow
    for _ in range(2):
        budget.begin(1)
        budget.settle(1)
    left[0] = 300.0
    budget.begin(1)
    for used, examples, spent in ((290.0, 29, False), (299.0, 29, True), (290.0, 30, True)):
        made = trial(used=used, examples=examples, evidence=SHOWN)
        made.least_examples, made.least_requests, made.enough = 30, 100, 60
        assert budget.is_spent(made) is spent


def test_trials_that_are_all_slow_leave_nothing_over() -> None:
    """At their pace the remaining trials need more than the run has left."""
    budget = Budget(100, 4, lambda: 200.0)
    budget.slow = True
    budget.begin(1)
    budget.settle(50)
    budget.begin(1)
    assert budget.patience == 0


def test_the_server_layer_draws_its_examples_however_many_requests_they_have(tmp_path: Path) -> None:
    """Where other layers draw the most, its floor is a number of examples. Four with a hundred requests are too few."""
    requirement = Requirement("CHAT-1", "title", (), (Requests.HITS,))
    layers = (Layer(name="exact", engine="vllm-inproc"), Layer(name=SERVER_LAYER, engine="vllm"))
    given = Options(engine="vllm", report_dir=tmp_path, joined=layers)
    plan = RunPlan(expected=[("default", requirement)])
    log = EventLog(tmp_path / "events.ndjson")
    runner = TrialRunner(
        given, log, plan, case=None, waivers=cast(Any, None), save_case=cast(Any, None), time=cast(Any, None)
    )
    made = trial(used=0, examples=MIN_SERVER_EXAMPLES - 1, evidence=SHOWN)
    made.requirement, made.requests = requirement, 10 * MIN_REQUESTS
    runner.set_least(made)
    budget = Budget(1000, 10, lambda: 2000.0)
    made.started -= 1.1 * budget.begin(1)
    assert not budget.is_spent(made)
    made.examples += 1
    assert budget.is_spent(made)


def test_behind_a_counterexample_a_trial_gets_its_share_and_no_patience() -> None:
    """Its verdict depends on its evidence no more."""
    budget = Budget(100, 4)
    budget.begin(1)
    failed = trial(used=26)
    assert not budget.is_spent(failed)
    failed.repeated = 1
    assert budget.is_spent(failed)
    failed.proving = 2.0  # which is no time for drawing
    assert not budget.is_spent(failed)


@pytest.mark.parametrize(("cell", "spent"), [("default", False), ("tight", True)])
def test_evidence_that_another_trial_of_the_cell_has_is_waited_for(cell: str, spent: bool) -> None:
    """It takes luck, and a busy machine has less of it. What no trial of the cell has may never come."""
    budget = Budget(100, 4, lambda: 500.0)
    budget.begin(1)
    other = trial(used=1, evidence=SHOWN)
    other.cell = cell
    budget.note_evidence(other)
    assert budget.is_spent(trial(used=budget.longest + 1)) is spent
    assert budget.is_spent(trial(used=budget.patience + 1))
    assert budget.is_spent(trial(used=budget.longest + 1, examples=PATIENT_EXAMPLES))


def test_a_trial_whose_evidence_no_workload_can_show_draws_a_few_examples() -> None:
    """A pool of a million tokens is filled by none. The trial may still find a counterexample."""
    budget = Budget(100, 4, lambda: 500.0)
    budget.begin(1)
    few = trial(used=1, examples=FEW - 1)
    few.out_of_reach = True
    assert not budget.is_spent(few)
    few.examples += 1
    assert budget.is_spent(few)
    few.evidence.update(SHOWN)
    assert not budget.is_spent(few)


def test_examples_that_repeat_a_failure_are_not_drawn_ones() -> None:
    """Otherwise minimising would end the trial."""
    budget = Budget(100, 4)
    budget.begin(1)
    failed = trial(used=1, examples=50, evidence=SHOWN)
    failed.enough = 40
    assert budget.is_spent(failed)
    failed.minimising_examples = 30
    assert not budget.is_spent(failed)


def strict_clock(seconds: float) -> tuple[Clock, RunClock]:
    """Return a clock that is set by hand, and that of a run with a budget of the user's."""
    clock = Clock()
    return clock, RunClock(seconds, strict=True, clock=clock)


def test_a_users_budget_holds_all_that_a_run_does() -> None:
    """Time that went elsewhere is no time for drawing. What was found in the end still has time for a proof."""
    clock, run = strict_clock(60.0)
    budget = Budget(60.0, 2.0, run.left_for_drawing, of_budget=run.left_of_budget, grace=0.0)
    clock.now += 20.0  # a calibration
    assert budget.begin(1) == pytest.approx(20.0)
    clock.now += 49.0
    assert budget.remaining() == 0
    assert [run.left_for_drawing(), run.left()] == pytest.approx([1.0, 11.0])
    assert not budget.is_spent(trial(used=0, examples=0))
    clock.now += 2.0
    assert budget.is_spent(trial(used=0, examples=0))


def test_proofs_have_a_part_of_a_users_budget() -> None:
    """A block within another one counts once, and none begins when the time is used up."""
    clock, run = strict_clock(60.0)
    proofs = ProofTime(lambda: run)
    assert proofs.left() == pytest.approx(40.0)
    assert proofs.expected(2) == pytest.approx(2 * USUAL_PROOF)
    proofs.opening = lambda: 2.5  # a proof starts engines: where they start slowly, it takes longer
    assert proofs.expected(2) == pytest.approx(2 * 2.5 * OPENINGS_OF_A_PROOF)
    proofs.opening = lambda: 0.2
    with proofs.taken(), proofs.taken():
        clock.now += 20.0
    assert not proofs.is_short()
    with proofs.taken(), proofs.taken(proofs=0):
        clock.now += 1.0
    with proofs.taken(proofs=0):
        clock.now += 2.0
    assert proofs.is_short()
    assert not proofs.is_over()
    each = (23.0 + USUAL_PROOFS * USUAL_PROOF) / (2 + USUAL_PROOFS)
    assert [proofs.left(), proofs.expected(1), proofs.expected(5)] == pytest.approx([17.0, each, 17.0])
    with proofs.taken():
        clock.now += 17.0
    assert proofs.is_over()


def test_a_run_of_proofs_alone_spends_its_whole_budget_on_them() -> None:
    """`coldproof prove REPORT --budget 60s` draws nothing, and keeps the budget as every run does."""
    clock, run = strict_clock(60.0)
    proofs = ProofTime(lambda: run, alone=True)
    assert proofs.left() == pytest.approx(60.0)
    with proofs.taken():
        clock.now += 31.0
    assert proofs.is_short()
    assert proofs.left() == pytest.approx(29.0)
    clock.now += 45.0  # not for proofs
    assert proofs.left() == pytest.approx(run.left()) == pytest.approx(4.0)
    with proofs.taken():
        clock.now += 4.0
    assert proofs.is_over()


def test_without_a_budget_each_counterexample_is_proved_and_its_cause_looked_for() -> None:
    """A profile's budget is an estimate. What looks like a known cause and was not tried would count as violated."""
    clock = Clock()
    run = RunClock(60.0, strict=False, clock=clock)
    proofs = ProofTime(lambda: run)
    clock.now += 1000.0
    assert run.left() == 0
    assert proofs.left() == LEAST_PROOFS
    assert proofs.until_cut() == LEAST_PROOFS + CUT_SECONDS
    with proofs.taken():
        clock.now += LEAST_PROOFS + 1
    assert proofs.left() == 0
    assert not proofs.is_over()
    assert run.left_of_budget() == float("inf")


@pytest.mark.parametrize(
    ("examples", "evidence", "spent"), [(FEW - 1, SHOWN, False), (FEW, SHOWN, True), (FEW, {}, False)]
)
def test_a_trial_that_returns_ends_with_its_floor(examples: int, evidence: dict[str, float], *, spent: bool) -> None:
    """The others have their turn before it draws many."""
    budget = Budget(1000, 10)
    budget.begin(1)
    made = trial(used=1, examples=examples, evidence=evidence)
    made.returns, made.enough = True, 60
    assert budget.is_spent(made) is spent
    made.least_examples, made.least_requests = FEW + 1, 100
    assert not budget.is_spent(made)


@pytest.mark.parametrize(
    ("examples", "used", "spent"), [(FEW, 101, True), (FEW, 99, False), (FEW - 1, 101, False), (9, 101, True)]
)
def test_on_a_server_a_first_visit_ends_with_its_share(examples: int, used: float, *, spent: bool) -> None:
    """All have a few examples before one of them takes minutes to its floor."""
    budget = Budget(1000, 10)
    budget.begin(1)
    made = trial(used=used, examples=examples)
    made.returns = made.is_brief = True
    made.least_examples, made.least_requests, made.enough = 30, 100, 60
    assert budget.is_spent(made) is spent


@pytest.mark.parametrize("brief", [True, False])
@pytest.mark.parametrize("settled", [10, 300])
def test_a_second_visit_leads_to_the_floor(settled: float, *, brief: bool) -> None:
    """It has the time that the run has, also where the first visits have taken all that a profile draws. With its floor
    it has no more than its part of what is left.
    """
    budget = Budget(100, 2, lambda: 70.0)
    made = trial(used=10, examples=10, evidence=SHOWN)
    made.returns, made.is_brief = True, brief
    made.least_examples, made.least_requests, made.enough = 30, 100, 60
    budget.begin(1)
    budget.settle(settled)
    budget.put_off(made)
    made.returns = False
    more = budget.resume_later(made)
    made.started -= more + 5
    assert not budget.is_spent(made)
    made.examples = 30
    assert budget.is_spent(made)
    made.examples, made.started = 29, made.started - 70
    assert budget.is_spent(made)


def test_a_trial_that_returned_gets_its_part_of_what_is_left() -> None:
    """What those have needed that came first, and what proofs have taken, is not left."""
    budget = Budget(100, 2)
    made = [trial(used=10, examples=10, evidence=SHOWN) for _ in range(2)]
    for one in made:
        one.enough = 60
        budget.begin(1)
        budget.settle(10)
        budget.put_off(one)
    assert budget.expected() == pytest.approx(80, abs=1)
    assert budget.resume_later(made[0]) == pytest.approx(40)
    assert not budget.is_spent(made[0])
    budget.settle(20)
    assert budget.resume_later(made[1]) == pytest.approx(60)
    made[1].started -= 61
    assert budget.is_spent(made[1])
