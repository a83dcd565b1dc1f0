"""No secret reaches a file or the terminal, even if a server repeats a request or an engine logs its environment."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from support.fake_server import METRICS, ServerBehaviour
from support.hostile_runs import run_on
from support.hostile_server import Exchange, HostileServer, Script, attacking
from support.nightly import with_samples

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.common.redact import HIDDEN, KEY_VARIABLE, redact_file, redacted, redacted_data, redacted_json
from coldproof.harness.event_log import EventLog

SECRET = 'Zq7/kX+secret"9='
PASSWORD = "p@ss-w0rd7"
VALUE = "s3cr3tVALUE9"

FORMS = [
    "--api-key {}",
    "--api-key={}",
    '--api-key "{}"',
    "--api-key '{} and more'",
    "['--api-key', '{}']",
    '["--hf-token", "{}"]',
    "--hf-token {}",
    "--hf-token={}",
    "--token {}",
    '"api_key": "{}"',
    '{{"apiKey":"{}, with; more"}}',
    '\\"api_key\\": \\"{}\\"',
    "'api_key': ['{}']",
    "api_key={}",
    "X-Api-Key: {}",
    "x-auth-token: {}",
    "https://h/v1?api_key={}&token={}",
    "https://h/v1?x=1&access_token={}#part",
    "https://ann:{}@h/v1",
    "https://ann:p@{}@h/v1",
    "https://{}@h/v1",
    "Authorization: Bearer {}",
    "authorization: Basic {}==",
    '"Authorization": "Bearer {}"',
    '\\"authorization\\": \\"Bearer {}\\"',
    "('authorization', 'Bearer {}')",
    "[(b'authorization', b'Bearer {}')]",
    'curl -H "Authorization: Bearer {}" http://h',
    "Bearer {}",
    "Cookie: a={}; b={}",
    "HF_TOKEN={}",
    'export HF_TOKEN="{} and more"',
    "AWS_SECRET_ACCESS_KEY={} x",
    "DB_PASSWORD='{}'",
    "password: {}",
    '{{"token": "{}-and-more"}}',
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_by_its_context(form: str) -> None:
    """A secret is redacted by its context. The context stays, and a second redaction changes nothing."""
    shown = redacted(f"before {form} after".format(*[VALUE] * 3))
    assert VALUE not in shown
    assert HIDDEN in shown
    assert shown.startswith("before ")
    assert redacted(shown) == shown


@pytest.mark.parametrize("text", [f"hf_{'a1' * 17}", f"sk-proj-{'a1' * 12}", f"ghp_{'a1' * 18}"])
def test_a_secret_is_found_by_its_own_form(text: str) -> None:
    """Keys in the formats of well-known services are redacted."""
    assert redacted(f"got {text}.") == f"got {HIDDEN}."


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=16, cached_tokens: 5",
        'eos_token: "</s>", pad_token=0',
        "the next token: 65 instead of 66",
        '"token_ids": [1, 2], "tokens": []',
        "--tokenizer /models/tiny --max-model-len 4096",
        "http://127.0.0.1:8000/v1/models?limit=5",
        "block key=abcdef, hash key: 12",
        "ann@example.org",
        "Bearer authentication is required",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    """Text with words such as "token" or "key" is left unchanged if it has no secret."""
    assert redacted(text) == text


@pytest.mark.parametrize("name", [KEY_VARIABLE, "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "github_token"])
def test_a_value_of_the_environment_is_a_secret_wherever_it_occurs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Values of secret variables are redacted in plain, JSON, URL and base64 form."""
    monkeypatch.setenv(name, SECRET)
    for form in (SECRET, json.dumps(SECRET)[1:-1], quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode()):
        assert redacted(f"a{form}b") == f"a{HIDDEN}b"


def test_a_short_key_counts_as_a_word_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short key is redacted as a whole word only, because it may be a common word. Field names always stay."""
    monkeypatch.setenv(KEY_VARIABLE, "test")
    assert redacted("tests of a test: contest") == f"tests of a {HIDDEN}: contest"
    assert redacted_data({"test": ["test", "a test"]}) == {"test": ["test", f"a {HIDDEN}"]}
    monkeypatch.setenv("NUMBER_KEY", "12")
    assert redacted("12 of 12") == "12 of 12"


def test_a_json_text_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret inside a JSON text is redacted, and the text stays valid JSON with all other values unchanged."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    inner = json.dumps({"headers": {"Authorization": f"Bearer {SECRET}"}})
    before = {
        "said": inner,
        "token": 5,
        "large": 2**60,
        "none": None,
        "scores": [0.1, -2.5e-9],
        "url": f"?key={SECRET}",
    }
    after = json.loads(redacted_json(json.dumps(before).encode()))
    assert SECRET not in json.dumps(after)
    assert "secret" not in str(after)
    assert {**after, "said": 0, "url": 0} == {**before, "said": 0, "url": 0}


def test_an_event_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are redacted, whatever code emits them."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    log = EventLog(tmp_path / "events.ndjson")
    log.emit("problem", message=f"HTTP 400: {SECRET}, password={PASSWORD}", usage=False)
    log.close()
    event = json.loads(log.path.read_text())
    assert event["message"] == f"HTTP 400: {HIDDEN}, password={HIDDEN}"


def test_an_engine_log_has_no_secret_in_its_tail_and_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may print its command and its environment, so its log is redacted."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    monkeypatch.setenv("HF_TOKEN", VALUE)
    code = "import os, sys; print(sys.argv, os.environ, b'\\xff'); print('--api-key', os.environ['HF_TOKEN'])"
    command = [sys.executable, "-c", code, "--hf-token", VALUE, f"--api-key={PASSWORD}", "the last word"]
    process = EngineProcess(command, {**os.environ}, tmp_path / "engine.log")
    process._guard.wait()
    written = process.log.read_text()
    assert VALUE in written
    process.stop()
    for text in (process.tail(), process.log.read_text(errors="replace")):
        assert "the last word" in text
        for secret in (SECRET, VALUE, PASSWORD):
            assert secret not in text
    assert [file.name for file in tmp_path.iterdir()] == ["engine.log"]


def test_a_file_without_secrets_is_left_as_it_is(tmp_path: Path) -> None:
    """A file without secrets is not rewritten."""
    file = tmp_path / "engine.log"
    file.write_bytes(b"one\r\n\xff two\rthree")
    before = file.stat()
    redact_file(file)
    assert file.read_bytes() == b"one\r\n\xff two\rthree"
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def echo(status: bytes) -> Script:
    """Return a script that answers a request with the request's own headers, as a debug page does."""

    def play(exchange: Exchange) -> None:
        body = json.dumps({"error": {"message": "no", "request": exchange.request.decode()}}).encode()
        exchange.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body), body)

    return play


def assert_kept(folder: Path, output: str, *secrets: str) -> None:
    """Check that no secret is in a file of the report or in the output, in any form."""
    texts = {str(file): file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()}
    assert {Path(name).name for name in texts} >= {
        "events.ndjson",
        "results.json",
        "index.html",
        "junit.xml",
        "summary.md",
    }
    for secret in secrets:
        for form in (
            secret,
            json.dumps(secret)[1:-1],
            quote(secret, safe=""),
            base64.b64encode(secret.encode()).decode(),
        ):
            assert [name for name, text in {**texts, "output": output}.items() if form in text] == []


@pytest.mark.parametrize("status", with_samples([b"401 Unauthorized", b"500 Error", b"200 OK"], b"401 Unauthorized"))
def test_headers_that_a_server_repeats_in_the_setup_are_kept_secret(tmp_path: Path, status: bytes) -> None:
    """The run ends in the setup, and its error has no secret."""
    with attacking({"GET /v1/models": echo(status)}) as server:
        code, output = run_on(server.url, tmp_path, **{KEY_VARIABLE: SECRET})
    assert code == 3
    assert_kept(tmp_path, output, SECRET)


def test_a_password_in_the_url_is_kept_secret(tmp_path: Path) -> None:
    """A password of the URL is sent as a header, which a server can decode and repeat."""
    plain = f"you are ann with {PASSWORD}".encode()

    def play(exchange: Exchange) -> None:
        echoed = exchange.request + plain
        exchange.send(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % len(echoed), echoed)

    with attacking({"GET /v1/models": play}) as server:
        url = server.url.replace("//", f"//ann:{quote(PASSWORD, safe='')}@")
        code, output = run_on(url, tmp_path)
    assert code == 3
    assert_kept(tmp_path, output, PASSWORD, f"ann:{PASSWORD}")


def test_what_a_server_repeats_in_a_whole_run_is_kept_secret(tmp_path: Path) -> None:
    """A server repeats the secret in its version, model name, metrics, refusals and request errors, which become
    cases.
    """
    answered: list[Exchange] = []

    def play(exchange: Exchange) -> None:
        answered.append(exchange)
        of_oracle = b'"cache_salt": "cold-' in exchange.request  # without cold answers there are no findings
        if b'"priority"' in exchange.request or (len(answered) > FIRST_ANSWERS and not of_oracle):
            echo(b"400 Bad")(exchange)
        else:
            HostileServer.pass_on(server, exchange)

    label = SECRET.replace('"', '\\"')
    behaviour = ServerBehaviour(
        version=f"1.0 for {SECRET}",
        models=json.dumps({"data": [{"id": f"tiny-{SECRET}", "root": f"/models/{SECRET}"}]}),
        metrics=METRICS.replace('block_size="16"', f'block_size="16",cache_dtype="{label}"'),
        reset=json.dumps({"success": True, "by": SECRET}),
        chats=False,
    )
    with attacking({"POST /v1/completions": play, "POST /tokenize": echo(b"404 Not Found")}, behaviour) as server:
        code, output = run_on(
            server.url, tmp_path, "--requirements", "REUSE-1", "--budget", "30s", **{KEY_VARIABLE: SECRET}
        )
    results = json.loads((tmp_path / "results.json").read_text())
    assert code == 1, output
    assert {file.suffix for file in (tmp_path / "cases").iterdir()} >= {".json", ".md", ".py"}
    assert results["engine"]["version"] == f"1.0 for {HIDDEN}"
    assert "HTTP 400" in json.dumps(results["requirements"])
    assert_kept(tmp_path, output, SECRET)


FIRST_ANSWERS = 100  # completions that are answered well: more than the set-up sends
