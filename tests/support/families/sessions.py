"""Workloads of the feature sessions, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.sessions.workloads import sessions, sessions_beyond_the_context, sessions_that_switch

USUAL = {
    "sessions": lambda on: sessions(on, with_adapter=True),
    "streaming sessions": lambda on: sessions(on, with_adapter=True, streaming=True),
    "sessions that switch": sessions_that_switch,
    "sessions beyond the context": sessions_beyond_the_context,
}
