"""All cells of vLLM, for the server and the in-process engine."""

from __future__ import annotations

from coldproof.adapters.vllm.cells.base import BASE_CELLS
from coldproof.adapters.vllm.cells.content import EMBED_CELLS, IMAGE_CELLS, POOLING_CELLS
from coldproof.adapters.vllm.cells.events import EVENT_CELLS
from coldproof.adapters.vllm.cells.groups import GROUP_CELLS, STATE_CELLS, WINDOW_CELLS
from coldproof.adapters.vllm.cells.numeric import NUMERIC_CELLS
from coldproof.adapters.vllm.cells.tiers import CONNECTOR, CONNECTOR_EVENTS, TIER_CELLS
from coldproof.adapters.vllm.cells.topologies import PAIR_CELLS, RANK_CELLS

CELLS = (
    *BASE_CELLS,
    *WINDOW_CELLS,
    *STATE_CELLS,
    *NUMERIC_CELLS,
    *EVENT_CELLS,
    *EMBED_CELLS,
    *IMAGE_CELLS,
    *GROUP_CELLS,
    *TIER_CELLS,
    *RANK_CELLS,
    *PAIR_CELLS,
    *POOLING_CELLS,
    CONNECTOR,
    CONNECTOR_EVENTS,
)
