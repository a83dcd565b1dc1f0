"""OpenVINO GenAI, in the script's own process."""

from __future__ import annotations

import json
import shlex

from adapters import openvino_files
from harness.dialects.dialect import Dialect, source_of
from reports.schema import Case


def command(case: Case) -> str:
    """The words that its pipeline is made of, as JSON."""
    return json.dumps(shlex.split(case.engine_config.get("arguments", "")))


OPENVINO = Dialect(
    template="openvino.py.j2",
    command=command,
    packages=("openvino-genai", "openvino", "numpy"),
    carries=(source_of(openvino_files),),
    in_process=True,
)
