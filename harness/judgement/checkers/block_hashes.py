"""Checks that a block's hash follows from the fields of its own event, so that a subscriber can look up a prompt."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.harness.history.kv_events import Block
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.kv_events.expected_hits import View, view
from coldproof.harness.judgement.kv_events.hash_rule import Hasher, block_hash, hasher, tagged
from coldproof.reports.schema.verdict import FailureClass


class Computed(msgspec.Struct, frozen=True):
    """A published block and the hash that we computed for it."""

    block: Block
    hash: str

    @property
    def agrees(self) -> bool:
        """Return whether the hashes are equal. The published one may be cut to its last digits."""
        return self.hash.endswith(self.block.hash)


def check_hashes(history: History) -> list[Finding]:
    """Return a finding for the first block whose published hash does not follow from its fields.

    Return none if the hash rule is unknown.
    """
    wrong = next((one for one in computed(history) if not one.agrees), None)
    if wrong is None:
        return []
    block = wrong.block
    return [
        Finding(
            checker="hashes",
            failure_class=FailureClass.API,
            sentence=f"KV events: block {block.hash} was stored with {block}; by the engine's own rule, the hash of "
            f"these fields is {wrong.hash[-len(block.hash) :]}.",
        )
    ]


def computed(history: History) -> list[Computed]:
    """Return every block whose hash can be computed, in the order of the events."""
    seen = view(history)
    if seen is None or seen.events.rule is None or not history.shape.uniform:
        return []
    algorithm = hasher(seen.events.rule)
    return [] if algorithm is None else list(compute(seen, algorithm, algorithm(seen.events.rule.seed)))


def compute(seen: View, algorithm: Hasher, root: bytes) -> Iterator[Computed]:
    """Compute the hash of each block from its parent's hash.

    After a wrong hash, go on from the published one, because a wrong hash would make all later ones wrong as well. If
    the published one is also cut short, the chain ends there.
    """
    whole: dict[str | None, bytes] = {None: root}
    old = {old_block.block.place for old_block in seen.events.before}
    for block in seen.cache.blocks.values():
        if not block.tokens or block.parent not in whole:
            continue
        made = block_hash(algorithm, whole[block.parent], block.tokens, tagged(block.lora_name, block.extra_keys))
        one = Computed(block, made.hex())
        if one.agrees:
            whole[block.hash] = made
        elif len(block.hash) == len(one.hash):
            whole[block.hash] = bytes.fromhex(block.hash)
        if block.place not in old:  # an old block was checked with the run that stored it
            yield one
