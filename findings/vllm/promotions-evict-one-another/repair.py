"""Let a promotion from a secondary tier evict nothing that a waiting request has found in the primary tier.

A lookup finds a request's chunks in the course of several steps, and pins none of them. Where they do not fit into the
primary tier together, each promotion evicts one that the next step has to promote again. With what was found kept, a
promotion has no room in the end, its chunk is a miss, and the request loads what it has.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    manager = part("vllm.v1.kv_offload.tiering.manager", "TieringOffloadingManager")
    primary = part("vllm.v1.kv_offload.cpu.manager", "CPUOffloadingManager")
    primary.found = frozenset()  # what the promotion in progress must not evict
    edit(primary, "prepare_store", ("protected = set(keys)\n", "protected = set(keys) | self.found\n"))
    edit(
        manager,
        "__init__",
        (
            "    self._processed_jobs_this_step: bool = False\n",
            "    self._processed_jobs_this_step: bool = False\n"
            "    # The chunks that the lookups of a request have found and that it has not loaded yet.\n"
            "    self._found: dict[str, set[OffloadKey]] = {}\n",
        ),
    )
    edit(
        manager,
        "lookup",
        (
            "        return LookupResult.HIT\n",
            "        self._found.setdefault(req_context.req_id, set()).add(key)\n        return LookupResult.HIT\n",
        ),
    )
    edit(
        manager,
        "_initiate_promotion",
        (
            "    primary_write_result = self.primary_tier.prepare_write([key], req_context)\n",
            "    self.primary_tier.found = frozenset().union(*self._found.values())\n"
            "    primary_write_result = self.primary_tier.prepare_write([key], req_context)\n"
            "    self.primary_tier.found = frozenset()\n",
        ),
        (
            "    entry.keys.extend(",
            "    self._found.setdefault(req_context.req_id, set()).add(key)\n    entry.keys.extend(",
        ),
    )
    edit(
        manager,
        "prepare_load",
        (
            "    return self.primary_tier.prepare_load(",
            "    self._found.pop(req_context.req_id, None)\n    return self.primary_tier.prepare_load(",
        ),
    )
    edit(
        manager,
        "_maybe_finalize_request",
        (
            "    self._request_load_sources.pop(req_id, None)\n",
            "    self._request_load_sources.pop(req_id, None)\n    self._found.pop(req_id, None)\n",
        ),
    )
    edit(
        manager,
        "reset_cache",
        (
            "    self._request_load_sources.clear()\n",
            "    self._request_load_sources.clear()\n    self._found.clear()\n",
        ),
    )
