"""The consumer of KV events interprets a stream of events, and detects each contradiction in one."""

from __future__ import annotations

import pytest
from support.event_streams import CLEARED, PROMPT, batches, hashes, removed, stored

from coldproof.adapters.protocol.kv_events import EventBatch, KvEvent, Stored
from coldproof.harness.history.kv_event_replay import EventCache
from coldproof.harness.history.kv_events import Keys, ResidentBlock, blocks_of

FIRST, SECOND = hashes(PROMPT)
OTHER = (*PROMPT[:16], *range(300, 316))


def after(*events: KvEvent, **how: object) -> EventCache:
    """Return the cache state after these events, one batch each."""
    cache = EventCache(**how)  # type: ignore[arg-type]
    for batch in batches(*((float(i), (event,)) for i, event in enumerate(events))):
        cache.take(batch)
    return cache


def rules(cache: EventCache) -> list[str]:
    """Return the rules that were broken."""
    return [fault.rule for fault in cache.faults]


def placeholder(*names: str) -> Stored:
    """Return an event of a tier without a description of the blocks."""
    return Stored(hashes=names, parent=None, tokens=(), block_size=0, medium="CPU", group=0)


def resident(cache: EventCache) -> dict[str, int]:
    """Return the number of copies of each hash that can be hit."""
    return {name: count for (_, _, name), count in cache.copies.items() if count}


class TestCorrectStream:
    """A correct stream gives no contradictions, and the right blocks at each time."""

    def test_blocks_come_and_go(self) -> None:
        """Copies are counted: two concurrent requests that computed the same block have two copies."""
        cache = after(stored(), stored(), removed(SECOND), stored(OTHER, 1), removed(SECOND), removed(FIRST))
        assert rules(cache) == []
        assert resident(cache) == {FIRST: 1, hashes(OTHER)[1]: 1}
        assert (cache.stored, cache.removed, cache.in_pool, cache.most_in_pool) == (5, 3, 2, 4)

    def test_times(self) -> None:
        """A block can be hit from the event that stores it until the event that removes it."""
        cache = after(stored(), removed(SECOND), stored(PROMPT, 1))
        place = (0, SECOND)
        assert [cache.count_at(at) for at in (-1.0, 0.0, 0.5, 2.0, 9.0)] == [0, 1, 1, 3, 3]
        assert cache.could_always_be_hit((0, FIRST), 1, 3)
        assert not cache.could_always_be_hit((0, FIRST), 0, 3)
        assert cache.could_always_be_hit(place, 1, 1)
        assert not cache.could_always_be_hit(place, 1, 3)
        assert not cache.could_be_hit(place, 0, 0)
        assert not cache.could_be_hit(place, 2, 2)
        assert cache.could_be_hit(place, 2, 3)

    def test_clearing_leaves_nothing(self) -> None:
        """A block that is stored after a clear is a new one."""
        cache = after(stored(), stored(), CLEARED, stored())
        assert rules(cache) == []
        assert resident(cache) == {FIRST: 1, SECOND: 1}
        assert not cache.could_always_be_hit((0, FIRST), 1, 4)

    def test_copies_in_a_second_tier(self) -> None:
        """Copies in a second tier are not in the pool, and may be lost without an event, so a miss proves nothing."""
        cache = after(stored(), stored(medium="CPU"), removed(FIRST, SECOND))
        assert rules(cache) == []
        assert (cache.in_pool, cache.most_in_pool) == (0, 2)
        assert cache.could_be_hit((0, FIRST), 3, 3)
        assert not cache.could_always_be_hit((0, FIRST), 2, 3)

    def test_a_tier_may_leave_out_what_the_pool_has_described(self) -> None:
        """The OffloadingConnector of vLLM always leaves out the extra keys, and the tokens unless a user requests
        them.
        """
        full = stored(salt="red")
        named, bare = stored(medium="CPU", hashes=full.hashes), placeholder(*full.hashes)
        for described in (named, bare):
            cache = after(full, described, removed(*full.hashes), removed(*full.hashes, medium="CPU"))
            assert rules(cache) == []
            assert [block.extra_keys for block in cache.blocks.values()] == [("red",), ()]

    def test_a_block_in_a_tier_only_is_described_by_the_pool_later(self) -> None:
        """This happens after a load, or if the event of the tier came after the eviction."""
        full = stored(salt="red")
        cache = after(placeholder(*full.hashes), full, removed(*full.hashes, medium="CPU"))
        assert rules(cache) == []
        assert cache.blocks[0, full.hashes[0]].extra_keys == ("red",)
        assert cache.untold == set()

    def test_a_tier_may_keep_a_block_without_the_one_before_it(self) -> None:
        """A tier evicts in its own order, and clearing the pool does not clear the tier."""
        cache = after(stored(), CLEARED, stored(PROMPT, 1, medium="CPU"), CLEARED)
        assert rules(cache) == []
        assert resident(cache) == {SECOND: 1}

    def test_blocks_from_before_the_stream(self) -> None:
        """Blocks from before the stream may be removed, may be parents, and are counted."""
        (held,) = (ResidentBlock(block, (("GPU", 1),)) for block in blocks_of(stored(PROMPT[:16])))
        cache = after(stored(PROMPT, 1), removed(SECOND), removed(FIRST), before=[held], in_pool=7)
        assert rules(cache) == []
        assert (cache.in_pool, cache.most_in_pool) == (6, 8)

    def test_layers_that_free_their_blocks(self) -> None:
        """In such layers a parent may have been removed, or may have been stored for other layers only."""
        gone = after(stored(kind="sliding_window"), removed(FIRST, SECOND), stored(PROMPT, 1, kind="sliding_window"))
        other = after(stored(), stored(PROMPT, 1, kind="sliding_window", group=1))
        alone = after(stored(PROMPT, 1, kind="sliding_window"))  # a window that never kept its first block
        assert rules(gone) == rules(other) == rules(alone) == []

    def test_a_batch_may_store_a_parent_for_other_layers_behind_its_child(self) -> None:
        """An engine publishes the events of a step group by group, and the first group may be a window."""
        cache = after(stored(salt="red"))
        cache.take(EventBatch(1, 1.0, (stored(PROMPT, 1, kind="sliding_window", group=1), stored(PROMPT[:16]))))
        assert rules(cache) == []

    def test_chains(self) -> None:
        """A prompt finds its blocks by tokens and keys, as far as they are known, and finds no others."""
        cache = after(stored(), stored(OTHER, 1), stored(salt="red"), stored(lora="tenant", salt="red"))

        def found(prompt: tuple[int, ...], lora: str | None = None, salt: str | None = None) -> list[list[str]]:
            return [[block.hash for block in blocks] for _, blocks in cache.spans_of(0, prompt, Keys(lora, salt))]

        assert found(PROMPT) == [[FIRST], [SECOND]]
        assert found(OTHER) == [[FIRST], [hashes(OTHER)[1]]]
        assert found(PROMPT[:31]) == [[FIRST]]
        assert found(PROMPT, salt="red") == [[name] for name in hashes(PROMPT, salt="red")]
        assert found(PROMPT, "tenant", "red") == [[name] for name in hashes(PROMPT, "tenant", "red")]
        assert found(PROMPT, "tenant") == found(PROMPT, salt="Red") == []

    def test_parts_of_a_block_stand_beside_it(self) -> None:
        """Where hits may end inside a block, its parts can be hit, and those of the block behind it (vllm#45702)."""
        parts = {"block_size": 4, "medium": "GPU", "group": 0, "kind": "full_attention"}
        first = Stored(hashes=("4", "8", "c"), parent=None, tokens=PROMPT[:12], **parts)
        second = Stored(hashes=("14",), parent=FIRST, tokens=PROMPT[16:20], **parts)
        cache = after(first, stored(), second)
        assert rules(cache) == []
        spans = cache.spans_of(0, PROMPT, Keys(None, None))
        assert sorted((begin, *(block.hash for block in blocks)) for begin, blocks in spans) == [
            (0, "4"),
            (0, FIRST),
            (4, "8"),
            (8, "c"),
            (16, "14"),
            (16, SECOND),
        ]

    def test_the_consumer_can_forget_blocks(self) -> None:
        """The consumer forgets blocks that can no longer be hit, if the layers keep all their blocks. It always
        forgets times and faults.
        """
        kept = after(stored(), stored(medium="CPU"), removed(SECOND, FIRST), forgets=True)
        assert set(kept.blocks) == {(0, FIRST), (0, SECOND)}  # the tier has them
        cache = after(stored(), removed(SECOND), removed(SECOND), forgets=True)
        assert list(cache.blocks) == [(0, FIRST)]
        assert cache.children[0, FIRST] == cache.faults == cache.marks == []
        assert cache.spans == {}


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((stored(PROMPT, 1),), "parent"),
        ((stored(), removed(SECOND), removed(FIRST), stored(OTHER, 1)), "parent"),
        ((stored(), CLEARED, stored(OTHER, 1)), "parent"),
        ((stored(parent="beef"),), "parent"),
        ((stored(salt="red"), stored(PROMPT, 1, kind="sliding_window", group=1)), "parent"),
        ((removed(FIRST),), "removed"),
        ((stored(PROMPT[:16]), removed(FIRST), removed(FIRST)), "removed"),
        ((stored(), removed(FIRST)), "evicted"),
        ((stored(), CLEARED, removed(FIRST)), "removed"),
        ((stored(), removed(FIRST, group=1)), "removed"),
        ((stored(), removed(FIRST, medium="CPU")), "removed"),
        ((stored(PROMPT[:16]), stored(PROMPT[:16], lora="tenant", hashes=(FIRST,))), "collision"),
        ((stored(PROMPT[:16]), stored(OTHER[16:], hashes=(FIRST,))), "collision"),
        ((stored(), stored(OTHER, medium="CPU", hashes=(FIRST, SECOND))), "collision"),
        ((stored(), stored(medium="CPU", hashes=(FIRST,))), "shape"),
        ((stored(hashes=(FIRST,)),), "shape"),
        ((stored(hashes=()),), "empty"),
    ],
)
def test_a_contradiction_is_detected(events: tuple[KvEvent, ...], rule: str) -> None:
    """Each stream breaks its own rule and no other."""
    assert set(rules(after(*events))) == {rule}


def test_a_gap_is_detected() -> None:
    """A batch may be missing, may come twice, or may be missing at the start."""
    first, second, third = batches((0.0, (stored(),)), (1.0, ()), (2.0, ()))
    for order, said in (
        ((first, third), "batch 2 arrived instead of batch 1"),
        ((first, first), "batch 0 arrived instead of batch 1"),
        ((second,), "batch 1 arrived instead of batch 0"),
    ):
        cache = EventCache()
        for batch in order:
            cache.take(batch)
        assert [fault.sentence for fault in cache.faults if fault.rule == "gap"] == [said]


def test_hashes_in_a_cycle_give_no_blocks() -> None:
    """The consumer does not loop forever on events that describe a cycle."""
    cache = after(stored(PROMPT[:16], parent=FIRST))
    assert cache.blocks_up_to(0, FIRST) is None


def test_blocks_without_tokens_of_their_own_are_known_by_hash() -> None:
    """If the tokens of an event cover more than its blocks, nobody knows which tokens a block has. It can still be
    removed.
    """
    cache = after(stored(hashes=(FIRST,)), removed(FIRST))
    assert rules(cache) == ["shape"]
    assert list(cache.spans_of(0, PROMPT, Keys(None, None))) == []
