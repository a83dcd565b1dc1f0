"""Converts vLLM's exceptions to the refusals that its server would answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.vllm.inproc.setup import vllm_module


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Convert vLLM's exceptions to the server's error responses: 400 for invalid requests, 500 for other errors."""
    try:
        yield
    except Exception as problem:
        client_error = getattr(vllm_module("exceptions"), "VLLMClientError", ValueError)
        invalid = isinstance(problem, (client_error, ValueError, TypeError, OverflowError))
        raise RequestRefused(400 if invalid else 500, str(problem)) from problem
