"""Each rule that ties KV events to requests is broken once and noticed, and rightful streams raise no alarm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.event_streams import CLEARED, PROMPT, RULE, events, hashes, history_with_events, removed, stored
from support.evidence import evidence
from support.histories import ask, burst, outcome, record, shape

from coldproof.adapters.protocol.kv_events import KvEvent
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.harness.features.events.checks import check_events
from coldproof.harness.features.events.evidence import Events
from coldproof.harness.features.events.hash_checks import check_hashes
from coldproof.harness.history.kv_events import EngineRestart, ResidentBlock, RunEvents, blocks_of
from coldproof.harness.history.records import History, Outcome, ResetRecord
from coldproof.harness.workload.steps import ANNOUNCED_MS, Idle, Reset, Workload

FIRST, SECOND = hashes(PROMPT)
BOTH = ((0.4, (stored(),)),)


def said(given: RunEvents, *outcomes: Outcome, **changes: Any) -> list[str]:
    """What is wrong with a history of these."""
    return [found.sentence for found in check_events(history_with_events(given, *outcomes, **changes))]


def first(**changes: Any) -> Outcome:
    """A cold request for the prompt."""
    return outcome(0, PROMPT, **changes)


def again(cached: int, **changes: Any) -> Outcome:
    """The same prompt, warm."""
    return outcome(1, PROMPT, cached_tokens=cached, **changes)


class TestNoAlarm:
    """Streams that a right engine publishes."""

    def test_a_hit_of_what_was_stored(self) -> None:
        """All that was owed, and all that could be hit."""
        assert said(events(*BOTH), first(), again(32)) == []

    def test_no_events_at_all(self) -> None:
        """An engine that publishes none is not judged by any."""
        history = msgspec.structs.replace(history_with_events(events(), first(), again(32)), events=None)
        assert check_events(history) == check_hashes(history) == []
        assert not evidence(history, {})[Events.STORED]

    def test_a_block_that_an_answer_filled(self) -> None:
        """Its tokens are the prompt's and the answer's."""
        answer = tuple(range(200, 209))
        stream = events((0.2, (stored(),)), (0.4, (stored(PROMPT + answer[:8], 2),)))
        assert said(stream, first(answer=answer), outcome(1, (*PROMPT, *answer), cached_tokens=48)) == []

    def test_what_was_evicted_meanwhile_is_not_owed(self) -> None:
        """Before the request, and while it ran."""
        for at in (0.8, 1.2):
            assert said(events(*BOTH, (at, (removed(SECOND),))), first(), again(16)) == []

    def test_what_is_stored_beside_a_request_may_be_hit(self) -> None:
        """By a request that was sent at the same time and computed it first."""
        stream = events((0.1, (stored(),)), (0.2, (stored(),)))
        assert said(stream, first(sent=0.0), again(32, sent=0.0, finished=0.5)) == []
        assert said(stream, first(sent=0.0), again(0, sent=0.0, finished=0.5)) == []

    def test_a_request_whose_client_hung_up_may_go_on(self) -> None:
        """The engine hears of it later, and whoever comes next may hit what was stored until then."""
        gone = first(aborted=Stage.PREFILL, answer=(), cached_tokens=None, finished=0.1)
        assert said(events((1.1, (stored(),)), (1.2, (stored(),))), gone, again(32)) == []

    def test_times_that_may_be_off(self) -> None:
        """Within the slack a block counts as stored, and as removed."""
        assert said(events((1.005, (stored(),)), slack=0.01), first(), again(32)) == []
        assert said(events(*BOTH, (0.995, (removed(SECOND),)), slack=0.01), first(), again(32)) == []

    def test_the_last_block_is_evicted_first(self) -> None:
        """The order within an event says nothing. Tiers and several kinds of layers have rules of their own."""
        head_only = events(*BOTH, (0.8, (removed(FIRST),)))
        assert said(events(*BOTH, (0.8, (removed(SECOND), removed(FIRST)))), first()) == []
        assert said(events(*BOTH, (0.8, (removed(FIRST, SECOND),))), first()) == []
        assert said(events(*BOTH, (0.6, (stored(PROMPT[:16]),)), (0.8, (removed(FIRST),))), first()) == []
        for other in ({"second_tier": True}, {"uniform": False}):
            assert said(head_only, first(), shape=shape(**other)) == []

    def test_another_blocks_removal_from_an_earlier_run(self) -> None:
        """What was there before may go."""
        (held,) = (ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(tuple(range(16)))))
        stream = events((0.4, (removed(held.block.hash), stored())), before=(held,), in_pool=1)
        assert said(stream, first(), again(32)) == []

    def test_prompt_logprobs_pass_the_cache_by(self) -> None:
        """A miss is no fault then."""
        assert said(events(*BOTH), first(), again(0, surface=ResponseOptions(prompt_logprobs=True))) == []

    def test_several_answers_hit_one_another(self) -> None:
        """Their count is not of one lookup."""
        assert said(events(*BOTH), first(), again(39, surface=ResponseOptions(answers=2))) == []

    def test_a_reset_that_is_told(self) -> None:
        """With the next batch."""
        reset = ResetRecord(began=0.6, ended=0.6, success=True)
        stream = events(*BOTH, (1.2, (CLEARED, stored())))
        assert said(stream, first(), again(0), resets=(reset,)) == []

    @pytest.mark.parametrize("success", [True, False])
    def test_a_reset_that_nobody_came_after_or_that_failed(self, success: bool) -> None:
        """There was nothing to publish it with, or nothing to publish."""
        reset = ResetRecord(began=1.6, ended=1.6, success=success)
        assert said(events(*BOTH), first(), again(32), resets=(reset,)) == []

    def test_salts_and_adapters(self) -> None:
        """Each hits its own."""
        for who in ({"salt": "red"}, {"adapter": "digest-a"}, {"adapter": "digest-a", "salt": "red"}):
            lora = "tenant-n" if "adapter" in who else None
            stream = events((0.4, (stored(lora=lora, salt=who.get("salt")),)))
            assert said(stream, first(**who), again(32, **who)) == []


BROKEN: dict[str, tuple[RunEvents, tuple[Outcome, ...], str]] = {
    "a contradiction": (events((0.4, (removed(FIRST),))), (first(),), "but no copy of it exists"),
    "a gap": (events(*BOTH, expected=3), (first(),), "instead of batch 3"),
    "more than the pool": (events(*BOTH, in_pool=999), (first(),), "1001 blocks can be hit"),
    "tokens of nobody": (events((0.4, (stored(tuple(range(16))),))), (first(),), "no request until then"),
    "tokens of nobody, later": (events((0.4, (stored((*PROMPT[:16], *range(16))),))), (first(),), "no request until"),
    "tokens of a later request": (events(*BOTH), (first(sent=0.45, cached_tokens=32),), "no request until then"),
    "the last sampled token": (
        events((0.4, (stored((*PROMPT, *range(200, 208))),))),
        (first(answer=tuple(range(200, 208))),),
        "no request until then",
    ),
    "no salt": (events(*BOTH), (first(salt="red"),), "no request until then"),
    "another salt": (events((0.4, (stored(salt="Red"),))), (first(salt="red"),), "no request until then"),
    "a salt of nobody": (events((0.4, (stored(salt="red"),))), (first(),), "no request until then"),
    "no adapter": (events(*BOTH), (first(adapter="digest-a"),), "no request until then"),
    "another adapter": (events((0.4, (stored(lora="t"),))), (first(adapter="digest-a"),), "no request until then"),
    "an adapter's extra keys only": (
        events((0.4, (stored(lora="tenant-n", lora_name=None),))),
        (first(adapter="digest-a"),),
        "no request until then",
    ),
    "a hit of what was never stored": (events((0.4, (stored(PROMPT[:16]),))), (first(), again(32)), "at most 16 could"),
    "a hit of what was removed": (events(*BOTH, (0.8, (removed(SECOND),))), (first(), again(32)), "at most 16 could"),
    "a hit of its own blocks": (events((1.2, (stored(),))), (first(aborted=None), again(32)), "at most 0 could"),
    "a hit of another salt's": (
        events((0.4, (stored(salt="red"),)), (1.4, (stored(),))),
        (first(salt="red"), again(32)),
        "at most 0 could",
    ),
    "a block before the one that follows it": (
        events(*BOTH, (0.8, (removed(FIRST),))),
        (first(),),
        "is evicted before block",
    ),
    "a miss of what was there": (events(*BOTH), (first(), again(16)), "events 32 could be hit"),
    "a miss of all": (events(*BOTH, (1.4, (stored(),))), (first(), again(0)), "events 32 could be hit"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_noticed(case: str) -> None:
    """With one sentence that says what is wrong."""
    stream, outcomes, sentence = BROKEN[case]
    (found,) = said(stream, *outcomes)
    assert sentence in found


def test_a_reset_that_nobody_was_told_of() -> None:
    """It reported success and somebody asked since."""
    reset = ResetRecord(began=0.6, ended=0.6, success=True)
    stream = events(*BOTH, (0.55, (CLEARED,)), (1.2, (stored(),)))
    (found,) = said(stream, first(), again(0), resets=(reset,))
    assert "the cache reset at 0.600 s" in found


GAP = Workload((burst(ask()), Reset(), Idle(ANNOUNCED_MS), burst(ask())))


def quiet(*contents: tuple[float, tuple[KvEvent, ...]], workload: Workload = GAP, success: bool = True) -> History:
    """A prompt, a reset at 1.0, an idle gap from 2.0 to 2.5, and the prompt again at 3.0."""
    times = {"steps": tuple(record(i) for i in range(len(workload.steps)))}
    reset = ResetRecord(began=1.0, ended=1.1, success=success)
    asked = (first(), outcome(3, PROMPT))
    return msgspec.structs.replace(
        history_with_events(events(*BOTH, *contents), *asked), workload=workload, resets=(reset,), **times
    )


def test_a_reset_is_announced_while_the_engine_is_idle() -> None:
    """With the next request's blocks is too late, and so is never; blocks that are stored afterwards were not reset."""
    (late,) = check_events(quiet((3.2, (CLEARED, stored()))))
    assert "the cache reset at 1.100 s" in late.sentence
    assert "no event reports it within 1000 ms without another request" in late.sentence
    (left,) = check_events(quiet((1.2, (CLEARED, stored())), (3.2, (CLEARED, stored()))))
    assert "2 blocks can still be hit" in left.sentence
    assert check_events(quiet((1.2, (CLEARED,)), (3.2, (stored(),)))) == []


@pytest.mark.parametrize(
    ("gap", "success"), [((Idle(ANNOUNCED_MS - 1),), True), ((), True), ((Idle(ANNOUNCED_MS),), False)]
)
def test_who_has_no_time_to_announce_a_reset_is_not_late(gap: tuple[Idle, ...], success: bool) -> None:
    """A short gap, none, or a reset that did not happen."""
    workload = Workload((burst(ask()), Reset(), *gap, burst(ask())))
    history = quiet((3.2, (CLEARED, stored())), workload=workload, success=success)
    assert check_events(history) == []
    assert evidence(history, {})[Events.QUIET_RESETS] == 0
    assert evidence(quiet((1.2, (CLEARED,)), (3.2, (stored(),))), {})[Events.QUIET_RESETS] == 1


def lives(*numbers: int, then: tuple[KvEvent, ...] = (stored(),)) -> RunEvents:
    """A batch of one engine, and those of the next one with these numbers, of which the first has `then`."""
    (before, *_), later = events(*BOTH).batches, events((2.0, then), (3.0, ())).batches
    next_ones = (msgspec.structs.replace(b, sequence=n) for b, n in zip(later, numbers, strict=False))
    return msgspec.structs.replace(events(), batches=(before, *next_ones), restarts=(EngineRestart(1, 0.9),))


def test_a_restart_can_be_seen_by_its_numbers() -> None:
    """They begin anew, or a cleared cache is announced first. The cache of the engine before is gone in any case."""
    for stream in (lives(0, 1), lives(1, then=(CLEARED, stored())), lives()):
        assert said(stream, first(), again(0)) == []
    assert said(lives(0), first(), again(32, sent=0.6, finished=0.8)) == []  # before the restart, it can be hit
    (lost,) = said(lives(0), first(), again(0, sent=0.6, finished=0.8))
    assert "32 could be hit" in lost
    (hit,) = said(lives(), first(), again(32))
    assert "at most 0 could be hit" in hit
    for numbers in ((1,), (2, 3)):
        (unseen,) = said(lives(*numbers), first(), again(0))
        assert f"its first batch has number {numbers[0]} after number 0 of the engine before" in unseen
    (late,) = said(lives(1, then=(stored(), CLEARED)), first(), again(0))
    assert "no subscriber can see the restart" in late


def test_a_restart_counts_if_events_are_on_both_sides() -> None:
    """Without a batch before it, there is nothing that a subscriber could keep."""
    for stream, count in (
        (lives(0), 1),
        (lives(), 0),
        (msgspec.structs.replace(lives(0), restarts=(EngineRestart(0, 0.0),)), 0),
    ):
        assert evidence(history_with_events(stream, first(), again(0)), {})[Events.RESTARTS] == count


def test_behind_a_gap_hits_are_not_judged() -> None:
    """Nobody can tell what was in the batch that is missing."""
    (found,) = said(events(*BOTH, expected=3), first(), again(0))
    assert "instead of batch 3" in found


def test_an_adapter_content_that_events_do_not_tell_apart() -> None:
    """A name that was loaded again has blocks of two contents with equal fields: neither is owed, each may be hit."""
    others = stored(lora="tenant-n", hashes=("0" * 15 + "1", "0" * 15 + "2"))
    stream = events((0.4, (stored(lora="tenant-n"),)), (1.4, (others,)))
    asked = [outcome(i, PROMPT, adapter=content, cached_tokens=hit) for i, content, hit in ((0, "a", 0), (1, "b", 0))]
    for hit in (0, 32):
        assert said(stream, *asked, outcome(2, PROMPT, adapter="a", cached_tokens=hit)) == []


class TestHashes:
    """Computed again from what the events say."""

    def found(self, *given: Any, rule: Any = RULE, **changes: Any) -> list[str]:
        """What is wrong with a stream of these events."""
        stream = events(*((float(i), (event,)) for i, event in enumerate(given)), rule=rule)
        return [finding.sentence for finding in check_hashes(history_with_events(stream, first(), **changes))]

    def test_right_ones(self) -> None:
        """The base model's, a salt's, an adapter's; the last digits, or all."""
        assert self.found(stored(), stored(salt="red"), stored(lora="tenant"), stored(lora="tenant", salt="red")) == []

    @pytest.mark.parametrize(
        "wrong",
        [
            stored(hashes=(FIRST, FIRST[::-1])),
            stored(salt="red", extra_keys=()),
            stored(lora="tenant", lora_name=None),
            stored(lora="tenant", extra_keys=()),
            stored(PROMPT[1:33], hashes=(FIRST, SECOND)),
        ],
    )
    def test_wrong_ones(self, wrong: Any) -> None:
        """Another block's, or one with something in it that the event leaves out."""
        (sentence,) = self.found(wrong)
        assert "by the engine's own rule" in sentence

    def test_only_where_the_rule_is_known(self) -> None:
        """No rule, one of a package, and layers whose blocks differ in size."""
        wrong = stored(PROMPT[1:33], hashes=(FIRST, SECOND))
        assert self.found(wrong, rule=None) == []
        assert self.found(wrong, rule=msgspec.structs.replace(RULE, algorithm="xxhash")) == []
        assert self.found(wrong, shape=shape(uniform=False)) == []
        assert self.found(wrong, rule=msgspec.structs.replace(RULE, algorithm="sha256_cbor")) != []

    def test_an_earlier_runs_blocks_were_judged_then(self) -> None:
        """They are only gone on from."""
        wrong = tuple(
            ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(PROMPT[1:33], hashes=(FIRST, SECOND)))
        )
        assert check_hashes(history_with_events(events(before=wrong), first())) == []


def seen(history: History) -> dict[str, float]:
    """Evidence that is not zero."""
    names = (Events.STORED, Events.REMOVED, Events.CLEARED, Events.EXPLAINED, Events.OWED)
    counters = evidence(history, {})
    return {n: counters[n] for n in (*names, Events.RECOMPUTED, Events.RECOMPUTED_ADAPTER) if counters[n]}


def test_evidence() -> None:
    """Of what was told, and of hits that it explains."""
    assert seen(history_with_events(events(), first())) == {}
    stream = events(*BOTH, (1.6, (removed(SECOND), CLEARED, stored(lora="tenant-n"))))
    assert seen(history_with_events(stream, first(), again(32))) == {
        Events.STORED: 4,
        Events.REMOVED: 1,
        Events.CLEARED: 1,
        Events.EXPLAINED: 1,
        Events.OWED: 1,
        Events.RECOMPUTED: 4,
        Events.RECOMPUTED_ADAPTER: 2,
    }
    assert Events.EXPLAINED not in seen(history_with_events(events(), first(), again(32)))


def test_a_history_with_events_survives_json() -> None:
    """As every history does."""
    (held,) = (ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(tuple(range(16)))))
    stream = events(*BOTH, (1.4, (removed(SECOND), CLEARED)), before=(held,))
    history = history_with_events(stream, first(), again(32))
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
