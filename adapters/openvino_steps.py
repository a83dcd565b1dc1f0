"""What OpenVINO GenAI's steps tell of its prefix cache, which has no counters: hits, preemptions, who waits.

A step computes at most `budget` tokens: one for each request that decodes, and the rest for prompts, in the order of
their arrival (`dynamic_split_fuse`). So the steps up to a request's first token say between which numbers the tokens
lie that were computed for it, and with a budget of one token they say it exactly; what was not computed was hit. A
bound that cannot be relied on is left open. Pure.
"""

from __future__ import annotations


class Progress:
    """One request in the engine. `low` and `high`: between how many of its prompt's tokens have been computed."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.low = self.high = 0
        self.count = 0  # tokens of its answer
        self.crowded = (
            False  # the pool was full meanwhile: what had been computed may have been lost, and computed again
        )
        self.steady = True  # each step since its first token has brought it another: it never had to wait or come back

    @property
    def hit(self) -> tuple[int, int]:
        """Between how many tokens of the prompt came from the cache, once the first token is there."""
        return max(0, self.prompt - self.high), self.prompt if self.crowded else max(0, self.prompt - self.low)

    @property
    def begun(self) -> bool | None:
        """Whether any of it has been computed here; None if that cannot be told."""
        if self.count or self.low:
            return True
        return None if self.high else False

    def takes_new_block(self, block: int) -> bool:
        """Whether its next token needs a block more: the ones it holds are full. Unknown of one that came back."""
        return self.steady and self.count > 0 and (self.prompt + self.count - 1) % block == 0


class Steps:
    """Follows the requests of an engine with so many tokens a step and blocks of a size."""

    def __init__(self, *, budget: int, block: int) -> None:
        self.budget, self.block = budget, block
        self.preemptions = 0  # that there must have been; there may have been more
        self.full = False  # no block was free when the latest step was planned, and none was given back since

    def note(self, live: list[Progress], counts: list[int], *, usage: float) -> None:
        """One step: who was in the engine in the order of arrival, how many tokens of its answer each has now, and what
        share of the pool, of 100, was in use when it was planned.
        """
        came = [count > one.count for one, count in zip(live, counts, strict=True)]
        took = sum(one.takes_new_block(self.block) for one, new in zip(live, came, strict=True) if new)
        if self.full and took:  # somebody else's blocks: there were no others
            self.preemptions += 1
        limited = usage >= 100.0
        self.share(live, came, limited=limited)
        for one, count in zip(live, counts, strict=True):
            one.steady = one.steady and (one.count == 0 or count > one.count)
            one.count = count
        self.full = limited

    def gave_back(self) -> None:
        """Somebody has left the engine, and their blocks are free."""
        self.full = False

    def share(self, live: list[Progress], came: list[bool], *, limited: bool) -> None:
        """Tell each prompt its part of the step's budget. `limited`: for want of blocks it may have been less."""
        low = high = self.budget
        for one, new in zip(live, came, strict=True):
            if one.count == 0:
                continue
            if one.steady and new:
                low, high = low - 1, high - 1
            else:  # it waits, or computes again what it lost: as many as that may be
                low, high = 0, high - (1 if new else 0)
        for one, new in zip(live, came, strict=True):
            if one.count > 0:
                continue
            one.crowded = one.crowded or limited
            if new:  # its last ones; what it left goes to the next
                one.low, one.high = one.low + 1, min(one.prompt, one.high + max(1, high))
                low, high = 0, high - 1
            else:
                one.low, one.high = one.low + (0 if limited else max(0, low)), min(one.prompt, one.high + max(0, high))
                low, high = 0, high if limited else 0
