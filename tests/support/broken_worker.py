"""A fingerprint worker that lacks a part when a certain prompt comes, so that its own code fails in a server."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.vllm.fingerprint.worker import FingerprintWorker

FATAL_LENGTH = 47  # tokens of the prompt; no probe has it


class BrokenWorker(FingerprintWorker):
    """Works until then."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Take the sampler away before the step."""
        if any(len(new.prompt_token_ids) == FATAL_LENGTH for new in scheduler_output.scheduled_new_reqs):
            self.started_runner().scores = None  # type: ignore[assignment]
        return super().execute_model(scheduler_output)
