"""Names of oracles, as options and reports have them. A case stands in another way by an oracle of another kind."""

from __future__ import annotations

CLOSED_FORM = "closed-form"  # the oracle that computes its answers
OTHER_ENGINE_PREFIX = "engine:"  # prefix of an oracle that is another engine


def is_other_engine(oracle: str) -> bool:
    """Return whether the oracle with this name, from a report or the command line, is another engine."""
    return oracle.startswith(OTHER_ENGINE_PREFIX)
