"""All checkers, from the folder `checkers` and from features, and what they look for."""

from __future__ import annotations

from coldproof.harness.judgement.checks import CHECKERS
from coldproof.harness.judgement.requirement import Requirement

CHECKS = CHECKERS.load()
TOKENS = "tokens"  # the checker of answers
BOUNDS = "bounds"  # the checker of cached-token counts
IMPLEMENTATIONS = "implementations"  # the checker of what two implementations of one part do
HASHES = "hashes"  # the checker that only requirements with `hashes_too` have
OF_ANSWERS = frozenset(one.name for one in CHECKS if one.of_answers)
LASTING = frozenset(one.name for one in CHECKS if one.lasting)
WITHOUT_CACHE = frozenset(one.name for one in CHECKS if one.without_cache)
NOT_OVERLAPPED = "Wrong answers of requests that overlap an adapter change are left to another requirement."
NOT_OF_SHARED_ENGINES = "Fewer on a server that other clients may use are left to requirements that expect hits."


def criteria() -> dict[str, str]:
    """Return what each name of a checker stands for. The gravest is the first: findings are ranked in this order."""
    names = dict.fromkeys(one.name for one in sorted(CHECKS, key=lambda one: one.gravity))
    return {name: " ".join(one.fails for one in CHECKS if one.name == name and one.fails) for name in names}


CRITERIA = criteria()


def failing_checks(requirement: Requirement) -> list[str]:
    """Return what violates a requirement: one text for each checker, in the order in which findings are ranked."""
    words = dict(CRITERIA)
    if not requirement.overlapped_too:
        words[TOKENS] += f" {NOT_OVERLAPPED}"
    if not requirement.expects_hits:
        words[BOUNDS] += f" {NOT_OF_SHARED_ENGINES}"
    if not requirement.hashes_too:
        del words[HASHES]
    return list(words.values())
