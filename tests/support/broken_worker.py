"""A fingerprint worker that fails on one prompt length, so that an error in its own code is raised inside a server."""

from __future__ import annotations

import os
from typing import Any

from coldproof.adapters.vllm.fingerprint.worker import FingerprintWorker

FATAL_LENGTH = "COLDPROOF_TEST_FATAL_LENGTH"  # the variable with the tokens of that prompt


class BrokenWorker(FingerprintWorker):
    """A fingerprint worker that works until a prompt of the fatal length is scheduled."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Remove the recorded scores before the step that schedules the fatal prompt."""
        fatal = int(os.environ[FATAL_LENGTH])
        if any(len(new.prompt_token_ids) == fatal for new in scheduler_output.scheduled_new_reqs):
            self.started_runner().scores = None  # type: ignore[assignment]
        return super().execute_model(scheduler_output)
