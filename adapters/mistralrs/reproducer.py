"""How a reproducer runs mistral.rs, in the process of the script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from coldproof.adapters.common.started_server import number_of
from coldproof.adapters.mistralrs.setup import ENVIRONMENT, KEPT, USUAL_KEPT
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return how many sequences are kept, and the variables of the engine."""
    kept = number_of(KEPT, shlex.split(engine.config.get("command", "")))
    return {"SETTINGS": {"kept": USUAL_KEPT if kept is None else kept}, "ENVIRONMENT": ENVIRONMENT}


MISTRALRS = Reproduction(
    client="coldproof.adapters.mistralrs.script:MistralRs",
    command=lambda engine: engine.config.get("command", ""),
    settings=settings,
    packages=("mistralrs",),
    in_process=True,
    dies_with_it=True,
)
