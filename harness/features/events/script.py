"""Scripts of cases about KV events."""

from __future__ import annotations

from coldproof.adapters.spec.script.given import FILES
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import Call, ScriptCase, flag, script_check


@flag("EVENTS", method="events")
def is_about_events(about: ScriptCase) -> bool:
    """Return whether a case is about KV events that a script can look at."""
    return by_events(about) is not None


@script_check(400, flag="EVENTS")
def by_events(about: ScriptCase) -> Call | None:
    """Return the check of a case about KV events, by words of its signature and its sentence."""
    if about.case.failing_request is not None:
        return None
    known = {
        "only adapters' hashes": lacks_the_path,
        "announced late": announced_no_reset,
        "stores no block": stores_no_block,
    }
    words = f"{about.case.signature} {about.case.sentence}"
    return next((Call(function) for part, function in known.items() if part in words), None)


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
