"""What ONNX Runtime GenAI needs: the model as ONNX, and its options. And what follows from them."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.named_values import named_values
from coldproof.adapters.common.weights_digest import weights_digest
from coldproof.adapters.ortgenai import onnx_model
from coldproof.adapters.ortgenai.onnx_model import LONGEST
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions

PACKAGE = "onnxruntime-genai"
NO_METRICS = "a library, which counts nothing"
NOT_SENT = "the adapter asks for tokens only"
NO_ADAPTERS = "the adapter loads none: ONNX Runtime takes them in a format of its own"
ABSENT = {
    Capability.ADAPTER_CHOICE: NO_ADAPTERS,
    Capability.ADAPTER_SWITCH: NO_ADAPTERS,
    Capability.RUNTIME_LORA: NO_ADAPTERS,
    Capability.LORA_IN_PLACE: NO_ADAPTERS,
    Capability.MIXED_ADAPTERS: NO_ADAPTERS,
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "the adapter sends token ids",
    Capability.PRIORITY: "a generator has one sequence",
    Capability.LOGPROBS: NOT_SENT,
    Capability.PROMPT_LOGPROBS: NOT_SENT,
    Capability.SEVERAL_ANSWERS: NOT_SENT,
    Capability.STOP_STRINGS: NOT_SENT,
    Capability.STRUCTURED_OUTPUT: NOT_SENT,
    Capability.KV_EVENTS: "no KV events",
    Capability.METRICS: NO_METRICS,
    Capability.HIT_COUNTERS: NO_METRICS,
    Capability.POOL_USAGE: NO_METRICS,
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "all layers of a sequence are kept together",
    Capability.SECOND_TIER: "KV is in the generator only",
    Capability.RESET_ENCODER: "the adapter sends no images",
    Capability.RESET_PROCESSOR: "the adapter sends no images",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: "append_tokens",
    Capability.TOKEN_OUTPUTS: "get_next_tokens",
    Capability.STREAMING: "generate_next_token",
    Capability.CACHED_TOKENS: "the tokens that the generator has already, but for a last one without KV",
    Capability.ABORT: "no further token is generated",
    Capability.CACHE_RESET: "rewind_to(0)",
    Capability.BLOCK_SIZE: "a sequence is rewound to any token",
    Capability.POOL_SIZE: "one sequence of max_length tokens",
    Capability.SPAWNABLE: "made by Coldproof",
}


def library() -> Any:
    """Return the module. Raises EngineStartError if it is not installed."""
    try:
        return importlib.import_module("onnxruntime_genai")
    except ImportError as problem:
        raise EngineStartError(f"ONNX Runtime GenAI is not installed ({problem}): pip install {PACKAGE}") from problem


def options_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of a generator by `--NAME VALUE`. Raises ValueError."""
    return named_values(arguments, "option of a generator", json.loads)


def converted(options: StartOptions) -> Path:
    """Return the folder with the model as ONNX. All engines of a run share it. Raises EngineStartError."""
    source = Path(options.model)
    key = (PACKAGE, options.model, weights_digest(source))
    if key not in options.remembered:
        options.remembered[key] = convert(source, options.folder("onnx"), options.log)
    folder: Path = options.remembered[key]
    return folder


def convert(source: Path, target: Path, log: Path) -> Path:
    """Convert a model, and return the folder. Raises EngineStartError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            onnx_model.convert(source, target, output, current_environment())
        except (subprocess.SubprocessError, OSError) as problem:
            raise EngineStartError(f"the model was not converted: {problem}; log: {log}") from problem
    return target


def capabilities(found: str | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        Capability.VERSION: Support(found is not None, f"{PACKAGE} {found}"),
    }


def shape(*, caching: bool) -> EngineShape:
    """Return the sizes: one sequence, which the next request may share to any token."""
    return EngineShape(
        block_size=1,
        pool_blocks=LONGEST,
        max_model_tokens=LONGEST,
        sequences=1,
        adapter_slots=None,
        prefix_caching=caching,
        most_requests=1,
    )
