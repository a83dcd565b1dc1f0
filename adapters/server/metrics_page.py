"""Read a page of metrics in the text format of Prometheus. Every value that is read is a finite number."""

from __future__ import annotations

import math
from collections.abc import Collection

import requests
from prometheus_client.parser import text_string_to_metric_families

from coldproof.adapters.server.answers import UNREADABLE, malformed

Families = dict[str, list[tuple[dict[str, str], float]]]  # family name -> samples, as labels and value


def families_of(response: requests.Response, names: Collection[str]) -> Families:
    """Return the families whose lines have one of these names. Raises MalformedAnswer."""
    families: Families = {}
    # A server publishes hundreds of histogram lines. To parse them all would cost more than a request.
    wanted = "\n".join(line for line in response.text.splitlines() if any(name in line for name in names))
    try:
        for family in text_string_to_metric_families(wanted + "\n"):
            samples = [(s.labels, s.value) for s in family.samples if not s.name.endswith(("_created", "_bucket"))]
            if not all(math.isfinite(value) for _, value in samples):
                raise ValueError(f"{family.name} is not finite")
            families[family.name] = samples
    except UNREADABLE as problem:
        raise malformed(response, wanted, "metrics in the text format of Prometheus") from problem
    return families
