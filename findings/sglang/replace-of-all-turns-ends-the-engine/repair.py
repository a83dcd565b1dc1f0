"""Clear the turns from those that began the session, and then forget all.

A turn clears the turns that went on from it, so that nothing is deleted from the dictionary that is iterated over.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.session.session_controller", "Session"),
        "create_req",
        (
            "for _, req_node in self.req_nodes.items():\n                req_node.clear(self.req_nodes)\n",
            "for req_node in [one for one in self.req_nodes.values() if one.parent is None]:\n"
            "                req_node.clear(self.req_nodes)\n"
            "            self.req_nodes.clear()\n",
        ),
    )
