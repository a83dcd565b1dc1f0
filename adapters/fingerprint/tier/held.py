"""Each worker's connector. vLLM has one a process, and several engines of ours live in one.

Without this the second engine would be given the first one's connector, or a cold one a connector that it never had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state


class HeldConnector:
    """A worker's own connector, or none; vLLM sees it only while the worker is at work."""

    def __init__(self) -> None:
        self.connector: Any = None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """While this runs, vLLM's connector is this worker's; what it is at the end, the worker keeps."""
        others = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        try:
            yield
        finally:
            self.connector = kv_transfer_state._KV_CONNECTOR_AGENT
            kv_transfer_state._KV_CONNECTOR_AGENT = others
