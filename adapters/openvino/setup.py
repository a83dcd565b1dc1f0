"""Options and capabilities of OpenVINO GenAI's continuous-batching pipeline, and the messages of its worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.openvino.vision_ir import can_see
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.spec.engine_spec import StartOptions

PACKAGE = "openvino-genai"
REGISTERED = "adapters=registered"
INT8 = "weights=int8"  # how the model is written; no option of the engine
IMAGES = "parts=images"  # the same: in parts, with a vision encoder
DEVICE, THREADS = "CPU", 1
# By default the engine stores keys and values in 8 bits; then answers depend on the composition of the batch.
EXACT = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
CPU_BLOCK = 32  # tokens per block of the CPU plugin's paged attention
# openvino.genai PR 4374 adds a count of a request's cached tokens; no released version has it.
BY_STEPS = "the steps up to a request's first token bound the number of computed prompt tokens"
NO_TEXT = "the generated model has no tokenizer in this engine's format"
EACH_ALIKE = "all requests of a generate() must have the same adapters"
AT_START = "adapters are registered when the pipeline is created"
GENERATE = "registered when the pipeline is created; each generate() selects the adapter of its requests"
STEPPED = "add_request() and step() take no adapter: see the cell with registered adapters"
NOT_IN_PARTS = (
    "images come with a prompt as text only, and the model must be in parts (text embeddings, vision encoder, language "
    "model over both): see the cells with images, which need the model that Coldproof generates"
)
NO_ECHO = "a prompt of a model with images is embeddings, without token ids to echo"
NO_PREEMPTION = "with one token per step a request waits until the one before it has ended: none is preempted"
NO_STEPS = "generate() returns when all of its requests have ended"
ABSENT = {
    Capability.MIXED_ADAPTERS: EACH_ALIKE,
    Capability.ADAPTER_SWITCH: "each generate() selects its adapter",
    Capability.RUNTIME_LORA: AT_START,
    Capability.LORA_IN_PLACE: AT_START,
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: NO_TEXT,
    Capability.PRIORITY: "requests are served in the order of arrival",
    Capability.SEVERAL_ANSWERS: "all requests share the pipeline's random numbers, so sampled answers do not repeat",
    Capability.STOP_STRINGS: NO_TEXT,
    Capability.STRUCTURED_OUTPUT: NO_TEXT,
    Capability.CACHE_RESET: "only a new pipeline has an empty cache",
    Capability.KV_EVENTS: "the engine publishes no events",
    Capability.HIT_COUNTERS: "get_metrics() does not count hits",
    Capability.SECOND_TIER: "there is only one pool",
    Capability.PROVENANCE: "keys and values do not identify their writer",
    Capability.SEVERAL_GROUPS: "all layers are of the same kind",
    **OPTIONAL_ABSENT,
    Capability.IMAGE_UUIDS: "an image has no name",
    Capability.PROCESSOR_ARGUMENTS: "a request tells the image processor nothing: it has one configuration",
    Capability.TOWER_ADAPTERS: STEPPED,
    Capability.RESET_ENCODER: "add_request() keeps nothing that it encoded, and the registry of chats has no reset",
    Capability.RESET_PROCESSOR: "no processor's cache: each request scales its images",
}
BY_STEP = {  # without registered adapters
    Capability.STREAMING: "a handle is read after each step",
    Capability.PROMPT_LOGPROBS: "echo and logprobs",
    Capability.ABORT: "a handle's cancel()",
    Capability.METRICS: "get_metrics()",
    Capability.POOL_USAGE: "get_metrics() has the pool's usage",
    Capability.PREEMPTION_COUNTS: (
        "not reported; derived: a request that gets a block of a full pool preempts another one"
    ),
}


class PipelineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The created pipeline. `blocks`: size of the pool; None: it grows. `budget`: maximum tokens per step; None: whole
    prompts are computed in one step. `longest`: maximum length of a request, in tokens. `seeing`: whether prompts can
    have images.
    """

    version: str
    blocks: int | None
    budget: int | None
    longest: int
    seeing: bool
    scheduler: str
    properties: str


class Output(msgspec.Struct, frozen=True):
    """New tokens of a request, their logprobs, and the engine's name of the finish reason."""

    number: int
    ids: list[int]
    scores: list[float]
    reason: str


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step.

    `ended`: request -> final status. `usage`: percentage of the pool in use when the step was scheduled. `scheduled`:
    number of scheduled requests. `waiting`: whether unfinished requests are left.
    """

    outputs: list[Output]
    ended: dict[int, str]
    usage: float
    scheduled: int
    waiting: bool


def registered(options: StartOptions) -> tuple[Path, ...]:
    """Return the folders of the adapters to register: all in the cell with adapters, otherwise none."""
    return options.adapters if REGISTERED in options.arguments else ()


def sees(model: str, words: Sequence[str]) -> bool:
    """Return whether the model is to be written in parts, for images. `words`: the arguments of the options."""
    return IMAGES in words and can_see(Path(model))


def settings(genai: Any, words: Sequence[str], *, caching: bool) -> tuple[Any, dict[str, str]]:
    """Return the scheduler's configuration and the device's properties. Raises ValueError for an unknown word.

    `words`: the arguments of the options, `NAME=VALUE`. Names in lower case are fields of SchedulerConfig, names in
    upper case are properties of the device.
    """
    scheduler, properties = genai.SchedulerConfig(), dict(EXACT)
    scheduler.enable_prefix_caching = caching
    for word in words:
        name, _, value = word.partition("=")
        if word in (REGISTERED, INT8, IMAGES):
            continue
        if name.isupper() and value:
            properties[name] = value
        elif isinstance(before := getattr(scheduler, name, None), int):
            setattr(scheduler, name, value == "true" if isinstance(before, bool) else int(value))
        else:
            raise ValueError(
                f"{word!r} is neither a field of SchedulerConfig (for example num_kv_blocks=64) nor a property of the "
                "device (for example KV_CACHE_PRECISION=u8)"
            )
    return scheduler, properties


def capabilities(facts: PipelineFacts, *, stepped: bool) -> dict[Capability, Support]:
    """Return the support of each capability. `stepped`: False if adapters are registered, which needs generate()."""
    seeing = facts.seeing
    counted = stepped and facts.budget is not None
    exact = counted and facts.budget == 1
    pool = "the pool grows when needed" if facts.blocks is None else f"num_kv_blocks is {facts.blocks}"
    return {
        **{capability: Support(False, evidence) for capability, evidence in ABSENT.items()},
        **{capability: Support(stepped, evidence if stepped else NO_STEPS) for capability, evidence in BY_STEP.items()},
        **({Capability.PREEMPTION_COUNTS: Support(False, NO_PREEMPTION)} if seeing and exact else {}),
        Capability.PROMPT_LOGPROBS: Support(
            stepped and not seeing, NO_ECHO if seeing else BY_STEP[Capability.PROMPT_LOGPROBS] if stepped else NO_STEPS
        ),
        Capability.TOKEN_PROMPTS: Support(
            True, "each printable token is a character" if seeing else "prompts are tensors of token ids"
        ),
        Capability.IMAGES: Support(seeing, "add_request() with a text and tensors" if seeing else NOT_IN_PARTS),
        Capability.IMAGE_PARTS: Support(
            seeing, "an image is a row of embeddings for each position" if seeing else NOT_IN_PARTS
        ),
        Capability.TOKEN_OUTPUTS: Support(True, "answers are token ids"),
        Capability.CACHED_TOKENS: Support(
            exact,
            f"not reported; {BY_STEPS}: exactly, with one token per step"
            if exact
            else f"not reported; {BY_STEPS}, but exactly only in a cell with max_num_batched_tokens=1"
            if counted
            else "not reported, and the steps are not visible",
        ),
        Capability.LOGPROBS: Support(
            stepped, "of each output token, without alternatives" if stepped else "only of whole answers"
        ),
        Capability.ADAPTER_CHOICE: Support(not stepped, STEPPED if stepped else GENERATE),
        Capability.VERSION: Support(True, f"package version {facts.version}"),
        Capability.BLOCK_SIZE: Support(True, f"the CPU plugin's blocks have {CPU_BLOCK} tokens"),
        Capability.POOL_SIZE: Support(facts.blocks is not None, pool),
        Capability.SPAWNABLE: Support(True, "started by Coldproof"),
    }
