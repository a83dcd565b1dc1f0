"""The pages of SGLang's stand-in: its start-up configuration, the load of its schedulers, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.fake_sglang import FakeSglang, Manners

VERSION, LONGEST = "0.5.23", 4090


def server_info(manners: Manners) -> dict[str, Any]:
    """The start-up configuration."""
    usual = {
        "version": VERSION,
        "page_size": manners.page,
        "max_total_num_tokens": 1000,
        "max_req_input_len": LONGEST,
        "disable_radix_cache": False,
        "enable_lora": manners.lora or None,
        "max_loras_per_batch": 4,
        "enable_hierarchical_cache": False,
        "enable_priority_scheduling": True,
        "enable_streaming_session": manners.streams,
        "enable_cache_report": manners.reports,
        "dp_size": 1,
        "launch_command": "--model-path tiny --api-key s3cr3t",
    }
    return usual | manners.server


def load(running: int, waiting: int = 3, *, to_come: int = 0) -> dict[str, Any]:
    """What one replica's scheduler says. `to_come`: tokens of prompts that are not computed yet."""
    return {
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": to_come,
        "num_used_tokens": 100 * running,
        "max_total_num_tokens": 500,
        "max_running_requests": 8,
    }


def metrics(fake: FakeSglang) -> str:
    """Counters that appear when they have counted, and gauges of some step before."""
    lines = [
        '# TYPE sglang:swa_used_tokens gauge\nsglang:swa_used_tokens{tp_rank="0"} ' + f"{fake.manners.windows}.0",
        '# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{tp_rank="0"} 7.0',
    ]
    if fake.queried:
        told = f'{{is_streaming="true"}} {fake.queried}.0'
        lines.append(f"# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total{told}")
    if fake.hits:
        told = f'{{cache_source="device"}} {fake.hits}.0'
        lines.append(f"# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total{told}")
    return "\n".join(lines) + "\n"
