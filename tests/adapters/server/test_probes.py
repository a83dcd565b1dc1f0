"""A capability is what was seen to work. Otherwise there is a reason, and nothing is assumed."""

from __future__ import annotations

import json
import re

import pytest
import tenacity
from support.fake_reply import BARE_METRICS, METRICS, VERSION, Counts, Fault, ServerBehaviour
from support.fake_server import FakeServer, serving
from support.ports import reserved_port

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.endpoint.spec import attach
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineStartError, RequestRefused
from coldproof.adapters.protocol.requests import Completion
from coldproof.adapters.server import attach as endpoint
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.probe_options import attempt
from coldproof.adapters.server.probes import ProbeResult, is_uniform, probe

WRONG_RANK = '{"error": {"message": "LoRA rank 128 is greater than max_lora_rank 64", "code": 400}}'
OF_ENDPOINTS = {Capability.GENERATE_ENDPOINT, Capability.RESPONSES_ENDPOINT, Capability.MESSAGES_ENDPOINT}
OF_CHATS = {Capability.CHAT, Capability.ENDPOINTS, *OF_ENDPOINTS}
CONFIG_LINE = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="True"} 1\n'
ALWAYS_ABSENT = {
    Capability.ADAPTER_SWITCH,
    Capability.SPAWNABLE,
    Capability.PROVENANCE,
    Capability.SEVERAL_GROUPS,
    Capability.KV_EVENTS,
    Capability.SECOND_TIER,
    *OPTIONAL_ABSENT,
} - {Capability.ENDPOINTS, *OF_ENDPOINTS}  # of a server that somebody else started
OF_COMPLETIONS = {
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.STREAMING,
    Capability.LOGPROBS,
    Capability.CACHED_TOKENS,
    Capability.CACHE_SALT,
    Capability.CACHE_RESET,
}
OF_RESPONSE_OPTIONS = {
    *OF_CHATS,
    Capability.PRIORITY,
    Capability.ABORT,
    Capability.PROMPT_LOGPROBS,
    Capability.SEVERAL_ANSWERS,
    Capability.STOP_STRINGS,
    Capability.STRUCTURED_OUTPUT,
}
OF_TOKEN_IDS = {
    Capability.TOKEN_OUTPUTS,
    Capability.STREAMING,
    Capability.LOGPROBS,
    *OF_CHATS,
    Capability.ABORT,
    Capability.STRUCTURED_OUTPUT,
}
OF_METRICS = {
    Capability.METRICS,
    Capability.BLOCK_SIZE,
    Capability.POOL_SIZE,
    Capability.HIT_COUNTERS,
    Capability.PREEMPTION_COUNTS,
    Capability.POOL_USAGE,
}
OF_ADAPTERS = {
    Capability.ADAPTER_CHOICE,
    Capability.MIXED_ADAPTERS,
    Capability.RUNTIME_LORA,
    Capability.LORA_IN_PLACE,
}
ANOTHER_ENGINE = ServerBehaviour(metrics=BARE_METRICS)  # nothing of vLLM in its metrics


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach without waiting for a server to start."""
    monkeypatch.setattr(endpoint.wait_until_reachable.retry, "stop", tenacity.stop_after_attempt(1))


def probed(behaviour: ServerBehaviour, adapter: str | None = "/adapters/A") -> tuple[ProbeResult, FakeServer]:
    """Return what the probe finds on a server with this behaviour."""
    with serving(behaviour) as fake:
        return probe(HttpClient(fake.url, alive=lambda: True), spawned=False, adapter_path=adapter), fake


def absent(found: ProbeResult) -> set[Capability]:
    """Return the capabilities that were not seen."""
    return {capability for capability, support in found.capabilities.items() if support.present is not True}


def test_a_server_that_offers_everything_has_every_capability() -> None:
    """Everything is present but what only a server process of our own has."""
    found, _ = probed(ServerBehaviour())
    assert absent(found) == ALWAYS_ABSENT
    assert (found.version, found.base_model, found.null_is_miss) == (VERSION, "tiny", False)


def described(*names: str) -> ServerBehaviour:
    """Return a server that documents which parameters its resets have."""
    route = {"post": {"parameters": [{"name": name, "in": "query"} for name in names]}}
    return ServerBehaviour(bodies={"/openapi.json": json.dumps({"paths": {"/reset_prefix_cache": route}})})


def test_what_a_reset_covers_is_what_the_server_documents() -> None:
    """A server ignores an unknown parameter and reports success. A missing tier cannot be reset."""
    running, tier = Capability.RESET_RUNNING, Capability.RESET_SECOND_TIER
    old, new = probed(described())[0], probed(described("reset_running_requests", "reset_external"))[0]
    assert not old.capabilities[running].present
    assert new.capabilities[running].present
    assert "reset_running_requests, reset_external" in new.capabilities[running].evidence
    assert new.capabilities[tier] == new.capabilities[Capability.SECOND_TIER]
    refused = ServerBehaviour(reset=None, bodies=described("reset_running_requests").bodies)
    assert not probed(refused)[0].capabilities[running].present


@pytest.mark.parametrize("text", ["", "[]", '{"paths": {}}', '{"paths": {"/reset_prefix_cache": 3}}'])
def test_a_description_of_another_form_shows_nothing(text: str) -> None:
    """Such a description is no error either."""
    assert not probed(ServerBehaviour(bodies={"/openapi.json": text}))[0].capabilities[Capability.RESET_RUNNING].present


def test_a_server_that_counts_drafts_may_leave_a_block_out_of_a_hit() -> None:
    """It may have heads that draft, such as EAGLE's. No metric says what drafts."""
    name = "vllm:spec_decode_num_draft_tokens"
    drafts = f'{METRICS}# TYPE {name}_total counter\n{name}_total{{engine="0"}} 7\n'
    assert probed(ServerBehaviour(metrics=drafts))[0].shape.drops_block
    assert not probed(ServerBehaviour())[0].shape.drops_block


@pytest.mark.parametrize(("looked_up", "in_order"), [(None, True), (0, True), (7, False)])
def test_what_the_tier_of_somebody_elses_server_does_with_the_pool_is_unknown(
    looked_up: int | None, in_order: bool
) -> None:
    """It may give blocks back behind newer ones (vLLM's `lazy_offload`). A server that counts no tier has none."""
    name = "vllm:external_prefix_cache_queries"
    counted = f'# TYPE {name}_total counter\n{name}_total{{engine="0"}} {looked_up}\n'
    metrics = METRICS if looked_up is None else METRICS + counted
    shape = probed(ServerBehaviour(metrics=metrics))[0].shape
    assert (shape.second_tier, shape.evicts_oldest) == (not in_order, in_order)


def test_the_shape_is_what_the_metrics_say() -> None:
    """vLLM's block 0 holds nothing, so the pool is one block smaller than published."""
    shape = probed(ServerBehaviour())[0].shape
    assert (shape.block_size, shape.pool_blocks, shape.max_model_tokens, shape.prefix_caching) == (16, 99, 2048, True)


def test_ranks_with_caches_are_counted_and_the_pool_is_that_of_one() -> None:
    """vLLM with data parallel 2 publishes the blocks of both ranks and the tokens of one."""
    labels = 'block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="800",enable_prefix_caching="True"'
    lines = "".join(f'vllm:cache_config_info{{engine="{rank}",{labels}}} 1\n' for rank in range(2))
    two = METRICS.replace(CONFIG_LINE, lines)
    assert two != METRICS
    found = probed(ServerBehaviour(metrics=two))[0]
    assert (found.shape.ranks, found.shape.pool_blocks, found.shape.uniform) == (2, 49, True)
    assert found.capabilities[Capability.RANK_CHOICE].present
    assert found.capabilities[Capability.SEVERAL_RANKS].present
    assert probed(ServerBehaviour())[0].shape.ranks == 1


@pytest.mark.parametrize(
    ("tokens", "longest", "uniform"),
    [
        (1600, 2048, True),  # 100 blocks of 16
        (1598, 1000, False),
        (1587, 1000, True),  # 63 blocks for each of 1000 tokens: 100 / 63 requests fit
        (1500, 2048, False),
    ],
)
def test_a_pool_has_one_group_whatever_the_longest_request_is(tokens: int, longest: int, uniform: bool) -> None:
    """vLLM's size in tokens is smaller than its blocks if the longest request does not end with a block."""
    config = {"block_size": "16", "num_gpu_blocks": "100", "kv_cache_size_tokens": str(tokens)}
    assert is_uniform(config, longest) is uniform


@pytest.mark.parametrize(("published", "every"), [("0", 0), ("64", 64), ("None", 16), (None, None)])
def test_the_positions_that_windows_keep_are_those_of_the_published_interval(
    published: str | None, every: int | None
) -> None:
    """ "None" keeps all positions, in units of hits. Before 0.29 nothing is published."""
    interval = "" if published is None else f',prefix_cache_retention_interval="{published}"'
    line = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="100"{interval}}} 1\n'
    assert probed(ServerBehaviour(metrics=METRICS.replace(CONFIG_LINE, line)))[0].shape.kept_every == every


def test_an_unpublished_shape_is_unknown() -> None:
    """There is no default block size and no default pool."""
    shape = probed(ANOTHER_ENGINE)[0].shape
    assert (shape.block_size, shape.pool_blocks, shape.adapter_slots, shape.prefix_caching) == (None,) * 4


@pytest.mark.parametrize(
    ("behaviour", "missing"),
    [
        (ServerBehaviour(version=None), {Capability.VERSION}),
        (ServerBehaviour(token_ids=False), OF_TOKEN_IDS),
        (
            ServerBehaviour(counts=Counts.NEVER, metrics=None),
            {Capability.CACHED_TOKENS, Capability.CACHE_SALT, *OF_METRICS, *OF_ENDPOINTS},
        ),
        (ServerBehaviour(refuses=("logprobs",)), {Capability.LOGPROBS}),
        (ServerBehaviour(reset=None), {Capability.CACHE_RESET}),
        (ServerBehaviour(reset='{"success": false}'), {Capability.CACHE_RESET}),
        (ServerBehaviour(metrics=None), OF_METRICS),
        (ANOTHER_ENGINE, OF_METRICS),
        (ServerBehaviour(metrics=BARE_METRICS, salts=False), {Capability.CACHE_SALT, *OF_METRICS}),
        (ServerBehaviour(version="0.8.5.post2", salts=False), {Capability.CACHE_SALT}),  # vLLM has none before 0.9
        (ServerBehaviour(token_prompts=False), OF_COMPLETIONS | OF_RESPONSE_OPTIONS),
        (ServerBehaviour(lora=(404, "Not Found")), OF_ADAPTERS),
        (ServerBehaviour(in_place=(400, "unknown field")), {Capability.LORA_IN_PLACE}),
        (ServerBehaviour(chats=False), OF_CHATS),
        (ServerBehaviour(refuses=("messages",)), OF_CHATS),
        (ServerBehaviour(reports_prompts=False), {Capability.PROMPT_LOGPROBS, *OF_CHATS}),
        (ServerBehaviour(endpoints=()), OF_ENDPOINTS),
        (ServerBehaviour(endpoints=("/v1/responses",)), OF_ENDPOINTS - {Capability.RESPONSES_ENDPOINT}),
        (ServerBehaviour(wordy=True), {Capability.MESSAGES_ENDPOINT}),
        (ServerBehaviour(refuses=("priority",)), {Capability.PRIORITY}),
        (ServerBehaviour(refuses=("prompt_logprobs",)), {Capability.PROMPT_LOGPROBS}),
        (ServerBehaviour(ignores=("prompt_logprobs",)), {Capability.PROMPT_LOGPROBS}),
        (ServerBehaviour(refuses=("n",)), {Capability.SEVERAL_ANSWERS}),
        (ServerBehaviour(ignores=("n",)), {Capability.SEVERAL_ANSWERS}),
        (ServerBehaviour(refuses=("stop",)), {Capability.STOP_STRINGS}),
        (ServerBehaviour(ignores=("stop",)), {Capability.STOP_STRINGS}),
        (ServerBehaviour(refuses=("structured_outputs",)), {Capability.STRUCTURED_OUTPUT}),
    ],
)
def test_what_is_missing_is_reported_with_a_reason(behaviour: ServerBehaviour, missing: set[Capability]) -> None:
    """Exactly these capabilities are missing, each with what was seen instead."""
    found, _ = probed(behaviour)
    assert absent(found) == ALWAYS_ABSENT | set(missing)
    assert set(found.capabilities) == set(Capability)
    assert all(found.capabilities[capability].evidence.strip() for capability in absent(found))


def test_ids_that_are_names_of_tokens_are_read_as_token_ids() -> None:
    """A server that returns no token ids may name them in logprobs, as vLLM did before 0.10.2. Chats, too."""
    for behaviour, names, missing in (
        (ServerBehaviour(token_ids=False, names=True), True, set()),
        (ServerBehaviour(token_ids=False), False, OF_TOKEN_IDS),
        (ServerBehaviour(), False, set()),
    ):
        with serving(behaviour) as fake:
            client = HttpClient(fake.url, alive=lambda: True)
            found = probe(client, spawned=False, adapter_path="/adapters/A")
        assert (absent(found), client.names_tokens) == (ALWAYS_ABSENT | missing, names)


@pytest.mark.parametrize(("status", "named"), [(500, True), (400, False)])
def test_a_server_that_ends_in_a_probe_is_reported_with_what_was_tried(status: int, named: bool) -> None:
    """A request that it answered with an error of its own may have ended it. One that it refused did not."""
    found: dict[Capability, Support] = {}

    def fails(problem: Exception) -> Completion:
        raise problem

    attempt(found, Capability.PROMPT_LOGPROBS, "", lambda: fails(RequestRefused(status, "no")))
    with pytest.raises(EngineDied, match="cannot connect") as caught:
        attempt(found, Capability.STOP_STRINGS, "", lambda: fails(EngineDied("cannot connect")))
    assert (
        f"after requests that tried: {Capability.PROMPT_LOGPROBS.value} (HTTP 500: no)" in str(caught.value)
    ) is named


def test_a_refused_capability_quotes_the_server() -> None:
    """The user can act on the server's own message."""
    found, _ = probed(ServerBehaviour(token_prompts=False, reset=None))
    assert "prompt must be text" in found.capabilities[Capability.TOKEN_PROMPTS].evidence


def test_a_capability_whose_answer_cannot_be_read_is_absent() -> None:
    """The evidence quotes the response. A server that answers any path with a page can still be tested."""
    support = probed(ServerBehaviour(bodies={"/tokenize": "<html>"}))[0].capabilities[Capability.CHAT]
    assert support.present is False
    assert support.evidence.startswith("POST /tokenize was answered with HTTP 200 and '<html>'; expected")


def test_null_becomes_a_miss_where_a_hit_has_a_count() -> None:
    """null for the first request and a number for the second one show that null is this engine's zero."""
    assert probed(ServerBehaviour(counts=Counts.NULL_ON_MISS))[0].null_is_miss
    assert not probed(ServerBehaviour(counts=Counts.NEVER))[0].null_is_miss


def test_a_salt_that_changes_nothing_is_no_salt_elsewhere() -> None:
    """A server without salts accepts the field and hits anyway, so the capability is absent."""
    found, _ = probed(ServerBehaviour(metrics=BARE_METRICS, salts=False))
    salt = found.capabilities[Capability.CACHE_SALT]
    assert salt.present is False
    assert re.search(r"cached_tokens (\d+) without a salt, \1 with an unused salt", salt.evidence)


def test_a_salt_that_changes_nothing_is_a_fault_of_vllm() -> None:
    """vLLM has salts, so one that ignores them must be tested and not be excused as unsupported."""
    assert probed(ServerBehaviour(salts=False))[0].capabilities[Capability.CACHE_SALT].present is True


def test_an_adapter_that_does_not_fit_is_refused_in_the_servers_words() -> None:
    """The rank is too high, so run-time adapters are absent, and the evidence quotes the server."""
    found, fake = probed(ServerBehaviour(lora=(400, WRONG_RANK)))
    for capability in OF_ADAPTERS:
        assert found.capabilities[capability].present is False
        assert "rank 128 is greater than max_lora_rank 64" in found.capabilities[capability].evidence
    assert fake.received("POST /v1/unload_lora_adapter") == []


def test_without_an_adapter_the_capabilities_are_unknown() -> None:
    """Without an adapter the capability is unknown, and the evidence says how to give one."""
    found, fake = probed(ServerBehaviour(), adapter=None)
    assert {found.capabilities[c].present for c in OF_ADAPTERS} == {None}
    assert "--adapter" in found.capabilities[Capability.RUNTIME_LORA].evidence
    assert fake.received("POST /v1/load_lora_adapter") == []


def test_the_probe_unloads_its_adapter() -> None:
    """The probe's adapter has a unique name, so that it collides with no other, and is unloaded."""
    _, fake = probed(ServerBehaviour())
    loaded = {seen.body["lora_name"] for seen in fake.received("POST /v1/load_lora_adapter")}
    unloaded = [seen.body["lora_name"] for seen in fake.received("POST /v1/unload_lora_adapter")]
    assert loaded == set(unloaded)
    assert all(name.startswith("coldproof-") for name in unloaded)


def test_adapters_in_the_list_of_models_are_not_the_base_model() -> None:
    """A server lists its adapters together with the model."""
    models = '{"data": [{"id": "sql-lora", "parent": "tiny"}, {"id": "tiny", "parent": null}]}'
    assert probed(ServerBehaviour(models=models))[0].base_model == "tiny"


@pytest.mark.parametrize(
    "models", [None, "", "<html>", "[]", '{"data": []}', '{"data": null}', '{"object": "list"}', '{"data": [{}]}']
)
def test_a_server_without_a_model_is_refused(models: str | None) -> None:
    """Whatever the response of /v1/models is, the error says what was expected."""
    with pytest.raises(EngineError, match=r"GET /v1/models was answered with HTTP .*OpenAI-compatible server$"):
        probed(ServerBehaviour(models=models))


def test_a_server_that_requires_a_key_names_the_variable() -> None:
    """HTTP 401 does not mean that the server is broken."""
    with serving(ServerBehaviour(key="k")) as fake, pytest.raises(EngineError, match=f"set {KEY_VARIABLE}"):
        attach(fake.url, adapter_for=lambda _: None)


def test_the_right_key_is_accepted_and_stays_out_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report shows that there was a key, and not the key."""
    monkeypatch.setenv(KEY_VARIABLE, "s3cr3t-key")
    with serving(ServerBehaviour(key="s3cr3t-key")) as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
    shown = f"{engine.config} {engine.capabilities}"
    assert engine.config["api key"] == "given"
    assert "s3cr3t" not in shown


def test_a_user_and_password_in_the_url_are_sent_and_not_shown() -> None:
    """A proxy in front of the server may need them; the report does not show them."""
    with serving() as fake:
        engine = attach(fake.url.replace("//", "//ann:hunter2@"), adapter_for=lambda _: None)
    assert {seen.authorization for seen in fake.seen} == {"Basic YW5uOmh1bnRlcjI="}
    assert engine.config["url"] == fake.url
    assert "hunter2" not in str(engine.config)


def test_an_attached_server_is_described_as_found() -> None:
    """The configuration has the address and the reported cache settings; the adapter is chosen by the reported root."""
    roots: list[str | None] = []
    with serving() as fake:
        engine = attach(fake.url + "/v1", adapter_for=lambda root: roots.append(root))
        assert engine.config == {
            "url": fake.url,
            "api key": "none",
            "cache.block_size": "16",
            "cache.num_gpu_blocks": "100",
            "cache.enable_prefix_caching": "True",
            "form of requests": "token ids in `prompt` and `token_ids`, as vLLM has them",
        }
    assert roots == ["/models/tiny"]
    assert (engine.name, engine.log_tail(), engine.alive()) == ("endpoint", "", True)
    engine.stop()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "", "http://", "ftp://127.0.0.1", "/v1"])
def test_a_bad_url_is_refused_with_an_example(url: str) -> None:
    """The error comes at once, before any request."""
    with pytest.raises(EngineStartError, match="use http://HOST:PORT"):
        attach(url, adapter_for=lambda _: None)


@pytest.mark.usefixtures("without_waiting")
def test_the_error_of_a_missing_server_is_one_line() -> None:
    """The error has no traceback and no password."""
    with reserved_port() as port, pytest.raises(EngineStartError, match=r"no server answers at http://127") as caught:
        attach(f"http://ann:hunter2@127.0.0.1:{port}", adapter_for=lambda _: None)
    assert "check that it runs" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_starting_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few broken connections do not end the run."""
    monkeypatch.setattr(endpoint.wait_until_reachable.retry, "wait", tenacity.wait_none())
    with serving(ServerBehaviour(dropped_gets=3)) as fake:
        assert attach(fake.url, adapter_for=lambda _: None).base_model == "tiny"


def test_a_server_that_refuses_every_prompt_can_still_be_described() -> None:
    """Capabilities are absent, and nothing is raised."""
    assert absent(probed(ServerBehaviour(fault=Fault.REFUSES))[0]) == ALWAYS_ABSENT | {
        *OF_COMPLETIONS,
        *OF_RESPONSE_OPTIONS,
    }
