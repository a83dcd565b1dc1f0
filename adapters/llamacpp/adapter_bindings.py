"""llama.cpp's LoRA adapters: registered at the start, and chosen by number in each request's `lora` field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.protocol.engine import RequestRefused

BASE_MODEL = "base"


class RegisteredAdapters:
    """The server's adapters by the digest of their files, and the names that are bound to them.

    `switched_on`: the name of the adapter that is switched on for all requests that choose none.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        self.numbers = {digest: number for number, digest in enumerate(digests)}
        self.bound: dict[str, int] = {}
        self.switched_on: str | None = None

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
            raise RequestRefused(400, f"{name}: llama.cpp cannot replace an adapter after its start")
        self.bound[name] = number

    def unbind(self, name: str) -> None:
        """Unbind a name. Raises RequestRefused for an unknown name."""
        if self.bound.pop(name, None) is None:
            raise RequestRefused(404, f"no adapter has the name {name}")

    def scales(self, on: int | None) -> list[dict[str, Any]]:
        """Return the scales of all adapters: 1 for the adapter `on`, 0 for the others. None: 0 for all."""
        return [{"id": number, "scale": float(number == on)} for number in self.numbers.values()]

    def choice(self, model: str) -> list[dict[str, Any]] | None:
        """Return the `lora` field of a request to a served name. Raises RequestRefused for an unknown name.

        Requests to the base model have no such field, as with most clients, unless an adapter is switched on for all.
        """
        if model in self.bound:
            return [{"id": self.bound[model], "scale": 1.0}]
        if model not in (BASE_MODEL, self.switched_on):
            raise RequestRefused(404, f"no adapter has the name {model}")
        return self.scales(None) if model == BASE_MODEL and self.switched_on is not None else None
