"""What a script needs of an engine: the interface of the clients in `adapters/ENGINE/script.py`.

A client is created without arguments, and starts its engine or finds the server. It has a method for each kind of step
that a script can make on the engine, named as in this interface; a kind without a method is a kind that no case of the
engine has. A request is a dict: `ids`, `tokens` (how many to generate), and what else it uses of `name` (of an adapter,
as it is sent), `content` (of the adapter), `salt`, `messages`, `endpoint`, `headers`, `extra` (fields of OpenAI's
body), `session`, `new` (the ids that a turn adds), `offset_ms`, `abort` and `hidden`. An event is a part of an answer,
a dict too: `ids`, and what else is known of `cached`, `index` (of several answers), `end` (the reason), `text`,
`logprobs`, `prompt_logprobs` and `prompt_token_ids` (in vLLM's form), `vectors`, and `failed` (why no more comes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

Sent = dict[str, Any]
Event = dict[str, Any]


class Client(Protocol):
    """An engine, as a script uses it."""

    def answers(self, sent: Sent, patience: float = 0) -> Iterator[Event]:
        """Send a request and yield its answer. Raises OSError, RuntimeError or ValueError if it fails."""

    def together(self, sent: list[Sent]) -> list[list[Event]]:
        """Serve requests together, and return their answers."""

    def cold(self, sent: Sent) -> Iterable[Event]:
        """Send a request alone, so that it finds nothing of its prompt in a cache. `content`: of its adapter."""

    def serve(self, sent: list[Sent], take: Callable[[int, Event], bool], between: Callable[[], object] = int) -> None:
        """Serve requests by steps. `take` gets each part of an answer, with the request's place, and returns whether
        its client waits for more. `between` is called after each step.
        """

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False, for_all: bool = False) -> None:
        """Load an adapter, or replace it. `folder`: below FILES, for the adapter's files."""

    def unload(self, name: str) -> None:
        """Unload an adapter."""

    def reset(self, *scope: str, prefix: bool = True) -> None:
        """Empty the prefix cache, unless told otherwise, and the caches in `scope`."""

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat."""

    def restart(self, before: str) -> None:
        """Start the engine again over the same storage. `before`: what was different about it up to here."""

    def save(self, name: str) -> None:
        """Save the whole cache under a name."""

    def restore(self, name: str) -> None:
        """Replace the whole cache by what was saved under a name."""

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session: say that no input follows or, with `aborted`, disconnect."""

    def side(self, side: str) -> Client:
        """Return a client of one of two servers that answer together."""

    def ended(self) -> bool:
        """Return whether the engine has ended."""

    @property
    def events(self) -> list[Any]:
        """Return the KV events that the engine has published."""

    def hit_count(self) -> float:
        """Return how many prompt tokens the engine has counted as hits."""

    def draft_counts(self) -> list[float]:
        """Return how many tokens were drafted and how many of them accepted."""
