"""A plugin for runs that have no time for a proof."""

from __future__ import annotations

from coldproof.harness.session.budget import ProofTime

ProofTime.is_over = lambda _: True  # type: ignore[method-assign]
