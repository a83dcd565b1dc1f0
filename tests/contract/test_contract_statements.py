"""What an adapter reports about its engine: capabilities, sizes, configuration, time and metrics."""

from __future__ import annotations

import contextlib
import math

from contract.rules import can, chance_hits, check, gauges_at_rest, need, new_request, refused, still_answers

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.metrics import COUNTERS, Metrics
from coldproof.adapters.protocol.requests import Message


def test_every_capability_is_reported_with_evidence(engine: CheckedEngine) -> None:
    """Every capability is present, absent or unknown, with the observation that shows it."""
    for capability in Capability:
        support = engine.capabilities.get(capability)
        reported = isinstance(support, Support) and bool(support.evidence.strip())
        check(
            reported, "Engine.capabilities", f"every capability, {capability.value!r} too, with its evidence", support
        )


def test_facts_and_their_capabilities_agree(engine: CheckedEngine) -> None:
    """A capability that is about a fact is present exactly where the fact is known."""
    shape, rule = engine.shape, "a capability is present where the fact that it is about is known, and only there"
    facts = {
        Capability.VERSION: engine.version,
        Capability.BLOCK_SIZE: shape.block_size,
        Capability.POOL_SIZE: shape.pool_blocks,
    }
    for capability, fact in facts.items():
        support = engine.capabilities[capability]
        check((support.present is True) == (fact is not None), "Engine.capabilities", rule, (capability, support, fact))


def test_sizes_are_sane(engine: CheckedEngine) -> None:
    """Sizes are positive, or None for unknown, because workloads are sized by them."""
    shape = engine.shape
    sizes = (shape.block_size, shape.pool_blocks, shape.adapter_slots, shape.most_requests, shape.max_model_tokens)
    check(all(size is None or size > 0 for size in sizes), "EngineShape", "sizes are positive, or None", shape)
    check(shape.max_model_tokens >= 64, "EngineShape.max_model_tokens", "room for a prompt and an answer", shape)


def test_the_cache_is_on_or_off_as_requested(engine: CheckedEngine, uncached: CheckedEngine) -> None:
    """An engine that reports its cache as off is the control of every counterexample."""
    rule = "True for an engine that was started with its cache, None where it does not say; not for one that has none"
    check(engine.shape.prefix_caching in (True, None), "EngineShape.prefix_caching", rule, engine.shape)
    if uncached is not engine:
        rule = "False for an engine that was started without its cache, also for one that has none"
        check(uncached.shape.prefix_caching is False, "EngineShape.prefix_caching", rule, uncached.shape)


def test_the_configuration_can_be_printed(engine: CheckedEngine) -> None:
    """The configuration identifies the engine in a report and contains no secret."""
    check(engine.name and engine.base_model, "Engine.name", "an adapter and a base model have names", engine.base_model)
    check(engine.config, "Engine.config", "the configuration to print in a report", dict(engine.config))
    for name, value in engine.config.items():
        check(redacted(value) == value, "Engine.config", "secrets redacted (adapters/common/redact.py)", {name: value})


def test_time_goes_forward(engine: CheckedEngine) -> None:
    """The clock never goes backwards during an answer."""
    before = engine.clock()
    engine.complete(new_request(engine))
    after = engine.clock()
    rule = "seconds, which never go back"
    check(math.isfinite(before) and math.isfinite(after) and before <= after, "Engine.clock", rule, (before, after))


def test_counters_never_go_back(engine: CheckedEngine) -> None:
    """Counters never decrease after an answer, a hit, a refused request or a reading."""
    said, last = new_request(engine, 70), engine.metrics()
    for request in (said, said, new_request(engine, model="contract-nobody"), new_request(engine)):
        with contextlib.suppress(RequestRefused):
            engine.complete(request)
        now = engine.metrics()
        for name in COUNTERS:
            before, after = getattr(last, name), getattr(now, name)
            back = before is not None and (after is None or after < before)
            check(not back, f"Metrics.{name}", "counters are monotonic, and go on being published", (before, after))
        last = now


def test_figures_are_there_or_none(engine: CheckedEngine) -> None:
    """A metric that the engine does not publish is None, never zero."""
    figures = engine.metrics()
    if can(engine, Capability.METRICS):
        check(figures != Metrics(), "Engine.metrics", "an engine with metrics has one at least", figures)
    else:
        check(figures == Metrics(), "Engine.metrics", "Metrics() without the capability METRICS", figures)


def test_a_figure_with_a_capability_of_its_own_is_there_with_it(engine: CheckedEngine) -> None:
    """A metric with a capability of its own is reported exactly where the capability is present: evidence depends on
    it.
    """
    figures = engine.metrics()
    own = {
        Capability.HIT_COUNTERS: "hit_tokens",
        Capability.PREEMPTION_COUNTS: "preemptions",
        Capability.POOL_USAGE: "pool_usage",
    }
    for capability, name in own.items():
        reported, rule = (
            getattr(figures, name),
            f"a figure where {capability.value!r} is present, None where it is absent",
        )
        check(can(engine, capability) == (reported is not None), f"Metrics.{name}", rule, reported)


def test_looked_up_tokens_grow_with_prompts(engine: CheckedEngine) -> None:
    """The tokens looked up grow by at most the prompt, and a new prompt adds no hits."""
    need(engine, Capability.METRICS)
    before, length = engine.metrics(), 50
    engine.complete(new_request(engine, length))
    grown = engine.metrics().since(before)
    if grown.queried_tokens is not None:
        rule = "monotonic counters: a prompt of 50 tokens is looked up, all of it or its whole blocks"
        check(0 < grown.queried_tokens <= length, "Metrics.queried_tokens", rule, grown)
    if grown.hit_tokens is not None:
        rule = "a prompt that was never sent before hits nothing"
        check(0 <= grown.hit_tokens <= chance_hits(engine), "Metrics.hit_tokens", rule, grown)


def test_gauges_of_requests_come_to_rest(engine: CheckedEngine) -> None:
    """No request runs or waits once all are answered."""
    need(engine, Capability.METRICS)
    engine.complete(new_request(engine))
    rest = gauges_at_rest(engine)
    check(
        not any(rest.values()), "Metrics.running", "gauges of the moment: nothing runs or waits when all is over", rest
    )


def test_nothing_is_published_without_the_capability(engine: CheckedEngine) -> None:
    """An engine without the capability publishes neither events nor wrong reads, so that silence is not taken for
    success.
    """
    engine.complete(new_request(engine))
    events, reads = engine.take_events(), engine.wrong_reads()
    if not can(engine, Capability.KV_EVENTS):
        check(not events.batches, "Engine.take_events", "without the capability there is nothing to take", events)
    if not can(engine, Capability.PROVENANCE):
        check(reads == (), "Engine.wrong_reads", "empty for an engine whose KV does not say whose it is", reads)


def test_a_chat_is_rendered_or_refused(engine: CheckedEngine) -> None:
    """The ids that the chat template produces are the ids of the prompt that is answered."""
    messages = (Message("user", "Hello there."),)
    if can(engine, Capability.CHAT):
        rendered = engine.render(messages)
        check(rendered and all(isinstance(i, int) for i in rendered), "Engine.render", "token ids", rendered)
        answer = engine.complete(new_request(engine, prompt=rendered, messages=messages))
        reported = answer.prompt is None or answer.prompt == rendered
        check(
            reported,
            "CompletionRequest.messages",
            "the prompt is what the messages render to",
            (rendered, answer.prompt),
        )
        return
    with refused("Engine.render", "without the capability it is refused"):
        engine.render(messages)


def test_the_engine_is_alive_and_its_log_can_be_read(engine: CheckedEngine) -> None:
    """The engine is alive while it answers, and still answers after all these calls."""
    check(engine.alive() is True, "Engine.alive", "True while the engine answers", engine.alive())
    check(isinstance(engine.log_tail(), str), "Engine.log_tail", "text, empty where there is none", engine.log_tail())
    still_answers(engine, "these calls")
