"""Whose code raised the error that ended an engine, found by the traceback in its log or behind its exception."""

from __future__ import annotations

import pytest

from coldproof import IMPORT_ROOT
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.own_code import own_failure, own_failure_behind

SITE = "/usr/lib/python3.11/site-packages"
ENGINE = f"{SITE}/vllm/v1/engine/core.py"
WORKER = f"{IMPORT_ROOT}/coldproof/adapters/vllm/fingerprint/worker.py"
FAULT = f"{IMPORT_ROOT}/coldproof/adapters/vllm/faults/keys/tokens.py"
IN_ITS_PLACE = f"{IMPORT_ROOT}/coldproof/adapters/vllm/fingerprint/engine_errors.py"
TORCH, STDLIB = f"{SITE}/torch/_tensor.py", "/usr/lib/python3.11/json/decoder.py"
CLIENT = f"{IMPORT_ROOT}/coldproof/adapters/server/http_client.py"
OURS = "adapters/vllm/fingerprint/worker.py:7, in step"


def traceback_of(*paths: str, writer: str = "") -> list[str]:
    """Return the lines of a traceback through these files, each after the name of the process that wrote it."""
    frames = [f'  File "{path}", line 7, in step' for path in paths]
    return [f"{writer}{line}" for line in ("Traceback (most recent call last):", *frames, "ValueError: no")]


@pytest.mark.parametrize(
    ("paths", "where"),
    [
        ((ENGINE, WORKER), OURS),
        ((ENGINE, WORKER, TORCH), OURS),
        ((ENGINE, WORKER, STDLIB), OURS),
        ((ENGINE, WORKER, ENGINE), ""),
        ((ENGINE,), ""),
        ((ENGINE, FAULT), ""),
        ((ENGINE, WORKER, IN_ITS_PLACE), ""),
        ((CLIENT, STDLIB), ""),
        ((), ""),
    ],
    ids=[
        "the worker raises",
        "a library that the worker called",
        "the standard library",
        "the engine, which the worker called",
        "the engine",
        "an injected fault",
        "an error in the place of the engine's worker",
        "a client of the engine",
        "no frame",
    ],
)
def test_the_innermost_frame_outside_of_libraries_is_the_cause(paths: tuple[str, ...], where: str) -> None:
    """Our own code is the cause only in the engine's process, and only where the engine has called it."""
    assert own_failure("\n".join(["INFO ready", *traceback_of(*paths), "INFO over"])) == where


def test_later_tracebacks_of_the_engine_hide_nothing() -> None:
    """vLLM logs the end of its core again in the process that serves."""
    text = [*traceback_of(ENGINE, WORKER), *traceback_of(ENGINE), *traceback_of(ENGINE)]
    assert own_failure("\n".join(text)) == OURS


def test_lines_of_two_processes_may_alternate() -> None:
    """The traceback of each process is read separately."""
    ours = traceback_of(ENGINE, WORKER, writer="(EngineCore pid=7) ERROR [core.py:1] ")
    theirs = traceback_of(ENGINE, ENGINE, writer="(APIServer pid=8) ERROR [core.py:1] ")
    mixed = [line for pair in zip(ours, theirs, strict=True) for line in pair]
    assert own_failure("\n".join(mixed)) == OURS
    assert own_failure("\n".join(theirs)) == ""


def test_what_an_adapter_raises_itself_is_no_failure_of_an_engine() -> None:
    """Only the exception behind an adapter's own error counts."""
    assert own_failure_behind(EngineDied("gone")) == ""
    with pytest.raises(EngineDied) as raised:
        raise EngineDied("gone") from ValueError("no")
    assert own_failure_behind(raised.value) == ""
