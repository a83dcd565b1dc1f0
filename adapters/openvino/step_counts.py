"""Derives cached tokens, preemptions and waiting requests from OpenVINO GenAI's steps, because it has no counters.

A step computes at most `budget` tokens: one for each request in decode, and the rest for prompts in the order of
arrival (`dynamic_split_fuse`). So the number of steps up to a request's first token gives a minimum and a maximum of
its computed prompt tokens; with a budget of one token they are equal. The other prompt tokens were cached. A bound that
is not certain is left open.
"""

from __future__ import annotations


class Progress:
    """One request in the engine. `low`, `high`: the minimum and maximum number of its computed prompt tokens."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.low = self.high = 0
        self.count = 0  # tokens of its answer
        self.crowded = (
            False  # the pool was full in the meantime: computed tokens may have been evicted and computed again
        )
        self.steady = True  # each step since its first token gave it another one: it never waited or was preempted

    @property
    def hit(self) -> tuple[int, int]:
        """Return the minimum and maximum number of cached prompt tokens. Valid after the first token."""
        return max(0, self.prompt - self.high), self.prompt if self.crowded else max(0, self.prompt - self.low)

    @property
    def begun(self) -> bool | None:
        """Return whether any of its tokens have been computed; None if unknown."""
        if self.count or self.low:
            return True
        return None if self.high else False

    def takes_new_block(self, block: int) -> bool:
        """Return whether its next token needs a new block. False for a request that waited: its blocks are unknown."""
        return self.steady and self.count > 0 and (self.prompt + self.count - 1) % block == 0


class StepAccounting:
    """Follows the requests of an engine. `budget`: maximum tokens per step. `block`: tokens per block."""

    def __init__(self, *, budget: int, block: int) -> None:
        self.budget, self.block = budget, block
        self.preemptions = 0  # a minimum: there may have been more
        self.full = False  # no block was free when the latest step was scheduled, and none has been freed since

    def note(self, live: list[Progress], counts: list[int], *, usage: float) -> None:
        """Record one step. `live`: the requests in the order of arrival. `counts`: their output tokens after the step.

        `usage`: the percentage of the pool in use when the step was scheduled.
        """
        came = [count > one.count for one, count in zip(live, counts, strict=True)]
        took = sum(one.takes_new_block(self.block) for one, new in zip(live, came, strict=True) if new)
        if self.full and took:  # no block was free, so the new block was taken from another request
            self.preemptions += 1
        limited = usage >= 100.0
        self.share(live, came, limited=limited)
        for one, count in zip(live, counts, strict=True):
            one.steady = one.steady and (one.count == 0 or count > one.count)
            one.count = count
        self.full = limited

    def gave_back(self) -> None:
        """Record that a request has ended and its blocks are free."""
        self.full = False

    def share(self, live: list[Progress], came: list[bool], *, limited: bool) -> None:
        """Add to each prompt its part of the step's budget. `limited`: the pool was full, the part may be smaller."""
        low = high = self.budget
        for one, new in zip(live, came, strict=True):
            if one.count == 0:
                continue
            if one.steady and new:
                low, high = low - 1, high - 1
            else:  # it waits, or recomputes an unknown number of evicted tokens
                low, high = 0, high - (1 if new else 0)
        for one, new in zip(live, came, strict=True):
            if one.count > 0:
                continue
            one.crowded = one.crowded or limited
            if new:  # its prefill ends in this step; the next prompt gets the rest of the budget
                one.low, one.high = one.low + 1, min(one.prompt, one.high + max(1, high))
                low, high = 0, high - 1
            else:
                one.low, one.high = one.low + (0 if limited else max(0, low)), min(one.prompt, one.high + max(0, high))
                low, high = 0, high if limited else 0
