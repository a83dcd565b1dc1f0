"""llama-cpp-python's server: how it is started and watched, what it is asked, and how a script uses the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.llamapython import server, setup
from coldproof.adapters.llamapython.client import LlamaPythonClient, ModelAliases
from coldproof.adapters.llamapython.reproducer import settings
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.spec.reproduction import RecordedEngine


class Llama:
    """The part of the engine that is watched. It has the start of each prompt already, as far as `kept`."""

    def __init__(self, kept: int) -> None:
        self.kept, self.resets = kept, 0

    def eval(self, tokens: Sequence[int]) -> None:
        """Compute nothing."""

    def reset(self) -> None:
        """Forget what is kept."""
        self.kept, self.resets = 0, self.resets + 1

    def generate(self, tokens: Sequence[int]) -> Iterator[int]:
        """Answer with two tokens, of which the first one has no text."""
        self.eval(tokens[self.kept :])
        yield 200
        self.eval([200])
        yield 65

    def _create_completion(self, prompt: list[int]) -> Iterator[dict[str, Any]]:
        """Send a part for both tokens, and one for the end."""
        for last in self.generate(prompt):
            if last == 65:
                yield {"choices": [{"text": "A", "finish_reason": None}]}
        yield {"choices": [{"text": "", "finish_reason": "length"}]}


@pytest.mark.parametrize(("kept", "cold", "cached"), [(0, False, 0), (3, False, 3), (4, False, 4), (3, True, 0)])
def test_the_engine_is_watched_for_what_it_does_not_report(
    monkeypatch: pytest.MonkeyPatch, kept: int, cold: bool, cached: int
) -> None:
    """Token ids in the part that has them, and the tokens of the prompt that were not computed; all of them too."""

    class Watched(Llama):
        """A class of this test alone, because it is changed."""

    monkeypatch.setattr(server.importlib, "import_module", lambda _: SimpleNamespace(Llama=Watched))
    server.watch(cold=cold)
    llama = Watched(kept)
    first, end, counts = llama._create_completion([1, 2, 3, 4])
    assert (first["choices"][0]["token_ids"], end["choices"][0]["token_ids"]) == ([200, 65], [])
    assert first["choices"][0]["prompt_token_ids"] == [1, 2, 3, 4]
    assert counts["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
    assert llama.resets == int(cold)


def test_arguments_that_the_server_has_no_field_for_are_those_of_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python callers have them: the cell of a cut window is about one."""

    class Loaded(Llama):
        """A class of this test alone, which keeps its arguments."""

        def __init__(self, kept: int, **arguments: object) -> None:
            super().__init__(kept)
            self.arguments = arguments

    given = setup.fields(("--swa_full", "false", "--n_batch", "32"))
    assert "swa_full" not in setup.models(Path("/f"), {}, given)[0]
    monkeypatch.setattr(server.importlib, "import_module", lambda _: SimpleNamespace(Llama=Loaded))
    server.watch(api=setup.of_python(given))
    assert Loaded(0, n_batch=32).arguments == {"n_batch": 32, "swa_full": False}


@pytest.mark.parametrize(("content", "kept"), [(b"same", True), (b"other", False)])
def test_a_model_that_did_not_change_keeps_its_time(tmp_path: Path, content: bytes, kept: bool) -> None:
    """A cache may know a model by it, over a restart."""
    new, file = tmp_path / "new", tmp_path / "file"
    file.write_bytes(b"same")
    os.utime(file, ns=(1, 1))
    new.write_bytes(content)
    setup.take(new, file)
    assert (file.stat().st_mtime_ns == 1) == kept
    assert file.read_bytes() == content
    assert not new.exists()


def test_fields_are_given_as_on_the_servers_command_line() -> None:
    """Values are JSON, or texts."""
    assert setup.fields(("--cache", "true", "--cache_type", "disk", "--n_ctx", "512")) == {
        "cache": True,
        "cache_type": "disk",
        "n_ctx": 512,
    }


@pytest.mark.parametrize("words", [("--cache",), ("cache", "true"), ("--cache", "true", "--n_ctx")])
def test_other_words_are_refused(words: tuple[str, ...]) -> None:
    """One line says what was expected."""
    with pytest.raises(ValueError, match="expected --NAME VALUE"):
        setup.fields(words)


def test_each_adapter_is_a_model_of_its_own() -> None:
    """All of them have the same fields, of which the user's count last."""
    base, adapted = setup.models(Path("/f"), {"7cb": "7cb.gguf"}, {"n_ctx": 512})
    assert (base["model_alias"], base["n_ctx"], base["type_k"], "lora_path" in base) == ("base", 512, 0, False)
    assert adapted == {**base, "model_alias": "7cb", "lora_path": "/f/7cb.gguf"}


@pytest.fixture
def client() -> LlamaPythonClient:
    """Return a client of a server with one adapter, under no name."""
    return LlamaPythonClient("http://127.0.0.1:1", alive=lambda: True, adapters=ModelAliases(["7cb"]), longest=4)


def test_a_name_is_the_model_with_its_adapter(client: LlamaPythonClient) -> None:
    """The server answers a request to a model that it does not know with its first one: it is not asked."""
    client.adapters.bound["tenant"] = 0
    bodies = [client.body(CompletionRequest(model=name, prompt=(97, 98), max_tokens=2)) for name in ("base", "tenant")]
    assert [body["model"] for body in bodies] == ["base", "7cb"]
    assert bodies[0]["prompt"] == "ab"
    with pytest.raises(RequestRefused, match="no adapter has the name other"):
        client.body(CompletionRequest(model="other", prompt=(97,), max_tokens=2))


@pytest.mark.parametrize(("length", "streamed"), [(3, True), (4, False)])
def test_a_prompt_that_does_not_fit_is_not_streamed(client: LlamaPythonClient, length: int, streamed: bool) -> None:
    """Its stream would end without an event, and without a reason."""
    body = client.body(CompletionRequest(model="base", prompt=(97,) * length, max_tokens=2))
    assert body["stream"] is streamed


def test_a_prompt_that_was_read_as_other_tokens_has_no_answer(client: LlamaPythonClient) -> None:
    """Otherwise two requests with one beginning might share none."""
    reader = client.reader(None)
    reader.expect(CompletionRequest(model="base", prompt=(97, 98), max_tokens=1))
    part = '{"choices": [{"text": "x", "token_ids": [120], "prompt_token_ids": %s}]}'
    reader.take(part % "[97, 98]")
    assert reader.error is None
    reader.take(part % "[97]")
    assert (reader.status, reader.error) == (501, reader.error)
    assert "counted 1 tokens in the prompt, of which 2 are known" in str(reader.error)


@pytest.mark.parametrize(
    ("told", "found"), [("none", {}), ("--cache true --n_batch 32", {"cache": True, "n_batch": 32})]
)
def test_a_script_has_the_fields_of_the_cell(told: str, found: dict[str, object]) -> None:
    """And writes the model as the server got it, with a character for each printable token."""
    engine = RecordedEngine(
        name="llamapython", version="0", config={"fields": told}, contents=(), generated_model=False, cell=None
    )
    given = settings(engine)
    assert given["SETTINGS"] == found
    assert given["READABLE"] is True
