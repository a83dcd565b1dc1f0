"""The order in which the tests of a cell run: what most users would lose comes first.

A run that ends before its last test has then tested the plainest reuse, and that salts and adapters keep users apart.
"""

from __future__ import annotations

from coldproof.harness.judgement.requirement import Requirement

# Areas by their names in requirement ids. The same prompt again costs little and is what every user relies on; then
# who may read whose blocks, the next turn of a chat, a full pool and preempted requests. The others follow.
FIRST_AREAS = ("REUSE", "SALT", "LORA", "CHAT", "PRESS", "PREEMPT")


def place_in_cell(requirement: Requirement) -> tuple[int, int]:
    """Return the place of a requirement in its cell, for sorting.

    Behind the plainest reuse comes what is tested without a cache: the others go on without the mixtures of models that
    it forbids.
    """
    area = requirement.id.rsplit("-", 1)[0]
    place = FIRST_AREAS.index(area) if area in FIRST_AREAS else len(FIRST_AREAS)
    return (0, 0) if area == FIRST_AREAS[0] else (1, -1) if requirement.without_cache else (1, place)
