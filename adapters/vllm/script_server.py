"""A client of a vLLM-compatible server for scripts."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ADAPTED,
    CHATS,
    COLD_COMMAND,
    ENDPOINTS,
    EXTRA,
    FILES,
    GENERATED,
    HEADERS,
    POOLED,
    REMADE,
    SCOPES,
    STALL_SECONDS,
    START_SEED,
    TIERED,
    WEIGHTS,
    WHOLE,
)
from coldproof.adapters.spec.script.http import CannotSay, Started, cold_server, events, get, opened, post, whole
from coldproof.adapters.spec.script.openai import parts_of
from coldproof.adapters.spec.script.plain_files import write_adapter
from coldproof.adapters.spec.script.torch_files import write_lora, write_model, write_tokenizer

POOLED_PATHS = {"embed": "/v1/embeddings", "token_embed": "/pooling", "cosine": "/score"}  # others: by their names
VALUES = {"/classify": "probs", "/score": "score", "/rerank": "relevance_score"}  # others: "embedding"
OWN_ENDPOINTS = ("/inference/v1/generate", "/v1/responses", "/v1/messages")  # which are neither completions nor chats


class Server(Started):
    """A vLLM-compatible server."""

    def __init__(self) -> None:
        if GENERATED:
            write_model(FILES / "model", START_SEED)
            write_tokenizer(FILES / "model")
        super().__init__()
        models = get(self.url + "/v1/models")["data"]
        self.base = next(one["id"] for one in models if not one.get("parent"))

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False) -> None:
        """Load an adapter, or replace it."""
        if GENERATED:
            write_lora(content, FILES / folder)
        if not GENERATED:
            write_adapter(content, FILES / folder)
        body = {"lora_name": name, "lora_path": str(FILES / folder)} | ({"load_inplace": True} if in_place else {})
        post(self.url + "/v1/load_lora_adapter", body)

    def unload(self, name: str) -> None:
        """Unload an adapter."""
        post(self.url + "/v1/unload_lora_adapter", {"lora_name": name})

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        body: dict[str, Any] = {"model": self.base, "max_tokens": sent["tokens"], "temperature": 0, "seed": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "prompt": sent["ids"]}
        path = "/v1/completions"
        if ADAPTED:
            body["model"] = sent["name"] or self.base
        if sent.get("salt"):
            body["cache_salt"] = sent["salt"]
        if EXTRA:
            body |= sent.get("extra", {})
        if POOLED and "pooled" in sent:
            yield self.pooled(sent, body["model"])
            return
        if ENDPOINTS and sent.get("endpoint") in OWN_ENDPOINTS:
            yield from self.at_endpoint(sent, body["model"])
            return
        if CHATS and "messages" in sent and sent.get("endpoint") != path:
            path = "/v1/chat/completions"
            body["messages"] = sent["messages"]
            del body["prompt"]
        if WHOLE and "prompt_logprobs" in sent.get("extra", {}):
            yield from parts_of(whole(self.url + path, body))
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if HEADERS:
            streamed = events(self.url + path, body, patience, sent.get("headers"))
        else:
            streamed = events(self.url + path, body, patience)
        for event in streamed:
            yield from parts_of(event)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request alone, with a salt, and an adapter's name and folder, that were not used before."""
        if TIERED:
            yield from self.without_tier(sent)
            return
        new = f"cold-{secrets.token_hex(4)}"
        if ADAPTED and sent["content"] is not None:
            self.load(new, sent["content"], new)
        alone = {name: value for name, value in sent.items() if name not in ("messages", "endpoint", "headers")}
        name = new if sent.get("content") is not None else None
        yield from self.answers({**alone, "name": name, "salt": new})

    def without_tier(self, sent: Sent) -> Iterator[Event]:
        """Send a request to a second server, without a second tier, whose keys may have no salt."""
        one = copy.copy(self)
        if self.process is None:
            one.url = cold_server()
        else:
            one.url = Started(COLD_COMMAND).url
        new, name = f"cold-{secrets.token_hex(4)}", None
        if ADAPTED and sent["content"] is not None:
            one.load(new, sent["content"], new)
            name = new
        yield from one.answers({**sent, "name": name, "salt": new})

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat, from the server's chat template."""
        return list(json.loads(post(self.url + "/tokenize", {"model": self.base, "messages": messages}))["tokens"])

    def at_endpoint(self, sent: Sent, model: str) -> Iterator[Event]:
        """Send a request at one of the other routes, and yield its answer."""
        endpoint, count = sent["endpoint"], sent["tokens"]
        body: dict[str, Any] = {"model": model, **sent.get("extra", {})}
        if sent.get("salt"):
            body["cache_salt"] = sent["salt"]
        sampling = {"temperature": 0, "seed": 0, "ignore_eos": True}
        if endpoint == "/inference/v1/generate":
            body |= {"token_ids": sent["ids"], "sampling_params": sampling | {"max_tokens": count}}
            yield from parts_of(whole(self.url + endpoint, body | {"output_mode": "text"}))
            return
        if endpoint == "/v1/responses":
            body |= {"input": sent["messages"], "max_output_tokens": count, "store": False} | sampling
            said = whole(self.url + endpoint, body | {"enable_response_messages": True})
            answer, cached = said["output_messages"][0], said["usage"]["input_tokens_details"]["cached_tokens"]
            full = said["status"] == "incomplete"
            yield completion(answer["tokens"], answer["message"], full, cached)
            return
        system, *others = sent["messages"]
        body |= {"system": system["content"], "messages": others, "max_tokens": count, "temperature": 0}
        said = whole(self.url + endpoint, body)
        text = "".join(block.get("text") or "" for block in said["content"])
        asked = {"model": model, "prompt": text, "add_special_tokens": False}
        ids = json.loads(post(self.url + "/tokenize", asked))["tokens"]
        yield completion(ids, text, said["stop_reason"] == "max_tokens", said["usage"].get("cache_read_input_tokens"))

    def pooled(self, sent: Sent, model: str) -> Event:
        """Send a request for a pooled answer, and return its vectors as one event."""
        task = sent["pooled"]
        path = POOLED_PATHS.get(task, f"/{task}")
        body: dict[str, Any] = {"model": model, "input": sent["ids"], **sent.get("extra", {})}
        if sent.get("salt"):
            body["cache_salt"] = sent["salt"]
        if path in ("/v1/embeddings", "/pooling"):
            body["encoding_format"] = "float"
        if path == "/pooling":
            body["task"] = task
        if path in ("/score", "/rerank"):  # of two texts behind one another, or of a text beside another
            text = "".join(map(chr, body.pop("input")))
            half = len(text) // 2
            first, second = ("!", text) if task == "cosine" else (text[:half], text[half:])
            pair = {"text_1": first, "text_2": second} if path == "/score" else {"query": first, "documents": [second]}
            body |= pair
        answer = whole(self.url + path, body)
        said = (answer["results"] if path == "/rerank" else answer["data"])[0]
        value = said.get(VALUES.get(path, "embedding"))
        one = [value] if path in ("/score", "/rerank") else value
        return {"vectors": said["data"] if path == "/pooling" else [one]}

    def reset(self, *scope: str, prefix: bool = True) -> None:
        """Empty the prefix cache and what `scope` names, and print the server's answer."""
        query = ""
        if SCOPES:
            more = {"running requests": "reset_running_requests", "the second tier": "reset_external"}
            query = "?" + "&".join(f"{more[one]}=true" for one in scope)
        print("reset:", post(f"{self.url}/reset_prefix_cache{query}", {}))

    def update_weights(self, version: str, *, same_path: bool = False) -> None:
        """Load other weights: generated ones, or a checkpoint that was put into the folder."""
        folder = FILES / f"weights-{'of-this-path' if same_path else version}"
        if GENERATED:
            write_model(folder, WEIGHTS[version])
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        post(self.url + "/collective_rpc", body)

    def pause(self, mode: str, *, clear: bool) -> None:
        """Pause generation."""
        post(f"{self.url}/pause?mode={mode}&clear_cache={str(clear).lower()}", {})

    def resume(self) -> None:
        """Resume generation."""
        post(self.url + "/resume", {})

    def sleep(self, level: int) -> None:
        """Let the server sleep."""
        post(f"{self.url}/sleep?level={level}", {})

    def wake(self, part: str = "") -> None:
        """Wake the server up, or only a part of it."""
        post(self.url + "/wake_up" + (f"?tags={part}" if part else ""), {})

    def restart(self, before: str) -> None:
        """Start the server again over the same storage."""
        if REMADE:
            write_model(FILES / "model", 0)
        super().restart(before)

    def side(self, side: str) -> Server:
        """Return a client of one of two servers that answer together."""
        one = copy.copy(self)
        one.url = f"{self.url}/sides/{side}"
        return one

    def restart_side(self, side: str) -> None:
        """Kill a server and start it again: the router of both does it."""
        opened(f"{self.url}/sides/{side}/restart", {}, patience=600)

    def ended(self) -> bool:
        """Return whether the server, or the engine behind it, has ended."""
        return not self.is_up()

    def hit_count(self) -> float:
        """Return how many prompt tokens the server has counted as hits since it started."""
        counts = self.counters("vllm:prefix_cache_hits_total")
        if not counts:
            raise CannotSay("the server's /metrics have no counter of hits")
        return sum(counts)

    def draft_counts(self) -> list[float]:
        """Return how many tokens were drafted and how many of them accepted, since the server started."""
        return [sum(self.counters(f"vllm:spec_decode_num_{kind}_tokens_total")) for kind in ("draft", "accepted")]

    def counters(self, name: str) -> list[float]:
        """Return the values of a counter in the server's metrics."""
        lines = opened(self.url + "/metrics").read().decode().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name)]


def completion(ids: list[int], text: str, full: bool, cached: int | None) -> Event:
    """Return an answer as one event. `full`: it has as many tokens as it may have."""
    return {"ids": ids, "text": text, "end": "length" if full else "stop", "cached": cached}
