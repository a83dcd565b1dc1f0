"""For lossy modes, the answers that a mode may have changed are known, the others are judged, and a verdict states
what was not judged.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import find, given, settings
from support.histories import ask, burst, history, outcome, shape, tokens

from coldproof.adapters.protocol.requests import ResponseOptions, Token
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.engines.cell_start import check_mode
from coldproof.harness.features.contexts.evidence import Contexts, context_facts
from coldproof.harness.features.non_prefix.workloads import cut_histories, exceeding_context, rearranged
from coldproof.harness.features.options.checks import check_response_options
from coldproof.harness.history.non_prefix_reuse import may_be_changed, reusable_tokens
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.checkers.tokens import check_tokens
from coldproof.harness.judgement.evidence.lossy import Lossy, lossy_facts
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.finding import EXACT, Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, Answers, Question, comparable_outcomes, question
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import verdict_without_case
from coldproof.harness.options import UsageError
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Workload
from coldproof.harness.workload.validity import is_valid

PIECE = 8
SHAPE = shape(block_size=1, sequences=1, moves_pieces_of=PIECE)
LOSSY = Rule(exact=True, lossy="pieces are moved")
A, B, C = (tuple(range(start, start + 10)) for start in (100, 200, 300))
COLD, OTHERS = (7, 8, 9, 10, 11, 12), (7, 50, 51, 52, 53, 54)
CELL = CELLS["llamacpp-cache-reuse"]
LIMITS = WorkloadLimits(block=1, slots=2, contents=("A", "B"), mixtures=frozenset(), longest=256)


def history_of(*outcomes: Outcome, **changes: Any) -> History:
    """Return a history of an engine that moves pieces."""
    return history(*outcomes, **{"shape": SHAPE, **changes})


def moved(answer: tuple[int, ...], **changes: Any) -> Outcome:
    """Return a request whose prompt leaves out the middle of the earlier prompt, and of which all but the last token
    were cached.
    """
    return outcome(1, A + C, answer, **{"cached_tokens": 19, "sent": 1.0, **changes})


def answers(*outcomes: Outcome, adapters: dict[str | None, tuple[int, ...]] | None = None) -> Answers:
    """Return the cold answers: COLD for the base model, and these answers for other adapters."""
    said = {None: COLD, **(adapters or {})}
    return {
        Question(o.prompt, adapter, o.max_tokens): Answer(tokens(*ids[: o.max_tokens]), finish_reason="length")
        for o in outcomes
        for adapter, ids in said.items()
    }


FIRST = outcome(0, A + B + C, COLD)


def checked(second: Outcome, rule: Rule = LOSSY, *, of: Outcome = FIRST, **known: Any) -> list[Finding]:
    """Return the findings about a request that followed another one."""
    return check_tokens(history_of(of, second), answers(of, second, **known), rule)


@pytest.mark.parametrize(
    ("prompt", "most"),
    [(A + B, 20), (A + C, 20), (C + A, 20), (C[:7], 0), (A + C[:7], 10), (A[:5] + B[2:], 13), ((1, *B, 2, *A), 20)],
)
def test_what_can_be_reused_of_a_sequence(prompt: tuple[int, ...], most: int) -> None:
    """An engine can reuse the beginning of a sequence, and every piece that is long enough, wherever the piece is."""
    assert reusable_tokens(SHAPE, A + B + C, prompt) == most


def test_an_engine_that_moves_nothing_reuses_a_beginning() -> None:
    """Like all other engines, it reuses no piece behind a difference."""
    assert reusable_tokens(shape(), A + B + C, A + C) == 10
    assert may_be_changed(history(FIRST, moved(OTHERS), shape=shape())) == set()


def test_a_moved_piece_may_change_an_answer_and_its_continuations() -> None:
    """An answer that hit nothing is not affected, nor one that shares only tokens before the piece."""
    behind = outcome(2, A + C + (1, 2), COLD, cached_tokens=20)
    aside = outcome(3, (*A, 1, 2), COLD, cached_tokens=10)
    cold = outcome(4, A + C, COLD, cached_tokens=0)
    assert may_be_changed(history_of(FIRST, moved(OTHERS), behind, aside, cold)) == {1, 2}


def test_only_pieces_of_its_own_identity_excuse() -> None:
    """Pieces of another identity must not be moved either."""
    theirs = outcome(0, A + B + C, COLD, adapter="digest-a")
    assert may_be_changed(history_of(theirs, moved(OTHERS))) == set()
    (found,) = checked(moved(OTHERS), of=theirs, adapters={"digest-a": COLD})
    assert not found.permitted


def test_a_difference_that_the_mode_may_make_does_not_count() -> None:
    """The difference is kept apart from the findings, so that it can be reported."""
    (found,) = checked(moved(OTHERS))
    assert found.permitted
    both = history_of(FIRST, moved(OTHERS))
    judgement = judge_again(both, answers(FIRST, moved(OTHERS)), LOSSY, exclusive=True)
    assert (judgement.findings, len(judgement.permitted), judgement.noise) == ((), 1, ())
    assert len(judge_again(both, answers(FIRST, moved(OTHERS)), EXACT, exclusive=True).findings) == 1


def test_what_the_mode_cannot_have_changed_counts() -> None:
    """This includes an answer that was computed completely, and one that continues from a common beginning."""
    for second in (moved(OTHERS, cached_tokens=0), outcome(1, A + B + (1,), OTHERS, cached_tokens=20)):
        (found,) = checked(second)
        assert not found.permitted
        assert found.failure_class is FailureClass.CORRUPT


def test_another_identitys_answer_counts() -> None:
    """No lossy mode gives the complete answer of another identity, if enough of its tokens differ from the right
    cold answer.
    """
    (found,) = checked(moved(OTHERS), adapters={"digest-a": OTHERS})
    assert (found.failure_class, found.permitted) == (FailureClass.STALE_STATE, False)
    short = moved((*COLD[:3], 50))
    (found,) = checked(short, adapters={"digest-a": (*COLD[:3], 50)})
    assert found.permitted


def test_another_requests_answer_counts() -> None:
    """It counts if their prompts have no piece in common; otherwise the mode explains it."""
    strange = outcome(2, range(900, 920), OTHERS)
    both = history_of(FIRST, moved(OTHERS), strange)
    known = {**answers(FIRST, moved(OTHERS)), **{q: Answer(tokens(*OTHERS)) for q in answers(strange)}}
    (found,) = check_tokens(both, known, LOSSY)
    assert (found.failure_class, found.permitted) == (FailureClass.CROSS_REQUEST, False)
    like = outcome(2, (1, *A, *C), OTHERS, cached_tokens=0)
    known = {**answers(FIRST, moved(OTHERS)), **{q: Answer(tokens(*OTHERS)) for q in answers(like)}}
    (found,) = check_tokens(history_of(FIRST, moved(OTHERS), like), known, LOSSY)
    assert found.permitted


def test_scores_of_a_changed_answer_are_not_compared() -> None:
    """The mode may change scores as well, but not the reason why an answer ended."""
    scored = tuple(Token(id=i, at=0.0, logprob=-2.0) for i in COLD)
    second = moved(COLD, tokens=scored, options=ResponseOptions(logprobs=True))
    cold = Answer(tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD), finish_reason="length")
    known = {question(o, o.identities[0]): cold for o in (FIRST, second)}
    assert check_response_options(history_of(FIRST, second), known, EXACT)
    assert check_response_options(history_of(FIRST, second), known, LOSSY) == []
    (found,) = check_response_options(
        history_of(FIRST, msgspec.structs.replace(second, finish_reason="stop")), known, LOSSY
    )
    assert found.failure_class is FailureClass.API


def test_hits_may_go_beyond_a_beginning_as_far_as_pieces_explain() -> None:
    """Hits may not go further than that, and the finding says which request wrote the pieces."""
    assert check_bounds(history_of(FIRST, moved(COLD))) == []
    (beyond,) = check_bounds(history_of(outcome(0, A + B, COLD), moved(COLD)))
    assert beyond.failure_class is FailureClass.ACCOUNTING
    (stale,) = check_bounds(history_of(outcome(0, A + B + C, COLD, adapter="digest-a"), moved(COLD)))
    assert stale.failure_class is FailureClass.STALE_STATE
    assert "request 0 wrote them for adapter A" in stale.sentence
    (exact,) = check_bounds(history(FIRST, moved(COLD), shape=shape(block_size=1)))
    assert "at most 10" in exact.sentence


def test_moved_tokens_are_evidence() -> None:
    """Tokens were moved if hits go beyond every beginning that had been computed."""
    facts = lossy_facts(history_of(FIRST, moved(OTHERS)))
    assert (facts[Lossy.MOVED], facts[Lossy.MAY_BE_CHANGED]) == (9, 1)
    assert lossy_facts(history(FIRST, moved(OTHERS)))[Lossy.MOVED] == 0


def trial(*seen: Outcome) -> Trial:
    """Return a trial with one example in a lossy cell."""
    made = Trial(Requirement(id="REUSE-3", title="t", needs=(), shows=(Requests.REQUESTS,)), "c", "s", "t")
    made.add(judge_again(history_of(*seen), answers(*seen), LOSSY, exclusive=True))
    return made


def test_a_verdict_states_what_was_not_judged() -> None:
    """The verdict also says so if no affected answer was seen."""
    verdict, reason = verdict_without_case(trial(FIRST, moved(OTHERS)), None, LOSSY)
    assert verdict is Verdict.CONFORMS
    assert "lossy mode (pieces are moved): it may have changed 1 of 2 answers" in reason
    assert "(1 differ); for these, only a match" in reason
    assert "0 of 1 answers" in verdict_without_case(trial(FIRST), None, LOSSY)[1]


def test_where_no_answer_could_be_judged_nothing_is_shown() -> None:
    """A requirement without a judged answer must not pass."""
    made = trial(FIRST, moved(OTHERS))
    made.evidence[Lossy.MAY_BE_CHANGED] = int(made.evidence[Requests.REQUESTS])
    verdict, reason = verdict_without_case(made, None, LOSSY)
    assert verdict is Verdict.NOT_EXERCISED
    assert reason.startswith("no answer could be compared with its cold answer: lossy mode")


def test_the_rule_states_that_the_mode_is_lossy() -> None:
    """The report and every case show the rule."""
    assert str(LOSSY) == f"{EXACT}; lossy mode: pieces are moved"


def test_a_mode_that_changes_answers_requires_a_lossy_cell() -> None:
    """It also requires that no other engine is compared."""
    exact, here = Cell(name="exact", about="x"), SHAPE
    with pytest.raises(UsageError, match=r"8-token pieces .* cell 'exact' requires exact answers"):
        check_mode(here, exact, None)
    check_mode(here, CELL, None)
    check_mode(msgspec.structs.replace(here, prefix_caching=False), exact, None)
    for changes in (here, shape(shifts_context=True)):
        with pytest.raises(UsageError, match="compared with another engine's"):
            check_mode(changes, CELL, "vllm")
    check_mode(shape(), exact, "vllm")


def test_lossy_cells_state_what_may_change() -> None:
    """The text reads well after a colon."""
    assert {name for name, cell in CELLS.items() if cell.lossy} == {"llamacpp-cache-reuse"}
    assert CELL.lossy.startswith("KV of 16 or more")


LONG = EngineShape(
    block_size=1, pool_blocks=64, max_model_tokens=64, adapter_slots=None, prefix_caching=True, sequences=1
)
SHIFTS = msgspec.structs.replace(LONG, shifts_context=True)


def test_an_answer_that_outgrew_its_context_is_held_to_one_that_did_likewise() -> None:
    """This holds where the engine continues such an answer. Elsewhere the answer may be cut, and is not compared."""
    long = outcome(0, range(60), tuple(range(100, 120)))
    assert comparable_outcomes(history(long, shape=SHIFTS)) == [long]
    assert comparable_outcomes(history(long, shape=LONG)) == []


def test_a_request_that_outgrew_its_context_requires_no_hits() -> None:
    """The beginning of such a request is cut off, so no hit is required. A request that fits requires hits as usual."""
    again = outcome(1, range(50), cached_tokens=0)
    long = outcome(0, range(50), tuple(range(100, 120)))
    fits = outcome(0, range(50), (1, 2, 3))
    assert bounds(history(long, again, shape=SHIFTS))[1].at_least is None
    assert bounds(history(fits, again, shape=SHIFTS))[1].at_least == 49
    facts = context_facts(history(long, again, shape=SHIFTS))
    assert (facts[Contexts.OUTGROWN], facts[Contexts.AFTER_OUTGROWN]) == (1, 1)
    without = context_facts(history(long, again, shape=LONG))
    assert (without[Contexts.OUTGROWN], without[Contexts.AFTER_OUTGROWN]) == (0, 0)


def test_a_cut_history_counts_if_it_leaves_out_the_beginning() -> None:
    """The request must also have been answered."""
    steps = (burst(ask()), burst(ask(continues=0, cut=(3, None))), burst(ask(continues=0, cut=(0, 9))))
    outcomes = [outcome(0, range(50)), outcome(1, range(3, 50)), outcome(2, range(9))]
    failed = [outcomes[0], msgspec.structs.replace(outcomes[1], error="HTTP 500")]
    counted = [context_facts(history(*o, workload=Workload(steps)))[Contexts.CUT_HISTORY] for o in (outcomes, failed)]
    assert counted == [1, 0]


@settings(max_examples=40, deadline=None, database=None)
@given(rearranged(LIMITS, adapters=True))
def test_workloads_of_pieces_are_valid(workload: Workload) -> None:
    """No request goes to the base model after one with an adapter."""
    assert is_valid(workload)
    outcomes = [step.requests[0].adapter for step in workload.steps if isinstance(step, Burst)]
    first = next((i for i, name in enumerate(outcomes) if name is not None), len(outcomes))
    assert None not in outcomes[first:]


@settings(max_examples=40, deadline=None, database=None)
@given(exceeding_context(LIMITS))
def test_workloads_of_outgrown_contexts_have_one(workload: Workload) -> None:
    """Every prompt fits by itself."""
    assert is_valid(workload)
    lengths = [(sum(s.length for s in r.prompt.segments) + 4, r.max_tokens) for _, _, r in workload.requests()]
    assert all(prompt < LIMITS.longest for prompt, _ in lengths)
    assert any(prompt + more > LIMITS.longest for prompt, more in lengths)


@settings(max_examples=40, deadline=None, database=None)
@given(cut_histories(LIMITS))
def test_a_cut_history_begins_with_less_and_less_of_what_is_left(workload: Workload) -> None:
    """Only the first request exceeds the context. The others begin at its middle, and the first of them keeps all of
    the rest.
    """
    assert is_valid(workload)
    first, *cut, last = (request for _, _, request in workload.requests())
    whole = 4 + first.prompt.segments[0].length + first.max_tokens
    assert LIMITS.longest < whole < LIMITS.longest + LIMITS.longest // 4
    lengths = [len(range(whole)[request.prompt.start : request.prompt.end]) for request in cut]
    assert {request.prompt.start for request in cut} <= {127, 128}
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[0] == whole - cut[0].prompt.start
    assert all(length + 5 + request.max_tokens <= LIMITS.longest for length, request in zip(lengths, cut, strict=True))
    assert last.prompt.continues is None
    assert last.prompt.segments[0].name != first.prompt.segments[0].name


@pytest.mark.parametrize("left", [1, 2, 8, 40])
def test_histories_are_cut_to_each_length(left: int) -> None:
    """The cut is at the place where an engine cuts a full context of 256 tokens."""

    def wanted(workload: Workload) -> bool:
        return any((r.prompt.start, r.prompt.end) == (127, 127 + left) for _, _, r in workload.requests())

    assert find(cut_histories(LIMITS), wanted, settings=settings(database=None, deadline=None))
