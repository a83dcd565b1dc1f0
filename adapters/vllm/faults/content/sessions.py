"""Sessions that go on from the wrong place, under the wrong hashes, or that leave too much or too little behind."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, find_requests, manager, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, around, before

FAULTS, fault = collector("sessions")

GO_ON = "_update_request_as_session"  # the scheduler's method that gives a session its next input


@fault("SESS-1", stands_for="vllm#49449, vllm#49377")
def a_session_keeps_the_hash_of_what_it_dropped(patch: Patch) -> None:
    """A block whose last token a session dropped, and replaced by its next input, keeps the hash of the old tokens."""

    @around(patch, scheduler(), GO_ON)
    def go_on(original: Any, this: Any, session: Any, update: Any) -> None:
        whole = (session.num_tokens - 1) // this.hash_block_size
        old, dropped = session.block_hashes[whole:], session.all_token_ids[-1]
        original(this, session, update)
        if old:
            if update.prompt_token_ids[0] != dropped:
                acted()
            session.block_hashes[whole:] = old
            session.update_block_hashes()


@fault("SESS-1", stands_for="vllm#49449, where the dropped token stays")
def a_session_goes_on_with_the_token_that_it_drops(patch: Patch) -> None:
    """The last token of a turn's answer stays in front of the next input."""

    @before(patch, scheduler(), GO_ON)
    def go_on(_this: Any, session: Any, update: Any) -> None:
        acted()
        update.prompt_token_ids = [session.all_token_ids[-1], *update.prompt_token_ids]


@fault("SESS-1", stands_for="vLLM 0.32.0 with speculative decoding: drafts count as computed input")
def a_session_takes_its_next_token_for_computed(patch: Patch) -> None:
    """The first token of a session's next input is not computed."""

    @after(patch, scheduler(), GO_ON)
    def go_on(_result: Any, _this: Any, session: Any, _update: Any) -> None:
        if session.num_tokens > session.num_computed_tokens + 1:
            acted()
            session.num_computed_tokens += 1


@fault("SESS-1", stands_for="an adapter that only the first input names")
def a_session_goes_on_without_its_adapter(patch: Patch) -> None:
    """The later turns of a session with an adapter are answered by the base model."""

    @after(patch, scheduler(), GO_ON)
    def go_on(_result: Any, _this: Any, session: Any, _update: Any) -> None:
        if session.lora_request is not None:
            acted()
            session.lora_request = None


@fault("SESS-1", stands_for="blocks that are published at the end of a request only")
def later_turns_of_a_session_publish_nothing(patch: Patch) -> None:
    """What a session computes after its first turn is never found by others."""

    @after(patch, scheduler(), GO_ON)
    def go_on(_result: Any, _this: Any, session: Any, _update: Any) -> None:
        session.went_on = True

    @around(patch, coordinator(), "cache_blocks")
    def publish(original: Any, this: Any, request: Any, *args: Any, **named: Any) -> None:
        if getattr(request, "went_on", False):
            acted()
        else:
            original(this, request, *args, **named)


@fault("SESS-1", stands_for="sglang#27024, sglang PR#27025")
def a_closed_session_keeps_its_blocks(patch: Patch) -> None:
    """A session that waits for input when it is closed never gives its blocks back."""

    @before(patch, scheduler(), "finish_requests")
    def finish(this: Any, names: Any, *_: Any, **__: Any) -> None:
        for request in find_requests(this, names):
            request.kept = request.status.name == "WAITING_FOR_STREAMING_REQ"

    @around(patch, manager(), "free")
    def free(original: Any, this: Any, request: Any) -> None:
        if getattr(request, "kept", False):
            acted()
        else:
            original(this, request)
