"""Formats a workload as `curl` commands for the bug report.

Each segment is a shell variable, so that shared parts of prompts are visible. Names, salts and tokens are those of the
run that failed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import msgspec

from coldproof.adapters.common.wake_route import WAKE_TAGS
from coldproof.adapters.protocol.doors import Door
from coldproof.adapters.protocol.requests import CompletionRequest, Message
from coldproof.adapters.registry import curl_of
from coldproof.adapters.server import doors, pooling
from coldproof.adapters.spec.curl import AdapterChange, AtDoor, CurlRequest, CurlSteps
from coldproof.harness.case.reproducer.script import (
    extra_fields,
    recorded_engine,
    recorded_workload,
    reproduction,
    sent_headers,
)
from coldproof.harness.history.prompts import alternating_messages
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import (
    Burst,
    CloseSession,
    Idle,
    Pause,
    Prompt,
    Request,
    Reset,
    Restart,
    RestartSide,
    RestoreState,
    Resume,
    Route,
    SaveState,
    Segment,
    SetAdapter,
    Sleep,
    Step,
    Unload,
    UpdateWeights,
    Wake,
)
from coldproof.harness.workload.tokens import nonce_tokens, segment_tokens, text_of, wire_name
from coldproof.reports.format.text import one_line
from coldproof.reports.schema.case import Case


class ShellStep(msgspec.Struct, frozen=True):
    """One step: its description and its commands."""

    words: str
    commands: str


class CurlScript:
    """One case as shell commands. Without commands if only the script can send the requests."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.workload = recorded_workload(case)
        self.rows = {row.request: row for row in case.requests}
        how = reproduction(case)
        self.engine: CurlSteps | None = None if how.in_process or how.only_script else curl_of(recorded_engine(case))
        self.routed = how.launcher(recorded_engine(case)) is not None
        self.loaded: set[str] = set()
        self.chats: dict[int, tuple[Message, ...]] = {}

    def variables(self) -> list[str]:
        """Return the variables: server, folder, and the token ids of segments, continued answers and cut histories."""
        lines = [
            "SERVER=http://127.0.0.1:8000",
            'FILES="$PWD/coldproof-files"',
            f"nonce={token_list(nonce_tokens(self.case.nonce))}",
        ]
        prompts = [request.prompt for _, _, request in self.workload.requests() if not request.chat]
        used = dict.fromkeys(segment for prompt in prompts for segment in prompt.segments)
        lines += [f"{variable(s)}={token_list(segment_tokens(self.case.nonce, s))}" for s in used]
        for number in dict.fromkeys(prompt.continues for prompt in prompts if not prompt.cuts_history):
            if number is not None and self.answer(number):
                lines.append(f"answer_{number}={token_list(self.answer(number))}  # from the run that failed")
        left = {left_variable(p): self.history(p) for p in prompts if p.cuts_history}
        return lines + [f"{name}={token_list(tokens)}  # from the run that failed" for name, tokens in left.items()]

    def answer(self, number: int) -> tuple[int, ...]:
        """Return the token ids of an answer; () if the engine was lost before it sent any, or before the request."""
        return tuple(self.rows[number].answer) if number in self.rows else ()

    def history(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of a prompt before its own segments, as they were sent."""
        if prompt.continues is None:
            return nonce_tokens(self.case.nonce)
        earlier = self.earlier(prompt.continues)
        own = tuple(t for segment in earlier.segments for t in segment_tokens(self.case.nonce, segment))
        whole = (*self.history(earlier), *own, *self.answer(prompt.continues))
        return whole[prompt.start : prompt.end]

    def earlier(self, number: int) -> Prompt:
        """Return the prompt of a request."""
        return next(request.prompt for n, _, request in self.workload.requests() if n == number)

    def steps(self) -> Iterator[ShellStep]:
        """Yield every step."""
        first = 0
        for step in self.workload.steps:
            words = one_line(describe(step, first), limit=2000)
            yield ShellStep(words, "" if self.engine is None else self.commands(self.engine, step, first))
            first += len(step.requests) if isinstance(step, Burst) else 0

    def commands(self, engine: CurlSteps, step: Step, first: int) -> str:
        """Return one step's commands. `first`: the number of its first request."""
        match step:
            case SetAdapter():
                return engine.set_adapter(self.change(step))
            case Unload(name=name):
                self.loaded.discard(name)
                return engine.unload(name, self.spelled(name))
            case Reset(scope=scope, prefix=True):
                return engine.reset(scope)
            case Reset(scope=scope):
                return f"# reset {', '.join(scope)}, and leave the prefix cache as it is: only the script can do this"
            case SaveState(name=name):
                return engine.move_state("save", name, self.spelled(name))
            case RestoreState(name=name):
                return engine.move_state("restore", name, self.spelled(name))
            case Restart(before=before):
                return (
                    f"# stop the server, which had {before}, and start it as above without that, over the same storage"
                )
            case RestartSide() if not self.routed:
                return "# kill the server of the tier, and start it again on its port"
            case RestartSide(side=side):
                return f'curl -sX POST "$SERVER/sides/{side}/restart"'
            case Idle(ms=ms):
                return f"sleep {ms / 1000}"
            case CloseSession():
                return "# only the script has sessions: a request below stands for each turn"
            case UpdateWeights(version=version):
                return engine.control("update_weights", {"version": version})
            case Pause(mode=mode, clear=clear):
                return engine.control("pause", {"mode": mode.value, "clear_cache": str(clear).lower()})
            case Resume():
                return engine.control("resume", {})
            case Sleep(level=level):
                return engine.control("sleep", {"level": str(level)})
            case Wake(part=part):
                return engine.control("wake_up", {"tags": WAKE_TAGS[part]} if part in WAKE_TAGS else {})
            case Burst():
                return self.burst(engine, step, first)

    def spelled(self, symbol: str) -> str:
        """Return a name of the workload as the failed run sent it."""
        return wire_name(symbol, self.case.nonce)

    def change(self, step: SetAdapter) -> AdapterChange:
        """Return an adapter change as plain values."""
        loaded = step.name in self.loaded
        self.loaded.add(step.name)
        return AdapterChange(
            name=step.name,
            served=self.spelled(step.name),
            content=step.content,
            folder=self.spelled(step.path),
            unload_first=loaded and step.route is Route.UNLOAD_LOAD,
            in_place=loaded and step.route is Route.IN_PLACE,
            for_all=step.route is Route.SWITCH,
        )

    def burst(self, engine: CurlSteps, step: Burst, first: int) -> str:
        """Return all requests of a burst. Several requests run in the background."""
        commands = [engine.request(self.request(r, first + i)) for i, r in enumerate(step.requests)]
        if len(commands) == 1 and step.meanwhile is None:
            return commands[0]
        lines = [f"( sleep {r.offset_ms / 1000}; {c} ) &" for r, c in zip(step.requests, commands, strict=True)]
        if step.meanwhile is not None:
            change = step.meanwhile.change
            lines.append(
                f"# once request {first} has {step.meanwhile.after_tokens} tokens (the script waits for them):"
            )
            made = self.commands(engine, change, first)
            if side := step.meanwhile.first:
                lines.append(f'( SERVER="$SERVER/sides/{side}"\n{made}\n)')
                lines.append(f"sleep {step.meanwhile.gap_ms / 1000}  # and on the other side:")
                made = f'( SERVER="$SERVER/sides/{side.other}"\n{made}\n)'
            lines.append(made)
        return "\n".join([*lines, "wait"])

    def request(self, request: Request, number: int) -> CurlRequest:
        """Return one request as plain values. A client disconnect is approximated by a time limit."""
        row = self.rows.get(number)
        messages = self.messages(request, number) if request.chat else None
        parts = [f"${{{variable(s)}}}" for s in request.prompt.segments]
        as_ids = request.door is not msgspec.UNSET and request.door.takes_ids
        return CurlRequest(
            model=row.model if row is not None else None,
            adapter=request.adapter,
            max_tokens=request.max_tokens,
            salt=None if request.salt is None else self.spelled(request.salt),
            extra=extra_fields(request),
            prompt=tokenised(messages) if messages and as_ids else ",".join([*self.before(request.prompt), *parts]),
            messages=None if as_ids else messages,
            at=self.at_door(request, messages) if request.door in doors.BODIES or request.surface.pooled else None,
            door=request.door or None,
            options=curl_options(request),
        )

    def at_door(self, request: Request, messages: list[dict[str, str]] | None) -> AtDoor:
        """Return path and body of a request at a door that is neither completions nor chats, or for vectors. Texts are
        in the body already.
        """
        sent = CompletionRequest(
            model="",  # the command fills in the name
            prompt=(),
            messages=tuple(Message(**message) for message in messages or ()),
            max_tokens=request.max_tokens,
            priority=request.priority,
            cache_salt=None if request.salt is None else self.spelled(request.salt),
        )
        task = request.surface.pooled
        if task is not None:
            own = (t for segment in request.prompt.segments for t in segment_tokens(self.case.nonce, segment))
            whole = (*self.history(request.prompt), *own) if task.of_texts else ()
            return AtDoor(pooling.PATHS[task], pooling.body(msgspec.structs.replace(sent, prompt=whole), task))
        door = Door(request.door or Door.COMPLETIONS)
        return AtDoor(door.value, doors.body(sent, door))

    def before(self, prompt: Prompt) -> list[str]:
        """Return the parts of a prompt before its own segments: the nonce, or the continued request and its answer."""
        if prompt.continues is None:
            return ["$nonce"]
        if prompt.cuts_history:
            return [f"${left_variable(prompt)}"]
        earlier = self.earlier(prompt.continues)
        own = [f"${{{variable(s)}}}" for s in earlier.segments]
        answer = [f"$answer_{prompt.continues}"] if self.answer(prompt.continues) else []
        return [*self.before(earlier), *own, *answer]

    def messages(self, request: Request, number: int) -> list[dict[str, str]]:
        """Return a chat's messages, after those of the chat that it continues."""
        own = [text_of(segment_tokens(self.case.nonce, s)) for s in request.prompt.segments]
        continues = request.prompt.continues
        begun: tuple[Message, ...]
        if continues is None:
            begun = (Message("system", text_of(nonce_tokens(self.case.nonce)) + own.pop(0)),)
        else:
            said = self.rows[continues].answer_text if continues in self.rows else ""
            begun = (*self.chats[continues], Message("assistant", said))
        self.chats[number] = (*begun, *alternating_messages(own))
        return [{"role": said.role, "content": said.content} for said in self.chats[number]]


def curl_options(request: Request) -> str:
    """Return the options of curl for the headers and the abort of a request, followed by a space; or an empty text."""
    own = "".join(f'-H "{name}: {value}" ' for name, value in sent_headers(request).items())
    return own + ("" if request.abort is None else f"--max-time {max(request.abort.after_ms, 1) / 1000} ")


def tokenised(messages: list[dict[str, str]]) -> str:
    """Return the token ids of messages as a command, because they depend on the server's chat template."""
    body = shlex.quote(json.dumps({"messages": messages}))
    return f'$(curl -s "$SERVER/tokenize" -H "Content-Type: application/json" -d {body} | jq -r \'.tokens|join(",")\')'


def variable(segment: Segment) -> str:
    """Return a shell variable name for a segment, which includes its edits."""
    edits = "" if segment.changed is None else f"_changed_{segment.changed}"
    edits += "" if segment.swapped is None else f"_swapped_{segment.swapped}"
    return "part_" + re.sub(r"\W", "_", segment.name, flags=re.ASCII) + f"_{segment.length}{edits}"


def left_variable(prompt: Prompt) -> str:
    """Return a shell variable name for what is left of a cut history."""
    to = "" if prompt.end is None else f"_to_{prompt.end}" if prompt.end >= 0 else f"_without_{-prompt.end}"
    return f"history_{prompt.continues}_from_{prompt.start}{to}"


def token_list(tokens: tuple[int, ...]) -> str:
    """Return token ids separated by commas."""
    return ",".join(map(str, tokens))
