"""The capabilities that an engine may have. An engine reports each capability together with its evidence."""

from __future__ import annotations

import enum

import msgspec


class Capability(enum.StrEnum):
    """A capability of an engine. A requirement that needs a capability is UNSUPPORTED on an engine without it."""

    TOKEN_PROMPTS = "token-id prompts"
    TOKEN_OUTPUTS = "returned token ids"
    STREAMING = "streamed tokens"
    CACHED_TOKENS = "cached-token counts"
    LOGPROBS = "logprobs"
    ADAPTER_CHOICE = "adapters chosen per request"
    MIXED_ADAPTERS = "concurrent requests with different adapters"
    ADAPTER_SWITCH = "an adapter switch for all requests"
    RUNTIME_LORA = "adapter load and unload at run time"
    LORA_IN_PLACE = "in-place adapter reload"
    CACHE_SALT = "cache salt"
    CHAT = "chat completions with known prompt ids"
    PRIORITY = "request priorities"
    ABORT = "client aborts"
    PROMPT_LOGPROBS = "prompt logprobs"
    SEVERAL_ANSWERS = "several sampled answers to a prompt"
    STOP_STRINGS = "stop strings"
    STRUCTURED_OUTPUT = "structured output"
    CACHE_RESET = "cache reset"
    METRICS = "metrics"
    HIT_COUNTERS = "lookup and hit counters"
    PREEMPTION_COUNTS = "preemption counts"
    POOL_USAGE = "pool usage gauge"
    KV_EVENTS = "published KV events"
    VERSION = "engine version"
    BLOCK_SIZE = "cache block size"
    POOL_SIZE = "cache pool size"
    SECOND_TIER = "second KV tier"
    SAVED_STATE = "KV saved and restored by name"
    MOVED_PIECES = "non-prefix KV reuse"
    CONTEXT_SHIFT = "context shift"
    SPAWNABLE = "spawned by Coldproof"
    PROVENANCE = "block provenance"
    SEVERAL_GROUPS = "several KV-cache groups"


# Capabilities that do not depend on how an engine is started: what one cell lacks, all its cells lack.
OF_EVERY_CELL = frozenset(
    {
        Capability.TOKEN_PROMPTS,
        Capability.TOKEN_OUTPUTS,
        Capability.STREAMING,
        Capability.LOGPROBS,
        Capability.ADAPTER_SWITCH,
        Capability.CACHE_SALT,
        Capability.ABORT,
        Capability.PROMPT_LOGPROBS,
        Capability.SEVERAL_ANSWERS,
        Capability.STOP_STRINGS,
        Capability.STRUCTURED_OUTPUT,
        Capability.CACHE_RESET,
        Capability.METRICS,
    }
)

# The evidence texts of capabilities that few engines have, for all engines without them.
OPTIONAL_ABSENT = {
    Capability.SAVED_STATE: "the engine cannot save its cache under a name and restore it",
    Capability.MOVED_PIECES: "the engine reuses prefixes only",
    Capability.CONTEXT_SHIFT: "an answer ends at the context limit",
}


class Support(msgspec.Struct, frozen=True):
    """Whether an engine has a capability (None: undetermined), and the observation that shows it."""

    present: bool | None
    evidence: str

    def lacks_everywhere(self, capability: Capability) -> bool:
        """Return whether this shows that the engine lacks a capability however it is started."""
        own = capability in OF_EVERY_CELL or self.evidence == OPTIONAL_ABSENT.get(capability)
        return self.present is False and own
