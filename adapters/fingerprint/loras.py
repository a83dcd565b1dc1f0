"""The worker's adapters: loaded, replaced and dropped as vLLM's own worker does it, known by what their files hold.

Follows `vllm.lora.worker_manager.LRUCacheWorkerLoRAManager`: every request of a step touches its adapter, which is read
again where its request says `load_inplace`.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from vllm.exceptions import LoRAAdapterNotFoundError
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.utils import get_adapter_absolute_path

from adapters.lora_files import ADAPTER_FILES, content_digest

Stamp = tuple[tuple[int, int, int], ...]


class Loras:
    """At most `max_cpu_loras` adapters, the least recently used dropped first; some of them pinned."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.loaded: OrderedDict[int, str] = OrderedDict()  # vLLM's number -> content
        self.pinned: set[int] = set()
        self.digests: dict[tuple[Path, Stamp], str] = {}

    def add(self, request: Any) -> bool:
        """Load or touch an adapter. Raises what vLLM raises for files that are none or do not fit."""
        number = request.lora_int_id
        if number in self.loaded and not request.load_inplace:
            self.loaded.move_to_end(number)
            return True
        content = self.read(request)
        self.loaded.pop(number, None)
        if len(self.loaded) + 1 > self.config.max_cpu_loras:
            self.drop_oldest()
        self.loaded[number] = content
        return True

    def drop_oldest(self) -> None:
        """Make room. Raises RuntimeError when every adapter is pinned."""
        for number in self.loaded:
            if number not in self.pinned:
                del self.loaded[number]
                return
        raise RuntimeError("All items are pinned, cannot remove oldest from the cache.")

    def read(self, request: Any) -> str:
        """The content of an adapter's files, checked as vLLM checks them."""
        folder = Path(get_adapter_absolute_path(request.lora_path))
        try:
            PEFTHelper.from_local_dir(str(folder), None).validate_legal(self.config)
            return self.digest(folder)
        except FileNotFoundError as problem:
            raise LoRAAdapterNotFoundError(request.lora_name, request.lora_path) from problem

    def digest(self, folder: Path) -> str:
        """Twelve hex digits over the files; read again only when they have changed, for this runs in each step."""
        stats = [(folder / name).stat() for name in ADAPTER_FILES]
        key = (folder, tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats))
        if key not in self.digests:
            self.digests[key] = content_digest(folder)
        return self.digests[key]

    def content(self, request: Any) -> str | None:
        """What a request's adapter holds now; None for the base model."""
        return None if request is None else self.loaded[request.lora_int_id]

    def remove(self, number: int) -> bool:
        """Forget an adapter; whether it was there."""
        self.pinned.discard(number)
        return self.loaded.pop(number, None) is not None

    def pin(self, number: int) -> bool:
        """Keep an adapter. Raises ValueError when it is not loaded."""
        if number not in self.loaded:
            raise ValueError(f"Pinning failed. LoRA {number} is not registered.")
        self.pinned.add(number)
        return True
