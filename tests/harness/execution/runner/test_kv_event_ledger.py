"""A ledger over an engine's life: the history of a run has what it needs from earlier runs, and no more."""

from __future__ import annotations

from support.event_streams import CLEARED, PROMPT, RULE, batches, hashes, history_with_events, removed, stored
from support.histories import outcome

from coldproof.adapters.protocol.kv_events import KvEvent, Published
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger, RunBatches
from coldproof.harness.features.events.checks import check_events
from coldproof.harness.history.kv_event_replay import request_keys
from coldproof.harness.history.kv_events import RunEvents
from coldproof.harness.history.records import Outcome

FIRST, SECOND = hashes(PROMPT)
ELSE = tuple(range(300, 348))


class Engine:
    """An engine that publishes given events. Its clock is at 100 when the first run begins."""

    def __init__(self) -> None:
        self.ledger, self.count = EventLedger(), 0

    def published(self, *events: KvEvent, at: float) -> Published:
        """Return one published batch."""
        (batch,) = batches((at, events), first=self.count)
        self.count += 1
        return Published(batches=(batch,), rule=RULE, slack=0.5)

    def run(self, *events: KvEvent, sent: tuple[Outcome, ...] = ()) -> RunEvents:
        """Return the events of a run with one batch."""
        published, run = self.published(*events, at=100.25), RunBatches()
        run.add(published, began=100.0)
        return self.ledger.record(published, sent, run)


def known(events: RunEvents) -> list[str]:
    """Return the hashes of the blocks that a run knows from before."""
    return [held.block.hash for held in events.before]


def test_a_first_run_has_no_earlier_blocks() -> None:
    """The times and numbers of the events begin with the run."""
    events = Engine().run(stored())
    assert (events.batches[0].at, events.expected, events.before, events.in_pool) == (0.25, 0, (), 0)
    assert (events.rule, events.slack) == (RULE, 0.5)


def test_a_later_run_knows_the_blocks_of_its_events() -> None:
    """It knows their predecessors too, and the number of all blocks."""
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
    sent = outcome(0, PROMPT, cached_tokens=32)
    events = engine.run(sent=(sent,))
    assert known(events) == [FIRST, SECOND]
    assert check_events(history_with_events(events, sent)) == []


def test_removed_blocks_are_not_known() -> None:
    """The last copy was removed, or the cache was reset."""
    engine = Engine()
    engine.run(stored(), stored(), removed(SECOND), removed(SECOND))
    assert known(engine.run(sent=(outcome(0, PROMPT),))) == [FIRST]
    engine.run(CLEARED)
    events = engine.run(removed(FIRST), sent=(outcome(0, PROMPT),))
    assert (events.before, events.in_pool) == ((), 0)
    assert [found.sentence for found in check_events(history_with_events(events, outcome(0, PROMPT)))] != []


def test_what_is_published_between_runs_counts() -> None:
    """The requests of that time are not part of a later history, but their blocks exist."""
    engine = Engine()
    engine.ledger.follow(engine.published(stored(), at=99.0).batches)
    sent = outcome(0, PROMPT, cached_tokens=32)
    events = engine.run(sent=(sent,))
    assert (events.expected, events.in_pool) == (1, 2)
    assert check_events(history_with_events(events, sent)) == []


def test_what_a_requests_blocks_are_keyed_by() -> None:
    """The key has the adapter's name as sent, never its content, and no name for the base model."""
    assert request_keys(outcome(0, PROMPT, adapter="digest-a", salt="red")).at(0) == ("tenant-n", "red")
    assert request_keys(outcome(0, PROMPT, adapter="digest-a", salt="red")).at(1) == ("tenant-n",)
    assert request_keys(outcome(0, PROMPT)).at(0) == ()
