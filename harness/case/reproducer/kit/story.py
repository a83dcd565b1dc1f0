"""One attempt of a script: its names and prompts, what was sent, and what was answered."""

from __future__ import annotations

import copy
import secrets
import threading
import time
from collections.abc import Callable

from coldproof.adapters.spec.script.client import Client, Event, Sent
from coldproof.adapters.spec.script.given import (
    ABORTS,
    ADAPTED,
    AT_ONCE,
    CHATS,
    CONTENT,
    CONTINUES,
    COUNTED,
    CUTS,
    EDITS,
    LATE,
    MEANWHILE,
    MIDWAY_ADAPTERS,
    ONE_BY_ONE,
    SALTS,
    STALL_SECONDS,
    STEPPED,
    TOGETHER,
)
from coldproof.harness.case.reproducer.kit.reply import Reply
from coldproof.harness.workload.tokens import (
    drawn_tokens,
    edited_tokens,
    first_tokens,
    hidden_tokens,
    nonce_tokens,
    segment_tokens,
    text_of,
    wire_name,
)


class Story:
    """One attempt. Its nonce makes names and prompts unique."""

    def __init__(self, client: Client) -> None:
        self.client, self.nonce = client, secrets.token_hex(3)
        self.sent: list[Sent] = []
        self.replies: list[Reply] = []
        if ADAPTED:
            self.behind: dict[str | None, str] = {}  # the content of each adapter
        if MEANWHILE:
            self.after_tokens, self.due = 0, threading.Event()
            self.change: Callable[[], object] | None = None
        if TOGETHER:
            self.problem: Exception | None = None
        if COUNTED:
            self.hits_before = client.hit_count()

    def load(self, name: str, content: str, path: str, **how: bool) -> None:
        """Load an adapter under a name, or replace it."""
        self.client.load(wire_name(name, self.nonce), content, f"{self.nonce}/{path.replace('..', '_')}", **how)
        self.behind[name] = content
        if MIDWAY_ADAPTERS:
            for sent, reply in zip(self.sent, self.replies, strict=True):
                if sent.get("to") == name and not reply.over:  # it may be answered with the old or the new content
                    sent["contents"].append(content)

    def unload(self, name: str) -> None:
        """Unload an adapter."""
        self.client.unload(wire_name(name, self.nonce))
        self.behind.pop(name, None)

    def restart(self, before: str) -> None:
        """Start the engine again over the same storage. `before`: what was different about it up to here."""
        if ADAPTED:
            self.behind.clear()
        self.client.restart(before)

    def during(self, change: Callable[[], object], after_tokens: int, *specs: Sent) -> None:
        """Send requests together, and make a change once the first one has `after_tokens` tokens of its answer."""
        self.after_tokens, self.change = after_tokens, change
        self.due.clear()
        self.ask(*specs)

    def ask(self, *specs: Sent) -> None:
        """Send requests together, and wait for their answers."""
        if ONE_BY_ONE:
            for spec in specs:
                self.sent.append(self.prepared(spec))
                self.replies.append(Reply(self.client.answers(self.sent[-1])))
        elif AT_ONCE:
            self.sent += map(self.prepared, specs)
            self.replies += map(Reply, self.client.together(self.sent[-len(specs) :]))
        else:
            self.first = len(self.sent)
            for spec in specs:
                self.sent.append(self.prepared(spec))
                self.replies.append(Reply())
            if STEPPED:
                if MEANWHILE:
                    self.client.serve(self.sent[self.first :], self.take, self.between)
                else:
                    self.client.serve(self.sent[self.first :], self.take)
                if MIDWAY_ADAPTERS:
                    for reply in self.replies[self.first :]:
                        reply.over = True
            elif TOGETHER:
                self.send_together(len(specs))
            else:
                self.receive(0)

    def between(self) -> None:
        """Make the change of a burst between two steps, if it is due."""
        if self.change is not None and (self.due.is_set() or not self.after_tokens):
            change, self.change = self.change, None
            change()

    def send_together(self, count: int) -> None:
        """Send the last requests at the same time. Make the change, if there is one, when it is due."""
        threads = [threading.Thread(target=self.receive, args=(place,)) for place in range(count)]
        for thread in threads:
            thread.start()
        if MEANWHILE and self.change is not None:
            self.due.wait(STALL_SECONDS if self.after_tokens else 0)
            self.change()
            self.change = None
        for thread in threads:
            thread.join()
        if self.problem is not None:
            raise self.problem

    def side(self, side: str) -> Story:
        """Return this attempt on one of two servers that answer together, to change it before the other one."""
        one = copy.copy(self)
        one.client = self.client.side(side)
        return one

    def prepared(self, spec: Sent) -> Sent:
        """Return a request as it is sent."""
        sent = {**spec, "ids": self.prompt(spec)}
        if CHATS and "chat" in spec:
            sent["messages"] = self.messages(spec)
            sent["ids"] = self.client.render(sent["messages"])
        if CONTENT:
            sent["hidden"] = self.hidden(spec)
        if ADAPTED:
            sent["content"] = self.behind.get(spec.get("to"))
            sent["name"] = wire_name(spec["to"], self.nonce) if "to" in spec else None
        if MIDWAY_ADAPTERS:
            sent["contents"] = [sent["content"]]
        if SALTS and "salt" in spec:
            sent["salt"] = wire_name(spec["salt"], self.nonce)
        return sent

    def receive(self, place: int) -> None:
        """Send one of the last requests and read its answer."""
        sent, reply = self.sent[self.first + place], self.replies[self.first + place]
        if LATE:
            time.sleep(sent.get("offset_ms", 0) / 1000)
        try:
            if ABORTS:
                events = self.client.answers(sent, sent.get("abort", (None, 0))[1] / 1000 or STALL_SECONDS)
            else:
                events = self.client.answers(sent)
            for event in events:
                if not self.take(place, event):
                    break
        except (OSError, RuntimeError, ValueError) as problem:
            print(f"request {self.first + place}: {problem}")
            reply.failed = str(problem) or "failed"
        except Exception as problem:
            if TOGETHER:
                self.problem = problem  # for the main thread, which ends with it
            else:
                raise
        if MEANWHILE:
            reply.over = True
            self.due.set()

    def take(self, place: int, event: Event) -> bool:
        """Add a part of the answer to one of the last requests, and return whether its client waits for more."""
        number = self.first + place
        self.replies[number].add(event)
        if MEANWHILE and not place and len(self.replies[number].ids) >= self.after_tokens:
            self.due.set()
        if ABORTS:
            after = self.sent[number].get("abort", (None, 0))[0]
            return after is None or len(self.replies[number].ids) < max(1, after)
        return True

    def prompt(self, spec: Sent) -> list[int]:
        """Return the token ids of a prompt."""
        if CONTENT:
            ids = [token for segment in spec["prompt"] for token in segment_tokens(self.nonce, segment)]
            begun = [*first_tokens(self.nonce, spec["prompt"])]
        else:
            if EDITS:
                ids = [token for segment in spec["prompt"] for token in edited_tokens(self.nonce, *segment)]
            else:
                ids = [token for segment in spec["prompt"] for token in drawn_tokens(self.nonce, *segment)]
            begun = [*nonce_tokens(self.nonce)]
        if CONTINUES and "continues" in spec:
            begun = self.sent[spec["continues"]]["ids"] + self.replies[spec["continues"]].ids
        if CUTS:
            begun = begun[slice(*spec.get("cut", (None,)))]
        return begun + ids

    def hidden(self, spec: Sent) -> list[int]:
        """Return what a prompt carries at each position without the model seeing it."""
        own = [number for segment in spec["prompt"] for number in hidden_tokens(self.nonce, segment)]
        begun = [0] * len(first_tokens(self.nonce, spec["prompt"]))
        if CONTINUES and "continues" in spec:
            begun = self.sent[spec["continues"]]["hidden"] + [0] * len(self.replies[spec["continues"]].ids)
        if CUTS:
            begun = begun[slice(*spec.get("cut", (None,)))]
        return begun + own

    def messages(self, spec: Sent) -> list[dict[str, str]]:
        """Return the messages of a chat."""
        if EDITS:
            texts = [text_of(tuple(edited_tokens(self.nonce, *segment))) for segment in spec["prompt"]]
        else:
            texts = [text_of(tuple(drawn_tokens(self.nonce, *segment))) for segment in spec["prompt"]]
        if CONTINUES and "continues" in spec:
            earlier = self.replies[spec["continues"]].text
            begun = [*self.sent[spec["continues"]]["messages"], {"role": "assistant", "content": earlier}]
        else:
            begun = [{"role": "system", "content": text_of(nonce_tokens(self.nonce)) + texts.pop(0)}]
        roles = ("user", "assistant")
        return begun + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
