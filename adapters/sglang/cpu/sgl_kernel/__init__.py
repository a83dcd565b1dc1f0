"""Stands in for SGLang's kernels, whose package is made for CUDA: what is imported from it fails where it is called.

A server on a CPU computes with torch and calls none of them, but each of its processes imports them. There, memory is
not pinned, which torch cannot do without an accelerator, and a stream takes the arguments of those of an accelerator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

MAKERS = ("arange", "empty", "empty_like", "full", "ones", "tensor", "zeros", "zeros_like")


class Placeholder(ModuleType):
    """A module below this package, or what is imported from one."""

    def __getattr__(self, name: str) -> Placeholder:
        return placeholder(self.__name__, name)


class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this package."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module below this package, otherwise None."""
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a module in which every name is defined."""
        return Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing: the module has no code."""


def placeholder(parent: str, name: str) -> Placeholder:
    """Return what stands for a name of a module. Raises AttributeError for those that Python itself looks up."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Placeholder(f"{parent}.{name}")


def __getattr__(name: str) -> Placeholder:
    return placeholder(__name__, name)


def without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch that makes a tensor, without its argument `pin_memory`."""

    @functools.wraps(make)
    def made(*args: Any, **named: Any) -> Any:
        named.pop("pin_memory", None)
        return make(*args, **named)

    return made


class Stream(torch.cpu.Stream):  # type: ignore[misc]  # torch gives it no type
    """A stream of a CPU, on which every operation has ended when it returns."""

    def __init__(self, device: object = None, priority: int = -1) -> None:
        super().__init__(priority)
        self.device = device

    def wait_stream(self, _stream: object) -> None:
        """Do nothing: what another stream has begun has ended."""


sys.meta_path.insert(0, Modules())
if not torch.cuda.is_available():
    for maker in MAKERS:
        setattr(torch, maker, without_pinning(getattr(torch, maker)))
    torch.cpu.Stream = Stream
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
