"""Imported once, by the process that runs are forked from: importing vLLM takes longer than most runs do.

Nothing is started here: no engine, no thread, no process group.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util

import hypothesis  # noqa: F401
import pytest  # noqa: F401

import harness.session  # noqa: F401
from adapters import inproc_setup

MODULES = (
    *inproc_setup.PARSERS,
    "engine.arg_utils",
    "model_executor.models.registry",
    "renderers.registry",
    "tokenizers",
    "transformers_utils.config",
    "usage.usage_lib",
    "v1.core.sched.scheduler",
    "v1.engine.core",
    "v1.engine.llm_engine",
    "v1.executor.uniproc_executor",
    "v1.structured_output",
    "v1.worker.cpu_worker",
)

if importlib.util.find_spec("vllm") is not None:
    with inproc_setup.start_environment():
        for name in MODULES:
            with contextlib.suppress(ImportError):  # it moved in another version; the run imports it then
                inproc_setup.vllm_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module("adapters.fingerprint.worker")
gc.collect()
gc.freeze()  # a collection in a fork would touch, and so copy, all of what was imported
