"""Two servers of vLLM that answer as one: one computes prompts, the other one fetches their KV and decodes.

`python prefill_decode.py --port 8000 --model MODEL ...` starts both with the same flags, and a small router on the
port. It needs vLLM, which brings aiohttp, and nixl. It imports nothing of Coldproof. Reproducers contain `run_pair`.

The protocol is that of NixlConnector's documentation: the prefiller gets the request with one token of answer and
`do_remote_decode`, and its `kv_transfer_params` go to the decoder with the whole request. With `--kv-transfer-config`,
both sides have that connector instead, and the decoder finds by itself what the prefiller has stored, such as files in
a folder of both. If that connector would start a server of LMCache, both sides have one, which outlives a side.

Three things can be asked of it that happen by themselves in production: `POST /sides/SIDE/restart` kills a side, or
with `tier` LMCache's server, and starts it again, a request with the header `X-hand-over-ms` goes to the decoder so
much later, and a change under `/sides/SIDE/` is made on that side only. `--kv-lease SECONDS` is how long the prefiller
keeps KV that nobody has fetched (`kv_lease_duration`; vLLM: 30).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import multiprocessing
import os
import runpy
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import aiohttp
import psutil
from aiohttp import web

SERVER = "vllm.entrypoints.openai.api_server"
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
CONNECTOR_FLAG, OPTIONS = "--kv-transfer-config", "kv_connector_extra_config"
LAUNCHER, AUTOSTART = "lmcache.integration.vllm.mp_server_launcher", "lmcache.mp.autostart"
STORE_PORT = "lmcache.mp.port"
SIDES, TIER = ("prefill", "decode"), "tier"
SIDE_VARIABLE = "PREFILL_DECODE_SIDE"  # of the environment of each server: which side it is
RESTARTS = tuple(f"/sides/{side}/restart" for side in (*SIDES, TIER))
SPLIT = ("/v1/completions", "/v1/chat/completions")  # all other endpoints are the decoder's
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
USAGE = "vllm:kv_cache_usage_perc"  # of the fuller pool
PARAMETERS = "kv_transfer_params"
ONLY_WHOLE = ("prompt_logprobs", "echo")  # what a transferred prompt cannot answer, because it is not computed there
POLL_MICROSECONDS = 1000
MOST_BYTES = 256 * 2**20  # of a request
HAND_OVER = "X-hand-over-ms"
START_SECONDS = 600
DOWN_SECONDS = 3.0  # of a tier's server: some seconds, as where a supervisor starts it again
PORTS = range(20_000, 32_768)  # below those that systems give to connections (Linux: from 32768)
HOP_HEADERS = ("content-length", "transfer-encoding", "connection", "host", "content-encoding", "date", "server")


def run_pair(words: Sequence[str]) -> None:
    """Start both servers and the router, until one of the three ends."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--kv-lease", type=int)
    ours, flags = parser.parse_known_args(words)
    flags, store = with_one_store(flags)
    pair = Pair(flags, ours.kv_lease, store)
    urls = [f"http://127.0.0.1:{port}" for port in pair.ports]
    orders, asked = multiprocessing.Pipe()
    stored, tier = CONNECTOR_FLAG in flags, None if store is None else int(store[STORE_PORT])
    router = FORK.Process(
        target=lambda: asyncio.run(route(ours.host, ours.port, urls, asked, stored=stored, tier=tier))
    )
    router.start()
    sys.exit(pair.supervise(router, orders))


FORK = multiprocessing.get_context("fork")  # a process that has imported vLLM shares it with both servers


class Pair:
    """The processes of both servers, which are started from here because this process has no event loop.

    `store`: the options of LMCache's server, which is the third process here; None without one.
    """

    def __init__(self, flags: Sequence[str], lease: int | None, store: Mapping[str, Any] | None) -> None:
        self.flags, self.lease, self.store = flags, lease, store
        self.ports = [free_port() for _ in SIDES]
        self.servers = [self.started(number) for number in range(len(SIDES) + (store is not None))]

    def started(self, number: int) -> multiprocessing.context.ForkProcess:
        """Start one side, or LMCache's server."""
        if number < len(SIDES):
            server = FORK.Process(target=serve, args=(SIDES[number], self.ports[number], self.flags, self.lease))
        else:
            server = FORK.Process(target=keep, args=(self.store,))
        server.start()
        return server

    def restart(self, number: int) -> None:
        """End a server with all its processes, as if its machine failed, and start it again."""
        server = psutil.Process(self.servers[number].pid)
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            process.kill()
        self.servers[number].join()
        while any(map(runs, processes)):  # a forked process holds the port as long as it runs
            time.sleep(0.05)
        if number == len(SIDES):
            time.sleep(DOWN_SECONDS)
        self.servers[number] = self.started(number)

    def supervise(self, router: multiprocessing.context.ForkProcess, orders: Connection) -> int:
        """Do what the router asks for until a process ends by itself, and end the others. Return the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            while orders in (ready := wait([orders, *(process.sentinel for process in (router, *self.servers))])):
                self.restart(orders.recv())
                orders.send(True)
            ended = [process for process in self.servers if process.sentinel in ready]
            for process in ended:
                process.join()  # it closes its sentinel before it has an exit code
            return next((process.exitcode for process in ended if process.exitcode), 1)
        finally:
            for process in (router, *self.servers):
                process.terminate()


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def with_one_store(flags: Sequence[str]) -> tuple[list[str], Mapping[str, Any] | None]:
    """Return the flags with which no side starts LMCache's server, and the options of the one that both use; None
    where no side would start one."""
    flags = list(flags)
    if CONNECTOR_FLAG not in flags:
        return flags, None
    place = flags.index(CONNECTOR_FLAG) + 1
    config = json.loads(flags[place])
    options = config.get(OPTIONS, {})
    if not options.get(AUTOSTART):
        return flags, None
    flags[place] = json.dumps({**config, OPTIONS: {**options, AUTOSTART: False}})
    return flags, options


def keep(options: Mapping[str, Any]) -> None:
    """Run the server in this process that LMCache's connector would start with these options."""
    launcher = importlib.import_module(LAUNCHER)
    config = launcher.MPServerAutostartConfig.from_extra_config(options, "127.0.0.1", options[STORE_PORT])
    _, _, module, *words = config.command()  # python -m MODULE
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(side: str, port: int, flags: Sequence[str], lease: int | None) -> None:
    """Run one of the servers in this process."""
    os.environ[SIDE_VARIABLE] = side
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
    os.environ.setdefault("UCX_TLS", "tcp,sm,self")  # without a network card of its own, UCX takes long to give up
    sys.stderr.write(f"{side} starts on port {port}\n")
    own = ["--host", "127.0.0.1", "--port", str(port)]
    if CONNECTOR_FLAG not in flags:
        rest_between_polls()
        kept = {} if lease is None else {OPTIONS: {"kv_lease_duration": lease}}
        own += [CONNECTOR_FLAG, json.dumps(TRANSFER | kept)]
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
    """Return a port that is free at the moment of the call, and that no connection of another process gets later.

    A server binds its port seconds after it was chosen. If NIXL's listener finds its port in use, its thread ends with
    an error, and vLLM 0.32.0 waits for it for ever (`ready_event.wait()` in nixl/base_scheduler.py).
    """
    while True:
        port = secrets.choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


async def route(host: str, port: int, urls: list[str], orders: Connection, *, stored: bool, tier: int | None) -> None:
    """Serve until this process is ended. `orders`: where a restart of a server is asked for, by its number.

    `stored`: the decoder finds the KV of a prompt by itself. `tier`: the port of LMCache's server; None without one.
    """
    lock = threading.Lock()

    def restart(number: int) -> None:
        with lock:
            orders.send(number)
            orders.recv()

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_route("*", "/{path:.*}", Router(session, urls, restart, stored=stored, tier=tier).answer)
        # A client that disconnects cancels the request at the server that works on it.
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()


class Router:
    """Sends each request to the side or sides that it is for."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Sequence[str],
        restart: Callable[[int], None],
        *,
        stored: bool,
        tier: int | None,
    ) -> None:
        self.session, self.stored, self.tier = session, stored, tier
        self.prefill, self.decode = self.urls = list(urls)
        self.restart = restart

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; 503 while a side does not answer."""
        try:
            if request.path in SPLIT and request.method == "POST":
                return await self.split(request)
            if request.path in CHANGES or request.path == "/health":
                return await self.both(request)
            if request.path in RESTARTS[: len(SIDES) + (self.tier is not None)] and request.method == "POST":
                return await self.restarted(RESTARTS.index(request.path))
            for side, url in zip(SIDES, self.urls, strict=True):
                if request.path.startswith(f"/sides/{side}/"):
                    return await self.relayed(request, url + request.path_qs.removeprefix(f"/sides/{side}"))
            if request.path.rstrip("/") == "/metrics":
                return await self.metrics(request)
            return await self.relayed(request, self.decode + request.path_qs)
        except aiohttp.ClientError as problem:
            return web.json_response(lost(problem), status=503)

    async def split(self, request: web.Request) -> web.StreamResponse:
        """Let one side compute the prompt and the other one answer."""
        try:
            body = json.loads(await request.read())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await self.relayed(request, self.decode + request.path_qs)
        whole = body.get("n", 1) != 1 or any(body.get(name) for name in ONLY_WHOLE)
        first = prompt_alone(body, fetched=not whole and not self.stored)
        async with self.session.post(self.prefill + request.path_qs, json=first) as answer:
            content = await answer.read()
            if answer.status != 200:
                return web.Response(status=answer.status, body=content, headers=end_to_end(answer.headers))
        await asyncio.sleep(int(request.headers.get(HAND_OVER, 0)) / 1000)
        if not whole:  # without parameters for less than a block
            answered = json.loads(content)
            body[PARAMETERS] = cached_by_the_prefiller(answered) if self.stored else answered.get(PARAMETERS)
        return await self.relayed(request, self.decode + request.path_qs, json.dumps(body).encode())

    async def both(self, request: web.Request) -> web.StreamResponse:
        """Ask one side, and the other one if that succeeds."""
        body = await request.read()
        async with self.session.request(request.method, self.prefill + request.path_qs, **like(request, body)) as first:
            content = await first.read()
            if first.status != 200 or failed(content):
                return web.Response(status=first.status, body=content, headers=end_to_end(first.headers))
        return await self.relayed(request, self.decode + request.path_qs)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer with the prefiller's metrics, and those of the decoder that are summed."""
        texts = []
        for url in (self.prefill, self.decode):
            async with self.session.get(url + request.path_qs, headers={"Accept-Encoding": "identity"}) as answer:
                texts.append(await answer.text())
        return web.Response(text="\n".join(merged(*texts)) + "\n")

    async def relayed(self, request: web.Request, url: str, body: bytes | None = None) -> web.StreamResponse:
        """Send the request to one side, with its own body or another one, and the answer to the client as it comes."""
        sent = like(request, await request.read() if body is None else body)
        async with self.session.request(request.method, url, **sent) as answer:
            response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientError as problem:  # the side ended in the midst of its answer
                await response.write(f"data: {json.dumps(lost(problem))}\n\n".encode())
            await response.write_eof()
            return response

    async def restarted(self, number: int) -> web.StreamResponse:
        """Restart a side or the tier's server, and answer as soon as it does."""
        await asyncio.get_running_loop().run_in_executor(None, self.restart, number)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                if await self.answers(number):
                    return web.json_response({"success": True})
            await asyncio.sleep(0.1)
        return web.json_response(lost(TimeoutError(f"{RESTARTS[number]}: it did not start again")), status=503)

    async def answers(self, number: int) -> bool:
        """Return whether a server is ready. Raises ClientError or OSError if there is no connection to it."""
        if number < len(SIDES):
            async with self.session.get(self.urls[number] + "/health") as answer:
                return answer.status == 200
        _, writer = await asyncio.open_connection("127.0.0.1", self.tier)
        writer.close()
        return True


def lost(problem: Exception) -> dict[str, Any]:
    """Return the body of an answer that a side did not give."""
    return {"error": {"message": f"a side does not answer: {problem}", "code": 503}}


def prompt_alone(body: Mapping[str, Any], *, fetched: bool) -> dict[str, Any]:
    """Return the request for the prefiller: the prompt with one token of answer.

    `fetched`: its KV is kept until the decoder has read it. Otherwise the decoder computes the prompt, too.
    """
    left_out = ("stream", "stream_options", "min_tokens", "max_completion_tokens", "stop", "stop_token_ids", "n")
    kept = {name: value for name, value in body.items() if name not in left_out}
    transfer = {PARAMETERS: {"do_remote_decode": True, "do_remote_prefill": False}}
    return {**kept, "max_tokens": 1, **(transfer if fetched else {})}


def cached_by_the_prefiller(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with which vLLM reports how many tokens the prefiller had, as with NIXL, and not how many
    the decoder had and found."""
    details = answer["usage"].get("prompt_tokens_details") or {}
    return {"do_remote_prefill": True, "remote_prefill_cached_tokens": details.get("cached_tokens") or 0}


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
    """Yield the lines of the prefiller's metrics, with the decoder's samples of the summed ones behind their own, and
    the usage of the fuller pool."""
    samples = [line for line in decode.splitlines() if line.startswith(SUMMED)]
    fullest = max((line.split()[-1] for line in decode.splitlines() if line.startswith(USAGE)), key=float, default="0")
    for line in prefill.splitlines():
        if line.startswith(USAGE):
            labels, used = line.rsplit(maxsplit=1)
            yield f"{labels} {max(used, fullest, key=float)}"
            continue
        yield line
        if line.startswith(SUMMED):
            name = line.split("{")[0]
            yield from (sample for sample in samples if sample.split("{")[0] == name)
            samples = [sample for sample in samples if sample.split("{")[0] != name]


if __name__ == "__main__":
    run_pair(sys.argv[1:])
