"""What most users would lose is tested first in each cell."""

from __future__ import annotations

from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.selection.order import place_in_cell


def requirement(name: str) -> Requirement:
    """Return a requirement with this id."""
    return Requirement(id=name, title="", needs=(), shows=())


def test_the_same_prompt_again_comes_before_areas_that_the_alphabet_puts_first() -> None:
    """Areas that are not named keep their order behind the others."""
    names = ["CTRL-1", "EVENT-1", "LORA-2", "PREEMPT-1", "PRESS-1", "CHAT-1", "REUSE-3", "SALT-1"]
    ordered = sorted(names, key=lambda name: place_in_cell(requirement(name)))
    assert ordered == ["REUSE-3", "SALT-1", "LORA-2", "CHAT-1", "PRESS-1", "PREEMPT-1", "CTRL-1", "EVENT-1"]


def test_what_needs_no_cache_comes_before_all_that_mix_models() -> None:
    """They go on without the mixtures that it forbids. On a server, the same prompt again has its turn before."""
    names = ["SALT-1", "GROUND-1", "REUSE-1"]
    ordered = sorted(names, key=lambda name: place_in_cell(requirement(name)))
    assert ordered == ["GROUND-1", "REUSE-1", "SALT-1"]
    ordered = sorted(names, key=lambda name: place_in_cell(requirement(name), attached=True))
    assert ordered == ["REUSE-1", "GROUND-1", "SALT-1"]
