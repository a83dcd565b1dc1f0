"""A fingerprint worker that lacks a part when a certain prompt comes, so that its own code fails in a server."""

from __future__ import annotations

import os
from typing import Any

from coldproof.adapters.vllm.fingerprint.worker import FingerprintWorker

FATAL_LENGTH = "COLDPROOF_TEST_FATAL_LENGTH"  # the variable with the tokens of that prompt


class BrokenWorker(FingerprintWorker):
    """Works until then."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Take the sampler away before the step."""
        fatal = int(os.environ[FATAL_LENGTH])
        if any(len(new.prompt_token_ids) == fatal for new in scheduler_output.scheduled_new_reqs):
            self.started_runner().scores = None  # type: ignore[assignment]
        return super().execute_model(scheduler_output)
