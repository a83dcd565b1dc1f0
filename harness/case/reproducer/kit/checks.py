"""What a script looks at to say whether the bug is there: one function for each way in which a case can fail."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from coldproof.adapters.spec.script.client import Client, Sent
from coldproof.adapters.spec.script.given import (
    ATTEMPTS,
    COUNTS,
    CRASHES,
    DIES,
    FAILS,
    FAILURE,
    HANGS,
    MIDWAY_ADAPTERS,
    NOISY,
    TOKENS_ONLY,
)
from coldproof.adapters.spec.script.http import CannotSay
from coldproof.harness.case.reproducer.kit.exact import differences
from coldproof.harness.case.reproducer.kit.noisy import noisy_differences
from coldproof.harness.case.reproducer.kit.reply import Reply
from coldproof.harness.case.reproducer.kit.story import Story


def is_wrong(story: Story, number: int) -> bool:
    """Return whether an answer differs from the cold answer, or from all that it may be, if its adapter changed."""
    mine, sent = story.replies[number], story.sent[number]
    if HANGS and mine.failed:  # the server may be stuck, so that nothing has a cold answer
        print(f"request {number} got no answer: {mine.failed}")
        return True
    if CRASHES and story.client.ended():
        print("the engine has ended")
        return True
    if FAILS and not FAILURE:
        if mine.failed and "abort" not in sent:
            raise CannotSay(f"request {number} failed: {mine.failed}")
    if COUNTS:
        print(f"request {number}: {mine.cached} of {len(sent['ids'])} prompt tokens cached")
    if TOKENS_ONLY:
        cold = Reply(story.client.cold(sent))
        print(f"  answer {mine.ids}\n  cold   {cold.ids}")
        return mine.ids != cold.ids
    if MIDWAY_ADAPTERS:
        contents = dict.fromkeys(sent["contents"])
        return all(differs(story, mine, {**sent, "content": content}) for content in contents)
    return differs(story, mine, sent)


def differs(story: Story, mine: Reply, sent: Sent) -> bool:
    """Return whether an answer differs from the cold answer to the same request."""
    cold = Reply(story.client.cold(sent))
    if NOISY:
        found = noisy_differences(mine, cold, sent, story.client.cold)
    else:
        found = differences(mine, cold, sent)
    print(f"  answer {mine.shown()}\n  cold   {cold.shown()}\n  differs in: {', '.join(found) or 'nothing'}")
    return bool(found)


def is_out_of_bounds(story: Story, number: int, at_least: int, at_most: int) -> bool:
    """Return whether a cached-token count is out of its bounds."""
    cached = story.replies[number].cached
    print(f"request {number}: {cached} of {len(story.sent[number]['ids'])} prompt tokens cached")
    print(f"  allowed: {at_least} to {at_most}")
    if cached is None:
        raise CannotSay("the engine reports no count of cached tokens")
    return not at_least <= cached <= at_most


def counted_too_many(story: Story, most: int) -> bool:
    """Return whether the engine has counted more hits than the requests of the scenario may have had."""
    time.sleep(2)  # a counter may be published late
    counted = story.client.hit_count() - story.hits_before
    print(f"the server's hit counter grew by {counted:.0f} tokens; {most} are allowed")
    return counted > most


def nothing_to_compare(_story: Story) -> bool:
    """Raise CannotSay: the scenario was played, but the failure is in no single answer."""
    raise CannotSay("the scenario ran, but the failure is in no single answer: see its /metrics, or replay the case")


def main(start: Callable[[], Client], scenario: Callable[[Story], bool]) -> int:
    """Run the scenario until it shows the bug, at most ATTEMPTS times, and return the exit code."""
    if DIES and not sys.argv[1:]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that `call` ends the child
        code = subprocess.call([sys.executable, __file__, "child"])
        print(f"WRONG: the engine has ended with exit code {code}" if code < 0 else "the engine has not ended")
        return 1 if code < 0 else code
    client = start()
    wrong = any(scenario(Story(client)) for _ in range(ATTEMPTS))
    print("WRONG" if wrong else "correct")
    return int(wrong)
