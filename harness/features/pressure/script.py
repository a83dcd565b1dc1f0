"""Scripts of cases about how many requests run at the same time."""

from __future__ import annotations

import re

from coldproof.adapters.spec.script.client import Client, Event
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import Call, ScriptCase, attempt_with, flag, script_check

ROOM = re.compile(r"room for (\d+) at a time; .* at most \d+ ran")


class OrderedStory(Story):
    """An attempt that notes the requests of all events, as they came."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.order: list[int] = []

    def take(self, place: int, event: Event) -> bool:
        """Add a part of the answer to one of the last requests, and return whether its client waits for more."""
        self.order.append(self.first + place)
        return super().take(place, event)


def room_of(about: ScriptCase) -> int | None:
    """Return how many requests the pool has room for, in a case about fewer that ran. None for other cases."""
    found = None if about.case.failing_request is not None else ROOM.search(about.case.sentence)
    return None if found is None else int(found[1])


@flag("ORDERED", alone=True)
def is_about_room(about: ScriptCase) -> bool:
    """Return whether a case is about how many requests run at the same time."""
    return room_of(about) is not None


@script_check(500, flag="ORDERED")
def by_room(about: ScriptCase) -> Call | None:
    """Return the check of such a case."""
    return Call(ran_too_few, (room_of(about),))


def ran_too_few(story: OrderedStory, room: int) -> bool:
    """Return whether fewer requests ran at the same time than the pool has room for, as they share blocks."""
    order, most = story.order, 0
    spans = [(order.index(n), len(order) - order[::-1].index(n)) for n in dict.fromkeys(order)]
    for place in range(len(order)):
        most = max(most, sum(first <= place < end for first, end in spans))
    print(f"at most {most} requests ran at the same time; the pool has room for {room}")
    return most < room


attempt_with("ORDERED", OrderedStory)
