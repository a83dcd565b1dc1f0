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
    FILES,
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


def ignores_what_others_refuse(story: Story, number: int) -> bool:
    """Return whether a request was answered, while another one with the same invalid field was refused."""
    same = [n for n, sent in enumerate(story.sent) if sent.get("extra") == story.sent[number]["extra"] and n != number]
    refused = [n for n in same if story.replies[n].failed]
    print(f"request {number}: {story.replies[number].ids or 'no answer'}; refused: {refused}")
    return bool(story.replies[number].ids) and bool(refused)


def counted_too_many(story: Story, most: int) -> bool:
    """Return whether the engine has counted more hits than the requests of the scenario may have had."""
    time.sleep(2)  # a counter may be published late
    counted = story.client.hit_count() - story.hits_before
    print(f"the server's hit counter grew by {counted:.0f} tokens; {most} are allowed")
    return counted > most


def has_fewer_drafts(story: Story, number: int) -> bool:
    """Return whether fewer drafts were accepted for a request than for the same prompt and answer without a hit."""
    for n, (drafted, accepted) in story.drafts.items():
        cached, total = story.replies[n].cached or 0, len(story.sent[n]["ids"])
        print(f"request {n}: {cached} of {total} tokens cached; {accepted:.0f} of {drafted:.0f} drafts accepted")
    ids, answer = story.sent[number]["ids"], story.replies[number].ids
    cold = [n for n in story.drafts if story.sent[n]["ids"] == ids and not story.replies[n].cached]
    equal = [story.drafts[n][1] for n in cold if story.replies[n].ids == answer]
    return bool(equal) and story.drafts[number][1] < min(equal)


def ran_too_few(story: Story, room: int) -> bool:
    """Return whether fewer requests ran at the same time than the pool has room for, as they share blocks."""
    order, most = story.order, 0
    spans = [(order.index(n), len(order) - order[::-1].index(n)) for n in dict.fromkeys(order)]
    for place in range(len(order)):
        most = max(most, sum(first <= place < end for first, end in spans))
    print(f"at most {most} requests ran at the same time; the pool has room for {room}")
    return most < room


def stores_no_block(story: Story) -> bool:
    """Return whether an event's tokens are not those of its blocks."""
    stored = [event for event in story.client.events if type(event).__name__ == "BlockStored"]
    wrong = [one for one in stored if len(one.token_ids) != len(one.block_hashes) * one.block_size]
    for one in wrong:
        print(f"an event stores {len(one.block_hashes)} blocks of {one.block_size} with {len(one.token_ids)} tokens")
    return bool(wrong)


def lacks_the_path(story: Story) -> bool:
    """Return whether the event of an adapter's block lacks the adapter's path, which is in the block's hash."""
    stored = [event for event in story.client.events if type(event).__name__ == "BlockStored"]
    wrong = [one for one in stored if one.lora_name and str(FILES) not in str(one.extra_keys)]
    for one in wrong:
        print(f"an event of {one.lora_name!r} has the keys {one.extra_keys}; the hash has the adapter's path, too")
    return bool(wrong)


def announced_no_reset(story: Story) -> bool:
    """Return whether no event says that the cache has been reset."""
    names = [type(event).__name__ for event in story.client.events]
    print(f"events after the reset and the silence: {', '.join(names)}")
    return "AllBlocksCleared" not in names


def nothing_to_compare(_story: Story) -> bool:
    """Raise CannotSay: the scenario was played, but the failure is in no single answer."""
    raise CannotSay("the scenario ran, but the failure is not in a single answer: look at its /metrics")


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
