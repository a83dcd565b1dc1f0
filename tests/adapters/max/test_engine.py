"""MAX's server: how it is started, what it is asked, and how a script starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coldproof.adapters.max import setup
from coldproof.adapters.max.client import MaxClient
from coldproof.adapters.max.reproducer import command, settings
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.spec.reproduction import RecordedEngine


def options(*arguments: str, caching: bool = True) -> StartOptions:
    """Return the options of a start."""
    some: Any = None
    return StartOptions(
        model="/m",
        adapters=(),
        cell=some,
        caching=caching,
        arguments=arguments,
        log=Path("engine.log"),
        on_process=lambda _: None,
    )


def test_the_size_of_the_pool_is_that_of_the_log() -> None:
    """One page of the newer manager is never used. The older one does not tell."""
    assert setup.pool_blocks("INFO: Jenga KV manager: 33 huge pages x 128.00 KiB = 4.12 MiB (per device)") == 32
    assert setup.pool_blocks("INFO: Starting server...") is None


def test_the_older_manager_is_chosen_by_a_variable() -> None:
    """And by no flag."""
    chosen = options(setup.LEGACY)
    assert setup.LEGACY not in setup.flags(chosen, 1)
    assert setup.environment(chosen, {})[setup.LEGACY_VARIABLE] == "1"
    assert setup.LEGACY_VARIABLE not in setup.environment(options(), {})
    assert setup.printed(chosen, ["--port", "1"]) == "MODULAR_USE_LEGACY_KV_CACHE=1 max serve --port 1"


def test_the_users_variables_and_sizes_count() -> None:
    """They are taken in place of those of the cells."""
    assert setup.environment(options(), {"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"
    words = setup.flags(options("--max-length", "512"), 1)
    assert words.count("--max-length") == 1
    assert setup.shape(options("--max-length", "512"), None).max_model_tokens == 512
    assert setup.flags(options(caching=False), 1)[-1] == setup.WITHOUT_CACHE


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MaxClient:
    """Return a client whose server answers each POST request with `Answer`."""
    found = MaxClient("http://127.0.0.1:1", alive=lambda: True)
    monkeypatch.setattr(found, "post", lambda path: Answer())
    return found


class Answer:
    """The answer of a reset."""

    text = "Success"


def test_a_reset_is_confirmed_in_words(client: MaxClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other words confirm nothing, and other caches cannot be reset."""
    assert client.reset() == (True, "Success")
    assert client.reset((ResetScope.RUNNING,))[0] is False
    monkeypatch.setattr(Answer, "text", "Prefix caching is not enabled. Ignoring request")
    assert client.reset()[0] is False


def test_a_request_has_no_field_that_max_does_not_know(client: MaxClient) -> None:
    """It refuses those."""
    body = client.body(CompletionRequest(model="base", prompt=(97, 98), max_tokens=2, tag="7", cache_salt="a"))
    assert (body["prompt"], body["cache_salt"], body["return_token_ids"]) == ([97, 98], "a", True)
    assert "request_id" not in body


SERVED = "max serve --model /c/0 --port 17 --max-length 9"


@pytest.mark.parametrize(
    ("line", "before", "known"),
    [(SERVED, "", True), (f"{setup.LEGACY_VARIABLE}=1 {SERVED}", f"{setup.LEGACY_VARIABLE}=1 ", True), ("", "", False)],
)
def test_a_script_starts_the_server_of_the_case(line: str, before: str, known: bool) -> None:
    """With its own model and the variables without which salts are ignored; without a command, it asks for a URL."""
    engine = RecordedEngine(
        name="max", version="0", config={"command": line}, contents=(), generated_model=True, cell=None
    )
    own = f"{before}max serve --model coldproof-files/model --port 8000 --max-length 9"
    assert command(engine) == (own if known else "")
    started = str(settings(engine)["COMMAND"])
    assert bool(started) == known
    assert ("MAX_SERVE_USE_CLIENT_CACHE_SALT=1" in started) == known
    assert (f" {before}python -m max._entrypoints.pipelines serve --model" in started) == known
