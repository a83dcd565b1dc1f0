"""An out-of-tree platform of vLLM for tests: its CPU platform under another name, which brings a scheduler of its own.

A hardware plugin registers its platform in the same way and changes the configuration at the same place.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform


def register() -> str:
    """Return the name of the platform, as vLLM asks a plugin for it."""
    return f"{__name__}.StandInPlatform"


class StandInPlatform(CpuPlatform):
    """The platform."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Put our scheduler in place of vLLM's."""
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.scheduler_cls = "support.stand_in_scheduler.StandInScheduler"
