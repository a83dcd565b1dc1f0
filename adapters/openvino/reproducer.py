"""How a reproducer runs OpenVINO GenAI, in the process of the script."""

from __future__ import annotations

import json
import shlex

from coldproof.adapters.openvino import ir_model, seeing_ir
from coldproof.adapters.protocol import images
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, source_of, template_beside


def command(engine: RecordedEngine) -> str:
    """Return the pipeline's arguments, as JSON."""
    recorded = engine.config.get("arguments", "")
    try:
        return json.dumps(shlex.split(recorded))
    except ValueError:  # a quote that is not closed: it was not written by a run
        return json.dumps([recorded])


PACKAGES = ("openvino-genai", "openvino", "numpy")
WITH_IMAGES = Reproduction(
    template=template_beside(__file__),
    command=command,
    packages=PACKAGES,
    carries=tuple(map(source_of, (images, ir_model, seeing_ir))),
    in_process=True,
    only_script=True,
)
OPENVINO = Reproduction(
    template=template_beside(__file__),
    command=command,
    packages=PACKAGES,
    carries=(source_of(ir_model),),
    in_process=True,
    with_content=WITH_IMAGES,
)
