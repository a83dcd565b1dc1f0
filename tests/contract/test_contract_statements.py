"""What an adapter says of its engine: capabilities, sizes, configuration, time and figures."""

from __future__ import annotations

import contextlib
import math

from contract.rules import asked, by_chance, can, goes_on, hold, need, refused, settled

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.metrics import COUNTERS, Metrics
from coldproof.adapters.protocol.requests import Message


def test_every_capability_is_told_with_evidence(engine: CheckedEngine) -> None:
    """Present, absent or unknown, and what was observed that says so."""
    for capability in Capability:
        support = engine.capabilities.get(capability)
        told = isinstance(support, Support) and bool(support.evidence.strip())
        hold(told, "Engine.capabilities", f"every capability, {capability.value!r} too, with its evidence", support)


def test_what_is_told_twice_is_told_alike(engine: CheckedEngine) -> None:
    """A capability that is about a fact is there where the fact is known."""
    shape, rule = engine.shape, "a capability is present where the fact that it is about is known, and only there"
    facts = {
        Capability.VERSION: engine.version,
        Capability.BLOCK_SIZE: shape.block_size,
        Capability.POOL_SIZE: shape.pool_blocks,
    }
    for capability, fact in facts.items():
        support = engine.capabilities[capability]
        hold((support.present is True) == (fact is not None), "Engine.capabilities", rule, (capability, support, fact))


def test_sizes_are_sane(engine: CheckedEngine) -> None:
    """Positive, or None for unknown: workloads are sized by them."""
    shape = engine.shape
    sizes = (shape.block_size, shape.pool_blocks, shape.adapter_slots, shape.most_requests, shape.max_model_tokens)
    hold(all(size is None or size > 0 for size in sizes), "EngineShape", "sizes are positive, or None", shape)
    hold(shape.max_model_tokens >= 64, "EngineShape.max_model_tokens", "room for a prompt and an answer", shape)


def test_the_cache_is_on_or_off_as_it_was_asked_for(engine: CheckedEngine, uncached: CheckedEngine) -> None:
    """An engine that is said to run without its cache is the control of every counterexample."""
    rule = "True for an engine that was started with its cache, None where it does not say; not for one that has none"
    hold(engine.shape.prefix_caching in (True, None), "EngineShape.prefix_caching", rule, engine.shape)
    if uncached is not engine:
        rule = "False for an engine that was started without its cache, also for one that has none"
        hold(uncached.shape.prefix_caching is False, "EngineShape.prefix_caching", rule, uncached.shape)


def test_the_configuration_can_be_printed(engine: CheckedEngine) -> None:
    """Something that a reader of the report recognises the engine by, and no secret."""
    hold(engine.name and engine.base_model, "Engine.name", "an adapter and a base model have names", engine.base_model)
    hold(engine.config, "Engine.config", "the configuration to print in a report", dict(engine.config))
    for name, value in engine.config.items():
        hold(redacted(value) == value, "Engine.config", "secrets redacted (adapters/common/redact.py)", {name: value})


def test_time_goes_forward(engine: CheckedEngine) -> None:
    """Whatever the clock is, an answer takes no less than nothing."""
    before = engine.clock()
    engine.complete(asked(engine))
    after = engine.clock()
    rule = "seconds, which never go back"
    hold(math.isfinite(before) and math.isfinite(after) and before <= after, "Engine.clock", rule, (before, after))


def test_counters_never_go_back(engine: CheckedEngine) -> None:
    """Not by an answer, a hit, a request that is refused, or a look."""
    said, last = asked(engine, 70), engine.metrics()
    for request in (said, said, asked(engine, model="contract-nobody"), asked(engine)):
        with contextlib.suppress(RequestRefused):
            engine.complete(request)
        now = engine.metrics()
        for name in COUNTERS:
            before, after = getattr(last, name), getattr(now, name)
            back = before is not None and (after is None or after < before)
            hold(not back, f"Metrics.{name}", "counters are monotonic, and go on being published", (before, after))
        last = now


def test_figures_are_there_or_none(engine: CheckedEngine) -> None:
    """A figure that the engine does not publish is None, never zero."""
    figures = engine.metrics()
    if can(engine, Capability.METRICS):
        hold(figures != Metrics(), "Engine.metrics", "an engine with metrics has one at least", figures)
    else:
        hold(figures == Metrics(), "Engine.metrics", "Metrics() without the capability METRICS", figures)


def test_a_figure_with_a_capability_of_its_own_is_there_with_it(engine: CheckedEngine) -> None:
    """And only with it: evidence goes by these figures."""
    figures = engine.metrics()
    own = {
        Capability.HIT_COUNTERS: "hit_tokens",
        Capability.PREEMPTION_COUNTS: "preemptions",
        Capability.POOL_USAGE: "pool_usage",
    }
    for capability, name in own.items():
        told, rule = getattr(figures, name), f"a figure where {capability.value!r} is present, None where it is absent"
        hold(can(engine, capability) == (told is not None), f"Metrics.{name}", rule, told)


def test_looked_up_tokens_grow_with_prompts(engine: CheckedEngine) -> None:
    """By what was asked, and hits by no more than that."""
    need(engine, Capability.METRICS)
    before, length = engine.metrics(), 50
    engine.complete(asked(engine, length))
    grown = engine.metrics().since(before)
    if grown.queried_tokens is not None:
        rule = "monotonic counters: a prompt of 50 tokens is looked up, all of it or its whole blocks"
        hold(0 < grown.queried_tokens <= length, "Metrics.queried_tokens", rule, grown)
    if grown.hit_tokens is not None:
        rule = "a prompt that nobody asked before hits nothing"
        hold(0 <= grown.hit_tokens <= by_chance(engine), "Metrics.hit_tokens", rule, grown)


def test_gauges_of_requests_come_to_rest(engine: CheckedEngine) -> None:
    """Nothing runs or waits once all are answered."""
    need(engine, Capability.METRICS)
    engine.complete(asked(engine))
    rest = settled(engine)
    hold(
        not any(rest.values()), "Metrics.running", "gauges of the moment: nothing runs or waits when all is over", rest
    )


def test_nothing_is_published_without_the_capability(engine: CheckedEngine) -> None:
    """Neither events nor wrong reads, so that nobody takes silence for a clean sheet."""
    engine.complete(asked(engine))
    events, reads = engine.take_events(), engine.wrong_reads()
    if not can(engine, Capability.KV_EVENTS):
        hold(not events.batches, "Engine.take_events", "without the capability there is nothing to take", events)
    if not can(engine, Capability.PROVENANCE):
        hold(reads == (), "Engine.wrong_reads", "empty for an engine whose KV does not say whose it is", reads)


def test_a_chat_is_rendered_or_refused(engine: CheckedEngine) -> None:
    """The ids that the template makes are the ids that are answered."""
    messages = (Message("user", "Hello there."),)
    if can(engine, Capability.CHAT):
        rendered = engine.render(messages)
        hold(rendered and all(isinstance(i, int) for i in rendered), "Engine.render", "token ids", rendered)
        answer = engine.complete(asked(engine, prompt=rendered, messages=messages))
        told = answer.prompt is None or answer.prompt == rendered
        hold(told, "CompletionRequest.messages", "the prompt is what the messages render to", (rendered, answer.prompt))
        return
    with refused("Engine.render", "without the capability it is refused"):
        engine.render(messages)


def test_the_engine_is_alive_and_its_log_can_be_read(engine: CheckedEngine) -> None:
    """As long as it answers; and after all of that it still does."""
    hold(engine.alive() is True, "Engine.alive", "True while the engine answers", engine.alive())
    hold(isinstance(engine.log_tail(), str), "Engine.log_tail", "text, empty where there is none", engine.log_tail())
    goes_on(engine, "being asked about")
