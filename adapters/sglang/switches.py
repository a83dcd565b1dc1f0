"""The switches with which an SGLang server lets Coldproof test all requirements that need nothing but HTTP."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.spec.switch import Switch

LAUNCH = "python -m sglang.launch_server --model-path MODEL"
SWITCHES = (
    Switch(
        name="--enable-metrics",
        adds="metrics: running and waiting requests, hits, retractions",
        gives=(Capability.METRICS, Capability.HIT_COUNTERS, Capability.PREEMPTION_COUNTS),
        how=f"{LAUNCH} --enable-metrics --load-snapshot-publish-interval 1",
        safe=True,
        because="it adds a page of counters",
    ),
    Switch(
        name="--enable-lora",
        adds="adapters that are loaded and unloaded",
        gives=(Capability.ADAPTER_CHOICE, Capability.MIXED_ADAPTERS, Capability.RUNTIME_LORA),
        how=f"{LAUNCH} --enable-lora --max-lora-rank 16 --lora-target-modules all --max-loras-per-batch 4",
        safe=False,
        because="any client can make the server load files, unless an admin key is set",
    ),
    Switch(
        name="--enable-cache-report",
        adds="cached-token counts of chats",
        gives=(Capability.ENDPOINTS,),
        how=f"{LAUNCH} --enable-cache-report",
        safe=True,
        because="it adds one number to each answer",
    ),
    Switch(
        name="--enable-priority-scheduling",
        adds="request priorities",
        gives=(Capability.PRIORITY,),
        how=f"{LAUNCH} --enable-priority-scheduling",
        safe=False,
        because="any client can put its requests before all others",
    ),
    Switch(
        name="--enable-streaming-session",
        adds="sessions that keep whole answers",
        gives=(Capability.STREAMING_SESSIONS,),
        how=f"{LAUNCH} --enable-streaming-session",
        safe=False,
        because="any client can open sessions, which hold KV until they are closed",
    ),
    Switch(
        name="--max-total-tokens",
        adds="a KV pool that workloads fill: eviction, retraction, waiting",
        gives=(),
        how=f"{LAUNCH} --max-total-tokens {{tokens}}",
        safe=False,
        because="a small pool evicts and retracts under load",
        small_pool=True,
    ),
)
