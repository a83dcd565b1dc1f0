"""The pages of SGLang's stand-in: start-up configuration, load of the schedulers, and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.fake_sglang import FakeSglang, ServerBehaviour

VERSION, LONGEST = "0.5.23", 4090


def server_info(behaviour: ServerBehaviour) -> dict[str, Any]:
    """Return the start-up configuration."""
    usual = {
        "version": VERSION,
        "page_size": behaviour.page,
        "max_total_num_tokens": 1000,
        "max_req_input_len": LONGEST,
        "disable_radix_cache": False,
        "enable_lora": behaviour.lora or None,
        "max_loras_per_batch": 4,
        "enable_hierarchical_cache": False,
        "enable_priority_scheduling": True,
        "enable_streaming_session": behaviour.streams,
        "enable_cache_report": behaviour.reports,
        "dp_size": 1,
        "launch_command": "--model-path tiny --api-key s3cr3t",
    }
    return usual | behaviour.server


def load(running: int, waiting: int = 3, *, to_come: int = 0) -> dict[str, Any]:
    """Return the load that one replica's scheduler reports. `to_come`: prompt tokens that are not computed yet."""
    return {
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": to_come,
        "num_used_tokens": 100 * running,
        "max_total_num_tokens": 500,
        "max_running_requests": 8,
    }


def metrics(fake: FakeSglang) -> str:
    """Return the metrics page: counters that exist once they have counted, and gauges of an earlier step."""
    lines = [
        '# TYPE sglang:swa_used_tokens gauge\nsglang:swa_used_tokens{tp_rank="0"} ' + f"{fake.behaviour.windows}.0",
        '# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{tp_rank="0"} 7.0',
    ]
    if fake.queried:
        sample = f'{{is_streaming="true"}} {fake.queried}.0'
        lines.append(f"# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total{sample}")
    if fake.hits:
        sample = f'{{cache_source="device"}} {fake.hits}.0'
        lines.append(f"# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total{sample}")
    return "\n".join(lines) + "\n"
