"""Two servers of vLLM that answer as one: one computes prompts, the other one fetches their KV and decodes.

`python prefill_decode.py --port 8000 --model MODEL ...` starts both with the same flags, and a small router on the
port. It needs vLLM, which brings aiohttp, and nixl. It imports nothing of Coldproof, so that a reproducer may carry it.

The protocol is that of NixlConnector's documentation: the prefiller gets the request with one token of answer and
`do_remote_decode`, and its `kv_transfer_params` go to the decoder with the whole request.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web

SERVER = "vllm.entrypoints.openai.api_server"
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
SIDES = ("prefill", "decode")
SIDE_VARIABLE = "PREFILL_DECODE_SIDE"  # of the environment of each server: which side it is
SPLIT = ("/v1/completions", "/v1/chat/completions")  # all other doors are the decoder's
# A change is made on both sides, or reported as failed.
CHANGES = (
    "/collective_rpc",
    "/pause",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/sleep",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
)
# Of the decoder, too; all others are the prefiller's, which looks up whole prompts.
SUMMED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
)
ONLY_WHOLE = ("prompt_logprobs", "echo")  # what a transferred prompt cannot answer, because it is not computed there
POLL_MICROSECONDS = 1000
MOST_BYTES = 256 * 2**20  # of a request
HOP_HEADERS = ("content-length", "transfer-encoding", "connection", "host", "content-encoding", "date", "server")


def main(words: Sequence[str]) -> None:
    """Start both servers and the router, until one of the three ends."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    ours, flags = parser.parse_known_args(words)
    ports = [free_port() for _ in SIDES]
    fork = multiprocessing.get_context("fork")  # a process that has imported vLLM shares it with both servers
    servers = [fork.Process(target=serve, args=(side, port, flags)) for side, port in zip(SIDES, ports, strict=True)]
    for server in servers:
        server.start()
    asyncio.run(route(ours.host, ours.port, [f"http://127.0.0.1:{port}" for port in ports], servers))
    for server in servers:
        server.terminate()
    sys.exit(next((server.exitcode for server in servers if server.exitcode), 1))


def serve(side: str, port: int, flags: Sequence[str]) -> None:
    """Run one of the servers in this process."""
    os.environ[SIDE_VARIABLE] = side
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
    os.environ.setdefault("UCX_TLS", "tcp,sm,self")  # without a network card of its own, UCX takes long to give up
    sys.stderr.write(f"{side} starts on port {port}\n")
    rest_between_polls()
    own = ("--host", "127.0.0.1", "--port", str(port), "--kv-transfer-config", json.dumps(TRANSFER))
    sys.argv = [SERVER, *flags, *own]
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


def rest_between_polls() -> None:
    """Let NIXL's thread sleep between two polls, in this process and those that are forked from it.

    Its Python interface sets the pause to 0, so that each engine would take a whole core, idle or not.
    """
    bindings: Any = importlib.import_module("nixl._bindings")
    plain = bindings.nixlAgentConfig

    class Resting(plain):  # type: ignore[misc, valid-type]
        """Keeps its pause, whatever is assigned."""

        def __init__(self) -> None:
            super().__init__()
            plain.pthrDelay.__set__(self, POLL_MICROSECONDS)

        pthrDelay = property(lambda _: POLL_MICROSECONDS, lambda *_: None)  # noqa: N815

    bindings.nixlAgentConfig = Resting


def free_port() -> int:
    """Return a port that is free at the moment of the call."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def route(host: str, port: int, urls: list[str], servers: Sequence[multiprocessing.process.BaseProcess]) -> None:
    """Serve until one of the servers ends."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_route("*", "/{path:.*}", Router(session, *urls).answer)
        # A client that disconnects cancels the request at the server that works on it.
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        while all(server.is_alive() for server in servers):
            await asyncio.sleep(0.2)
        await runner.cleanup()


class Router:
    """Sends each request to the side or sides that it is for."""

    def __init__(self, session: aiohttp.ClientSession, prefill: str, decode: str) -> None:
        self.session = session
        self.prefill, self.decode = prefill, decode

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; 503 while a side does not answer."""
        try:
            if request.path in SPLIT and request.method == "POST":
                return await self.split(request)
            if request.path in CHANGES or request.path == "/health":
                return await self.both(request)
            if request.path.rstrip("/") == "/metrics":
                return await self.metrics(request)
            return await self.relayed(request, self.decode, await request.read())
        except aiohttp.ClientConnectionError as problem:
            return web.json_response({"error": {"message": f"a side does not answer: {problem}"}}, status=503)

    async def split(self, request: web.Request) -> web.StreamResponse:
        """Let one side compute the prompt and the other one answer."""
        try:
            body = json.loads(await request.read())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await self.relayed(request, self.decode, await request.read())
        whole = body.get("n", 1) != 1 or any(body.get(name) for name in ONLY_WHOLE)
        first = prompt_alone(body, fetched=not whole)
        async with self.session.post(self.prefill + request.path_qs, json=first) as answer:
            content = await answer.read()
            if answer.status != 200:
                return web.Response(status=answer.status, body=content, headers=end_to_end(answer.headers))
        if not whole:
            body["kv_transfer_params"] = json.loads(content).get("kv_transfer_params")  # None for less than a block
        return await self.relayed(request, self.decode, json.dumps(body).encode())

    async def both(self, request: web.Request) -> web.StreamResponse:
        """Ask one side, and the other one if that succeeds."""
        body = await request.read()
        async with self.session.request(request.method, self.prefill + request.path_qs, **like(request, body)) as first:
            content = await first.read()
            if first.status != 200 or failed(content):
                return web.Response(status=first.status, body=content, headers=end_to_end(first.headers))
        return await self.relayed(request, self.decode, body)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer with the prefiller's metrics, and those of the decoder that are summed."""
        texts = []
        for url in (self.prefill, self.decode):
            async with self.session.get(url + request.path_qs) as answer:
                texts.append(await answer.text())
        return web.Response(text="\n".join(merged(*texts)) + "\n")

    async def relayed(self, request: web.Request, url: str, body: bytes) -> web.StreamResponse:
        """Send the request to one side, and its answer to the client as it comes."""
        async with self.session.request(request.method, url + request.path_qs, **like(request, body)) as answer:
            response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


def prompt_alone(body: Mapping[str, Any], *, fetched: bool) -> dict[str, Any]:
    """Return the request for the prefiller: the prompt with one token of answer.

    `fetched`: its KV is kept until the decoder has read it. Otherwise the decoder computes the prompt, too.
    """
    left_out = ("stream", "stream_options", "min_tokens", "max_completion_tokens", "stop", "stop_token_ids", "n")
    kept = {name: value for name, value in body.items() if name not in left_out}
    transfer = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
    return {**kept, "max_tokens": 1, **(transfer if fetched else {})}


def failed(content: bytes) -> bool:
    """Return whether an answer with status 200 reports a failure, as that of a reset does."""
    try:
        answer = json.loads(content)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("success") is False


def like(request: web.Request, body: bytes) -> dict[str, Any]:
    """Return the body and headers of a request that is passed on."""
    return {"data": body, "headers": end_to_end(request.headers)}


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are not about one connection."""
    return {name: value for name, value in headers.items() if name.lower() not in HOP_HEADERS}


def merged(prefill: str, decode: str) -> Iterator[str]:
    """Yield the lines of the prefiller's metrics, with the decoder's samples of the summed ones behind their own."""
    samples = [line for line in decode.splitlines() if line.startswith(SUMMED)]
    for line in prefill.splitlines():
        yield line
        if line.startswith(SUMMED):
            name = line.split("{")[0]
            yield from (sample for sample in samples if sample.split("{")[0] == name)
            samples = [sample for sample in samples if sample.split("{")[0] != name]


if __name__ == "__main__":
    main(sys.argv[1:])
