"""Converts vLLM's exceptions to the refusals that its server would answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.vllm.releases import client_errors


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Convert vLLM's exceptions to the server's error responses: 400 for invalid requests, 500 for other errors."""
    try:
        yield
    except Exception as problem:
        raise RequestRefused(400 if isinstance(problem, client_errors()) else 500, str(problem)) from problem
