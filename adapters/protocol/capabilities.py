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
    ADAPTER_SLOTS = "a known number of adapter slots"
    CACHE_SALT = "cache salt"
    COLD_ANSWERS = "cold answers"
    WITHOUT_CACHE = "batches without the cache"
    CHAT = "chat completions with known prompt ids"
    ENDPOINTS = "several endpoints for one prompt"
    GENERATE_ENDPOINT = "an endpoint for token ids beside completions"
    RESPONSES_ENDPOINT = "an endpoint for responses"
    MESSAGES_ENDPOINT = "an endpoint for messages"
    PRIORITY = "request priorities"
    ABORT = "client aborts"
    PROMPT_LOGPROBS = "prompt logprobs"
    DIRECT_SCORES = "scores of texts outside the scheduler"
    SEVERAL_ANSWERS = "several sampled answers to a prompt"
    STOP_STRINGS = "stop strings"
    STRUCTURED_OUTPUT = "structured output"
    POOLING = "one vector for a prompt"
    EMBEDDINGS = "embeddings of prompts"
    CLASSIFICATIONS = "classifications of prompts"
    TOKEN_EMBEDDINGS = "embeddings of each token of a prompt"
    SCORES = "scores of two texts"
    RANKINGS = "rankings of texts"
    COSINES = "cosines of embedded texts"
    CACHE_RESET = "cache reset"
    RESET_RUNNING = "cache reset that includes running requests"
    RESET_SECOND_TIER = "cache reset that includes the second tier"
    RESET_ENCODER = "reset of the encoder cache"
    RESET_PROCESSOR = "reset of the multimodal processor's cache"
    RESET_RANKS = "cache reset of all ranks"
    METRICS = "metrics"
    HIT_COUNTERS = "lookup and hit counters"
    PREEMPTION_COUNTS = "preemption counts"
    DRAFT_COUNTS = "counts of drafted and accepted tokens"
    POOL_USAGE = "pool usage gauge"
    KV_EVENTS = "published KV events"
    EVENT_RESTARTS = "KV events of a restarted engine"
    VERSION = "engine version"
    BLOCK_SIZE = "cache block size"
    POOL_SIZE = "cache pool size"
    SECOND_TIER = "second KV tier"
    TIER_FILES = "files of a tier that can be lost"
    TRANSFER_LIMITS = "limits on loads and stores per request"
    SLOW_TIER = "a tier behind the second one, whose hits are counted"
    SAVED_STATE = "KV saved and restored by name"
    PERSISTENT_KV = "KV that outlives its engine"
    EMBEDDING_ROWS = "prompts with embedding rows"
    HIDDEN_ROWS = "token ids under rows, and rows under tokens"
    IMAGES = "prompts with images"
    IMAGE_UUIDS = "images named by the client"
    IMAGE_PARTS = "hits that end within an image"
    PROCESSOR_ARGUMENTS = "arguments of the processor per request"
    TOWER_ADAPTERS = "adapters that change the vision tower"
    SESSIONS = "sessions that take further input"
    STREAMING_SESSIONS = "sessions that keep whole answers and may change the adapter"
    MOVED_PIECES = "non-prefix KV reuse"
    CONTEXT_SHIFT = "context shift"
    SPAWNABLE = "spawned by Coldproof"
    PROVENANCE = "block provenance"
    SEVERAL_GROUPS = "several KV-cache groups"
    SEVERAL_FEATURES = "several cache features on at once"
    OTHER_IMPLEMENTATION = "another implementation of one part"
    SEVERAL_RANKS = "several ranks"
    RANK_CHOICE = "a rank chosen per request"
    PREFILL_APART = "prefill and decode on different engines"
    SIDE_FAILURES = "one side killed and started again, and late hand-overs"
    TIER_FAILURES = "the second tier's server killed and started again"
    ONE_SIDE_FIRST = "changes on one side before the other"
    WEIGHT_UPDATES = "weights changed at run time"
    WEIGHTS_FROM_PATH = "weights reloaded from another path"
    WEIGHTS_SAME_PATH = "weights reloaded from the same path"
    WEIGHTS_IN_PLACE = "weights changed in place"
    WEIGHTS_TRANSFER = "weights transferred"
    WEIGHT_CHECKSUM = "weight checksums"
    PAUSE_ABORT = "pause that aborts requests"
    PAUSE_WAIT = "pause that waits for requests"
    PAUSE_KEEP = "pause that keeps requests"
    SLEEP = "sleep and wake"
    SLEEP_DISCARDS = "sleep that discards the weights"


OF_ADAPTERS = frozenset(
    {
        Capability.ADAPTER_CHOICE,
        Capability.MIXED_ADAPTERS,
        Capability.ADAPTER_SWITCH,
        Capability.RUNTIME_LORA,
        Capability.LORA_IN_PLACE,
        Capability.TOWER_ADAPTERS,
    }
)

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
    # Where a second engine gives the cold answers, or the engine has salts, they are there: see `with_cold_answers`.
    Capability.COLD_ANSWERS: "the engine cannot be asked for an answer without its cache",
    Capability.WITHOUT_CACHE: "no second server without a cache is there (--cold-url), and requests have no salts",
    Capability.ADAPTER_SLOTS: "no number of adapters is known beyond which another one takes the place of one",
    Capability.SAVED_STATE: "the engine cannot save its cache under a name and restore it",
    Capability.PERSISTENT_KV: "no KV is kept when the engine ends",
    Capability.IMAGES: "the adapter sends prompts as token ids and chats only",
    Capability.IMAGE_UUIDS: "the adapter sends no images",
    Capability.IMAGE_PARTS: "the adapter sends no images",
    Capability.PROCESSOR_ARGUMENTS: "the adapter sends no images",
    Capability.TOWER_ADAPTERS: "the adapter sends no images",
    Capability.EMBEDDING_ROWS: "the adapter sends prompts as token ids and chats only",
    Capability.HIDDEN_ROWS: "the adapter sends no rows and token ids for the same position",
    Capability.SESSIONS: "a request ends with its answer",
    Capability.STREAMING_SESSIONS: "no session of the engine keeps the last token of an answer",
    Capability.MOVED_PIECES: "the engine reuses prefixes only",
    Capability.TIER_FILES: "no tier keeps KV in files that Coldproof may damage",
    Capability.TRANSFER_LIMITS: "no second tier takes limits for a request",
    Capability.SLOW_TIER: "no tier behind a second one is known, or its hits are not counted",
    Capability.SEVERAL_FEATURES: "the adapter does not report which features are on",
    Capability.OTHER_IMPLEMENTATION: "no other implementation of a part is known that can be started in its place",
    Capability.DIRECT_SCORES: "texts are scored by requests only",
    Capability.DRAFT_COUNTS: "the adapter reads no counts of drafted tokens",
    Capability.CONTEXT_SHIFT: "an answer ends at the context limit",
    **dict.fromkeys(
        (
            Capability.POOLING,
            Capability.EMBEDDINGS,
            Capability.CLASSIFICATIONS,
            Capability.TOKEN_EMBEDDINGS,
            Capability.SCORES,
            Capability.RANKINGS,
            Capability.COSINES,
        ),
        "the engine generates tokens",
    ),
    **dict.fromkeys(
        (
            Capability.ENDPOINTS,
            Capability.GENERATE_ENDPOINT,
            Capability.RESPONSES_ENDPOINT,
            Capability.MESSAGES_ENDPOINT,
        ),
        "the adapter sends each request by one way only",
    ),
    **dict.fromkeys(
        (
            Capability.WEIGHT_UPDATES,
            Capability.WEIGHTS_FROM_PATH,
            Capability.WEIGHTS_SAME_PATH,
            Capability.WEIGHTS_IN_PLACE,
            Capability.WEIGHTS_TRANSFER,
            Capability.WEIGHT_CHECKSUM,
        ),
        "the adapter knows no way to change the weights of this engine while it runs",
    ),
    **dict.fromkeys(
        (
            Capability.PAUSE_ABORT,
            Capability.PAUSE_WAIT,
            Capability.PAUSE_KEEP,
            Capability.SLEEP,
            Capability.SLEEP_DISCARDS,
        ),
        "the adapter knows no way to pause this engine",
    ),
    Capability.SEVERAL_RANKS: "the engine has one rank",
    Capability.RANK_CHOICE: "requests choose no rank",
    Capability.PREFILL_APART: "one engine computes prompts and decodes",
    Capability.SIDE_FAILURES: "there are no sides, or none that can be restarted from here",
    Capability.TIER_FAILURES: "no second tier has a server that can be restarted from here",
    Capability.ONE_SIDE_FIRST: "there are no sides, or none that can be reached on its own",
    Capability.EVENT_RESTARTS: "no engine that publishes events is restarted here",
    Capability.RESET_RUNNING: "no reset discards the KV of running requests",
    Capability.RESET_SECOND_TIER: "no reset empties a second tier",
    Capability.RESET_ENCODER: "no reset empties an encoder cache",
    Capability.RESET_PROCESSOR: "no reset empties a multimodal processor's cache",
    Capability.RESET_RANKS: "no reset has a parameter for ranks: DIST-1 tests that each reset is for all of them",
}


class Support(msgspec.Struct, frozen=True):
    """Whether an engine has a capability (None: undetermined), and the observation that shows it."""

    present: bool | None
    evidence: str

    def lacks_everywhere(self, capability: Capability) -> bool:
        """Return whether this shows that the engine lacks a capability however it is started."""
        own = capability in OF_EVERY_CELL or self.evidence == OPTIONAL_ABSENT.get(capability)
        return self.present is False and own
