"""Take the adapter of the command line only for a request that names none.

SERVER.md documents the request's field by itself. The map of adapters has the adapter of the command line, which is the
default of a request without one.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.2"


def install() -> None:
    """Plant the repair."""
    edit(
        part("mlx_lm.server", "ModelProvider"),
        "load",
        (
            "adapter_path = self._adapter_map.get(model_path, adapter_path)",
            "adapter_path = adapter_path or self._adapter_map.get(model_path)",
        ),
    )
