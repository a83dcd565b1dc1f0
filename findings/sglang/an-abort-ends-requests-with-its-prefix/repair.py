"""Abort the request of this `rid`, not every request whose `rid` begins with it.

The tokenizer's process sends an abort for a request that it knows, under its whole name, and one for each request of a
batch. With one such process, which is the default, nobody can send the beginning of a name alone. An abort of all
requests has a flag of its own.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"
ABORTED = "if recv_req.abort_all or "
PLACES = (  # the text before each comparison, in the order of the queues
    "if recv_req.abort_all or chunked_req.rid",
    f"self.waiting_queue):\n        {ABORTED}req.rid",
    f"self.disagg_prefill_bootstrap_queue.queue:\n            {ABORTED}req.rid",
    f"self.disagg_prefill_inflight_queue:\n            {ABORTED}req.rid",
    f"self.disagg_decode_prealloc_queue.queue:\n            {ABORTED}decode_req.req.rid",
    f"self.disagg_decode_transfer_queue.queue:\n            {ABORTED}decode_req.req.rid",
    "if recv_req.abort_all or decode_req.rid",
    "            recv_req.abort_all or req.rid",
)


def install() -> None:
    """Plant the repair."""

    def whole(*places: str, name: str = "recv_req.rid") -> list[tuple[str, str]]:
        return [(f"{place}.startswith({name})", f"{place} == {name}") for place in places]

    edit(part("sglang.srt.managers.scheduler", "Scheduler"), "abort_request", *whole(*PLACES))
    edit(part("sglang.srt.constrained.grammar_manager", "GrammarManager"), "abort_requests", *whole("or req.rid"))
    edit(part("sglang.srt.dllm.mixin.scheduler", "DllmManager"), "pop_aborted_reqs", *whole("or req.rid", name="rid"))
    receiver = part("sglang.srt.disaggregation.encoder.receiver", "MMReceiverBase")
    edit(receiver, "abort_waiting_requests", *whole("or waiting_req.rid"))
