"""LoRA adapters that an engine registers at its start. To load a name means to bind it to a registered adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.protocol.engine import RequestRefused


class RegisteredAdapters:
    """The adapters' numbers by the digest of their files, and by the names that are bound to them."""

    def __init__(self, digests: Sequence[str]) -> None:
        self.numbers = {digest: number for number, digest in enumerate(digests)}
        self.bound: dict[str, int] = {}

    def number_of(self, path: str) -> int:
        """Return the number of the adapter with these files. Raises RequestRefused if it is not registered."""
        try:
            return self.numbers[content_digest(Path(path))]
        except OSError as problem:
            raise RequestRefused(404, f"no adapter files in {path}: {problem.strerror}") from problem
        except KeyError as problem:
            raise RequestRefused(404, f"the adapter in {path} was not registered at the start") from problem

    def bind(self, name: str, path: str, *, in_place: bool) -> None:
        """Bind a name to the adapter with these files. Raises RequestRefused for a bound name or with `in_place`."""
        number = self.number_of(path)
        if in_place or name in self.bound:
            raise RequestRefused(400, f"{name}: the engine cannot replace an adapter after its start")
        self.bound[name] = number

    def bound_to(self, name: str) -> int:
        """Return the number of the adapter that a name is bound to. Raises RequestRefused for an unknown name."""
        if name not in self.bound:
            raise RequestRefused(404, f"no adapter has the name {name}")
        return self.bound[name]

    def unbind(self, name: str) -> None:
        """Unbind a name. Raises RequestRefused for an unknown name."""
        self.bound_to(name)
        del self.bound[name]
