"""The families of workloads: each generator with the arguments that the suites give it.

Those of features are in `families`, a file for each feature.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from hypothesis import strategies as st
from support import families

from coldproof.harness.workload.generators.ageing import (
    loads_beside_others,
    loads_without_requests,
    many_loads,
    many_names,
    many_resets,
)
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.edges import any_length, chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.prompts import WorkloadLimits, computed_tokens
from coldproof.harness.workload.generators.reuse import repeats, returns, traffic
from coldproof.harness.workload.steps import Route, Workload

Family = Callable[[WorkloadLimits], st.SearchStrategy[Workload]]


def of_features(kind: str) -> dict[str, Family]:
    """Return the workloads of all features: USUAL or RARE."""
    files = pkgutil.iter_modules(families.__path__, f"{families.__name__}.")
    tables: list[dict[str, Family]] = [getattr(importlib.import_module(file.name), kind, {}) for file in files]
    return {name: family for table in tables for name, family in table.items()}


USUAL: dict[str, Family] = {
    "trees": lambda on: trees(on, chat=False),
    "trees of chats": lambda on: trees(on, chat=True),
    "conversations": lambda on: conversations(on, chat=False),
    "conversations of chats": lambda on: conversations(on, chat=True),
    "repeats": repeats,
    "returns": returns,
    "traffic": traffic,
} | of_features("USUAL")
# Rare states, which are drawn only where an example is cheap: a slow model never gets these.
RARE: dict[str, Family] = {
    "many loads": lambda on: many_loads(on, (Route.IN_PLACE, Route.UNLOAD_LOAD)),
    "loads without requests": lambda on: loads_without_requests(on, (Route.IN_PLACE,)),
    "loads beside others": lambda on: loads_beside_others(on, (Route.IN_PLACE, Route.UNLOAD_LOAD)),
    "many names": many_names,
    "many resets": many_resets,
    "chunks at edges": lambda on: chunks_at_edges(on, disconnects=True),
    "side by side": crowds,
    "long neighbours": long_neighbours,
    "any length": any_length,
} | of_features("RARE")
FAMILIES = USUAL | RARE


def computed(workload: Workload) -> int:
    """Return the tokens that an engine with enough room would compute: each prompt once, and all answers."""
    return computed_tokens(request for _, _, request in workload.requests())
