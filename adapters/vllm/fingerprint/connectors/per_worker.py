"""Gives each worker its own connector. vLLM has one connector per process, but Coldproof runs several engines in one.

Without this, the second engine would use the connector of the first one, and a cold engine would have a connector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state


class WorkerConnector:
    """A worker's own connector, or None. It is vLLM's global connector only while the worker executes."""

    def __init__(self) -> None:
        self.connector: Any = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this worker's connector the global one. At the end, keep the global one and restore the previous one."""
        previous = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        try:
            yield
        finally:
            self.connector = kv_transfer_state._KV_CONNECTOR_AGENT
            kv_transfer_state._KV_CONNECTOR_AGENT = previous
