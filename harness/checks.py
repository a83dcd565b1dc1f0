"""What counts as a failure, in words: what each checker looks for in every example, whatever the example is about.

A requirement is therefore broken by whatever is wrong with its workloads, save what its own fields leave to others.
"""

from __future__ import annotations

from harness.requirement import Requirement

LIVENESS = (
    "A request that gets no answer: nothing moved for as long as a hundred cold answers take, the engine died, an "
    "error came instead, or the answer is empty. An adapter change that fails. A prompt that can never fit and is "
    "answered all the same."
)
TOKENS = "A token that differs from every cold answer that the request may have, under each identity that it may have."
NOT_OVERLAPPED = "Wrong answers of requests that an adapter change overlapped are another requirement's matter."
SURFACE = (
    "Scores, ends, texts or further answers that are missing or incomplete, or differ from the cold ones; an answer to "
    "another prompt than was asked."
)
BOUNDS = (
    "More cached tokens than were ever computed for the request's identity, or fewer than an earlier request left "
    "behind and nothing had to push out of the pool."
)
ACCOUNTING = (
    "Hit counters of the engine that do not grow by what it told request by request, or by more than was looked up."
)
CONCURRENCY = "Identical prompts that wait although their shared blocks leave room to run side by side."
ORDER = "A preempted request while a less urgent one went on running, where requests have priorities."
CONSERVATION = (
    "Anything that runs, waits or holds a block after an idle gap, or a pool that says it holds nothing while requests "
    "run."
)
EVENTS = "KV events, where they are published, that contradict themselves, the requests or the hits."
HASHES = "A block's hash that cannot be computed again from the fields of its own event."

CHECKS = {
    "liveness": LIVENESS,
    "tokens": TOKENS,
    "surface": SURFACE,
    "bounds": BOUNDS,
    "accounting": ACCOUNTING,
    "concurrency": CONCURRENCY,
    "order": ORDER,
    "conservation": CONSERVATION,
    "events": EVENTS,
    "hashes": HASHES,
}


def counted(requirement: Requirement) -> list[str]:
    """What would have broken a requirement, a sentence or two a checker, in the order in which findings are told."""
    words = dict(CHECKS)
    if not requirement.overlapped_too:
        words["tokens"] = f"{TOKENS} {NOT_OVERLAPPED}"
    if not requirement.hashes_too:
        del words["hashes"]
    return list(words.values())
