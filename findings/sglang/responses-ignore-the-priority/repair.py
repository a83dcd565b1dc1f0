"""Hand the priority of a request to /v1/responses to the engine, if the request has one.

Each request after the call of a tool gets the priority that is counted down for it. A request without a priority has
none, as at the other endpoints, since a server without priorities may refuse requests that have one.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    serving = part("sglang.srt.entrypoints.openai.serving_responses", "OpenAIServingResponses")
    given = 'priority=request.priority if "priority" in request.model_fields_set else None,'
    edit(serving, "create_responses", ("priority=request.priority,", given))
    edit(
        serving,
        "_generate_with_builtin_tools",
        ("while True:\n", "while True:\n        adapted_request.priority = priority\n"),
        ("priority = orig_priority - 1", "priority = None if priority is None else orig_priority - 1"),
    )
