"""The order in which the tests of a cell run: what most users would lose comes first.

A run that ends before its last test has then tested the plainest reuse, and that salts and adapters keep users apart.
"""

from __future__ import annotations

from coldproof.harness.judgement.requirement import Requirement

# Areas by their names in requirement ids. The same prompt again costs little and is what every user relies on; then
# who may read whose blocks, the next turn of a chat, a full pool and preempted requests. The others follow.
FIRST_AREAS = ("REUSE", "SALT", "LORA", "CHAT", "PRESS", "PREEMPT")


def place_in_cell(requirement: Requirement, *, attached: bool = False) -> int:
    """Return the place of a requirement in its cell, for sorting.

    What is tested without a cache comes before all others: they go on without the mixtures of models that it forbids,
    and an engine that ends at plain requests ends there. On an `attached` server, which may be slow, the plainest reuse
    comes before it.
    """
    if requirement.without_cache:
        return 0
    area = requirement.id.rsplit("-", 1)[0]
    place = FIRST_AREAS.index(area) if area in FIRST_AREAS else len(FIRST_AREAS)
    return -1 if attached and place == 0 else 1 + place
