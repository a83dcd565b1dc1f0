"""The writer of wrong KV is found from the digests that name it."""

from __future__ import annotations

import pytest
from support.case_samples import SLOTS
from support.histories import history, outcome, shape

from coldproof.adapters.protocol.provenance import Writer, WrongRead
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.history.provenance import follows_another_prompt

LEFT, RIGHT = (*range(100, 130), 1, 1), (*range(100, 130), 2, 2)  # they differ from position 30 on
GROUPS = (GroupShape(8), GroupShape(8))


@pytest.mark.parametrize(
    ("first", "writer", "position", "about", "true"),
    [
        (30, "n.0.", 30, 1, True),
        (30, "n.0.", 30, 0, False),  # another request read it
        (30, "n.0.", 30, None, False),
        (30, "n.0.", 29, 1, False),  # KV of another position
        (29, "n.0.", 29, 1, False),  # the prompts agree there
        (31, "n.0.", 31, 1, False),  # they differ before it
        (24, "n.0.", 24, 1, False),  # a block from its start
        (30, "n.1.", 30, 1, False),  # its own
        (30, "m.0.", 30, 1, False),  # of another run
        (30, "", 30, 1, False),  # of an unknown writer
    ],
)
def test_a_hit_on_a_block_of_other_tokens_is_recognised(
    first: int, writer: str, position: int, about: int | None, true: bool
) -> None:
    """The hit is right up to the first token that differs, and has the KV of the other request from there on."""
    who = Writer(request=writer, position=position, adapter=None, content=None) if writer else None
    read = WrongRead(**{**SLOTS, "request": "n.1."}, column=3, block=9, first=first, last=31, writer=who)
    seen = history(outcome(0, LEFT), outcome(1, RIGHT), wrong_reads=(read,), shape=shape(groups=GROUPS))
    assert follows_another_prompt(seen, about) is true
