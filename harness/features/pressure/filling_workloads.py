"""Lengths of the requests of a burst, by how they outgrow the pool. All are made so that few steps of decode do."""

from __future__ import annotations

from hypothesis import strategies as st

MOST_OF_A_CROWD = 12  # requests
LONGEST_OF_A_CROWD = 8  # units of an answer: each token is a step

Sizes = tuple[int, int]  # tokens of a prompt and of its answer


class PoolFillings:
    """Draws lengths for a pool of `pool` units of `unit` tokens. `most_tokens`: what a workload may compute."""

    def __init__(self, draw: st.DrawFn, *, unit: int, pool: int, most_tokens: int) -> None:
        self.draw, self.unit, self.pool, self.most_tokens = draw, unit, pool, most_tokens

    def sizes(self, kind: str) -> list[Sizes]:
        """Return the lengths of the requests of a burst of this kind."""
        match kind:
            case "sharers":
                return self.sharers()
            case "whole":
                return self.whole_pool()
            case "halves":
                return self.more_than_half()
            case "crowd":
                return self.crowd()
        return self.brim()

    def brim(self) -> list[Sizes]:
        """Return requests whose prompts fill the pool but for a few tokens of their last blocks, or one block."""
        count = self.draw(st.sampled_from((2, 3, 2, 4)))
        share = max(1, self.pool // count)
        found = []
        for _ in range(count):
            free = self.draw(st.sampled_from((1, 0, 2, 3, self.unit // 2)))
            answer = free + self.draw(st.sampled_from((self.unit + 3, 2, self.unit + 1, 2 * self.unit, self.unit + 8)))
            found.append((share * self.unit - free, answer))
        return found

    def sharers(self) -> list[Sizes]:
        """Return small requests that end one after another, and one that takes whatever gets free meanwhile."""
        answers = [self.draw(st.sampled_from((self.unit, 4, 2 * self.unit, 4 * self.unit))) for _ in range(3)]
        prompt = 2 * self.unit + self.draw(st.sampled_from((9, self.unit - 2)))
        taker = ((self.pool - self.draw(st.sampled_from((2, 1, 4)))) * self.unit, self.draw(st.sampled_from((8, 1))))
        return [*((prompt, answer) for answer in answers[: self.draw(st.sampled_from((2, 3)))]), taker]

    def whole_pool(self) -> list[Sizes]:
        """Return a request that grows to the whole pool, or a token or block less, behind or before short ones; or one
        with a prompt as long, or one that needs all of it, for an answer of one token.

        At first, all fit, perhaps also when the short ones have grown. It is preempted when one of them grows, or when
        it does, and then needs exactly what is free, or the whole pool.
        """
        if self.draw(st.sampled_from((False, False, True))):
            return self.last_block()
        end = self.pool * self.unit - self.draw(st.sampled_from((0, 1, 0, self.unit - 1)))
        short = [self.short() for _ in range(self.draw(st.sampled_from((1, 1, 2))))]
        grown = self.draw(st.booleans())
        held = sum(-(-(prompt + grown * answer) // self.unit) for prompt, answer in short)
        prompt = max(1, (self.pool - held) * self.unit - self.draw(st.sampled_from((1, 3, 0, 8, self.unit // 2))))
        long = (prompt, max(1, end - prompt))
        whole = self.draw(st.sampled_from((long, long, (prompt, 1), (end - 1, 1))))
        return [*short, whole] if self.draw(st.sampled_from((True, True, False))) else [whole, *short]

    def last_block(self) -> list[Sizes]:
        """Return a request that holds one block as long as it can, and one that takes all others and soon needs it."""
        first = self.unit // self.draw(st.sampled_from((4, 2)))
        prompt = (self.pool - 1) * self.unit - self.draw(st.sampled_from((1, 3, 0, 6)))
        return [(first, self.unit - first), (prompt, self.draw(st.sampled_from((self.unit, self.unit // 2, 8))))]

    def short(self) -> Sizes:
        """Return the lengths of a request that holds one or two blocks for a while, perhaps one until it ends."""
        unit = self.unit
        prompt = self.draw(st.sampled_from((unit // 2, unit - 1, unit, unit + 1, unit // 4)))
        rest = -prompt % unit or unit  # what the last block of the prompt holds beside it, or the next block
        return prompt, self.draw(st.sampled_from((unit, rest, 2 * unit, unit // 2)))

    def more_than_half(self) -> list[Sizes]:
        """Return two or three requests of which only one fits into the pool at a time, perhaps with a short one.

        The first one may grow to the whole pool: what the others would hit is evicted while they wait.
        """
        count = self.draw(st.sampled_from((2, 3) if 3 * self.pool * self.unit <= self.most_tokens else (2,)))
        extra = self.draw(st.sampled_from((1, 2)))
        blocks = self.pool // 2 + extra
        answers = [self.draw(st.sampled_from((8, 8, 1, (self.pool - blocks) * self.unit))), *[8] * (count - 1)]
        big = [(blocks * self.unit - self.draw(st.sampled_from((0, 1, 9))), answer) for answer in answers]
        return [self.short(), *big] if self.draw(st.booleans()) else big

    def crowd(self) -> list[Sizes]:
        """Return many short requests with longer and longer answers.

        Some are preempted again and again, also while they compute their own answer again.
        """
        count = min(self.pool // 2 + self.draw(st.sampled_from((2, 1, 0))), MOST_OF_A_CROWD)
        prompt = self.draw(st.sampled_from((self.unit - 1, self.unit // 2, self.unit - 1, 2 * self.unit - 2)))
        rise = self.draw(st.sampled_from((self.unit // 2 + 2, self.unit // 2 + 2, self.unit - 6, self.unit + 8)))
        answers = [min(rise * (number + 1), LONGEST_OF_A_CROWD * self.unit) for number in range(max(2, count))]
        ordered = self.draw(st.sampled_from((True, True, False)))
        return [(prompt, answer) for answer in (answers if ordered else self.draw(st.permutations(answers)))]
