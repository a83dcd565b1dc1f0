"""Take a turn that is refused after its session kept it out of the session again.

A turn that names it is then refused in the same way as one that names no turn of the session. Turns of streaming
sessions are kept when they have finished, so that nothing is to be done for them.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.managers.schedule_batch", "Req"),
        "set_finish_with_abort",
        (
            "self.grammar = None\n",
            "self.grammar = None\n"
            "    node = self.session.req_nodes.get(self.rid) if self.session is not None else None\n"
            "    if node is not None and node.req is self:\n"
            "        del self.session.req_nodes[self.rid]\n"
            "        if node.parent is not None:\n"
            "            node.parent.children.remove(node)\n",
        ),
    )
