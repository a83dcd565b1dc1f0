"""A block's hash must follow from the fields of its own event, so that whoever has the stream can look a prompt up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.checkers.finding import Finding
from harness.event_blocks import Block
from harness.event_hashes import Hasher, block_hash, hasher, tagged
from harness.event_view import View, view
from harness.history import History
from reports.schema import FailureClass


class Computed(msgspec.Struct, frozen=True):
    """A block whose hash was computed again."""

    block: Block
    hash: str

    @property
    def agrees(self) -> bool:
        """Whether it is the published one, which may be cut to its last digits."""
        return self.hash.endswith(self.block.hash)


def check_hashes(history: History) -> list[Finding]:
    """The first block whose published hash is not what its fields make. Says nothing where the rule is not known.

    One wrong hash makes all behind it wrong as well, so that they are computed from what was published.
    """
    wrong = next((one for one in computed(history) if not one.agrees), None)
    if wrong is None:
        return []
    block = wrong.block
    return [
        Finding(
            checker="hashes",
            failure_class=FailureClass.API,
            sentence=f"KV events: block {block.hash} is stored with {block}; these fields make the hash "
            f"{wrong.hash[-len(block.hash) :]}, by the engine's own rule.",
        )
    ]


def computed(history: History) -> list[Computed]:
    """Every block whose hash can be computed again, in the order of the events."""
    seen = view(history)
    if seen is None or seen.events.rule is None or not history.shape.uniform:
        return []
    algorithm = hasher(seen.events.rule)
    return [] if algorithm is None else list(compute(seen, algorithm, algorithm(seen.events.rule.seed)))


def compute(seen: View, algorithm: Hasher, root: bytes) -> Iterator[Computed]:
    """Block by block. Behind a hash that is cut short and wrong there is no parent to go on from."""
    whole: dict[str | None, bytes] = {None: root}
    old = {held.block.place for held in seen.events.before}
    for block in seen.cache.blocks.values():
        if not block.tokens or block.parent not in whole:
            continue
        made = block_hash(algorithm, whole[block.parent], block.tokens, tagged(block.lora_name, block.extra_keys))
        one = Computed(block, made.hex())
        if one.agrees:
            whole[block.hash] = made
        elif len(block.hash) == len(one.hash):
            whole[block.hash] = bytes.fromhex(block.hash)
        if block.place not in old:  # or it is another history's matter
            yield one
