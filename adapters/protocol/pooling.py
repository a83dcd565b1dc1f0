"""Pooled answers: vectors that are computed from the hidden states of a prompt, in place of generated tokens."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from coldproof.adapters.protocol.capabilities import Capability

Rows = tuple[tuple[float, ...], ...]  # one vector, or one for each token of the prompt


QUERY = (ord("!"),)  # the text of one token with which a prompt is compared
DIGITS = 8  # significant digits that float32 has: more would only make records longer


def as_rows(vectors: Iterable[Iterable[float]]) -> Rows:
    """Return vectors with the digits that float32 has. What is not a number stays so."""
    return tuple(tuple(float(f"{value:.{DIGITS}g}") for value in vector) for vector in vectors)


class Task(enum.StrEnum):
    """What a pooled answer is made of. Its value is the name of the task in vLLM.

    SCORE and RERANK are classifications of two texts behind one another, which have routes of their own. Where an
    engine embeds, a score is the cosine of two embeddings (COSINE): that of the prompt, and that of `QUERY`, which is
    shorter than any block, so that the cache holds nothing of it.
    """

    EMBED = "embed"
    CLASSIFY = "classify"
    TOKEN_EMBED = "token_embed"
    SCORE = "score"
    RERANK = "rerank"
    COSINE = "cosine"

    @property
    def of_each_token(self) -> bool:
        """Return whether the answer has a vector for each token of the prompt. An engine may compute the whole prompt
        for it, because cached blocks have no hidden states.
        """
        return self is Task.TOKEN_EMBED

    @property
    def of_a_pair(self) -> bool:
        """Return whether the prompt is sent as two texts: its first half, and the rest."""
        return self in (Task.SCORE, Task.RERANK)

    @property
    def of_texts(self) -> bool:
        """Return whether the prompt is sent as text. Only a server has routes for that."""
        return self.of_a_pair or self is Task.COSINE

    @property
    def beside(self) -> int:
        """Return how many tokens are looked up besides those of the prompt."""
        return len(QUERY) if self is Task.COSINE else 0

    @property
    def in_engine(self) -> str:
        """Return the name of the task that the engine does for it."""
        if self is Task.COSINE:
            return Task.EMBED.value
        return Task.CLASSIFY.value if self.of_a_pair else self.value

    def rows(self, prompt_tokens: int) -> int:
        """Return how many vectors an answer to a prompt of this length has."""
        return prompt_tokens if self.of_each_token else 1

    def __str__(self) -> str:
        return WORDS[self]


WORDS = {
    Task.EMBED: "an embedding",
    Task.CLASSIFY: "a classification",
    Task.TOKEN_EMBED: "an embedding of each token",
    Task.SCORE: "a score",
    Task.RERANK: "a rank",
    Task.COSINE: "a cosine",
}
# What an engine needs for a task. With any of one vector, it has POOLING as well.
TASK_CAPABILITIES = {
    Task.EMBED: Capability.EMBEDDINGS,
    Task.CLASSIFY: Capability.CLASSIFICATIONS,
    Task.TOKEN_EMBED: Capability.TOKEN_EMBEDDINGS,
    Task.SCORE: Capability.SCORES,
    Task.RERANK: Capability.RANKINGS,
    Task.COSINE: Capability.COSINES,
}
OF_ONE_VECTOR = tuple(needed for task, needed in TASK_CAPABILITIES.items() if not task.of_each_token)
