"""What a start of MAX's server needs: flags and variables. And the capabilities and sizes that follow from them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from coldproof.adapters.common.started_server import number_of
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions

# A start compiles the model, which takes minutes the first time and seconds from then on.
START_SECONDS = 1800.0
BASE_MODEL = "base"
LENGTH, BATCH, STEP, PAGE = "--max-length", "--max-batch-size", "--max-batch-input-tokens", "--kv-cache-page-size"
SIZES = {LENGTH: "2048", BATCH: "4", STEP: "8192"}  # the pool has room for a batch of requests of this length
PAGE_TOKENS = 128  # no smaller pages are accepted
LEGACY = "--legacy-kv-cache"  # a variable of the server, and no flag
LEGACY_VARIABLE = "MODULAR_USE_LEGACY_KV_CACHE"
WITHOUT_CACHE = "--no-enable-prefix-caching"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MAX_SERVE_DISABLE_TELEMETRY": "1",  # nothing is sent anywhere, and no process counts
    "MAX_SERVE_USE_CLIENT_CACHE_SALT": "1",  # the server ignores the salts of requests otherwise
}
POOL = re.compile(r"Jenga KV manager: (\d+) huge pages")
# Seen: two requests in the queue six seconds after their clients had left, until the next batch.
NO_METRICS = "/metrics has the gauges of the last batch, and counters that another process counts after the answer"
NO_LORA = "the server refuses --enable-lora: 'LoRA is not compatible with prefix caching'"
ABSENT = {
    Capability.CHAT: "no route tells the token ids of a chat before it is sent",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.LOGPROBS: "the adapter asks for no logprobs",
    Capability.PROMPT_LOGPROBS: "the adapter asks for no logprobs",
    Capability.SEVERAL_ANSWERS: "the adapter asks for one answer",
    Capability.STOP_STRINGS: "a stop string ends an answer before its text",
    Capability.STRUCTURED_OUTPUT: "--enable-structured-output is not set",
    Capability.KV_EVENTS: "MAX publishes no KV events",
    **dict.fromkeys((Capability.METRICS, Capability.HIT_COUNTERS, Capability.PREEMPTION_COUNTS), NO_METRICS),
    Capability.POOL_USAGE: "/metrics has a histogram of it, and no gauge",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "the server does not report its groups of layers",
    Capability.SECOND_TIER: "no --kv-connector-config is set",
    Capability.RESET_ENCODER: "the adapter sends no images",
    Capability.RESET_PROCESSOR: "the adapter sends no images",
    **dict.fromkeys(
        (
            Capability.ADAPTER_CHOICE,
            Capability.MIXED_ADAPTERS,
            Capability.ADAPTER_SWITCH,
            Capability.RUNTIME_LORA,
            Capability.LORA_IN_PLACE,
        ),
        NO_LORA,
    ),
}
PRESENT = {
    Capability.TOKEN_PROMPTS: "/v1/completions takes token ids",
    Capability.TOKEN_OUTPUTS: "return_token_ids",
    Capability.STREAMING: "one event for each token",
    Capability.CACHED_TOKENS: "usage.prompt_tokens_details.cached_tokens",
    Capability.CACHE_SALT: "cache_salt, with MAX_SERVE_USE_CLIENT_CACHE_SALT",
    Capability.ABORT: "a closed connection ends its request",
    Capability.CACHE_RESET: "POST /reset_prefix_cache",
    Capability.BLOCK_SIZE: f"{PAGE}, {PAGE_TOKENS} by default and at least",
    Capability.SPAWNABLE: "started by Coldproof",
}


def flags(options: StartOptions, port: int) -> list[str]:
    """Return all flags of the server."""
    arguments = [word for word in options.arguments if word != LEGACY]
    words = ["--model", options.model, "--served-model-name", BASE_MODEL, "--devices", "cpu"]
    words += ["--host", "127.0.0.1", "--port", str(port), *arguments]
    words += [word for flag, size in SIZES.items() if flag not in arguments for word in (flag, size)]
    return words if options.caching else [*words, WITHOUT_CACHE]


def command(words: Sequence[str]) -> list[str]:
    """Return the command of the server in this Python's environment."""
    return [str(Path(sys.executable).with_name("max")), "serve", *words]


def printed(options: StartOptions, words: Sequence[str]) -> str:
    """Return the command as text, with the variable that a cell may have in place of a flag."""
    before = f"{LEGACY_VARIABLE}=1 " if LEGACY in options.arguments else ""
    return before + shlex.join(["max", "serve", *words])


def environment(options: StartOptions, base: dict[str, str]) -> dict[str, str]:
    """Return the variables of the server."""
    legacy = {LEGACY_VARIABLE: "1"} if LEGACY in options.arguments else {}
    return {**ENVIRONMENT, **legacy, **base}


def pool_blocks(log: str) -> int | None:
    """Return the number of blocks that requests can use, by the server's log: one of its pages is never used.

    None for the older manager, whose log does not tell.
    """
    found = POOL.search(log)
    return None if found is None else int(found[1]) - 1


def capabilities(version: str | None, pool: int | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    known = f"the server's log: {pool} blocks" if pool is not None else "the server's log does not tell"
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        Capability.POOL_SIZE: Support(pool is not None, known),
        Capability.VERSION: Support(version is not None, f"max {version}"),
    }


def shape(options: StartOptions, pool: int | None) -> EngineShape:
    """Return the sizes by the flags and the log."""
    arguments = flags(options, 0)
    return EngineShape(
        block_size=number_of(PAGE, arguments) or PAGE_TOKENS,
        pool_blocks=pool,
        max_model_tokens=number_of(LENGTH, arguments) or 0,
        adapter_slots=None,
        prefix_caching=options.caching,
        most_requests=number_of(BATCH, arguments),
        step_tokens=number_of(STEP, arguments),
    )
