"""How a reproducer runs OpenVINO GenAI, in the process of the script."""

from __future__ import annotations

import json
import shlex

from coldproof.adapters.openvino import ir_model
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, source_of, template_beside


def command(engine: RecordedEngine) -> str:
    """Return the pipeline's arguments, as JSON."""
    return json.dumps(shlex.split(engine.config.get("arguments", "")))


OPENVINO = Reproduction(
    template=template_beside(__file__),
    command=command,
    packages=("openvino-genai", "openvino", "numpy"),
    carries=(source_of(ir_model),),
    in_process=True,
)
