"""What to do to an engine, as plain data.

A workload is frozen, can be written to JSON, and depends on no particular run. Prompts consist of named segments whose
tokens are computed from (nonce, name); adapters are contents with symbolic names and paths. So two prompts share a
prefix exactly as far as their leading segments are equal, shrinking keeps the sharing, and a new nonce repeats the
workload with other tokens and cache keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Union

import msgspec

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.images import Arguments, Encoding
from coldproof.adapters.protocol.requests import PLAIN, Abort, ResponseOptions
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sides import Side
from coldproof.harness import feature_files
from coldproof.harness.workload.kinds.adapters import Route, SetAdapter, Unload
from coldproof.harness.workload.kinds.idle import Idle
from coldproof.harness.workload.kinds.kind import StepKind
from coldproof.harness.workload.kinds.resets import Reset
from coldproof.harness.workload.kinds.restarts import Restart, RestartSide
from coldproof.harness.workload.kinds.saved_state import RestoreState, SaveState
from coldproof.harness.workload.kinds.weights import Pause, Resume, Sleep, UpdateWeights, Wake

__all__ = [  # the kinds of steps are imported from here, too
    "Idle",
    "Pause",
    "Reset",
    "Restart",
    "RestartSide",
    "RestoreState",
    "Resume",
    "Route",
    "SaveState",
    "SetAdapter",
    "Sleep",
    "Unload",
    "UpdateWeights",
    "Wake",
]

START_WEIGHTS = "start"  # the symbolic name of the weights with which the engine was started
# An idle engine has this time to announce a reset. vLLM's publisher sends a batch within a few milliseconds.
ANNOUNCED_MS = 1000


class Rows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Embedding rows in a segment. The request carries a token id and a row for each position of the segment.

    `spans`: the positions at which the model gets the row, as ranges from a first position to one after the last; at
    the others it gets the token. `nudged`: the position whose row differs in one value. `equal`: all rows are equal.
    `blank`: all token ids are 0, which is what an engine may put in place of a row. `alone`: the request carries no
    token ids under rows, and no rows under tokens; if the token ids are 0, the rows are zeros as well.
    """

    spans: tuple[tuple[int, int], ...]
    nudged: int | None = None
    equal: bool = False
    blank: bool = False
    alone: bool = False

    def covers(self, position: int) -> bool:
        """Return whether the model gets the row at a position."""
        return any(first <= position < end for first, end in self.spans)

    def __str__(self) -> str:
        kind = "equal rows" if self.equal else "rows"
        spans = ", ".join(f"{first}-{end - 1}" for first, end in self.spans)
        nudged = "" if self.nudged is None else f", one value of row {self.nudged} changed"
        of_zeros = " of zeros" if self.blank and self.alone else ""
        alone = ", nothing under them" if self.alone else ""
        return f"{kind}{of_zeros} at {spans}{nudged}{', token ids 0' if self.blank else ''}{alone}"


class Image(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image, whose pixels are computed from the name. It is the whole segment, whose length the engine decides.

    `pixel`: the number of a pixel that differs. `encoding`: how the pixels are sent; all ways keep them. `uuid`: the
    name that the client gives the image; None: the engine computes one. `arguments`: what the request tells the
    engine's processor, the same for all images of a prompt; the model may see other pixels then.
    """

    name: str
    pixel: int | None = None
    encoding: Encoding = Encoding.PIXELS
    uuid: str | None = None
    arguments: Arguments = Arguments.NONE

    def __str__(self) -> str:
        pixel = "" if self.pixel is None else f", pixel {self.pixel} changed"
        uuid = "" if self.uuid is None else f", uuid {self.uuid!r}"
        told = f", processed with {self.arguments.text()}" if self.arguments else ""
        return f"image {self.name!r}{pixel}{uuid}, sent as {self.encoding.name.lower()}{told}"


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """`length` tokens that are computed from the name. With `rows`, the model gets embedding rows at some positions.
    With `image`, it is an image, which takes as many positions.

    Near-collisions: `changed` replaces the token at that index, `swapped` swaps the token at that index and the next.
    The same holds for rows.
    """

    name: str
    length: int
    changed: int | None = None
    swapped: int | None = None
    rows: Rows | None = None
    image: Image | None = None

    def __str__(self) -> str:
        edits = [] if self.changed is None else [f"token {self.changed} changed"]
        edits += [] if self.swapped is None else [f"tokens {self.swapped} and {self.swapped + 1} swapped"]
        edits += [str(content) for content in (self.rows, self.image) if content]
        return f"{self.name}:{self.length}" + (f" ({', '.join(edits)})" if edits else "")


def first_part(segment: Segment, length: int) -> Segment:
    """Return the first tokens of a segment. Its edits stay as they are, even if they are behind the end.

    An image stays whole.
    """
    if segment.image:
        return segment
    if not segment.rows:
        return msgspec.structs.replace(segment, length=length)
    spans = tuple((first, min(end, length)) for first, end in segment.rows.spans if first < length)
    rows = msgspec.structs.replace(segment.rows, spans=spans) if spans else None
    return msgspec.structs.replace(segment, length=length, rows=rows)


class Prompt(msgspec.Struct, frozen=True):
    """Segments in order. With `continues`, a next turn: they follow that earlier request's prompt and answer.

    A client that cuts its history sends only the tokens from `start` to `end` of these, as in a Python slice. Its
    prompt does not begin with the nonce.
    """

    segments: tuple[Segment, ...]
    continues: int | None = None
    start: int = 0
    end: int | None = None

    def __str__(self) -> str:
        own = " + ".join(map(str, self.segments))
        if self.continues is None:
            return own
        part = f"[{self.start}:{'' if self.end is None else self.end}]" if self.cuts_history else ""
        return f"[request {self.continues} and its answer]{part} + {own}"

    @property
    def cuts_history(self) -> bool:
        """Return whether the prompt leaves out a part of the earlier request and its answer."""
        return self.start != 0 or self.end is not None


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `adapter` is a symbolic name (None: the base model). `offset_ms` counts from the burst's start.

    A chat's segments are its messages: the system's, then user and assistant alternately. After `continues`, the
    earlier answer is an assistant message and the segments start with the user's. A lower `priority` is served earlier.
    `hand_over_ms`: with prefill and decode apart, how long after the prefill the decoder gets it.
    `endpoint`: the route at which it is sent. A chat that goes to an endpoint for token ids is sent as the prompt that
    the engine renders its messages to.
    `session`: the session of which it is a turn. The first turn opens it; a later one continues the one before it.
    `streaming`: in a session that keeps whole answers, and whose turns may have different adapters.
    Files leave defaults out, so that no default may change.
    """

    prompt: Prompt
    adapter: str | None = None
    salt: str | None = None
    max_tokens: int = 8
    offset_ms: int = 0
    chat: bool = False
    priority: int = 0
    options: ResponseOptions = PLAIN
    abort: Abort | None = None
    endpoint: Endpoint | None = None  # None: completions, or chats
    rank: int | None = None  # the rank that serves it; None: the engine chooses
    hand_over_ms: int = 0
    session: str | None = None  # None: the answer ends the request
    streaming: bool = False  # False: a session drops the last token of an answer


Change = SetAdapter | Reset | UpdateWeights | Pause | Resume | Sleep | Wake | RestartSide


class Meanwhile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that starts when the burst's first request has produced `after_tokens` tokens (0: when it is sent).

    `then`: further changes, each `gap_ms` milliseconds after the end of the one before.
    `first`: with prefill and decode apart, the side on which `change` is made first, and `gap_ms` later on the other.
    """

    change: Change
    after_tokens: int
    then: tuple[Change, ...] = ()
    gap_ms: int = 0
    first: Side | None = None  # None: on both at once

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return all changes in order."""
        return (self.change, *self.then)


class Burst(msgspec.Struct, frozen=True, kw_only=True, tag="burst"):
    """Requests that are sent together, apart from their offsets, and awaited together."""

    requests: tuple[Request, ...]
    meanwhile: Meanwhile | None = None

    ended_session: ClassVar[None] = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return the changes that are made during the burst, in order."""
        return () if self.meanwhile is None else self.meanwhile.changes


# Everything but a burst: the kinds of the imports above, and of the features' files named `steps`. Case files name a
# step by its tag, so that the union is closed.
feature_files.load("steps")
TAGS = Counter(kind.__struct_config__.tag for kind in StepKind.__subclasses__())
if twice := [tag for tag, number in TAGS.items() if number > 1]:
    raise TypeError(f"several kinds of steps have the tag {twice[0]!r}: a case file could not tell them apart")
if TYPE_CHECKING:
    Action = StepKind
else:
    Action = Union[tuple(StepKind.__subclasses__())]  # noqa: UP007
Step = Burst | Action


class Workload(msgspec.Struct, frozen=True):
    """Steps in order. Requests are numbered in the order of their bursts; `continues` uses that number."""

    steps: tuple[Step, ...]

    def requests(self) -> Iterator[tuple[int, int, Request]]:
        """Yield (request number, step number, request), in order."""
        number = 0
        for step_number, step in enumerate(self.steps):
            for request in step.requests:
                yield number, step_number, request
                number += 1

    def depends_on_timing(self) -> bool:
        """Return whether requests run concurrently, or a request is aborted or overlaps a change."""
        aborted = any(request.abort for _, _, request in self.requests())
        return aborted or any(len(step.requests) > 1 or step.meanwhile is not None for step in self.steps)

    def size(self) -> tuple[int, int, int]:
        """Return (steps, requests, tokens). Smaller is easier to read; steps count most."""
        requests = [request for _, _, request in self.requests()]
        tokens = sum(s.length for r in requests for s in r.prompt.segments) + sum(r.max_tokens for r in requests)
        return len(self.steps), len(requests), tokens


def all_changes(workload: Workload) -> Iterator[Action]:
    """Yield every step of a workload in order; for a burst, the changes that are made during it."""
    for step in workload.steps:
        yield from step.changes


def adapter_changes(workload: Workload) -> list[SetAdapter]:
    """Return every adapter load and change of a workload, in order."""
    return [change for change in all_changes(workload) if isinstance(change, SetAdapter)]


def weight_updates(workload: Workload) -> list[UpdateWeights]:
    """Return every update of the weights, in order, also those during a burst."""
    return [change for change in all_changes(workload) if isinstance(change, UpdateWeights)]


def save_of(workload: Workload, step: int) -> int | None:
    """Return the step that saved what the restore in `step` brings back; None without one, or if it is no restore."""
    restored = workload.steps[step]
    if not isinstance(restored, RestoreState):
        return None
    saved = SaveState(restored.name)
    return max((place for place, other in enumerate(workload.steps[:step]) if other == saved), default=None)


def lives_of(workload: Workload) -> list[EngineChange]:
    """Return what is different about each of the engines that run a workload. Restarts separate them."""
    return [*(step.before for step in workload.steps if isinstance(step, Restart)), EngineChange.NOTHING]


def restored_after_change(workload: Workload, step: int) -> bool:
    """Return whether a step restores what an engine saved about which something was different."""
    saved = save_of(workload, step)
    between = () if saved is None else workload.steps[saved:step]
    return any(isinstance(one, Restart) and one.before is not EngineChange.NOTHING for one in between)


def renumbered(request: Request, new: dict[int, int]) -> Request:
    """Return a request whose `continues` has the new number."""
    prompt = request.prompt
    if prompt.continues is None:
        return request
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(prompt, continues=new[prompt.continues]))
