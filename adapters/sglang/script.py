"""A client of an SGLang server for scripts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.common.tiny_model import make_model
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ADAPTED,
    CHATS,
    EXTRA,
    FILES,
    GENERATED,
    SCORES,
    SESSIONS,
    STALL_SECONDS,
    UPDATES_FLUSH,
    WEIGHTS,
)
from coldproof.adapters.spec.script.http import argument, events, get, has_ended, post, whole
from coldproof.adapters.spec.script.openai import parts_of
from coldproof.adapters.spec.script.plain_files import write_adapter


class SglangServer:
    """An SGLang server, used through its own routes."""

    def __init__(self) -> None:
        self.url = argument()
        if SESSIONS:
            self.turns: dict[str, int] = {}  # how many turns each open session has had
        if ADAPTED:
            self.loaded: set[str] = set()

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False) -> None:
        """Load an adapter. A name that is loaded is unloaded first."""
        write_adapter(content, FILES / folder)
        if name in self.loaded:
            self.unload(name)
        post(self.url + "/load_lora_adapter", {"lora_name": name, "lora_path": str(FILES / folder)})
        self.loaded.add(name)

    def unload(self, name: str) -> None:
        """Unload an adapter."""
        post(self.url + "/unload_lora_adapter", {"lora_name": name})
        self.loaded.discard(name)

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        if CHATS:
            endpoint = sent.get("endpoint") or ("/v1/chat/completions" if "messages" in sent else None)
            if endpoint not in (None, "/inference/v1/generate"):  # this one stands for /generate
                yield from self.at_endpoint(endpoint, sent)
                return
        if SESSIONS:
            yield from self.stream(sent, patience, self.turn(sent))
        else:
            yield from self.stream(sent, patience, {})

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request alone, with a salt, and an adapter's name and folder, that were not used before."""
        new = f"cold-{secrets.token_hex(4)}"
        if ADAPTED and sent["content"] is not None:
            self.load(new, sent["content"], new)
        name = new if sent.get("content") is not None else None
        return self.stream({**sent, "name": name, "salt": new}, STALL_SECONDS, {})

    def stream(self, sent: Sent, patience: float, turn: Event) -> Iterator[Event]:
        """Yield an answer. An event of SGLang has either all tokens so far or only the new ones."""
        sampling = {"max_new_tokens": sent["tokens"], "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": sent["ids"], "sampling_params": sampling, "stream": True}
        if sent.get("name"):
            body["lora_path"] = sent["name"]
        if sent.get("salt"):
            body["cache_salt"] = sent["salt"]
        if EXTRA:
            body |= options(sent.get("extra", {}), sampling)
        body |= turn
        known = 0
        received = events(self.url + "/generate", body, patience)
        if EXTRA and not body["stream"]:
            received = iter([whole(self.url + "/generate", body)])
        for event in received:
            if "error" in event:
                raise ValueError(event["error"].get("message"))
            about = event["meta_info"]
            ids, end = event["output_ids"], (about.get("finish_reason") or {}).get("type")
            new = ids[known:] if len(ids) == about.get("completion_tokens", len(ids)) else ids
            known += len(new)
            part = {"ids": new, "end": end, "cached": about.get("cached_tokens")}
            if SCORES:
                part |= {"logprobs": answer_scores(about, len(new)), **scores_of_prompt(about)}
            yield part

    def turn(self, sent: Sent) -> Event:
        """Return the body's fields of a turn, whose first one opens its session: its new tokens, its name, and from
        where it goes on. A streaming session appends them to all that it has seen.
        """
        if not sent.get("session"):
            return {}
        name = sent["session"]
        if name not in self.turns:
            opened_as = {"capacity_of_str_len": 1 << 20, "session_id": name}
            post(self.url + "/open_session", opened_as | ({"streaming": True} if sent.get("streaming") else {}))
            self.turns[name] = 0
        before = self.turns[name]
        self.turns[name] += 1
        held = len(sent["ids"]) - sent["new"] if before else 0
        going_on = {"rid": f"{before}:{name}:", "offset": held} if before and "streaming" not in sent else {}
        return {
            "input_ids": sent["ids"][held:],
            "rid": f"{before + 1}:{name}:",
            "session_params": {"id": name, **going_on},
        }

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session between two turns."""
        if self.turns.pop(name, None):
            post(self.url + "/close_session", {"session_id": name})

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat, from the server's chat template."""
        return list(json.loads(post(self.url + "/tokenize", {"model": self.base(), "messages": messages}))["tokens"])

    def base(self) -> str:
        """Return the base model's name."""
        return str(get(self.url + "/v1/models")["data"][0]["id"])

    def at_endpoint(self, endpoint: str, sent: Sent) -> Iterator[Event]:
        """Send a request at a route beside /generate, and yield its answer."""
        base, adapter, count = self.base(), sent.get("name"), sent["tokens"]
        # An adapter has two names: its own, which /v1/models lists, and BASE:ADAPTER.
        name = base if adapter is None else adapter if endpoint == "/v1/completions" else f"{base}:{adapter}"
        body: dict[str, Any] = {"model": name, "temperature": 0, **sent.get("extra", {})}
        if sent.get("salt"):
            body["cache_salt"] = sent["salt"]
        if endpoint in ("/v1/completions", "/v1/chat/completions"):
            body |= {"prompt": sent["ids"]} if endpoint == "/v1/completions" else {"messages": sent["messages"]}
            body |= {"max_tokens": count, "ignore_eos": True, "return_token_ids": True}
        elif endpoint == "/v1/responses":  # which allows two tokens less than it is asked for
            body |= {"input": sent["messages"], "max_output_tokens": count + 2, "store": False}
        else:
            system, *others = sent["messages"]
            body |= {"system": system["content"], "messages": others, "max_tokens": count}
        said = whole(self.url + endpoint, body)
        if "choices" in said:
            for choice in said["choices"]:
                choice["token_ids"] = choice.get("response_token_ids") or choice["token_ids"]
            yield from parts_of(said)
            return
        parts = said["content"] if "content" in said else [p for o in said["output"] for p in o.get("content") or ()]
        text, usage = "".join(part.get("text") or "" for part in parts), said["usage"]
        asked = {"model": base, "prompt": text, "add_special_tokens": False}
        ids = json.loads(post(self.url + "/tokenize", asked))["tokens"]
        full = said.get("status") == "incomplete" or said.get("stop_reason") == "max_tokens"
        cached = usage.get("cache_read_input_tokens", (usage.get("input_tokens_details") or {}).get("cached_tokens", 0))
        yield {"ids": ids, "text": text, "end": "length" if full else "stop", "cached": cached}

    def update_weights(self, version: str, *, same_path: bool = False) -> None:
        """Load other weights: generated ones, or a checkpoint that was put into the folder."""
        folder = FILES / f"weights-{'of-this-path' if same_path else version}"
        if GENERATED:
            make_model(folder, seed=WEIGHTS[version])
        post(self.url + "/update_weights_from_disk", {"model_path": str(folder), "flush_cache": UPDATES_FLUSH})

    def pause(self, mode: str, *, clear: bool) -> None:
        """Pause generation. A kept request loses its KV (retract) if the cache is cleared here or by an update."""
        kept = "retract" if clear or UPDATES_FLUSH else "in_place"
        post(self.url + "/pause_generation", {"mode": "abort" if mode == "abort" else kept})
        if clear:
            self.reset()

    def resume(self) -> None:
        """Continue generation."""
        post(self.url + "/continue_generation", {})

    def reset(self) -> None:
        """Request an empty prefix cache and print the server's answer."""
        print("reset:", post(self.url + "/flush_cache", {}))

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return has_ended(self.url)


def options(wanted: Event, sampling: Event) -> Event:
    """Return the body's fields for a request's options, and put others among those for sampling."""
    sampling |= {name: wanted[name] for name in ("stop", "ignore_eos") if name in wanted}
    sampling |= wanted.get("structured_outputs", {})
    fields = {name: wanted[name] for name in ("priority",) if name in wanted}
    if "logprobs" in wanted or "prompt_logprobs" in wanted:
        fields |= {"return_logprob": True, "top_logprobs_num": 2}
    if "prompt_logprobs" in wanted:
        fields |= {"logprob_start_len": 0, "stream": False}
    return fields


def answer_scores(about: Event, count: int) -> Event:
    """Return the logprobs of the last `count` tokens in OpenAI's form. SGLang's rows are (logprob, id, text)."""
    rows, best = (about.get(f"output_{name}_logprobs") or [] for name in ("token", "top"))
    tops = [{i: row[0] for i, row in enumerate(one or ())} for one in best[-count:]]
    return {"token_logprobs": [row[0] for row in rows[-count:]], "top_logprobs": tops} if count else {}


def scores_of_prompt(about: Event) -> Event:
    """Return the ids of the prompt's tokens and their logprobs, each with the best candidates at its position."""
    rows, best = (about.get(f"input_{name}_logprobs") or [] for name in ("token", "top"))
    scores = [
        {str(row[1]): {"logprob": row[0]} for row in (*(tops or ()), mine)} if mine[0] is not None else {}
        for mine, tops in zip(rows, best or [None] * len(rows), strict=False)
    ]
    return {"prompt_token_ids": [row[1] for row in rows], "prompt_logprobs": scores}
