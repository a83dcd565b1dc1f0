"""vLLM, and whatever speaks as its server does."""

from __future__ import annotations

import re

from harness.cells import CELLS
from harness.dialects.dialect import FILES, Dialect, made_on_the_spot
from reports.schema import Case


def needs_worker(case: Case) -> bool:
    """Whether the case's cell has layers that only the fingerprint worker has."""
    return case.cell in CELLS and CELLS[case.cell].only_fingerprint


def command(case: Case) -> str:
    """The engine's command with the script's own model folder and port, and the environment in front."""
    given = case.engine_config.get("command")
    if given is None:
        return f"(your server at {case.engine_config.get('url', 'its URL')})"
    given = re.sub(r"--port \d+", "--port 8000", given)
    if not needs_worker(case):  # then any model will do, and nothing of Coldproof's is needed
        given = re.sub(r"--worker-cls \S+ --additional-config '[^']*' ?", "", given)
    elif "--worker-cls" in given:
        given = f"PYTHONPATH=COLDPROOF_CHECKOUT {given}"
    if made_on_the_spot(case):
        given = re.sub(r"--model \S+", f"--model {FILES}/model", given)
    return f"{case.engine_config.get('environment', '')} {given}".strip()


OPENAI = Dialect(template="openai.py.j2", command=command)
