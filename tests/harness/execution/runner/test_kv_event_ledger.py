"""Over an engine's life: a run's history holds what it needs of the runs before it, and no more."""

from __future__ import annotations

from support.event_streams import CLEARED, PROMPT, RULE, batches, hashes, history_with_events, removed, stored
from support.histories import outcome

from coldproof.adapters.protocol.kv_events import KvEvent, Published
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger, RunBatches
from coldproof.harness.history.kv_event_replay import request_keys
from coldproof.harness.history.kv_events import RunEvents
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.checkers.kv_events import check_events

FIRST, SECOND = hashes(PROMPT)
ELSE = tuple(range(300, 348))


class Engine:
    """Publishes what it is told to; its clock is at 100 when the first run begins."""

    def __init__(self) -> None:
        self.ledger, self.count = EventLedger(), 0

    def published(self, *events: KvEvent, at: float) -> Published:
        """One batch."""
        (batch,) = batches((at, events), first=self.count)
        self.count += 1
        return Published(batches=(batch,), rule=RULE, slack=0.5)

    def run(self, *events: KvEvent, asked: tuple[Outcome, ...] = ()) -> RunEvents:
        """A run with one batch."""
        published, run = self.published(*events, at=100.25), RunBatches()
        run.add(published, began=100.0)
        return self.ledger.record(published, asked, run)


def known(events: RunEvents) -> list[str]:
    """The blocks that a run is told of."""
    return [held.block.hash for held in events.before]


def test_a_first_run_knows_nothing_and_times_begin_with_it() -> None:
    """What is published with the engine's first batch."""
    events = Engine().run(stored())
    assert (events.batches[0].at, events.expected, events.before, events.in_pool) == (0.25, 0, (), 0)
    assert (events.rule, events.slack) == (RULE, 0.5)


def test_a_later_run_knows_what_its_events_speak_of() -> None:
    """And what is before that; how many blocks there are in all."""
    engine = Engine()
    engine.run(stored(), stored(ELSE))
    events = engine.run(removed(hashes(ELSE)[1]))
    assert known(events) == hashes(ELSE)[:2]
    assert (events.expected, events.in_pool) == (1, 5)
    assert check_events(history_with_events(events, outcome(0, (1, 2, 3)))) == []


def test_a_later_run_knows_what_its_requests_may_hit() -> None:
    """A replay of the same prompts hits what the first run left."""
    engine = Engine()
    engine.run(stored(), stored(ELSE))
    asked = outcome(0, PROMPT, cached_tokens=32)
    events = engine.run(asked=(asked,))
    assert known(events) == [FIRST, SECOND]
    assert check_events(history_with_events(events, asked)) == []


def test_what_is_gone_is_not_known_any_more() -> None:
    """By removal of its last copy, or by a reset."""
    engine = Engine()
    engine.run(stored(), stored(), removed(SECOND), removed(SECOND))
    assert known(engine.run(asked=(outcome(0, PROMPT),))) == [FIRST]
    engine.run(CLEARED)
    events = engine.run(removed(FIRST), asked=(outcome(0, PROMPT),))
    assert (events.before, events.in_pool) == ((), 0)
    assert [found.sentence for found in check_events(history_with_events(events, outcome(0, PROMPT)))] != []


def test_what_is_published_between_runs_counts() -> None:
    """Whoever asked then is none of a later history's business, but the blocks are there."""
    engine = Engine()
    engine.ledger.follow(engine.published(stored(), at=99.0).batches)
    asked = outcome(0, PROMPT, cached_tokens=32)
    events = engine.run(asked=(asked,))
    assert (events.expected, events.in_pool) == (1, 2)
    assert check_events(history_with_events(events, asked)) == []


def test_what_a_requests_blocks_are_keyed_by() -> None:
    """The adapter's name on the wire, never its content; no name for the base model."""
    assert request_keys(outcome(0, PROMPT, adapter="digest-a", salt="red")).at(0) == ("tenant-n", "red")
    assert request_keys(outcome(0, PROMPT, adapter="digest-a", salt="red")).at(1) == ("tenant-n",)
    assert request_keys(outcome(0, PROMPT)).at(0) == ()
