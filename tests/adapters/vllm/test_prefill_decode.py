"""The router of a pair of servers: which requests go to which server, without vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from pytest_httpserver import HTTPServer
from support.ports import reserved_port
from support.waiting import until
from werkzeug import Request, Response

from coldproof.adapters.common.process import port_is_taken
from coldproof.adapters.server.completions import HAND_OVER_HEADER
from coldproof.adapters.vllm import prefill_decode
from coldproof.adapters.vllm.prefill_decode import merged, route, with_one_store

PARAMS = {"remote_engine_id": "p", "remote_block_ids": [[1, 2]]}


class Pair:
    """Two scripted servers behind a router, which record the requests that they receive."""

    def __init__(self, *, stored: bool = False, tier: int | None = None) -> None:
        self.sides = [HTTPServer(), HTTPServer()]
        self.got: list[list[tuple[str, Any]]] = [[], []]
        self.answers: dict[tuple[int, str], Response] = {}
        for number, side in enumerate(self.sides):
            side.start()
            self.listen(number, side)
        self.held = contextlib.ExitStack()
        port = self.held.enter_context(reserved_port())
        self.url = f"http://127.0.0.1:{port}"
        urls = [side.url_for("").rstrip("/") for side in self.sides]
        self.orders, received = multiprocessing.Pipe()
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(route("127.0.0.1", port, urls, received, stored=stored, tier=tier))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        until(lambda: port_is_taken(port))

    def run(self) -> None:
        """Route until the test ends."""
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self.task)
        self.loop.close()

    def listen(self, number: int, side: HTTPServer) -> None:
        """Record requests, and answer them."""

        def handle(request: Request) -> Response:
            body = request.get_data()
            self.got[number].append((request.path, json.loads(body) if body else None))
            usual = {"side": number, "kv_transfer_params": PARAMS if number == 0 else None}
            return self.answers.get((number, request.path)) or Response(json.dumps(usual), status=200)

        side.expect_request(re.compile(".*")).respond_with_handler(handle)

    def close(self) -> None:
        """End the router and both servers."""
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join()
        self.held.close()
        for side in self.sides:
            side.clear()
            if side.is_running():
                side.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Yield a new pair."""
    with contextlib.closing(Pair()) as made:
        yield made


def post(pair: Pair, path: str, body: Any) -> requests.Response:
    """Send a request to the router."""
    return requests.post(pair.url + path, json=body)


def test_a_prompt_is_computed_on_one_side_and_answered_on_the_other(pair: Pair) -> None:
    """The prompt is sent with everything that is part of its identity, and with the reference to its KV."""
    body = {"prompt": [1, 2], "max_tokens": 9, "stream": True, "cache_salt": "s", "model": "tenant", "min_tokens": 4}
    answer = post(pair, "/v1/completions", body)
    assert answer.json()["side"] == 1
    ((_, first),), ((_, second),) = pair.got
    assert first == {
        "prompt": [1, 2],
        "max_tokens": 1,
        "cache_salt": "s",
        "model": "tenant",
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    assert second == {**body, "kv_transfer_params": PARAMS}


def test_a_decoder_that_finds_prompts_by_itself_gets_the_prefillers_count_only() -> None:
    """Both kinds of transfer then report what the prefiller had cached."""
    with contextlib.closing(Pair(stored=True)) as pair:
        usage = {"prompt_tokens_details": {"cached_tokens": 32}}
        pair.answers[0, "/v1/completions"] = Response(json.dumps({"usage": usage}), status=200)
        body = {"prompt": [1, 2], "max_tokens": 9}
        assert post(pair, "/v1/completions", body).json()["side"] == 1
        ((_, first),), ((_, second),) = pair.got
    assert first == {"prompt": [1, 2], "max_tokens": 1}
    assert second == {**body, "kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": 32}}


@pytest.mark.parametrize("more", [{"n": 2}, {"echo": True}, {"prompt_logprobs": 1}])
def test_what_a_fetched_prompt_cannot_answer_is_computed_on_both_sides(pair: Pair, more: dict[str, Any]) -> None:
    """The prefiller then has every prompt."""
    body = {"prompt": [1], "max_tokens": 2, **more}
    assert post(pair, "/v1/completions", body).status_code == 200
    first = {name: value for name, value in body.items() if name != "n"} | {"max_tokens": 1}
    assert pair.got == [[("/v1/completions", first)], [("/v1/completions", body)]]


def test_a_refusal_of_the_prefiller_is_the_answer(pair: Pair) -> None:
    """The decoder receives nothing."""
    pair.answers[0, "/v1/completions"] = Response('{"error": "too long"}', status=400)
    answer = post(pair, "/v1/completions", {"prompt": [1], "max_tokens": 2})
    assert (answer.status_code, answer.json()) == (400, {"error": "too long"})
    assert pair.got[1] == []


def test_a_change_is_made_on_both_sides(pair: Pair) -> None:
    """Both servers receive the same request."""
    body = {"lora_name": "a", "lora_path": "p"}
    assert post(pair, "/v1/load_lora_adapter", body).status_code == 200
    assert pair.got == [[("/v1/load_lora_adapter", body)]] * 2


@pytest.mark.parametrize(("number", "side"), [(0, "prefill"), (1, "decode")])
def test_a_change_on_one_side_is_made_there_only(pair: Pair, number: int, side: str) -> None:
    """Its body and its parameters are kept."""
    body = {"lora_name": "a"}
    answer = post(pair, f"/sides/{side}/v1/load_lora_adapter?x=1", body)
    assert (answer.status_code, answer.json()["side"]) == (200, number)
    assert pair.got[number] == [("/v1/load_lora_adapter", body)]
    assert pair.got[1 - number] == []


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("failure", [Response("no", status=400), Response('{"success": false}', status=200)])
def test_a_change_that_fails_on_one_side_fails(pair: Pair, failing: int, failure: Response) -> None:
    """A failure of either server is the result."""
    pair.answers[failing, "/reset_prefix_cache"] = failure
    answer = post(pair, "/reset_prefix_cache", {})
    assert answer.text == failure.get_data(as_text=True)
    assert answer.status_code == failure.status_code


def test_a_side_that_does_not_answer_is_an_error(pair: Pair) -> None:
    """The other server's answer is not used."""
    pair.sides[1].stop()
    assert post(pair, "/v1/completions", {"prompt": [1], "max_tokens": 2}).status_code == 503
    assert requests.get(f"{pair.url}/health").status_code == 503


def test_an_answer_that_breaks_off_ends_with_an_error(pair: Pair) -> None:
    """The error is an event of the stream, because the status has been sent."""

    def broken_stream() -> Iterator[bytes]:
        yield b"data: {}\n\n"
        raise OSError("the side ended")

    pair.answers[1, "/v1/completions"] = Response(broken_stream(), headers={"Content-Length": "4000"})
    answer = post(pair, "/v1/completions", {"prompt": [1], "max_tokens": 2, "stream": True})
    first, last = answer.text.strip().split("\n\n")
    assert (first, json.loads(last.removeprefix("data: "))["error"]["code"]) == ("data: {}", 503)


def test_a_late_hand_over_comes_after_the_prefill(pair: Pair) -> None:
    """The delay is that of the request, which is a lower bound of its duration."""
    body, late = {"prompt": [1], "max_tokens": 2}, {HAND_OVER_HEADER: "300"}
    began = time.monotonic()
    assert requests.post(f"{pair.url}/v1/completions", json=body, headers=late).json()["side"] == 1
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize(("number", "side"), [(0, "prefill"), (1, "decode")])
def test_a_restart_is_ordered_and_waited_for(pair: Pair, number: int, side: str) -> None:
    """The answer comes when the server is healthy again."""
    pair.answers[number, "/health"] = Response("starting", status=503)
    with ThreadPoolExecutor() as pool:
        restart = pool.submit(post, pair, f"/sides/{side}/restart", {})
        assert pair.orders.recv() == number
        pair.orders.send(True)
        until(lambda: [path for path, _ in pair.got[number]].count("/health") > 1)
        assert not restart.done()
        pair.answers[number, "/health"] = Response("well", status=200)
        assert restart.result().json() == {"success": True}


def test_a_restart_of_the_tier_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes when the tier's server listens again."""
    tried: list[int] = []
    connect = asyncio.open_connection

    async def counted(host: str, port: int) -> Any:
        tried.append(port)
        return await connect(host, port)

    monkeypatch.setattr(prefill_decode.asyncio, "open_connection", counted)
    with reserved_port() as tier, contextlib.closing(Pair(tier=tier)) as pair, ThreadPoolExecutor() as pool:
        restart = pool.submit(post, pair, "/sides/tier/restart", {})
        assert pair.orders.recv() == 2
        pair.orders.send(True)
        until(lambda: tried.count(tier) > 1)
        assert not restart.done()
        with socket.create_server(("127.0.0.1", tier)):
            assert restart.result().json() == {"success": True}


def test_no_tier_is_restarted_where_none_was_started(pair: Pair) -> None:
    """The request goes to the decoder like any unknown one."""
    assert post(pair, "/sides/tier/restart", {}).json()["side"] == 1
    assert not pair.orders.poll()


def test_metrics_of_servers_that_compress_are_read(pair: Pair) -> None:
    """vLLM compresses some metrics for a client that accepts it, as `requests` does."""
    sent: list[str] = []

    def answer_metrics(request: Request) -> Response:
        sent.append(request.headers.get("Accept-Encoding", ""))
        return Response('vllm:num_preemptions_total{engine="0"} 1.0\n', status=200)

    for side in pair.sides:
        side.clear()
        side.expect_request("/metrics/").respond_with_handler(answer_metrics)
    answer = requests.get(f"{pair.url}/metrics/?name[]=vllm:num_preemptions_total")
    assert answer.text.splitlines() == ['vllm:num_preemptions_total{engine="0"} 1.0'] * 2
    assert sent == ["identity"] * 2


def test_the_pool_usage_is_that_of_the_fuller_pool() -> None:
    """An idle pair reports no usage only if neither server holds blocks."""
    name = 'vllm:kv_cache_usage_perc{engine="0"}'
    for sides in (("0.0", "0.25"), ("0.25", "0.0")):
        assert list(merged(*(f"{name} {used}" for used in sides))) == [f"{name} 0.25"]


def test_counts_of_lookups_are_the_prefillers_and_fetched_tokens_the_decoders() -> None:
    """Each sample stays in its family."""
    names = ("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total", "vllm:num_requests_running")
    texts = [
        "".join(f'# TYPE {name} counter\n{name}{{engine="0"}} {value}\n' for name in names) for value in ("1.0", "2.0")
    ]
    kept = [line for line in merged(*texts) if not line.startswith("#")]
    assert kept == [
        'vllm:prefix_cache_hits_total{engine="0"} 1.0',
        'vllm:external_prefix_cache_hits_total{engine="0"} 1.0',
        'vllm:external_prefix_cache_hits_total{engine="0"} 2.0',
        'vllm:num_requests_running{engine="0"} 1.0',
        'vllm:num_requests_running{engine="0"} 2.0',
    ]


STORE = {"lmcache.mp.autostart": True, "lmcache.mp.port": "4321"}


def transfer(options: dict[str, Any]) -> list[str]:
    """Return the flags of a server with LMCache's connector."""
    config = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": options}
    return ["--model", "m", "--kv-transfer-config", json.dumps(config), "--enforce-eager"]


def test_both_sides_have_one_server_of_lmcache() -> None:
    """Neither server starts it, because it would end together with the server that started it."""
    flags, options = with_one_store(transfer(STORE))
    assert options == STORE
    assert flags == transfer({**STORE, "lmcache.mp.autostart": False})


@pytest.mark.parametrize("flags", [transfer({"lmcache.mp.port": "4321"}), ["--model", "m"]])
def test_a_server_that_the_user_starts_or_none_is_not_started(flags: list[str]) -> None:
    """The flags stay unchanged."""
    assert with_one_store(flags) == (flags, None)


def test_a_pair_ends_with_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair ends with the store's exit code: without the store both servers would compute everything without any
    error.
    """
    launched = SimpleNamespace(command=lambda: ["python", "-m", "module", "--flag"])
    launcher = SimpleNamespace(MPServerAutostartConfig=SimpleNamespace(from_extra_config=lambda *_: launched))
    monkeypatch.setattr(prefill_decode.importlib, "import_module", lambda _: launcher)
    monkeypatch.setattr(prefill_decode.runpy, "run_module", lambda module, **_: os._exit(len([module, *sys.argv])))
    monkeypatch.setattr(prefill_decode, "serve", lambda *_: time.sleep(3600))
    monkeypatch.setattr(prefill_decode.signal, "signal", lambda *_: None)
    pair = prefill_decode.Pair([], None, STORE)
    router = prefill_decode.FORK.Process(target=time.sleep, args=(3600,))
    router.start()
    orders, received = multiprocessing.Pipe()
    with contextlib.closing(orders), contextlib.closing(received):
        assert pair.supervise(router, orders) == 3
    for process in (router, *pair.servers[:2]):
        process.join()
        assert process.exitcode == -signal.SIGTERM


def test_no_connection_takes_the_port_that_a_side_binds_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server binds its ports after its start, and would wait forever for a port that is taken."""
    first_of_connections = 32_768  # Linux; other systems begin higher
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", prefill_decode.free_port()))
        used = taken.getsockname()[1]
        offered, draw = iter((used, used)), secrets.choice
        monkeypatch.setattr(secrets, "choice", lambda ports: next(offered, None) or draw(ports))
        found = prefill_decode.free_port()
    assert used != found < first_of_connections
