"""A workload as shell commands: numbered steps of `curl`, for whoever wants to see each request go out.

The tokens of each segment stand in a variable of their own, so that what two prompts share is seen to be shared. Names,
salts and tokens are those of the run that failed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import msgspec

from adapters.base import Message
from harness.prompting import in_turn
from harness.reproducer import as_it_ran, extra_fields
from harness.workload import (
    Burst,
    Idle,
    Request,
    Reset,
    RestoreState,
    SaveState,
    Segment,
    SetAdapter,
    Unload,
    describe,
    nonce_tokens,
    segment_tokens,
    spelled,
    text_of,
)
from reports.schema import Case
from reports.text import one_line

QUOTE = '"'


class ShellStep(msgspec.Struct, frozen=True):
    """One step: what it does, and the commands."""

    words: str
    commands: str


class Shell:
    """The story of one case in shell commands."""

    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    reset = 'curl -X POST "$SERVER/reset_prefix_cache"'

    def __init__(self, case: Case) -> None:
        self.case = case
        self.workload = as_it_ran(case)
        self.rows = {row.request: row for row in case.requests}
        self.loaded: set[str] = set()
        self.chats: dict[int, tuple[Message, ...]] = {}

    def variables(self) -> list[str]:
        """Server, folder, and the token ids of every part of a prompt."""
        lines = [
            "SERVER=http://127.0.0.1:8000",
            'FILES="$PWD/coldproof-files"',
            f"nonce={ids(nonce_tokens(self.case.nonce))}",
        ]
        used = dict.fromkeys(s for _, _, r in self.workload.requests() if not r.chat for s in r.prompt.segments)
        lines += [f"{variable(s)}={ids(segment_tokens(self.case.nonce, s))}" for s in used]
        for number in dict.fromkeys(r.prompt.continues for _, _, r in self.workload.requests() if not r.chat):
            if number is not None:
                lines.append(
                    f"answer_{number}={ids(tuple(self.rows[number].answer))}  # as it came in the run that failed"
                )
        return lines

    def steps(self) -> Iterator[ShellStep]:
        """Every step."""
        first = 0
        for step in self.workload.steps:
            words = one_line(describe(step, first), limit=2000)
            match step:
                case SetAdapter():
                    yield ShellStep(words, self.set_adapter(step))
                case Unload(name=name):
                    yield ShellStep(words, self.unload(name))
                case Reset():
                    yield ShellStep(words, self.reset)
                case SaveState(name=name):
                    yield ShellStep(words, self.move_state("save", name))
                case RestoreState(name=name):
                    yield ShellStep(words, self.move_state("restore", name))
                case Idle(ms=ms):
                    yield ShellStep(words, f"sleep {ms / 1000}")
                case Burst():
                    yield ShellStep(words, self.burst(step, first))
                    first += len(step.requests)

    def set_adapter(self, step: SetAdapter) -> str:
        """Files into place, then the route's calls."""
        folder = f'"$FILES"/{shlex.quote(spelled(step.path, self.case.nonce))}'
        lines = [f'mkdir -p {folder} && cp "$FILES"/{shlex.quote(f"adapter-{step.content}")}/* {folder}/']
        again = step.name in self.loaded
        if step.route.value == "unload, then load" and again:
            lines.append(self.unload(step.name))
        place = f"@/{spelled(step.path, self.case.nonce)}"
        body: dict[str, object] = {"lora_name": spelled(step.name, self.case.nonce), "lora_path": place}
        if step.route.value == "in-place reload" and again:
            body["load_inplace"] = True
        before, _, after = json.dumps(body).partition('"@')
        lines.append(self.post(self.load_path, f'{shlex.quote(before + QUOTE)}"$FILES"{shlex.quote(after)}'))
        self.loaded.add(step.name)
        return "\n".join(lines)

    def unload(self, name: str) -> str:
        """Forget a name."""
        self.loaded.discard(name)
        body = json.dumps({"lora_name": spelled(name, self.case.nonce)})
        return self.post(self.unload_path, shlex.quote(body))

    def move_state(self, action: str, name: str) -> str:
        """Saves or restores what is cached, for engines that can."""
        return f"# {action} what is cached, as {name!r}: there is no route for it"

    def burst(self, step: Burst, first: int) -> str:
        """All requests of a burst, in the background where there are several."""
        asked = [self.request(r, first + i) for i, r in enumerate(step.requests)]
        if len(asked) == 1 and step.meanwhile is None:
            return asked[0]
        lines = [f"( sleep {r.offset_ms / 1000}; {a} ) &" for r, a in zip(step.requests, asked, strict=True)]
        if step.meanwhile is not None:
            change = step.meanwhile.change
            lines.append(
                f"# once request {first} has {step.meanwhile.after_tokens} tokens (the script waits for them):"
            )
            lines.append(self.set_adapter(change) if isinstance(change, SetAdapter) else self.reset)
        return "\n".join([*lines, "wait"])

    def request(self, request: Request, number: int) -> str:
        """One request; a client that hangs up does so after a time, which is near enough to begin with."""
        row = self.rows.get(number)
        model = row.model if row is not None else "base"
        body: dict[str, object] = {"model": model, "max_tokens": request.max_tokens, "temperature": 0, "seed": 0}
        body |= {"ignore_eos": True, "return_token_ids": True} | extra_fields(request)
        if request.salt is not None:
            body["cache_salt"] = spelled(request.salt, self.case.nonce)
        hang_up = hanging_up(request)
        if request.chat:
            messages = json.dumps({"messages": self.messages(request, number)} | body)
            return self.post("/v1/chat/completions", shlex.quote(messages), hang_up)
        return self.asked("/v1/completions", request, body, hang_up)

    def asked(
        self, path: str, request: Request, body: dict[str, object], options: str, *, field: str = "prompt"
    ) -> str:
        """A request with its prompt in variables, in a field of its body."""
        parts = [f"${{{variable(s)}}}" for s in request.prompt.segments]
        prompt = ",".join([*self.before(request.prompt.continues), *parts])
        before, _, after = json.dumps({field: "@"} | body).partition('"@"')
        return self.post(path, f'{shlex.quote(before)}"[{prompt}]"{shlex.quote(after)}', options)

    def before(self, continues: int | None) -> list[str]:
        """What stands in front of a prompt's own segments."""
        if continues is None:
            return ["$nonce"]
        earlier = next(r for n, _, r in self.workload.requests() if n == continues)
        own = [f"${{{variable(s)}}}" for s in earlier.prompt.segments]
        return [*self.before(earlier.prompt.continues), *own, f"$answer_{continues}"]

    def messages(self, request: Request, number: int) -> list[dict[str, str]]:
        """A chat's messages, behind those of the chat that it continues."""
        own = [text_of(segment_tokens(self.case.nonce, s)) for s in request.prompt.segments]
        continues = request.prompt.continues
        begun: tuple[Message, ...]
        if continues is None:
            begun = (Message("system", text_of(nonce_tokens(self.case.nonce)) + own.pop(0)),)
        else:
            begun = (*self.chats[continues], Message("assistant", self.rows[continues].answer_text))
        self.chats[number] = (*begun, *in_turn(own))
        return [{"role": said.role, "content": said.content} for said in self.chats[number]]

    def post(self, path: str, body: str, options: str = "") -> str:
        """One call with a body that is quoted for the shell."""
        return f'curl {options}"$SERVER{path}" -H "Content-Type: application/json" -d {body}'


def hanging_up(request: Request) -> str:
    """A client that hangs up, as an option."""
    return f"--max-time {max(request.abort.after_ms, 1) / 1000} " if request.abort is not None else ""


def variable(segment: Segment) -> str:
    """A shell name for a segment; its edits are part of it."""
    edits = "" if segment.changed is None else f"_changed_{segment.changed}"
    edits += "" if segment.swapped is None else f"_swapped_{segment.swapped}"
    return "part_" + re.sub(r"\W", "_", segment.name, flags=re.ASCII) + f"_{segment.length}{edits}"


def ids(tokens: tuple[int, ...]) -> str:
    """Token ids as a list's inside."""
    return ",".join(map(str, tokens))
