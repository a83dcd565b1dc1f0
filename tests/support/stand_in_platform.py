"""An out-of-tree platform of vLLM for tests: its CPU platform under another name, with a scheduler of its own.

A hardware plugin registers its platform in the same way and changes the configuration at the same place.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform


def register() -> str:
    """Return the name of the platform in the form that vLLM expects from a plugin."""
    return f"{__name__}.StandInPlatform"


class StandInPlatform(CpuPlatform):
    """vLLM's CPU platform with the stand-in scheduler."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Replace vLLM's scheduler by the stand-in."""
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.scheduler_cls = "support.stand_in_scheduler.StandInScheduler"
