"""How a reproducer runs OpenVINO GenAI, in the process of the script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction

EXACT = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
OF_COLDPROOF = ("adapters=registered", "weights=int8", "parts=images")


def arguments(engine: RecordedEngine) -> list[str]:
    """Return the pipeline's arguments, as Coldproof's users write them."""
    recorded = engine.config.get("arguments", "")
    try:
        return shlex.split(recorded)
    except ValueError:  # a quote that is not closed: it was not written by a run
        return [recorded]


def command(engine: RecordedEngine) -> str:
    """Return the pipeline's arguments, as JSON."""
    return json.dumps(arguments(engine))


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the fields of the scheduler's configuration, and the properties of the device (in capitals)."""
    words = [word.partition("=") for word in arguments(engine) if word not in OF_COLDPROOF]
    found = {name: value(text) for name, _, text in words}
    return {"SETTINGS": EXACT | found, "INT8": "weights=int8" in arguments(engine)}


def value(text: str) -> object:
    """Return what the text of an argument stands for."""
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


OPENVINO = Reproduction(
    client="coldproof.adapters.openvino.script:Pipelines",
    command=command,
    settings=settings,
    packages=("openvino-genai", "openvino", "numpy"),
    in_process=True,
    together=True,
    steps=True,
    steps_for=("IMAGES", "SCORES", "BOUNDED"),
    counts=False,
    dies_with_it=True,
)
