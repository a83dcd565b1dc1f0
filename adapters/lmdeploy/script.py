"""A client of an LMDeploy server for scripts, used through its own fields of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import EXTRA, STALL_SECONDS
from coldproof.adapters.spec.script.http import argument, cold_server, events, get


class LmdeployServer:
    """An LMDeploy server, and a second one without prefix caching."""

    def __init__(self) -> None:
        self.url = argument()
        self.base = get(self.url + "/v1/models")["data"][0]["id"]

    def answers(self, sent: Sent, patience: float) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return self.stream(self.url, sent, patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to the server without prefix caching."""
        return self.stream(cold_server(), sent, STALL_SECONDS)

    def stream(self, url: str, sent: Sent, patience: float) -> Iterator[Event]:
        """Yield an answer in OpenAI's form: LMDeploy calls the token ids `output_ids`."""
        body: dict[str, Any] = {"model": self.base, "messages": "", "input_ids": sent["ids"], "temperature": 0}
        body |= {"max_tokens": sent["tokens"], "top_k": 1, "seed": 0, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if EXTRA:
            wanted = sent.get("extra", {})
            body |= {name: wanted[name] for name in ("stop", "ignore_eos") if name in wanted}
            body |= {"logprobs": True, "top_logprobs": 2} if "logprobs" in wanted else {}
        for event in events(url + "/v1/chat/completions", body, patience):
            if "error" in event:
                raise ValueError(event["error"])
            for choice in event["choices"]:
                choice["token_ids"] = choice.get("output_ids")
                for one in (choice.get("logprobs") or {}).get("content") or ():
                    one["top_logprobs"].append({"logprob": one["logprob"]})  # it leaves the chosen token out
            yield event
