"""SGLang's client against a stand-in: requests, answers, probes, and what a server may lack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import fake_server, report_samples
from support.fake_reply import answer
from support.fake_sglang import MODEL, ROOT, Fault, ServerBehaviour, serving
from support.fake_sglang_pages import LONGEST, VERSION, load
from support.histories import ask, burst, put
from support.scripts import run_script
from support.weights import SGLANG_CONTROLS

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError, MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Abort, CompletionRequest, ResponseOptions, Stage
from coldproof.adapters.registry import attached
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.spec import attach
from coldproof.harness.execution.calibration.calibrate import lengths
from coldproof.harness.options import Options, UsageError
from coldproof.harness.selection.validation import check_options
from coldproof.harness.workload.generators.prompts import whole_unit
from coldproof.harness.workload.steps import Reset, Workload

PROMPT = tuple(range(40, 80))
REQUEST = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4)
ENDPOINTS = {
    Capability.ENDPOINTS,
    Capability.GENERATE_ENDPOINT,
    Capability.RESPONSES_ENDPOINT,
    Capability.MESSAGES_ENDPOINT,
}
ALWAYS_ABSENT = {
    Capability.SEVERAL_ANSWERS,
    Capability.LORA_IN_PLACE,
    Capability.ADAPTER_SWITCH,
    Capability.KV_EVENTS,
    Capability.SPAWNABLE,
    Capability.PROVENANCE,
    Capability.SEVERAL_GROUPS,
    Capability.SECOND_TIER,
    *OPTIONAL_ABSENT,
} - {Capability.SESSIONS, Capability.STREAMING_SESSIONS, *ENDPOINTS, *SGLANG_CONTROLS}
OF_ADAPTERS = {Capability.RUNTIME_LORA, Capability.ADAPTER_CHOICE, Capability.MIXED_ADAPTERS}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for an engine to end."""
    monkeypatch.setattr(HttpClient, "wait_dead", lambda self, seconds: not self.alive())


def attached_engine(behaviour: ServerBehaviour, adapter: str | None = "/adapters/A") -> ServerEngine:
    """Return the engine of an attached server with this behaviour."""
    with serving(behaviour) as fake:
        return attach(fake.url, adapter_for=lambda _: adapter)


def absent(engine: ServerEngine) -> set[Capability]:
    """Return the capabilities that were not seen."""
    return {capability for capability, support in engine.capabilities.items() if support.present is not True}


def client(url: str) -> SglangClient:
    """Return a client for a running server."""
    made = SglangClient(url, alive=lambda: True, read_timeout=5.0)
    made.base_model = MODEL
    return made


def test_a_server_that_offers_everything_has_every_capability() -> None:
    """Everything is present but what the routes cannot do and what needs a process of our own."""
    engine = attached_engine(ServerBehaviour())
    assert absent(engine) == ALWAYS_ABSENT
    assert (engine.name, engine.version, engine.base_model) == ("sglang", VERSION, MODEL)
    assert set(engine.capabilities) == set(Capability)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"lora": False}, OF_ADAPTERS),
        ({"counts": False}, {Capability.CACHED_TOKENS, Capability.CACHE_SALT, *ENDPOINTS}),
        ({"reports": False}, ENDPOINTS),
        ({"chats": False}, {Capability.CHAT, *ENDPOINTS}),
        ({"salts": ()}, {Capability.CACHE_SALT}),
        ({"salts": ("extra_key",)}, set()),
        ({"counters": False}, {Capability.METRICS, Capability.HIT_COUNTERS, Capability.PREEMPTION_COUNTS}),
        ({"loads": False}, {Capability.METRICS, Capability.POOL_USAGE}),
        ({"flush": (404, "Not Found")}, {Capability.CACHE_RESET}),
        ({"flush": (400, "Flush cache failed.")}, {Capability.CACHE_RESET}),
        ({"refuses": ("regex",)}, {Capability.STRUCTURED_OUTPUT}),
        ({"refuses": ("stop",)}, {Capability.STOP_STRINGS}),
        ({"refuses": ("logprob_start_len",)}, {Capability.PROMPT_LOGPROBS}),
        ({"server": {"enable_priority_scheduling": False}}, {Capability.PRIORITY}),
        ({"server": {"dp_size": 2}}, {Capability.POOL_SIZE}),
        ({"server": {"page_size": None}}, {Capability.BLOCK_SIZE, Capability.POOL_SIZE}),
        ({"server": {"version": None}}, {Capability.VERSION}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # a set's order is another in every process
)
def test_what_is_missing_is_reported_with_a_reason(changes: dict[str, Any], missing: set[Capability]) -> None:
    """Exactly these capabilities are missing, each with what was seen instead."""
    engine = attached_engine(ServerBehaviour(**changes))
    assert absent(engine) == ALWAYS_ABSENT | missing
    assert all(engine.capabilities[capability].evidence.strip() for capability in absent(engine))


def test_a_loaded_name_that_is_refused_is_the_evidence_against_a_reload_in_place() -> None:
    """The evidence quotes the server, and the probe's adapter is unloaded."""
    with serving() as fake:
        engine = attach(fake.url, adapter_for=lambda _: "/adapters/A")
        assert "already loaded" in engine.capabilities[Capability.LORA_IN_PLACE].evidence
        assert fake.adapters == {}
    assert (
        "--adapter" in attached_engine(ServerBehaviour(), adapter=None).capabilities[Capability.RUNTIME_LORA].evidence
    )


def test_an_older_server_is_called_by_the_older_names() -> None:
    """An older server has other names for its pages and for the salt."""
    with serving(older=True, salts=("extra_key",)) as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
        engine.complete(CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=1, cache_salt="mine"))
        assert fake.received("/generate")[-1]["extra_key"] == "mine"
    assert engine.capabilities[Capability.CACHE_SALT].evidence.startswith("extra_key: ")


def test_the_shape_is_what_the_server_reports() -> None:
    """The pool has whole pages, the longest prompt is reported, and without adapters there are no slots."""
    shape = attached_engine(ServerBehaviour()).shape
    assert (shape.block_size, shape.pool_blocks, shape.max_model_tokens) == (16, 62, LONGEST)
    assert (shape.adapter_slots, shape.prefix_caching, shape.uniform, shape.most_requests) == (4, True, True, 16)
    assert shape.evicts_leaves
    assert attached_engine(ServerBehaviour(lora=False)).shape.adapter_slots is None
    assert attached_engine(ServerBehaviour(server={"disable_radix_cache": True})).shape.prefix_caching is False


@pytest.mark.parametrize("changes", [{"windows": 5}, {"counters": False}], ids=str)
def test_layers_of_several_kinds_lower_the_expected_hits(changes: dict[str, Any]) -> None:
    """With sliding windows, or if their absence is not reported, a hit is not required."""
    assert not attached_engine(ServerBehaviour(**changes)).shape.uniform


def test_replicas_make_no_pool() -> None:
    """One replica cannot hit what another one computed."""
    engine = attached_engine(ServerBehaviour(server={"dp_size": 2}))
    assert engine.shape.pool_blocks is None
    assert "2 replicas" in engine.capabilities[Capability.POOL_SIZE].evidence


def test_the_report_has_the_launch_command_without_its_key() -> None:
    """The launch command comes from the server, and its key is redacted."""
    config = attached_engine(ServerBehaviour()).config
    assert config["launch_command"] == "--model-path tiny --api-key ***"
    assert config["api key"] == "none"


def test_the_adapter_is_made_for_the_model_that_the_server_names() -> None:
    """The adapter is chosen by the model's folder, not by the served name."""
    roots: list[str | None] = []
    with serving() as fake:
        attach(fake.url, adapter_for=roots.append)
    assert roots == [ROOT]


@pytest.mark.parametrize("model", [None, {}, [], "<html>"], ids=str)
def test_a_different_server_is_refused_in_one_line(model: Any) -> None:
    """The error names the option to use instead."""
    with pytest.raises(
        EngineStartError, match=r"GET /(get_)?model_info was answered with HTTP \d+ and .*model_path.*--engine endpoint"
    ) as seen:
        attached_engine(ServerBehaviour(model=model))
    assert "\n" not in str(seen.value)


def test_a_vllm_server_is_another() -> None:
    """A vLLM server lists models as SGLang does but has no /model_info."""
    with fake_server.serving() as fake, pytest.raises(EngineStartError, match="--engine endpoint"):
        attach(fake.url, adapter_for=lambda _: None)


def test_a_model_that_generates_nothing_is_refused() -> None:
    """SGLang serves embedding models too."""
    with pytest.raises(EngineStartError, match="not a generative model"):
        attached_engine(ServerBehaviour(model={"model_path": ROOT, "is_generation": False}))


def test_a_server_that_requires_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right key the server can be attached."""
    with pytest.raises(EngineStartError, match=f"set {KEY_VARIABLE}"):
        attached_engine(ServerBehaviour(key="s3cr3t"))
    monkeypatch.setenv(KEY_VARIABLE, "s3cr3t")
    assert attached_engine(ServerBehaviour(key="s3cr3t")).config["api key"] == "given"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, {"input_ids": list(PROMPT), "stream": True}),
        ({"model": "mine"}, {"lora_path": "mine"}),
        ({"cache_salt": "tenant"}, {"cache_salt": "tenant"}),
        ({"priority": 3}, {"priority": 3}),
        ({"options": ResponseOptions(logprobs=True)}, {"return_logprob": True, "top_logprobs_num": 2}),
        ({"options": ResponseOptions(prompt_logprobs=True)}, {"logprob_start_len": 0, "stream": False}),
    ],
    ids=str,
)
def test_fields_of_a_request(changes: dict[str, Any], said: dict[str, Any]) -> None:
    """Each option is in SGLang's own field, and a request to the base model names no adapter."""
    request = CompletionRequest(**{"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **changes})
    body = client("http://h:1").body(request)
    assert said.items() <= body.items()
    assert ("lora_path" in body) == ("model" in changes)
    assert body["sampling_params"] == {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}


def test_an_answer_that_may_end_early_may_end_at_an_end_token() -> None:
    """With a stop string or a pattern, end tokens are not ignored."""
    for response_options, reported in (
        (ResponseOptions(stop=("x",)), {"stop": ["x"]}),
        (ResponseOptions(pattern="a"), {"regex": "a"}),
    ):
        request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4, options=response_options)
        assert (
            client("http://h:1").body(request)["sampling_params"].items() >= {"ignore_eos": False, **reported}.items()
        )


def test_what_the_protocol_cannot_express_is_refused_before_it_is_sent() -> None:
    """Such a request is refused rather than sent in part."""
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4, options=ResponseOptions(answers=2))
    with serving() as fake:
        with pytest.raises(RequestRefused):
            client(fake.url).complete(request)
        assert fake.bodies == []


@pytest.mark.parametrize("incremental", [False, True])
def test_an_answer_is_read_from_either_stream(incremental: bool) -> None:
    """Events may have all tokens so far or only the new ones."""
    counts: list[int] = []
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=4, options=ResponseOptions(logprobs=True))
    with serving(incremental=incremental, page=1) as fake:
        client(fake.url).complete(REQUEST)
        reported = client(fake.url).complete(request, counts.append)
    assert [token.id for token in reported.tokens] == answer("", PROMPT, 4)
    assert reported.text == "".join(map(chr, answer("", PROMPT, 4)))
    assert [(token.logprob, token.gap) for token in reported.tokens] == [(-0.5, 1.5)] * 4
    assert (reported.finish_reason, reported.cached_tokens, reported.preemptions) == ("length", len(PROMPT) - 1, 2)
    assert counts == [1, 2, 3, 4]


def test_prompt_logprobs_are_one_for_each_token() -> None:
    """The first token has no score."""
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=1, options=ResponseOptions(prompt_logprobs=True))
    with serving() as fake:
        reported = client(fake.url).complete(request)
    assert reported.prompt_logprobs == (None, *[-0.25] * (len(PROMPT) - 1))


def test_a_missing_count_is_not_zero() -> None:
    """A server without counts has not reported that nothing was cached."""
    with serving(counts=False) as fake:
        assert client(fake.url).complete(REQUEST).cached_tokens is None


@pytest.mark.parametrize("fault", [Fault.ERROR_EVENT, Fault.ABORT_EVENT])
def test_a_refusal_inside_a_stream_is_a_refusal(fault: Fault) -> None:
    """SGLang answers a prompt that is too long with HTTP 200 and an error event, which may even carry a token."""
    counts: list[int] = []
    with serving(fault=fault) as fake, pytest.raises(RequestRefused, match="too long") as seen:
        client(fake.url).complete(REQUEST, counts.append)
    assert seen.value.status == 400
    assert counts == []


def test_an_event_of_another_shape_is_malformed() -> None:
    """The error describes the event, and no traceback of ours is shown."""
    with serving(fault=Fault.GARBLED) as fake, pytest.raises(MalformedAnswer, match=r"POST /generate .*meta_info"):
        client(fake.url).complete(REQUEST)


def test_a_server_that_crashes_during_an_answer_is_reported() -> None:
    """A partial answer is no answer."""
    with (
        serving(fault=Fault.BREAKS) as fake,
        pytest.raises(EngineDied, match=r"an answer ended early: POST /generate .* ends with data: \[DONE\]"),
    ):
        client(fake.url).complete(REQUEST)


def test_a_client_that_disconnects_keeps_its_tokens() -> None:
    """The client keeps the tokens that arrived before the disconnect."""
    request = CompletionRequest(model=MODEL, prompt=PROMPT, max_tokens=9, abort=Abort(after_tokens=2))
    with serving() as fake:
        reported = client(fake.url).complete(request)
    assert (reported.aborted, len(reported.tokens), reported.finish_reason) == (Stage.DECODE, 2, None)


def test_a_flush_under_load_fails() -> None:
    """Status 400 means that the flush failed; a missing route is a refusal."""
    with serving() as fake:
        assert client(fake.url).reset()[0] is True
    with serving(flush=(400, "pending requests")) as fake:
        assert client(fake.url).reset() == (False, "pending requests")
    with serving(flush=(404, "Not Found")) as fake, pytest.raises(RequestRefused):
        client(fake.url).reset()


def test_counters_and_gauges() -> None:
    """Counters come from /metrics. Gauges come from the scheduler, because those of /metrics are of an earlier step."""
    with serving(page=1) as fake:
        reported = client(fake.url)
        assert reported.metrics() == Metrics(running=1.0, waiting=6.0, pool_usage=0.1)
        reported.complete(REQUEST)
        reported.complete(REQUEST)
        counted = Metrics(queried_tokens=80, hit_tokens=39, preemptions=0, running=1, waiting=6, pool_usage=0.1)
        assert reported.metrics() == counted
    with serving(loads=[], counters=False) as fake:
        assert client(fake.url).metrics() == Metrics()


@pytest.mark.parametrize(
    ("loads", "stage"),
    [
        ([load(0, 0), load(0, 0)], Stage.UNSEEN),
        ([load(1, 0), load(0, 0)], Stage.PREFILL),
        ([load(0, 0), load(0, 0, to_come=64)], Stage.PREFILL),
        ([load(1, 0, to_come=64), load(0, 1, to_come=64)], Stage.QUEUED),
    ],
    ids=["nobody", "runs", "between two chunks", "waits"],
)
def test_the_stage_of_a_request_without_a_token(loads: list[dict[str, Any]], stage: Stage) -> None:
    """Between two chunks of its prefill a request is in no batch and no queue; the tokens to come show it."""
    with serving(loads=loads) as fake:
        assert client(fake.url).stage() is stage


def test_names_are_loaded_and_unloaded() -> None:
    """A request to a loaded name selects it by `lora_path`."""
    with serving() as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
        engine.load_adapter("mine", "/adapters/B", in_place=False)
        reported = engine.complete(CompletionRequest(model="mine", prompt=PROMPT, max_tokens=4))
        assert [token.id for token in reported.tokens] == answer("/adapters/B", PROMPT, 4)
        with pytest.raises(RequestRefused, match="already loaded"):
            engine.load_adapter("mine", "/adapters/C", in_place=False)
        engine.unload_adapter("mine")
        assert fake.adapters == {}


@pytest.mark.parametrize(
    ("engine", "url", "kind"),
    [
        ("sglang", "http://h:1", "sglang"),
        ("sglang", None, None),
        ("endpoint", None, "endpoint"),
        ("endpoint", "http://h:1", "endpoint"),
        ("vllm", "http://h:1", None),
        ("llamacpp", "http://h:1", None),
    ],
)
def test_which_engines_are_attached(engine: str, url: str | None, kind: str | None) -> None:
    """An engine that Coldproof can start is attached to where a URL is given."""
    found = attached(engine, url)
    assert (found and found.name) == kind


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": "endpoint", "engine_url": None}, "--engine endpoint requires --engine-url http://HOST:PORT"),
        ({"engine_args": ("--page-size", "1")}, "pass the flags to your own server"),
        ({"oracle": "cold-engine"}, "use --oracle same-engine"),
        ({"engine": "llamacpp"}, "--engine llamacpp starts its own server"),
    ],
)
def test_an_attached_engine_takes_no_options_of_a_spawned_one(changes: dict[str, Any], says: str) -> None:
    """Each option is refused in one clear line."""
    given = {"engine": "sglang", "engine_url": "http://h:1", "oracle": "same-engine", **changes}
    with pytest.raises(UsageError, match=re.escape(says)):
        check_options(Options(report_dir=Path("out"), **given))


def test_pages_of_one_token_give_no_empty_prompts() -> None:
    """SGLang's pages hold one token by default, and a calibration prompt one token short of a page would be empty."""
    assert min(lengths(whole_unit(1))) > 0
    assert whole_unit(32) == 32


WRONG_ON_A_HIT = (burst(ask(("stem", 40))), burst(ask(("stem", 40)), ask(("stem", 40), salt="red")))


@pytest.mark.parametrize(("nats", "code"), [(0.3, 0), (0.2, 1)])
def test_a_reproducer_from_a_noisy_server_compares_scores(tmp_path: Path, nats: float, code: int) -> None:
    """The stand-in scores its tokens -0.5 and those of a prompt -0.25. Scores under a pattern are not comparable."""
    pattern = ask(("stem", 40), options=ResponseOptions(pattern="[ab]"))
    case = report_samples.case(
        engine="sglang",
        workload=msgspec.to_builtins(Workload((*WRONG_ON_A_HIT, burst(pattern)))),
        recipes={},
        engine_config={"url": "http://somewhere"},
        failing_request=2,
        first_difference=0,
        noise_nats=nats,
        band=report_samples.band(score_nats=nats),
    )
    with serving() as fake:
        got, said = run_script(tmp_path, case, fake.url)
        bodies = fake.received("/generate")
    assert (got, "score difference 0.25 nats" in said) == (code, True), said
    assert any(body["sampling_params"].get("regex") == "[ab]" for body in bodies)
    assert any(body.get("logprob_start_len") == 0 and not body["stream"] for body in bodies)


def test_a_reproducer_uses_the_routes_of_sglang(tmp_path: Path) -> None:
    """The script loads, unloads, salts and sends by SGLang's routes, and finds no fault in a correct server."""
    story = (put("A"), burst(ask(adapter="tenant")), *WRONG_ON_A_HIT, Reset(), put("B"), burst(ask(adapter="tenant")))
    case = report_samples.case(
        engine="sglang",
        workload=msgspec.to_builtins(Workload(story)),
        recipes={"A": {"seed": 1, "rank": 4}, "B": {"seed": 2, "rank": 4}},
        engine_config={"url": "http://somewhere"},
        failing_request=2,
        first_difference=0,
    )
    with serving() as fake:
        code, said = run_script(tmp_path, case, fake.url)
    assert code == 0, said
    assert said.count("\ncorrect\n") == 1
    assert len(fake.received("/load_lora_adapter")) == 2 * 5  # A, and B in its place, in each attempt
    assert {"lora_path", "cache_salt"} <= {key for body in fake.received("/generate") for key in body}
