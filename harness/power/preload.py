"""Imports the engines once in the fork server, because importing an engine takes longer than most runs.

This module must not start anything: no engine, no thread, no process group.
"""

from __future__ import annotations

import gc

import hypothesis  # noqa: F401
import pytest  # noqa: F401

import coldproof.harness.execution.engines.pool  # noqa: F401
from coldproof.adapters.registry import ENGINES

for spec in ENGINES.values():
    if spec.preload is not None:
        spec.preload()
gc.collect()
gc.freeze()  # a collection in a fork would touch, and so copy, all imported objects
