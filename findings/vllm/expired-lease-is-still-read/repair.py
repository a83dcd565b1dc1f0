"""Tell the decoder until when the blocks are kept, and let it compute the prompt after that.

The time is that of the wall clock, because both engines may be on different machines. A decoder that has the request
extends the lease without saying so, so that it may compute what it could have read. It never reads what was given away.
"""

from __future__ import annotations

import math
import time
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
MARGIN = 0.5  # seconds in which the decoder begins to read


def install() -> None:
    """Plant the repair."""
    scheduler = part("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler", "NixlPullConnectorScheduler")

    @wrap(scheduler, "request_finished", "remote_blocks_expiry_time=blocks_expiry_time,")
    def _(original: Any, self: Any, *arguments: Any) -> Any:
        delayed, params = original(self, *arguments)
        return delayed, params and {**params, "remote_lease_end": time.time() + self._kv_lease_duration}

    @wrap(scheduler, "get_num_new_matched_tokens", "actual = self._get_remote_prefill_token_count(len(token_ids))")
    def _(original: Any, self: Any, request: Any, *arguments: Any) -> Any:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill") and time.time() > params.get("remote_lease_end", math.inf) - MARGIN:
            return 0, False
        return original(self, request, *arguments)
