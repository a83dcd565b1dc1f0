"""What differs by release of OpenVINO GenAI. The adapter runs on 2024.6 and later: before, Python had no handles."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

OLDEST = Version("2024.6")  # the first with GenerationHandle in Python, and so with steps
CANCEL = Version("2025.1")  # before it, a handle was dropped, not cancelled
TEXT = Version("2025.4")  # the first whose SchedulerConfig can be printed
REASONS = Version("2026.2")  # the first in which generate() returns why an answer ended
NOT_REPORTED = "NONE"


class Release:
    """The Python interface of one release. `version`: the package's. Raises ValueError if it is too old."""

    def __init__(self, version: str) -> None:
        self.version = Version(version)
        if self.version < OLDEST:
            raise ValueError(f"openvino-genai {version} has no generation handles in Python: install {OLDEST} or newer")

    def scheduler_text(self, configuration: Any) -> str:
        """Return a SchedulerConfig as text."""
        if self.version >= TEXT:
            return " ".join(configuration.to_string().split())
        names = (name for name in dir(configuration) if not name.startswith("_"))
        values = ((name, getattr(configuration, name)) for name in names)
        return " ".join(f"{name}: {value}" for name, value in values if isinstance(value, int))

    def cancel(self, handle: Any) -> None:
        """Cancel a request. The next step frees its blocks."""
        if self.version >= CANCEL:
            handle.cancel()
        else:
            handle.drop()

    def finish_reason(self, result: Any) -> str:
        """Return the engine's name of the finish reason of a result of generate()."""
        return str(result.finish_reasons[0].name) if self.version >= REASONS else NOT_REPORTED


def takes_images(pipeline: Any) -> bool:
    """Return whether requests can have images, by the signatures that the class of pipelines documents."""
    return "images" in (pipeline.add_request.__doc__ or "")
