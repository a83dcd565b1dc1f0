"""llama.cpp's own routes: what its metrics and events become, and what its requests say of adapters."""

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
    """A client for a stand-in whose process runs."""
    return LlamaCppClient(url, alive=lambda: True, adapters=LlamaCppAdapters(digests), caching=True)


def test_metrics_are_read_as_prometheus_text() -> None:
    """A query is a hit or a computed token."""
    with serving(ServerBehaviour(bodies={"/metrics": METRICS})) as fake:
        told = client(fake.url).metrics()
    assert told == Metrics(queried_tokens=42, hit_tokens=12, running=2, waiting=1)


def test_a_counter_that_is_missing_leaves_the_queries_unknown() -> None:
    """Missing is not zero."""
    with serving(
        ServerBehaviour(bodies={"/metrics": METRICS.replace("prompt_tokens_cached", "something_else")})
    ) as fake:
        told = client(fake.url).metrics()
    assert (told.queried_tokens, told.hit_tokens, told.running) == (None, None, 2)


def test_metrics_that_are_none_are_malformed() -> None:
    """Not an error of ours."""
    said = r"GET /metrics .*'llamacpp:requests_processing two'; expected"
    fake_server = serving(ServerBehaviour(bodies={"/metrics": "llamacpp:requests_processing two"}))
    with fake_server as fake, pytest.raises(MalformedAnswer, match=said):
        client(fake.url).metrics()


def read(*events: Any) -> LlamaCppReader:
    """A reader that was given these events."""
    reader = LlamaCppReader(None)
    for event in events:
        reader.take(json.dumps(event))
    return reader


def test_an_answer_is_what_came_up_to_the_last_event() -> None:
    """With scores where there are any, the hit and the end."""
    scores = [{"logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]}]
    reader = read(
        {"tokens": [7], "stop": False, "completion_probabilities": scores},
        {"tokens": [8], "stop": True, "stop_type": "limit", "timings": {"cache_n": 5}},
    )
    answer = reader.completion()
    assert [(token.id, token.logprob, token.gap) for token in answer.tokens] == [(7, -0.5, 1.5), (8, None, None)]
    assert (answer.cached_tokens, answer.finish_reason, reader.done) == (5, "length", True)


@pytest.mark.parametrize(
    ("told", "error"), [({}, False), ({"tokens_predicted": 1}, False), ({"tokens_predicted": 3}, True)]
)
def test_a_stream_that_lacks_tokens_is_an_error(told: dict[str, int], error: bool) -> None:
    """A server that does not say how many there were has lost none that is known of."""
    reader = read({"tokens": [8], "stop": True, "stop_type": "limit", **told})
    assert (reader.error is not None) is error


def test_an_error_event_is_a_refusal() -> None:
    """With the server's status."""
    reader = read({"error": {"code": 400, "message": "too long"}})
    assert (reader.error, reader.status, reader.malformed) == ("too long", 400, None)


@pytest.mark.parametrize("event", [[], {}, {"tokens": ["no"], "stop": False}, {"tokens": 3, "stop": True}])
def test_what_is_no_event_is_malformed(event: Any) -> None:
    """Also one that does not say whether it is the last."""
    reader = read(event)
    assert (reader.malformed, reader.done) == (json.dumps(event), False)


def test_a_request_chooses_its_adapter_by_number(tmp_path: Path) -> None:
    """The base model says nothing of adapters, unless one is switched on for all."""
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
    """By its name."""
    with serving() as fake:
        with pytest.raises(RequestRefused, match="no adapter has the name nobody"):
            client(fake.url).complete(CompletionRequest(model="nobody", prompt=(1,), max_tokens=1))
        assert fake.seen == []
