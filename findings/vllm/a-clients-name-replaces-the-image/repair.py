"""Take the contents of an image for its key, whatever name its client gives it.

Equal names then mean nothing, and equal contents still share all that is cached. A name without an image, by which a
client may refer to one that it sent before, stands for the contents that last came with it.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    latest: dict[str, str] = {}  # the hash of the contents, by the hash that has the client's name in it

    @wrap(part("vllm.multimodal.processing.inputs", "ProcessorInputs"), "get_mm_hashes", "hashes.append(uuid_item)")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        named, names = original(self, *arguments, **options), self.mm_uuid_items
        if not names:
            return named
        self.mm_uuid_items = None
        try:
            hashes = original(self, *arguments, **options)
        finally:
            self.mm_uuid_items = names
        for modality, items in self.mm_data_items.items():
            for i, item in enumerate(items.get_all_items_for_hash()):
                name = named[modality][i]
                if item is None:
                    hashes[modality][i] = latest.get(name, name)
                latest[name] = hashes[modality][i]
        return hashes
