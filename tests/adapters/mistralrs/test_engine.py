"""mistral.rs' process: what it is asked, what it answers, and how a script uses the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.mistralrs import server
from coldproof.adapters.mistralrs.client import MistralrsClient
from coldproof.adapters.mistralrs.reproducer import settings
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.spec.reproduction import RecordedEngine


class Library:
    """The part of the package that a generation needs. It keeps the request."""

    def __init__(self, *, cached: int | None) -> None:
        details = None if cached is None else SimpleNamespace(cached_tokens=cached)
        self.usage = SimpleNamespace(prompt_tokens=3, completion_tokens=2, prompt_tokens_details=details)
        self.asked: dict[str, Any] = {}

    def ChatCompletionRequest(self, **fields: Any) -> Any:  # noqa: N802 (the name of the package)
        """Keep the fields."""
        self.asked = fields
        return self

    def send_chat_completion_request(self, _request: Any) -> Any:
        """Answer two tokens."""
        best = [SimpleNamespace(logprob=-0.5), SimpleNamespace(logprob=-2.0)]
        scores = SimpleNamespace(token="x", logprob=-0.5, top_logprobs=best)
        for end in (None, "length"):
            choice = SimpleNamespace(delta=SimpleNamespace(content="x"), finish_reason=end, logprobs=scores)
            yield SimpleNamespace(choices=[choice], usage=self.usage if end else None)


@pytest.mark.parametrize(("cached", "reported"), [(None, 0), (2, 2)])
def test_an_answer_is_streamed_in_openais_form(
    monkeypatch: pytest.MonkeyPatch, cached: int | None, reported: int
) -> None:
    """The engine leaves out the details of a prompt of which nothing was cached, and names no id of a token."""
    library = Library(cached=cached)
    monkeypatch.setattr(server.importlib, "import_module", lambda _: library)
    body = {"prompt": "abc", "max_tokens": 2, "logprobs": True, "adapter": "tenant"}
    first, second, last = server.events(library, body)
    (part,) = first["choices"]
    scored = {"id": ord("x"), "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]}
    assert part == {"index": 0, "text": "x", "finish_reason": None, "logprobs": {"content": [scored]}}
    assert second["choices"][0]["finish_reason"] == "length"
    details = {"cached_tokens": reported}
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
    assert (library.asked["adapter"], library.asked["ignore_eos"]) == ("tenant", True)


def test_only_a_request_to_an_adapter_names_one() -> None:
    """The base model has no name of its own."""
    client = MistralrsClient("http://127.0.0.1:1", alive=lambda: True)
    bodies = [client.body(CompletionRequest(model=name, prompt=(97, 98), max_tokens=2)) for name in ("base", "tenant")]
    assert [body.get("adapter") for body in bodies] == [None, "tenant"]
    assert bodies[0]["prompt"] == "ab"


@pytest.mark.parametrize(("flags", "kept"), [("", 16), (" --prefix-cache-n 2 --lora", 2)])
def test_a_script_keeps_as_many_sequences(flags: str, kept: int) -> None:
    """And has the variables without which hits and misses differ."""
    line = f"mistralrs-server --model /c/0 --port 1{flags}"
    engine = RecordedEngine(
        name="mistralrs", version="0", config={"command": line}, contents=(), generated_model=True, cell=None
    )
    found = settings(engine)
    assert found["SETTINGS"] == {"kept": kept}
    assert "MISTRALRS_CPU_KV_F32" in str(found["ENVIRONMENT"])
