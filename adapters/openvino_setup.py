"""What OpenVINO GenAI's continuous-batching pipeline is made of, what its worker is told and tells, what it can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from adapters.base import Capability, Support
from adapters.rare import NOT_OFFERED

PACKAGE = "openvino-genai"
REGISTERED = "adapters=registered"
DEVICE, THREADS = "CPU", 1
# The engine's own default keeps keys and values in 8 bits, whose answers depend on what a batch is made of.
EXACT = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
CPU_BLOCK = 32  # tokens, of the CPU plugin's paged attention
# openvino.genai PR 4374 adds a count of a request's cached tokens; no version so far has it.
BY_STEPS = "the steps up to a request's first token bound the prompt tokens that were computed"
NO_TEXT = "the model made on the spot has no tokenizer in this engine's format"
EACH_ALIKE = "all requests of a generate() must have the same adapters"
AT_START = "adapters are registered as the pipeline is made"
GENERATE = "registered as the pipeline is made; each generate() says under which one its requests run"
STEPPED = "the caller drives add_request() and step(), which take no adapter: see the cell with registered adapters"
NO_STEPS = "generate() returns when all of its requests are done"
ABSENT = {
    Capability.MIXED_ADAPTERS: EACH_ALIKE,
    Capability.ADAPTER_SWITCH: "an adapter comes with the requests of a generate()",
    Capability.RUNTIME_LORA: AT_START,
    Capability.LORA_IN_PLACE: AT_START,
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: NO_TEXT,
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.SEVERAL_ANSWERS: "the random numbers are the pipeline's, not the request's: they do not repeat",
    Capability.STOP_STRINGS: NO_TEXT,
    Capability.STRUCTURED_OUTPUT: NO_TEXT,
    Capability.CACHE_RESET: "a pipeline's cache is emptied by making a new pipeline",
    Capability.KV_EVENTS: "nothing is published about the cache",
    Capability.HIT_COUNTERS: "get_metrics() counts no hits",
    Capability.SECOND_TIER: "there is one pool",
    Capability.PROVENANCE: "keys and values do not say whose they are",
    Capability.SEVERAL_GROUPS: "all layers are of one kind",
    **NOT_OFFERED,
}


class OpenVinoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: a model folder, adapter folders (registered if there are any), and words `NAME=VALUE`: in small
    letters fields of SchedulerConfig, in capitals properties of the device.
    """

    model: str
    prefix_caching: bool
    adapters: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()
    log: Path


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker is told to make: files, and the words of the options."""

    model: str
    folder: str
    adapters: tuple[str, ...]
    words: tuple[str, ...]
    caching: bool


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was made. `blocks`: the pool's, None where it grows as it is needed. `budget`: tokens of a step, None where
    whole prompts are computed at a time.
    """

    version: str
    blocks: int | None
    budget: int | None
    longest: int
    scheduler: str
    properties: str


class Output(msgspec.Struct, frozen=True):
    """What came of a request: tokens, their scores, and why it ended if it did (the engine's name for it)."""

    number: int
    ids: list[int]
    scores: list[float]
    reason: str


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """What a step brought: outputs, who is over and how, the pool's usage of 100 as the step was planned, how many were
    given tokens in it, and whether somebody is left.
    """

    outputs: list[Output]
    ended: dict[int, str]
    usage: float
    scheduled: int
    waiting: bool


def settings(genai: Any, words: tuple[str, ...], *, caching: bool) -> tuple[Any, dict[str, str]]:
    """The scheduler's configuration and the device's properties. Raises ValueError for a word that is neither."""
    scheduler, properties = genai.SchedulerConfig(), dict(EXACT)
    scheduler.enable_prefix_caching = caching
    for word in words:
        name, _, value = word.partition("=")
        if word == REGISTERED:
            continue
        if name.isupper() and value:
            properties[name] = value
        elif isinstance(before := getattr(scheduler, name, None), int):
            setattr(scheduler, name, value == "true" if isinstance(before, bool) else int(value))
        else:
            raise ValueError(
                f"{word!r} is neither a field of SchedulerConfig (as num_kv_blocks=64) nor a property of the device "
                "(as KV_CACHE_PRECISION=u8)"
            )
    return scheduler, properties


def capabilities(facts: Facts, *, stepped: bool) -> dict[Capability, Support]:
    """By how the pipeline is used: stepped, or by generate() where adapters are registered."""
    counted = stepped and facts.budget is not None
    exact = counted and facts.budget == 1
    pool = "the pool grows as it is needed" if facts.blocks is None else f"num_kv_blocks is {facts.blocks}"
    present = {
        Capability.TOKEN_PROMPTS: Support(True, "prompts are tensors of token ids"),
        Capability.TOKEN_OUTPUTS: Support(True, "answers are token ids"),
        Capability.STREAMING: Support(stepped, "a handle is read after each step" if stepped else NO_STEPS),
        Capability.CACHED_TOKENS: Support(
            exact,
            f"none is told; {BY_STEPS}: exactly, with one token a step"
            if exact
            else f"none is told; {BY_STEPS}, which is exact in a cell with max_num_batched_tokens=1 only"
            if counted
            else "none is told, and no step is seen",
        ),
        Capability.LOGPROBS: Support(
            stepped, "of each token; none of the next best" if stepped else "of whole answers"
        ),
        Capability.PROMPT_LOGPROBS: Support(stepped, "echo and logprobs" if stepped else NO_STEPS),
        Capability.ADAPTER_CHOICE: Support(not stepped, STEPPED if stepped else GENERATE),
        Capability.ABORT: Support(stepped, "a handle's cancel()" if stepped else NO_STEPS),
        Capability.METRICS: Support(stepped, "get_metrics()" if stepped else NO_STEPS),
        Capability.POOL_USAGE: Support(stepped, "get_metrics() has the pool's usage" if stepped else NO_STEPS),
        Capability.PREEMPTION_COUNTS: Support(
            stepped, "none is told; who gets a block of a full pool has taken it from somebody" if stepped else NO_STEPS
        ),
        Capability.VERSION: Support(True, f"the package says {facts.version}"),
        Capability.BLOCK_SIZE: Support(True, f"the CPU plugin's blocks are of {CPU_BLOCK} tokens"),
        Capability.POOL_SIZE: Support(facts.blocks is not None, pool),
        Capability.SPAWNABLE: Support(True, "started by Coldproof"),
    }
    return {**{capability: Support(False, evidence) for capability, evidence in ABSENT.items()}, **present}
