"""Serve mistral.rs over HTTP: `python server.py --model FOLDER --port P [--prefix-cache-n N] [--max-seqs N] [--lora]`.

The Python package of mistral.rs has the engine and no server. This one streams completions of texts in OpenAI's form,
and loads adapters. It runs by its path and imports nothing of Coldproof.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PLAIN_TEMPLATE = "{{ messages[0]['content'] }}"  # the prompt as it is: completions are not streamed, chats are

MOST_ADAPTERS = 4096  # names at a time: none makes room for another, as in an engine with slots
ONE_CALL = threading.Lock()  # of two calls of the engine at once, one raises "Already borrowed"


def serve(arguments: Sequence[str] | None = None) -> None:
    """Start the engine and answer requests until the process ends."""
    options = parsed(arguments)

    class Bound(Handler):
        runner = engine(options)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    Server(("127.0.0.1", options.port), Bound).serve_forever()


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="mistralrs-server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefix-cache-n", type=int, default=16, dest="kept")
    parser.add_argument("--max-seqs", type=int, default=8, dest="most")
    parser.add_argument("--lora", action="store_true")
    return parser.parse_args(arguments)


def engine(options: argparse.Namespace) -> Any:
    """Return the engine. With adapters, requests go through the runtime of adapters, also those of the base model."""
    library = importlib.import_module("mistralrs")
    which = library.Which.Lora if options.lora else library.Which.Plain
    model = which(
        model_id=options.model,
        dtype=library.ModelDType.F32,
        **({"adapters": [], "max_adapters": MOST_ADAPTERS} if options.lora else {}),
    )
    with tempfile.TemporaryDirectory() as folder:  # the template is read at the start
        template = Path(folder, "plain.jinja")
        template.write_text(PLAIN_TEMPLATE)
        return library.Runner(
            which=model,
            max_seqs=options.most,
            prefix_cache_n=options.kept,
            token_source="none",
            jinja_explicit=str(template),
        )


class Handler(BaseHTTPRequestHandler):
    """Answers requests with the engine of the process."""

    runner: Any

    def log_message(self, *_: object) -> None:
        """Log nothing: the engine does."""

    def do_GET(self) -> None:
        """Say that the engine is there."""
        self.reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        """Generate, or load or unload an adapter."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        try:
            if self.path == "/v1/load_lora_adapter":
                replacing = bool(body.get("load_inplace"))
                with ONE_CALL:
                    self.runner.load_lora_adapter(body["lora_name"], body["lora_path"], load_inplace=replacing)
                self.reply(200, {})
            elif self.path == "/v1/unload_lora_adapter":
                with ONE_CALL:
                    self.runner.unload_lora_adapter(body["lora_name"])
                self.reply(200, {})
            elif self.path == "/v1/completions":
                self.stream(events(self.runner, body))
            else:
                self.reply(404, {"error": "no such route"})
        except ValueError as problem:
            self.reply(400, {"error": str(problem)})

    def stream(self, parts: Iterator[dict[str, Any]]) -> None:
        """Send the events of an answer. One that fails before its first event is refused."""
        first = next(parts)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.event(first)
        try:
            for part in parts:
                self.event(part)
        except ValueError as problem:
            self.event({"error": str(problem)})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, part: dict[str, Any]) -> None:
        """Send one event."""
        self.wfile.write(b"data: " + json.dumps(part).encode() + b"\n\n")

    def reply(self, status: int, content: dict[str, Any]) -> None:
        """Send a whole response."""
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def events(runner: Any, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer in parts. The engine reports no details of a prompt of which nothing was cached."""
    library = importlib.import_module("mistralrs")
    scored = bool(body.get("logprobs"))
    request = library.ChatCompletionRequest(
        messages=[{"role": "user", "content": body["prompt"]}],
        model="default",
        max_tokens=body["max_tokens"],
        temperature=0.0,
        ignore_eos=True,
        stream=True,
        logprobs=scored,
        top_logprobs=2 if scored else None,
        adapter=body.get("adapter"),
    )
    with ONE_CALL:
        chunks = runner.send_chat_completion_request(request)  # returns before the first chunk
    for chunk in chunks:
        (choice,) = chunk.choices
        scores = {"logprobs": {"content": [score(choice.logprobs)]}} if scored and choice.logprobs is not None else {}
        part = {"index": 0, "text": choice.delta.content or "", "finish_reason": choice.finish_reason, **scores}
        yield {"choices": [part]}
        if choice.finish_reason is not None and chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            counts = {"prompt_tokens": chunk.usage.prompt_tokens, "completion_tokens": chunk.usage.completion_tokens}
            cached = 0 if details is None else details.cached_tokens
            yield {"choices": [], "usage": counts | {"prompt_tokens_details": {"cached_tokens": cached}}}


def score(found: Any) -> dict[str, Any]:
    """Return the score of a token, which is one character, and those of the best candidates."""
    best = [{"logprob": one.logprob} for one in found.top_logprobs]
    return {"id": ord(found.token[:1] or "\0"), "logprob": found.logprob, "top_logprobs": best}


if __name__ == "__main__":
    serve()
