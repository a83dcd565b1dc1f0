"""What to do to an engine, as plain data.

A workload is frozen, survives JSON and names nothing of one run: prompts are built from named segments whose tokens
follow from (nonce, name), adapters from contents behind symbolic names and paths. Two prompts therefore share a prefix
exactly as far as their leading segments agree, shrinking keeps the sharing, and a new nonce replays the same story
on untouched keys.
"""

from __future__ import annotations

import enum
import hashlib
import random
import secrets
from collections.abc import Iterator, Sequence

import msgspec

from adapters.base import PLAIN, Abort, Surface

FIRST_TOKEN, LAST_TOKEN = 32, 126  # printable bytes: plain tokens in every byte-level or larger vocabulary
APART = 64  # runs on one engine, one behind the other, whose prompts begin with different tokens; there are 95
NONCE_TOKENS = 4  # 95**4 values: two examples of one run do not meet
PARTS = "+"  # between the parts of a symbol that holds several names


class Route(enum.StrEnum):
    """How an adapter gets behind a name. The field reports show each losing the cache key separately."""

    LOAD = "load"
    IN_PLACE = "in-place reload"
    UNLOAD_LOAD = "unload, then load"
    SWITCH = "switch on for every request"


class Segment(msgspec.Struct, frozen=True):
    """`length` tokens that follow from the name. Near-collisions: `changed` replaces the one at that index, `swapped`
    has the one at that index and the next change places.
    """

    name: str
    length: int
    changed: int | None = None
    swapped: int | None = None

    def __str__(self) -> str:
        edits = [] if self.changed is None else [f"token {self.changed} changed"]
        edits += [] if self.swapped is None else [f"tokens {self.swapped} and {self.swapped + 1} swapped"]
        return f"{self.name}:{self.length}" + (f" ({', '.join(edits)})" if edits else "")


class Prompt(msgspec.Struct, frozen=True):
    """Segments in order; with `continues`, behind the prompt and the answer of that earlier request (a next turn)."""

    segments: tuple[Segment, ...]
    continues: int | None = None

    def __str__(self) -> str:
        own = " + ".join(map(str, self.segments))
        return own if self.continues is None else f"[request {self.continues} and its answer] + {own}"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `adapter`: a symbolic name (None: the base model); `offset_ms`: from the burst's start.

    A chat's segments are its messages: the system's, then user and assistant in turn; behind `continues` the earlier
    answer is the assistant's and the segments go on as the user. `priority`: lower is served earlier.
    """

    prompt: Prompt
    adapter: str | None = None
    salt: str | None = None
    max_tokens: int = 8
    offset_ms: int = 0
    chat: bool = False
    priority: int = 0
    surface: Surface = PLAIN
    abort: Abort | None = None


class SetAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="set_adapter"):
    """Put adapter `content` behind `name` from symbolic `path`; a path's files change when another content uses it."""

    name: str
    content: str
    path: str
    route: Route = Route.LOAD


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """Forget a name."""

    name: str


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Ask for an empty prefix cache."""


class SaveState(msgspec.Struct, frozen=True, tag="save_state"):
    """Save all that is cached under a name, over what was saved under it."""

    name: str


class RestoreState(msgspec.Struct, frozen=True, tag="restore_state"):
    """Put what was saved under a name in place of all that is cached."""

    name: str


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """Nothing for a while; then the engine has to say that it holds nothing for anybody."""

    ms: int


class Meanwhile(msgspec.Struct, frozen=True, kw_only=True):
    """A change once the burst's first request has produced `after_tokens` tokens (0: as it is sent)."""

    change: SetAdapter | Reset
    after_tokens: int


class Burst(msgspec.Struct, frozen=True, kw_only=True, tag="burst"):
    """Requests sent together (apart from their offsets) and awaited together."""

    requests: tuple[Request, ...]
    meanwhile: Meanwhile | None = None


Step = Burst | SetAdapter | Unload | Reset | SaveState | RestoreState | Idle


class Workload(msgspec.Struct, frozen=True):
    """Steps in order. Requests are numbered through, in the order of their bursts; `continues` uses that number."""

    steps: tuple[Step, ...]

    def requests(self) -> Iterator[tuple[int, int, Request]]:
        """(request number, step number, request), in order."""
        number = 0
        for step_number, step in enumerate(self.steps):
            if isinstance(step, Burst):
                for request in step.requests:
                    yield number, step_number, request
                    number += 1

    def depends_on_timing(self) -> bool:
        """Whether anything in it happens side by side, or is cut off."""
        bursts = [step for step in self.steps if isinstance(step, Burst)]
        aborted = any(request.abort for _, _, request in self.requests())
        return aborted or any(len(burst.requests) > 1 or burst.meanwhile is not None for burst in bursts)

    def size(self) -> tuple[int, int, int]:
        """(steps, requests, tokens): smaller is easier to read, in this order of importance."""
        requests = [request for _, _, request in self.requests()]
        tokens = sum(s.length for r in requests for s in r.prompt.segments) + sum(r.max_tokens for r in requests)
        return len(self.steps), len(requests), tokens


def changes(workload: Workload) -> list[SetAdapter]:
    """Every adapter load and change of a workload, in order."""
    found = []
    for step in workload.steps:
        if isinstance(step, SetAdapter):
            found.append(step)
        elif isinstance(step, Burst) and step.meanwhile is not None and isinstance(step.meanwhile.change, SetAdapter):
            found.append(step.meanwhile.change)
    return found


def save_of(workload: Workload, step: int) -> int | None:
    """The step that saved what the restore in `step` brings back; None where nothing did, or it is no restore."""
    restored = workload.steps[step]
    if not isinstance(restored, RestoreState):
        return None
    saved = SaveState(restored.name)
    return max((place for place, other in enumerate(workload.steps[:step]) if other == saved), default=None)


def segment_tokens(nonce: str, segment: Segment) -> tuple[int, ...]:
    """The tokens of a segment under a nonce; lengths are prefixes of one another, a changed token differs for sure.

    Of two swapped tokens that happen to be equal nothing is seen: the segment is then its plain self.
    """
    source = random.Random(f"{nonce}/{segment.name}")
    tokens = [source.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(segment.length)]
    if segment.changed is not None:
        span = LAST_TOKEN - FIRST_TOKEN + 1
        tokens[segment.changed] = FIRST_TOKEN + (tokens[segment.changed] - FIRST_TOKEN + 1) % span
    if segment.swapped is not None:
        first, then = segment.swapped, segment.swapped + 1
        tokens[first], tokens[then] = tokens[then], tokens[first]
    return tuple(tokens)


def nonce_tokens(nonce: str) -> tuple[int, ...]:
    """What stands first in every prompt of a run, so that no example hits what another one left behind."""
    digest = hashlib.sha256(nonce.encode()).digest()
    return tuple(FIRST_TOKEN + byte % (LAST_TOKEN - FIRST_TOKEN + 1) for byte in digest[:NONCE_TOKENS])


def new_nonce(earlier: Sequence[str]) -> str:
    """A nonce for an engine that has seen these, the latest last: six hex digits tell all runs of its life apart.

    None of the latest begins with the same token. Where a single token can be hit, it would be an earlier run's, and
    its adapter's where the engine has no key for that (llama.cpp#26207): a fault, but none of this run.
    """
    taken = {nonce_tokens(nonce)[0] for nonce in earlier[-APART:]}
    nonce = secrets.token_hex(3)
    while nonce_tokens(nonce)[0] in taken:
        nonce = secrets.token_hex(3)
    return nonce


def spelled(symbol: str, nonce: str) -> str:
    """A name on the wire: each part of a symbol with the nonce behind it, hyphens between them.

    Names, salts and paths are spelled alike, so that they collide where their symbols say so: "red+tenant" is what
    stands on the wire for "red", a hyphen, and what stands there for "tenant".
    """
    return "-".join(f"{part}-{nonce}" for part in symbol.split(PARTS))


def text_of(tokens: tuple[int, ...]) -> str:
    """A chat message of these tokens. Their ids are printable bytes; what a tokenizer makes of the text is its own."""
    return bytes(tokens).decode("ascii")


def new_prompt_length(prompt: Prompt) -> int:
    """Tokens of the prompt's own segments, nonce included when it starts from nothing."""
    return sum(s.length for s in prompt.segments) + (NONCE_TOKENS if prompt.continues is None else 0)


def renumbered(request: Request, new: dict[int, int]) -> Request:
    """A request whose `continues` follows the new numbers."""
    before = request.prompt.continues
    if before is None:
        return request
    return msgspec.structs.replace(request, prompt=Prompt(request.prompt.segments, new[before]))


def describe(step: Step, first_request: int) -> str:
    """One line in words, for reports and bug reports. `first_request` numbers the burst's requests."""
    match step:
        case SetAdapter(name=name, content=content, path=path, route=route):
            return f"{route.value}: adapter {content} as '{name}' from path {path}"
        case Unload(name=name):
            return f"unload '{name}'"
        case Reset():
            return "reset the prefix cache"
        case SaveState(name=name):
            return f"save what is cached as '{name}'"
        case RestoreState(name=name):
            return f"restore what was saved as '{name}'"
        case Idle(ms=ms):
            return f"nothing for {ms} ms"
        case Burst(requests=requests, meanwhile=meanwhile):
            asked = "; ".join(describe_request(r, first_request + i) for i, r in enumerate(requests))
            together = "ask" if len(requests) == 1 else f"ask {len(requests)} at once"
            if meanwhile is None:
                return f"{together}: {asked}"
            return f"{together}: {asked}; after {meanwhile.after_tokens} tokens {describe(meanwhile.change, 0)}"


def describe_request(request: Request, number: int) -> str:
    """One request in words."""
    whom = "the base model" if request.adapter is None else repr(request.adapter)
    words = f"request {number} to {whom}" + ("" if request.salt is None else f" with salt {request.salt!r}")
    words += f"{' as a chat' if request.chat else ''}: {request.prompt}, {request.max_tokens} tokens"
    words += "".join(f", {said}" for said in describe_surface(request.surface))
    words += f", priority {request.priority}" if request.priority else ""
    words += f", {request.offset_ms} ms later" if request.offset_ms else ""
    return words + (f", {describe_abort(request.abort)}" if request.abort is not None else "")


def describe_surface(surface: Surface) -> Iterator[str]:
    """What is asked for beside plain tokens."""
    if surface.answers > 1:
        yield f"{surface.answers} answers"
    if surface.stop:
        yield f"stop at any of {''.join(surface.stop)!r}"
    if surface.pattern is not None:
        yield f"matching {surface.pattern}"
    if surface.prompt_logprobs:
        yield "with prompt logprobs"
    if surface.logprobs:
        yield "with logprobs"


def describe_abort(abort: Abort) -> str:
    """When the client hangs up."""
    if abort.after_tokens:
        return f"aborted after {abort.after_tokens} tokens"
    return f"aborted after {abort.after_ms} ms" + (f", once it is {abort.at.value}" if abort.at is not None else "")
