"""The routes of vLLM's server for pooled answers: bodies of requests, and what their answers say.

They report no counts of cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.protocol.pooling import QUERY, Rows, Task
from coldproof.adapters.protocol.requests import CompletionRequest

PATHS = {
    Task.EMBED: "/v1/embeddings",
    Task.CLASSIFY: "/classify",
    Task.TOKEN_EMBED: "/pooling",
    Task.SCORE: "/score",
    Task.RERANK: "/rerank",
    Task.COSINE: "/score",
}
EXPECTED = "a JSON object with the vectors of one prompt"


def body(request: CompletionRequest, task: Task) -> dict[str, Any]:
    """Return the JSON body of a request for a pooled answer."""
    fields: dict[str, Any] = {"model": request.model, **prompt_fields(request.prompt, task)}
    if task in (Task.EMBED, Task.TOKEN_EMBED):
        fields["encoding_format"] = "float"
    if task is Task.TOKEN_EMBED:
        fields["task"] = task.value
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    if request.priority:
        fields["priority"] = request.priority
    return fields


def prompt_fields(prompt: tuple[int, ...], task: Task) -> dict[str, Any]:
    """Return the fields with the prompt: token ids, or texts of printable tokens."""
    if not task.of_texts:
        return {"input": list(prompt)}
    text = "".join(map(chr, prompt))
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    match task:
        case Task.COSINE:
            return {"text_1": "".join(map(chr, QUERY)), "text_2": text}
        case Task.RERANK:
            return {"query": first, "documents": [second]}
        case _:
            return {"text_1": first, "text_2": second}


class Embedding(msgspec.Struct, frozen=True):
    """An entry of an answer of /v1/embeddings."""

    embedding: tuple[float, ...]


class Classification(msgspec.Struct, frozen=True):
    """An entry of an answer of /classify."""

    probs: tuple[float, ...]


class TokenVectors(msgspec.Struct, frozen=True):
    """An entry of an answer of /pooling to a request for a vector of each token."""

    data: Rows


class Score(msgspec.Struct, frozen=True):
    """An entry of an answer of /score."""

    score: float


class Rank(msgspec.Struct, frozen=True):
    """An entry of an answer of /rerank."""

    relevance_score: float


class Embeddings(msgspec.Struct, frozen=True):
    """An answer of /v1/embeddings to one prompt."""

    data: tuple[Embedding]


class Classifications(msgspec.Struct, frozen=True):
    """An answer of /classify to one prompt."""

    data: tuple[Classification]


class VectorsOfTokens(msgspec.Struct, frozen=True):
    """An answer of /pooling to one prompt."""

    data: tuple[TokenVectors]


class Scores(msgspec.Struct, frozen=True):
    """An answer of /score to two texts."""

    data: tuple[Score]


class Ranks(msgspec.Struct, frozen=True):
    """An answer of /rerank to a query and one document."""

    results: tuple[Rank]


def read_score(content: bytes) -> Rows:
    """Return a score as a vector of one value. Raises the errors of decoding or indexing."""
    return ((msgspec.json.decode(content, type=Scores).data[0].score,),)


READERS: dict[Task, Callable[[bytes], Rows]] = {
    Task.EMBED: lambda content: (msgspec.json.decode(content, type=Embeddings).data[0].embedding,),
    Task.CLASSIFY: lambda content: (msgspec.json.decode(content, type=Classifications).data[0].probs,),
    Task.TOKEN_EMBED: lambda content: msgspec.json.decode(content, type=VectorsOfTokens).data[0].data,
    Task.SCORE: read_score,
    Task.COSINE: read_score,
    Task.RERANK: lambda content: ((msgspec.json.decode(content, type=Ranks).results[0].relevance_score,),),
}
