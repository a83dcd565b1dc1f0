"""The KV connector of one of several engines in this process.

vLLM keeps its worker's connector in a global variable, because a process of its own has one engine. Without this, the
second engine would use the connector of the first one, and a cold engine would have a connector.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

STATE = "vllm.distributed.kv_transfer.kv_transfer_state"
AGENT = "_KV_CONNECTOR_AGENT"


class OwnConnector:
    """The connector of one engine; None until its start has created one."""

    def __init__(self) -> None:
        self.agent: Any = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make it vLLM's global connector. At the end, restore the previous one."""
        state: Any = importlib.import_module(STATE)
        previous = getattr(state, AGENT)
        setattr(state, AGENT, self.agent)
        try:
            yield
        finally:
            self.agent = getattr(state, AGENT)
            setattr(state, AGENT, previous)
