"""A run against a hostile server ends with a report, an exit code and one line that gives a reason."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from support.fake_reply import answer
from support.fake_server import ServerBehaviour
from support.hostile_runs import run_on
from support.hostile_server import STREAM, Exchange, HostileServer, Script, attacking

from coldproof.harness.schema.results import Results, read_results

MODELS, COMPLETIONS = "GET /v1/models", "POST /v1/completions"
FIRST_ANSWERS = 100  # completions that are answered well: more than the set-up sends


def results(folder: Path) -> Results:
    """Return the results of the run that reported to a folder."""
    return read_results(folder / "results.json")


def silence(exchange: Exchange) -> None:
    """Accept the request and send nothing."""
    exchange.wait()


def comments(exchange: Exchange) -> None:
    """Send comments without end."""
    exchange.send(STREAM)
    exchange.send_until_disconnect([b": still here\n"], pause=0.01)


def send_slowly(exchange: Exchange) -> None:
    """Send one byte at a time without end."""
    exchange.send_until_disconnect([b"H"], pause=0.1)


def redirect(exchange: Exchange) -> None:
    """Redirect to another server."""
    exchange.send(b"HTTP/1.1 302 Found\r\nLocation: http://other.example/v1\r\nContent-Length: 0\r\n\r\n")


def busy(exchange: Exchange) -> None:
    """Report that the server is busy for an hour."""
    exchange.send(b"HTTP/1.1 429 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


INCOMPLETE = "GET /v1/models got no complete answer within 1 s: the server"


def zeros(exchange: Exchange) -> None:
    """Send a page without end."""
    exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    exchange.send_until_disconnect([bytes(65536)])


@pytest.mark.parametrize(
    ("line", "script", "least", "said"),
    [
        (MODELS, silence, 0.5, f"{INCOMPLETE} sent nothing"),
        pytest.param(MODELS, send_slowly, 0.5, f"{INCOMPLETE} sent", marks=pytest.mark.nightly),
        pytest.param(MODELS, comments, 0.5, f"{INCOMPLETE} sent", marks=pytest.mark.nightly),
        (MODELS, zeros, 30.0, "GET /v1/models was answered with more than 16 MiB"),
        pytest.param(
            MODELS,
            redirect,
            30.0,
            "the server redirects to http://other.example/v1; redirects are not followed",
            marks=pytest.mark.nightly,
        ),
        (COMPLETIONS, busy, 30.0, "POST /v1/completions was refused with HTTP 429 1 times, the last time for 3600 s"),
    ],
    ids=["silent", "drip", "comments", "endless page", "redirect", "busy"],
)
def test_a_run_ends_with_an_error_that_says_what_the_server_did(
    tmp_path: Path, line: str, script: Script, least: float, said: str
) -> None:
    """A run in which nothing was tested conforms to nothing, and its error names what the server did."""
    with attacking({line: script}) as server:
        code, output = run_on(server.url, tmp_path, "--requirements", "REUSE-1", least=least)
    found = results(tmp_path)
    assert code == found.exit_code == 3
    assert said in found.problem
    assert [one for one in output.splitlines() if said in one]
    assert "Traceback" not in output
    assert not found.complete
    assert {one.verdict for one in found.requirements} == {"NOT EXERCISED"}


def test_a_server_that_stops_answering_in_a_run_gives_an_error(tmp_path: Path) -> None:
    """A silent server may only be slow, so the requirement is not violated: its verdict is unknown."""
    received: list[Exchange] = []

    def play(exchange: Exchange) -> None:
        received.append(exchange)
        (silence if len(received) > FIRST_ANSWERS else server.pass_on)(exchange)

    with attacking({COMPLETIONS: play}) as server:
        words = ("--requirements", "REUSE-1", "--budget", "30s")  # so that it comes to that on a busy machine, too
        code, output = run_on(server.url, tmp_path, *words, least=10.0)
    found = results(tmp_path)
    (requirement,) = found.requirements
    assert code == found.exit_code == 3
    assert "got no complete answer within" in found.problem  # on a busy machine, perhaps of another request
    assert not found.complete
    assert requirement.verdict in ("ERROR", "NOT EXERCISED")
    assert "Traceback" not in output


def endless(exchange: Exchange) -> None:
    """Stream the right answer, followed by tokens without end."""
    body = json.loads(exchange.request.split(b"\r\n\r\n", 1)[1])
    right = answer(body["model"], tuple(body["prompt"]), body["max_tokens"])
    exchange.send(STREAM)
    for token in itertools.chain(right, itertools.repeat(65)):
        exchange.send(b'data: {"choices": [{"index": 0, "token_ids": [%d], "text": "x"}]}\n\n' % token)


@pytest.mark.parametrize(
    ("more", "requirement", "failure_class"),
    [(3, "REUSE-1", "api"), (None, "GROUND-1", "not the cache")],
    ids=["three more", "endless"],
)
def test_answers_with_more_tokens_than_requested_violate_a_requirement(
    tmp_path: Path, more: int | None, requirement: str, failure_class: str
) -> None:
    """Too many tokens are a fault of the API, and the run does not read on without end."""

    def play(exchange: Exchange) -> None:
        if b'"stream": true' not in exchange.request:
            server.pass_on(exchange)
        elif more is None:
            endless(exchange)
        else:
            head, content = exchange.request.split(b"\r\n\r\n", 1)
            body = json.loads(content)
            content = json.dumps({**body, "max_tokens": body["max_tokens"] + more}).encode()
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
            exchange.request = b"\r\n".join([*lines, b"Content-Length: %d" % len(content)]) + b"\r\n\r\n" + content
            server.pass_on(exchange)

    server: HostileServer
    with attacking({COMPLETIONS: play}, ServerBehaviour(chats=False)) as server:
        code, output = run_on(server.url, tmp_path, "--requirements", requirement, "--budget", "30s")
    found = results(tmp_path)
    assert code == found.exit_code == 1, output
    assert [case.failure_class for case in found.cases] == [failure_class]
    assert "more tokens than requested" in found.cases[0].sentence
