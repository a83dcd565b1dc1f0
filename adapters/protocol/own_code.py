"""Tells what Coldproof's own code raised in an engine's process from what the engine raised.

Coldproof's worker and connectors run inside vLLM's process. An exception of theirs ends the engine just like one of the
engine's, but it is our fault: its verdict must be ERROR, never a violation. Both leave a traceback in the engine's log.
"""

from __future__ import annotations

import re
import traceback

from coldproof import IMPORT_ROOT

OWN_CODE = "Coldproof's own code failed in the engine's process"
FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
PROCESS = re.compile(r"\(\w+(?: pid=\d+)?\)")  # begins a line of vLLM's log; the lines of two processes may alternate
HEAD = "Traceback (most recent call last)"
OWN = f"{IMPORT_ROOT}/coldproof/"
MISTAKES = ("builtins", "numpy", "msgspec")  # the modules of exceptions that nobody raises on purpose
# What stands for the engine's own: an injected fault, and what our worker raises in the place of the engine's.
OF_THE_ENGINE = ("/faults/", "/fingerprint/engine_errors.py")
# What both sides call. Whoever called it is to blame.
LIBRARIES = re.compile(r"/(?:torch|numpy|msgspec)/|/lib/python3\.\d+/(?!(?:site|dist)-packages)|<(?:frozen|string)")


class Traceback:
    """The frames of one traceback that are not in libraries, outermost first."""

    def __init__(self) -> None:
        self.in_engine = False  # whether there was a frame of the engine
        self.own = ""  # the innermost frame, if it is ours and the engine called it

    def add(self, path: str, line: str, function: str) -> None:
        """Add the next inner frame."""
        if LIBRARIES.search(path):
            return
        own = path.startswith(OWN) and not any(part in path for part in OF_THE_ENGINE)
        self.own = f"{path.removeprefix(OWN)}:{line}, in {function}" if own and self.in_engine else ""
        self.in_engine = self.in_engine or not own


def own_failure(text: str) -> str:
    """Return where Coldproof's own code raised an exception whose traceback the text has; "" if it did not.

    The innermost frame decides that is not in a library: an exception that the engine raised when our code called it is
    the engine's. Our frame counts only if the engine called it: what a client of the engine raises is no such failure.
    """
    latest: dict[str, Traceback] = {}  # by the process that wrote it
    for line in text.splitlines():
        writer = PROCESS.match(line)
        process = writer[0] if writer else ""
        if HEAD in line:
            if process in latest and latest[process].own:
                break
            latest[process] = Traceback()
        frame = FRAME.search(line)
        if frame and process in latest:
            latest[process].add(*frame.groups())
    return next((one.own for one in latest.values() if one.own), "")


def own_failure_behind(problem: BaseException) -> str:
    """Return the same for what caused an exception in this process.

    What the engine has caught is no failure, and neither is an exception of the engine's own class: our worker raises
    it on purpose, in the place of the engine's worker.
    """
    cause = problem.__cause__
    if cause is None or type(cause).__module__.partition(".")[0] not in MISTAKES:
        return ""
    return own_failure("".join(traceback.format_exception(cause, chain=False)))
