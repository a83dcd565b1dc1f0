"""Every broken rule about KV events and requests is detected, and correct streams give no finding."""

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


def sentences(given: RunEvents, *outcomes: Outcome, **changes: Any) -> list[str]:
    """Return the sentences of the findings about a history with these events and requests."""
    return [found.sentence for found in check_events(history_with_events(given, *outcomes, **changes))]


def first(**changes: Any) -> Outcome:
    """Return a cold request for the prompt."""
    return outcome(0, PROMPT, **changes)


def repeated(cached: int, **changes: Any) -> Outcome:
    """Return a second request for the same prompt, which hits this many tokens."""
    return outcome(1, PROMPT, cached_tokens=cached, **changes)


class TestCorrectStreams:
    """Streams that a correct engine publishes."""

    def test_a_hit_of_what_was_stored(self) -> None:
        """The request hits all that is expected and possible."""
        assert sentences(events(*BOTH), first(), repeated(32)) == []

    def test_no_events_at_all(self) -> None:
        """An engine that publishes no events is not judged by them."""
        history = msgspec.structs.replace(history_with_events(events(), first(), repeated(32)), events=None)
        assert check_events(history) == check_hashes(history) == []
        assert not evidence(history, {})[Events.STORED]

    def test_a_block_that_an_answer_filled(self) -> None:
        """Its tokens are those of the prompt and of the answer."""
        answer = tuple(range(200, 209))
        stream = events((0.2, (stored(),)), (0.4, (stored(PROMPT + answer[:8], 2),)))
        assert sentences(stream, first(answer=answer), outcome(1, (*PROMPT, *answer), cached_tokens=48)) == []

    def test_an_evicted_block_is_not_expected(self) -> None:
        """The block is evicted before the request or during it."""
        for at in (0.8, 1.2):
            assert sentences(events(*BOTH, (at, (removed(SECOND),))), first(), repeated(16)) == []

    def test_what_is_stored_beside_a_request_may_be_hit(self) -> None:
        """Another request that was sent at the same time may have computed it first."""
        stream = events((0.1, (stored(),)), (0.2, (stored(),)))
        assert sentences(stream, first(sent=0.0), repeated(32, sent=0.0, finished=0.5)) == []
        assert sentences(stream, first(sent=0.0), repeated(0, sent=0.0, finished=0.5)) == []

    def test_a_request_may_run_on_after_a_client_disconnect(self) -> None:
        """The engine learns of the disconnect later, and the next request may hit what was stored until then."""
        aborted = first(aborted=Stage.PREFILL, answer=(), cached_tokens=None, finished=0.1)
        assert sentences(events((1.1, (stored(),)), (1.2, (stored(),))), aborted, repeated(32)) == []

    def test_inexact_times(self) -> None:
        """Within the slack, a block counts both as stored and as removed."""
        assert sentences(events((1.005, (stored(),)), slack=0.01), first(), repeated(32)) == []
        assert sentences(events(*BOTH, (0.995, (removed(SECOND),)), slack=0.01), first(), repeated(32)) == []

    def test_the_last_block_is_evicted_first(self) -> None:
        """The order within an event does not matter. Tiers and several kinds of layers have their own rules."""
        head_only = events(*BOTH, (0.8, (removed(FIRST),)))
        assert sentences(events(*BOTH, (0.8, (removed(SECOND), removed(FIRST)))), first()) == []
        assert sentences(events(*BOTH, (0.8, (removed(FIRST, SECOND),))), first()) == []
        assert sentences(events(*BOTH, (0.6, (stored(PROMPT[:16]),)), (0.8, (removed(FIRST),))), first()) == []
        for other in ({"second_tier": True}, {"uniform": False}):
            assert sentences(head_only, first(), shape=shape(**other)) == []

    def test_another_blocks_removal_from_an_earlier_run(self) -> None:
        """A block that was there before the run may be removed."""
        (resident,) = (ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(tuple(range(16)))))
        stream = events((0.4, (removed(resident.block.hash), stored())), before=(resident,), in_pool=1)
        assert sentences(stream, first(), repeated(32)) == []

    def test_prompt_logprobs_bypass_the_cache(self) -> None:
        """Such a request computes its prompt, so a miss is correct."""
        assert sentences(events(*BOTH), first(), repeated(0, options=ResponseOptions(prompt_logprobs=True))) == []

    def test_several_answers_hit_one_another(self) -> None:
        """Their count is not that of one lookup."""
        assert sentences(events(*BOTH), first(), repeated(39, options=ResponseOptions(answers=2))) == []

    def test_a_reset_that_is_reported(self) -> None:
        """The next batch reports it."""
        reset = ResetRecord(began=0.6, ended=0.6, success=True)
        stream = events(*BOTH, (1.2, (CLEARED, stored())))
        assert sentences(stream, first(), repeated(0), resets=(reset,)) == []

    @pytest.mark.parametrize("success", [True, False])
    def test_a_reset_without_a_later_request_or_that_failed(self, success: bool) -> None:
        """There was no batch to report it with, or nothing to report."""
        reset = ResetRecord(began=1.6, ended=1.6, success=success)
        assert sentences(events(*BOTH), first(), repeated(32), resets=(reset,)) == []

    def test_salts_and_adapters(self) -> None:
        """Each identity hits its own blocks."""
        for who in ({"salt": "red"}, {"adapter": "digest-a"}, {"adapter": "digest-a", "salt": "red"}):
            lora = "tenant-n" if "adapter" in who else None
            stream = events((0.4, (stored(lora=lora, salt=who.get("salt")),)))
            assert sentences(stream, first(**who), repeated(32, **who)) == []


BROKEN: dict[str, tuple[RunEvents, tuple[Outcome, ...], str]] = {
    "a contradiction": (events((0.4, (removed(FIRST),))), (first(),), "but no copy of it exists"),
    "a gap": (events(*BOTH, expected=3), (first(),), "instead of batch 3"),
    "more than the pool": (events(*BOTH, in_pool=999), (first(),), "1001 blocks can be hit"),
    "tokens of no request": (events((0.4, (stored(tuple(range(16))),))), (first(),), "no request until then"),
    "tokens of no request, later": (
        events((0.4, (stored((*PROMPT[:16], *range(16))),))),
        (first(),),
        "no request until",
    ),
    "tokens of a later request": (events(*BOTH), (first(sent=0.45, cached_tokens=32),), "no request until then"),
    "the last sampled token": (
        events((0.4, (stored((*PROMPT, *range(200, 208))),))),
        (first(answer=tuple(range(200, 208))),),
        "no request until then",
    ),
    "no salt": (events(*BOTH), (first(salt="red"),), "no request until then"),
    "another salt": (events((0.4, (stored(salt="Red"),))), (first(salt="red"),), "no request until then"),
    "a salt of no request": (events((0.4, (stored(salt="red"),))), (first(),), "no request until then"),
    "no adapter": (events(*BOTH), (first(adapter="digest-a"),), "no request until then"),
    "another adapter": (events((0.4, (stored(lora="t"),))), (first(adapter="digest-a"),), "no request until then"),
    "an adapter's extra keys only": (
        events((0.4, (stored(lora="tenant-n", lora_name=None),))),
        (first(adapter="digest-a"),),
        "no request until then",
    ),
    "a hit of what was never stored": (
        events((0.4, (stored(PROMPT[:16]),))),
        (first(), repeated(32)),
        "at most 16 could",
    ),
    "a hit of what was removed": (
        events(*BOTH, (0.8, (removed(SECOND),))),
        (first(), repeated(32)),
        "at most 16 could",
    ),
    "a hit of its own blocks": (events((1.2, (stored(),))), (first(aborted=None), repeated(32)), "at most 0 could"),
    "a hit of another salt's": (
        events((0.4, (stored(salt="red"),)), (1.4, (stored(),))),
        (first(salt="red"), repeated(32)),
        "at most 0 could",
    ),
    "a block before the one that follows it": (
        events(*BOTH, (0.8, (removed(FIRST),))),
        (first(),),
        "is evicted before block",
    ),
    "a miss of what was there": (events(*BOTH), (first(), repeated(16)), "events 32 could be hit"),
    "a miss of all": (events(*BOTH, (1.4, (stored(),))), (first(), repeated(0)), "events 32 could be hit"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_detected(case: str) -> None:
    """There is one finding, and its sentence says what is wrong."""
    stream, outcomes, sentence = BROKEN[case]
    (found,) = sentences(stream, *outcomes)
    assert sentence in found


def test_a_reset_that_no_event_reports() -> None:
    """It reported success, and a request was sent after it."""
    reset = ResetRecord(began=0.6, ended=0.6, success=True)
    stream = events(*BOTH, (0.55, (CLEARED,)), (1.2, (stored(),)))
    (found,) = sentences(stream, first(), repeated(0), resets=(reset,))
    assert "the cache reset at 0.600 s" in found


GAP = Workload((burst(ask()), Reset(), Idle(ANNOUNCED_MS), burst(ask())))


def history_with_gap(
    *contents: tuple[float, tuple[KvEvent, ...]], workload: Workload = GAP, success: bool = True
) -> History:
    """Return a history of a prompt, a reset at 1.0, an idle gap from 2.0 to 2.5, and the prompt again at 3.0."""
    times = {"steps": tuple(record(i) for i in range(len(workload.steps)))}
    reset = ResetRecord(began=1.0, ended=1.1, success=success)
    sent = (first(), outcome(3, PROMPT))
    return msgspec.structs.replace(
        history_with_events(events(*BOTH, *contents), *sent), workload=workload, resets=(reset,), **times
    )


def test_a_reset_is_reported_while_the_engine_is_idle() -> None:
    """It must be reported before the next request, and blocks that are stored after it are not affected."""
    (late,) = check_events(history_with_gap((3.2, (CLEARED, stored()))))
    assert "the cache reset at 1.100 s" in late.sentence
    assert "no event reports it within 1000 ms without another request" in late.sentence
    (remaining,) = check_events(history_with_gap((1.2, (CLEARED, stored())), (3.2, (CLEARED, stored()))))
    assert "2 blocks can still be hit" in remaining.sentence
    assert check_events(history_with_gap((1.2, (CLEARED,)), (3.2, (stored(),)))) == []


@pytest.mark.parametrize(
    ("gap", "success"), [((Idle(ANNOUNCED_MS - 1),), True), ((), True), ((Idle(ANNOUNCED_MS),), False)]
)
def test_an_engine_without_time_to_report_a_reset_is_not_late(gap: tuple[Idle, ...], success: bool) -> None:
    """The gap is short or missing, or the reset failed."""
    workload = Workload((burst(ask()), Reset(), *gap, burst(ask())))
    history = history_with_gap((3.2, (CLEARED, stored())), workload=workload, success=success)
    assert check_events(history) == []
    assert evidence(history, {})[Events.QUIET_RESETS] == 0
    assert evidence(history_with_gap((1.2, (CLEARED,)), (3.2, (stored(),))), {})[Events.QUIET_RESETS] == 1


def restarted(*numbers: int, then: tuple[KvEvent, ...] = (stored(),)) -> RunEvents:
    """Return a batch of an engine and the batches of the engine after a restart.

    `numbers` are the numbers of the later batches, and `then` has the events of the first of them.
    """
    (before, *_), later = events(*BOTH).batches, events((2.0, then), (3.0, ())).batches
    next_ones = (msgspec.structs.replace(b, sequence=n) for b, n in zip(later, numbers, strict=False))
    return msgspec.structs.replace(events(), batches=(before, *next_ones), restarts=(EngineRestart(1, 0.9),))


def test_a_restart_is_visible_in_the_batch_numbers() -> None:
    """The numbers begin again, or a cleared cache is reported first.

    The cache of the engine before the restart is lost in any case.
    """
    for stream in (
        restarted(0, 1),
        restarted(1, then=(CLEARED, stored())),
        restarted(),
    ):
        assert sentences(stream, first(), repeated(0)) == []
    # Before the restart, it can be hit.
    assert sentences(restarted(0), first(), repeated(32, sent=0.6, finished=0.8)) == []
    (lost,) = sentences(restarted(0), first(), repeated(0, sent=0.6, finished=0.8))
    assert "32 could be hit" in lost
    (hit,) = sentences(restarted(), first(), repeated(32))
    assert "at most 0 could be hit" in hit
    for numbers in ((1,), (2, 3)):
        (unseen,) = sentences(restarted(*numbers), first(), repeated(0))
        assert f"its first batch has number {numbers[0]} after number 0 of the engine before" in unseen
    (late,) = sentences(restarted(1, then=(stored(), CLEARED)), first(), repeated(0))
    assert "no subscriber can see the restart" in late


def test_a_restart_counts_if_events_are_on_both_sides() -> None:
    """Without a batch before the restart, a subscriber can have nothing."""
    for stream, count in (
        (restarted(0), 1),
        (restarted(), 0),
        (msgspec.structs.replace(restarted(0), restarts=(EngineRestart(0, 0.0),)), 0),
    ):
        assert evidence(history_with_events(stream, first(), repeated(0)), {})[Events.RESTARTS] == count


def test_hits_after_a_missing_batch_are_not_judged() -> None:
    """The contents of the missing batch are unknown."""
    (found,) = sentences(events(*BOTH, expected=3), first(), repeated(0))
    assert "instead of batch 3" in found


def test_adapter_contents_with_equal_event_fields() -> None:
    """A name that was loaded again has blocks of two contents with equal fields.

    Neither is expected, and each may be hit.
    """
    others = stored(lora="tenant-n", hashes=("0" * 15 + "1", "0" * 15 + "2"))
    stream = events((0.4, (stored(lora="tenant-n"),)), (1.4, (others,)))
    sent = [outcome(i, PROMPT, adapter=content, cached_tokens=hit) for i, content, hit in ((0, "a", 0), (1, "b", 0))]
    for hit in (0, 32):
        assert sentences(stream, *sent, outcome(2, PROMPT, adapter="a", cached_tokens=hit)) == []


def test_blocks_of_which_the_tokens_are_unknown_contradict_nothing() -> None:
    """The event with too many tokens is one finding, whether it comes before or after one of the same block."""
    wrong = stored(tokens=PROMPT)
    wrong = msgspec.structs.replace(wrong, tokens=(*wrong.tokens, *range(900, 900 + len(wrong.tokens))))
    for stream in (events((0.3, (wrong,)), (0.4, (stored(),))), events((0.3, (stored(),)), (0.4, (wrong,)))):
        (sentence,) = sentences(stream, first())
        assert "so that the tokens of each block are unknown" in sentence


class TestHashes:
    """Hashes are computed again from the fields of the events."""

    def sentences(self, *given: Any, rule: Any = RULE, **changes: Any) -> list[str]:
        """Return the sentences of the findings about a stream of these events."""
        stream = events(*((float(i), (event,)) for i, event in enumerate(given)), rule=rule)
        return [finding.sentence for finding in check_hashes(history_with_events(stream, first(), **changes))]

    def test_correct_hashes(self) -> None:
        """The hashes are those of the base model, a salt and an adapter, with all digits or only the last."""
        assert (
            self.sentences(stored(), stored(salt="red"), stored(lora="tenant"), stored(lora="tenant", salt="red")) == []
        )

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
    def test_wrong_hashes(self, wrong: Any) -> None:
        """The hash is another block's, or depends on something that the event leaves out."""
        (sentence,) = self.sentences(wrong)
        assert "by the engine's own rule" in sentence

    def test_hashes_are_checked_only_if_the_rule_is_known(self) -> None:
        """There is no rule, the rule is one of a package, or the blocks of layers differ in size."""
        wrong = stored(PROMPT[1:33], hashes=(FIRST, SECOND))
        assert self.sentences(wrong, rule=None) == []
        assert self.sentences(wrong, rule=msgspec.structs.replace(RULE, algorithm="xxhash")) == []
        assert self.sentences(wrong, shape=shape(uniform=False)) == []
        assert self.sentences(wrong, rule=msgspec.structs.replace(RULE, algorithm="sha256_cbor")) != []

    def test_an_earlier_runs_blocks_were_judged_then(self) -> None:
        """Only the hashes of blocks that continue them are checked."""
        wrong = tuple(
            ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(PROMPT[1:33], hashes=(FIRST, SECOND)))
        )
        assert check_hashes(history_with_events(events(before=wrong), first())) == []


def nonzero_evidence(history: History) -> dict[str, float]:
    """Return the counters of the evidence that are not zero."""
    names = (Events.STORED, Events.REMOVED, Events.CLEARED, Events.EXPLAINED, Events.RESIDENT)
    counters = evidence(history, {})
    return {n: counters[n] for n in (*names, Events.RECOMPUTED, Events.RECOMPUTED_ADAPTER) if counters[n]}


def test_evidence() -> None:
    """It counts events, and hits that events explain."""
    assert nonzero_evidence(history_with_events(events(), first())) == {}
    stream = events(*BOTH, (1.6, (removed(SECOND), CLEARED, stored(lora="tenant-n"))))
    assert nonzero_evidence(history_with_events(stream, first(), repeated(32))) == {
        Events.STORED: 4,
        Events.REMOVED: 1,
        Events.CLEARED: 1,
        Events.EXPLAINED: 1,
        Events.RESIDENT: 1,
        Events.RECOMPUTED: 4,
        Events.RECOMPUTED_ADAPTER: 2,
    }
    assert Events.EXPLAINED not in nonzero_evidence(history_with_events(events(), first(), repeated(32)))


def test_a_history_with_events_survives_json() -> None:
    """A decoded history equals the encoded one."""
    (resident,) = (ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(tuple(range(16)))))
    stream = events(*BOTH, (1.4, (removed(SECOND), CLEARED)), before=(resident,))
    history = history_with_events(stream, first(), repeated(32))
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
