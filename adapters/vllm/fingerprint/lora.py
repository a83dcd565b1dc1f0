"""The adapters of the fingerprint worker: loaded, replaced and evicted as in vLLM's own worker.

It follows `vllm.lora.worker_manager.LRUCacheWorkerLoRAManager`: each request of a step touches its adapter, and a
request with `load_inplace` reads the files again. An adapter is represented by a digest of its files.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from vllm.exceptions import LoRAAdapterNotFoundError
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.utils import get_adapter_absolute_path

from coldproof.adapters.common.lora_digest import ADAPTER_FILES, content_digest

Stamp = tuple[tuple[int, int, int], ...]


class Loras:
    """At most `max_cpu_loras` loaded adapters. The least recently used one that is not pinned is evicted first."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.loaded: OrderedDict[int, str] = OrderedDict()  # vLLM's number -> content digest
        self.pinned: set[int] = set()
        self.digests: dict[tuple[Path, Stamp], str] = {}

    def add(self, request: Any) -> bool:
        """Load or touch an adapter. Raises vLLM's exceptions for missing or unsuitable files."""
        number = request.lora_int_id
        if number in self.loaded and not request.load_inplace:
            self.loaded.move_to_end(number)
            return True
        content = self.read(request)
        self.loaded.pop(number, None)
        if len(self.loaded) + 1 > self.config.max_cpu_loras:
            self.evict_oldest()
        self.loaded[number] = content
        return True

    def evict_oldest(self) -> None:
        """Evict one adapter. Raises RuntimeError if all adapters are pinned."""
        oldest = next((number for number in self.loaded if number not in self.pinned), None)
        if oldest is None:
            raise RuntimeError("All items are pinned, cannot remove oldest from the cache.")
        del self.loaded[oldest]

    def read(self, request: Any) -> str:
        """Return the content digest of an adapter's files, after vLLM's checks."""
        folder = Path(get_adapter_absolute_path(request.lora_path))
        try:
            PEFTHelper.from_local_dir(str(folder), None).validate_legal(self.config)
            return self.digest(folder)
        except FileNotFoundError as problem:
            raise LoRAAdapterNotFoundError(request.lora_name, request.lora_path) from problem

    def digest(self, folder: Path) -> str:
        """Return the digest of the files, twelve hex digits. Files are read again only after a change, for speed."""
        stats = [(folder / name).stat() for name in ADAPTER_FILES]
        key = (folder, tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats))
        if key not in self.digests:
            self.digests[key] = content_digest(folder)
        return self.digests[key]

    def content(self, request: Any) -> str | None:
        """Return the loaded content of a request's adapter; None for the base model."""
        return None if request is None else self.loaded[request.lora_int_id]

    def remove(self, number: int) -> bool:
        """Remove an adapter. Return whether it was loaded."""
        self.pinned.discard(number)
        return self.loaded.pop(number, None) is not None

    def pin(self, number: int) -> bool:
        """Protect an adapter from eviction. Raises ValueError if it is not loaded."""
        if number not in self.loaded:
            raise ValueError(f"Pinning failed. LoRA {number} is not registered.")
        self.pinned.add(number)
        return True
