"""vLLM's routes for weights, pauses and sleeps: which are found, and what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pytest_httpserver import HTTPServer

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.weights import ChangesWeights, PauseMode, Pauses, SleepPart, Sleeps, WeightRoute
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.weights import NEEDED, WeightRoutes, probe_weights

ALL = {route: {} for routes in NEEDED for route in routes}


class Routes(WeightRoutes):
    """The weight routes of one server."""

    def __init__(self, server: HTTPServer) -> None:
        self.client = HttpClient(server.url_for(""), alive=lambda: True)


def test_routes_are_found_by_the_list_of_the_server(httpserver: HTTPServer) -> None:
    """Routes count only in pairs: a pause without a resume would stop the server for good."""
    listed = {route: facts for route, facts in ALL.items() if route != "/resume"}
    httpserver.expect_request("/openapi.json").respond_with_json({"paths": listed})
    found = probe_weights(Routes(httpserver).client)
    assert {c for c, support in found.items() if support.present} == {
        Capability.WEIGHT_UPDATES,
        Capability.WEIGHTS_FROM_PATH,
        Capability.WEIGHTS_SAME_PATH,
        Capability.WEIGHT_CHECKSUM,
    }
    assert {c for c, support in found.items() if support.present is None} == {
        Capability.SLEEP,
        Capability.SLEEP_DISCARDS,
        Capability.WEIGHTS_TRANSFER,
    }
    assert "does not list /pause and /resume" in found[Capability.PAUSE_KEEP].evidence


@pytest.mark.parametrize(("status", "body"), [(404, "{}"), (200, "<html>"), (200, "{}")])
def test_a_server_without_a_list_has_none(httpserver: HTTPServer, status: int, body: str) -> None:
    """A server without a route list is not paused by a probe."""
    httpserver.expect_request("/openapi.json").respond_with_data(body, status=status)
    assert not any(support.present for support in probe_weights(Routes(httpserver).client).values())
    assert [request.path for request, _ in httpserver.log] == ["/openapi.json"]


@pytest.mark.parametrize(
    ("call", "sent", "body"),
    [
        (
            lambda r: r.update_weights("/step-1", WeightRoute.PATH),
            "/collective_rpc?",
            {"method": "reload_weights", "kwargs": {"weights_path": "/step-1"}},
        ),
        (lambda r: r.pause(PauseMode.KEEP, clear=True), "/pause?mode=keep&clear_cache=true", None),
        (lambda r: r.pause(PauseMode.WAIT, clear=False), "/pause?mode=wait&clear_cache=false", None),
        (lambda r: r.resume(), "/resume?", None),
        (lambda r: r.sleep(1), "/sleep?level=1", None),
        (lambda r: r.wake(), "/wake_up?", None),
        (lambda r: r.wake(SleepPart.WEIGHTS), "/wake_up?tags=weights", None),
        (lambda r: r.wake(SleepPart.KV), "/wake_up?tags=kv_cache", None),
    ],
)
def test_calls_are_sent_as_vllm_takes_them(
    httpserver: HTTPServer, call: Callable[[Routes], None], sent: str, body: object
) -> None:
    """Each call is one POST, and a refusal is raised."""
    routes = Routes(httpserver)
    httpserver.expect_ordered_request(sent.partition("?")[0], method="POST").respond_with_json({})
    httpserver.expect_ordered_request(sent.partition("?")[0], method="POST").respond_with_data("no", status=500)
    call(routes)
    (request, _), *_ = httpserver.log
    assert f"{request.path}?{request.query_string.decode()}" == sent
    assert json.loads(request.data or b"null") == body
    with pytest.raises(RequestRefused):
        call(routes)


def test_a_transfer_is_started_made_and_finished(httpserver: HTTPServer) -> None:
    """Each call follows only if the one before succeeded."""
    routes = Routes(httpserver)
    for path in ("/start_weight_update", "/update_weights", "/finish_weight_update", "/start_weight_update"):
        httpserver.expect_ordered_request(path, method="POST").respond_with_json({})
    httpserver.expect_ordered_request("/update_weights").respond_with_data("no such folder", status=500)
    routes.update_weights("/step-1", WeightRoute.TRANSFER)
    with pytest.raises(RequestRefused, match="no such folder"):
        routes.update_weights("/step-2", WeightRoute.TRANSFER)
    bodies = [json.loads(request.data or b"null") for request, _ in httpserver.log]
    assert bodies == [None, {"update_info": {"path": "/step-1"}}, {}, None, {"update_info": {"path": "/step-2"}}]


def test_the_checksum_is_one_of_all_parameters(httpserver: HTTPServer) -> None:
    """The order of the parameters does not matter, and a response of another form is an error."""
    for checksums in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1", "b": "3"}):
        answer = {"checksums": checksums}
        httpserver.expect_ordered_request("/weight_checker", json={"action": "checksum"}).respond_with_json(answer)
    httpserver.expect_ordered_request("/weight_checker").respond_with_json({"status": "ok"})
    routes = Routes(httpserver)
    first, same, other = (routes.weights_checksum() for _ in range(3))
    assert first == same != other
    with pytest.raises(MalformedAnswer):
        routes.weights_checksum()


def test_a_server_has_all_three_protocols() -> None:
    """The runner can call the routes through these protocols."""
    for protocol in (ChangesWeights, Pauses, Sleeps):
        assert issubclass(WeightRoutes, protocol)
