"""Sessions of the in-process engine: resumable requests, as vLLM's `AsyncLLM.generate` makes of a stream of inputs.

`AsyncLLM._add_streaming_input_request` gives each input to the same request of the engine core, and ends the request by
an input that is not resumable. `LLMEngine` has no such method, so that the inputs are handed to its parts here.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.vllm.inproc.setup import InprocEngineParts


class OpenSession(NamedTuple):
    """A session's request: its name in the engine's outputs, and in the engine core."""

    name: str
    inner: str
    last: Any  # the latest input


class Sessions:
    """The open sessions, by the client's name."""

    def __init__(self) -> None:
        self.open: dict[str, OpenSession] = {}

    def send(self, parts: InprocEngineParts, request: CompletionRequest, name: str, **inputs: Any) -> OpenSession:
        """Give the engine a turn, which opens its session unless the session holds something. `name`: of a new one.

        `inputs`: the arguments of `InputProcessor.process_inputs`. Raises ValueError, as vLLM does for a request that
        its client has to change, if the session has ended.
        """
        assert request.session is not None
        known = self.open.get(request.session)
        if request.held and (known is None or known.inner not in parts.core.scheduler.requests):
            raise ValueError(f"session {request.session!r} is not open")
        engine = parts.engine
        made = engine.input_processor.process_inputs(
            request_id=name if known is None else known.inner,
            supported_tasks=engine.get_supported_tasks(),
            resumable=True,
            **inputs,
        )
        if known is None:
            engine.input_processor.assign_request_id(made)
        else:
            made.external_req_id = known.name
        session = OpenSession(name if known is None else known.name, made.request_id, made)
        self.open[request.session] = session
        add(parts, made)
        return session

    def close(self, parts: InprocEngineParts, name: str, *, aborted: bool) -> None:
        """End a session, as a client that has no further input or, with `aborted`, as one that disconnects."""
        session = self.open.pop(name, None)
        if session is None or session.inner not in parts.core.scheduler.requests:
            return
        if aborted:
            parts.engine.abort_request([session.inner], internal=True)
            return
        session.last.resumable = False  # its tokens do not count: vLLM sends some as well
        add(parts, session.last)


def add(parts: InprocEngineParts, made: Any) -> None:
    """Hand an input to both parts of the engine. Each appends to the tokens of the first input, so each gets its own
    list: with `AsyncLLM`, the engine core is another process.
    """
    parts.engine.output_processor.add_request(made, None, None, 0)
    core = copy.copy(made)
    core.prompt_token_ids = list(made.prompt_token_ids)
    parts.engine.engine_core.add_request(core)


def session_support(engine: Any) -> Support:
    """Return whether requests can stay open, by the parameters of this version's method."""
    known = inspect.signature(engine.input_processor.process_inputs).parameters
    if "resumable" not in known:
        return Support(False, OPTIONAL_ABSENT[Capability.SESSIONS])
    return Support(True, "requests can be resumable, as AsyncLLM.generate makes them of a stream of inputs")
