"""llama.cpp's own routes: how metrics and events are read, and how requests name adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_reply import ServerBehaviour
from support.fake_server import serving

from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.llamacpp.client import LlamaCppAdapters, LlamaCppClient, LlamaCppReader
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import CompletionRequest

METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 30
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.5
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 12
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 60
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""


def client(url: str, *digests: str) -> LlamaCppClient:
    """Return a client for a stand-in whose process runs."""
    return LlamaCppClient(url, alive=lambda: True, adapters=LlamaCppAdapters(digests), caching=True)


def test_metrics_are_read_as_prometheus_text() -> None:
    """Queried tokens are the sum of cached and computed prompt tokens."""
    with serving(ServerBehaviour(bodies={"/metrics": METRICS})) as fake:
        reported = client(fake.url).metrics()
    assert reported == Metrics(queried_tokens=42, hit_tokens=12, running=2, waiting=1)


def test_a_counter_that_is_missing_leaves_the_queries_unknown() -> None:
    """A missing counter is None, not zero."""
    with serving(
        ServerBehaviour(bodies={"/metrics": METRICS.replace("prompt_tokens_cached", "something_else")})
    ) as fake:
        reported = client(fake.url).metrics()
    assert (reported.queried_tokens, reported.hit_tokens, reported.running) == (None, None, 2)


def test_an_invalid_metrics_page_is_malformed() -> None:
    """A malformed metrics page is an error of the server."""
    said = r"GET /metrics .*'llamacpp:requests_processing two'; expected"
    fake_server = serving(ServerBehaviour(bodies={"/metrics": "llamacpp:requests_processing two"}))
    with fake_server as fake, pytest.raises(MalformedAnswer, match=said):
        client(fake.url).metrics()


def read(*events: Any) -> LlamaCppReader:
    """Return a reader that has read these events."""
    reader = LlamaCppReader(None)
    for event in events:
        reader.take(json.dumps(event))
    return reader


def test_an_answer_has_everything_up_to_the_last_event() -> None:
    """The answer has the tokens of all events, with scores where there are any, the cached tokens and the finish
    reason.
    """
    scores = [{"logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]}]
    reader = read(
        {"tokens": [7], "stop": False, "completion_probabilities": scores},
        {"tokens": [8], "stop": True, "stop_type": "limit", "timings": {"cache_n": 5}},
    )
    answer = reader.completion()
    assert [(token.id, token.logprob, token.gap) for token in answer.tokens] == [(7, -0.5, 1.5), (8, None, None)]
    assert (answer.cached_tokens, answer.finish_reason, reader.done) == (5, "length", True)


@pytest.mark.parametrize(
    ("reported", "error"), [({}, False), ({"tokens_predicted": 1}, False), ({"tokens_predicted": 3}, True)]
)
def test_a_stream_that_lacks_tokens_is_an_error(reported: dict[str, int], error: bool) -> None:
    """Without a count from the server no token is known to be missing."""
    reader = read({"tokens": [8], "stop": True, "stop_type": "limit", **reported})
    assert (reader.error is not None) is error


def test_an_error_event_is_a_refusal() -> None:
    """An error event becomes a refusal with the server's status."""
    reader = read({"error": {"code": 400, "message": "too long"}})
    assert (reader.error, reader.status, reader.malformed) == ("too long", 400, None)


@pytest.mark.parametrize("event", [[], {}, {"tokens": ["no"], "stop": False}, {"tokens": 3, "stop": True}])
def test_an_invalid_event_is_malformed(event: Any) -> None:
    """An event that does not report whether it is the last is malformed too."""
    reader = read(event)
    assert (reader.malformed, reader.done) == (json.dumps(event), False)


def test_a_request_chooses_its_adapter_by_number(tmp_path: Path) -> None:
    """A request to the base model names no adapter, unless one is switched on for all requests."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    (tmp_path / "adapter_config.json").write_text("{}")
    adapters = LlamaCppAdapters(["another", content_digest(tmp_path)])
    adapters.bind("tenant", str(tmp_path), in_place=False)
    assert adapters.choice("tenant") == [{"id": 1, "scale": 1.0}]
    assert adapters.choice("base") is None
    adapters.switched_on = "all"
    assert adapters.choice("all") is None
    assert adapters.choice("base") == adapters.scales(None) == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
    with pytest.raises(RequestRefused, match="cannot replace an adapter"):
        adapters.bind("tenant", str(tmp_path), in_place=True)
    adapters.unbind("tenant")
    with pytest.raises(RequestRefused, match="no adapter has the name tenant"):
        adapters.choice("tenant")


def test_an_unknown_adapter_is_refused_before_anything_is_sent() -> None:
    """The refusal names the adapter, and nothing is sent."""
    with serving() as fake:
        with pytest.raises(RequestRefused, match="no adapter has the name nobody"):
            client(fake.url).complete(CompletionRequest(model="nobody", prompt=(1,), max_tokens=1))
        assert fake.seen == []
