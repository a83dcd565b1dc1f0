"""Workloads of the feature rows, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.rows.workloads import conversations_with_rows, near_embeddings

USUAL = {
    "embedding rows": lambda on: near_embeddings(on, with_adapter=True),
    "embedding rows beside zeros": lambda on: near_embeddings(on, with_adapter=True, zeros=True),
    "conversations with rows": conversations_with_rows,
}
