"""Save a prompt in the step that computes its end, from all of its blocks.

In an earlier step, the blocks of the rest do not exist, or their slots are not written.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    module = part("vllm.distributed.kv_transfer.kv_connector.v1.example_connector")

    @wrap(module.ExampleConnectorMetadata, "add_request", "self.requests.append(")
    def _(original: Any, self: Any, **options: Any) -> None:
        original(self, **options)
        self.requests[-1].asked = options  # as it was called

    @wrap(module.ExampleConnector, "build_connector_meta", "is_store=True,")
    def _(original: Any, self: Any, output: Any) -> Any:
        meta, waiting = original(self, output), getattr(self, "unsaved", {})
        self.unsaved = waiting
        blocks = {id(new.block_ids[0]): new.req_id for new in output.scheduled_new_reqs}
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        stores = [one for one in meta.requests if one.is_store]
        meta.requests = [one for one in meta.requests if not one.is_store]
        for one in stores:
            waiting[blocks[id(one.asked["block_ids"])]] = {**one.asked, "block_ids": list(one.asked["block_ids"])}
        cached = output.scheduled_cached_reqs
        for name, count, new in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            computed[name] = count
            if name in waiting and new is not None:
                held = [] if name in cached.resumed_req_ids else waiting[name]["block_ids"]
                waiting[name]["block_ids"] = held + list(new[0])
        for name in output.finished_req_ids:
            waiting.pop(name, None)
        for name, count in computed.items():
            if name in waiting and count + output.num_scheduled_tokens[name] >= len(waiting[name]["token_ids"]):
                meta.add_request(**waiting.pop(name))
        return meta
