"""The switches with which a vLLM server lets Coldproof test all requirements that need nothing but HTTP."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.spec.switch import Switch

SWITCHES = (
    Switch(
        name="--enable-prompt-tokens-details",
        adds="cached-token counts",
        gives=(Capability.CACHED_TOKENS,),
        how="vllm serve MODEL --enable-prompt-tokens-details",
        safe=True,
        because="it adds one number to each answer",
    ),
    Switch(
        name="--enable-lora with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
        adds="adapters that are loaded, reloaded and unloaded",
        gives=(
            Capability.ADAPTER_CHOICE,
            Capability.MIXED_ADAPTERS,
            Capability.RUNTIME_LORA,
            Capability.LORA_IN_PLACE,
        ),
        how="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-loras 4 --max-lora-rank 64",
        safe=False,
        because="any client can make the server load files",
    ),
    Switch(
        name="VLLM_SERVER_DEV_MODE=1",
        adds="cache resets, updates of the weights, pauses",
        gives=(
            Capability.CACHE_RESET,
            Capability.RESET_RUNNING,
            Capability.WEIGHT_UPDATES,
            Capability.WEIGHTS_FROM_PATH,
            Capability.WEIGHTS_SAME_PATH,
            Capability.PAUSE_ABORT,
            Capability.PAUSE_WAIT,
            Capability.PAUSE_KEEP,
        ),
        how="VLLM_SERVER_DEV_MODE=1 vllm serve MODEL",
        safe=False,
        because="any client can reset the cache, pause the engine and call methods of its workers",
    ),
    Switch(
        name="--num-gpu-blocks-override",
        adds="a KV pool that workloads fill: eviction, preemption, waiting",
        gives=(),
        how="vllm serve MODEL --num-gpu-blocks-override {blocks} --max-model-len {tokens}",
        safe=False,
        because="a small pool evicts and preempts under load",
        small_pool=True,
    ),
)
