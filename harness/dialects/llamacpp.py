"""llama.cpp's server, by its own routes."""

from __future__ import annotations

import re

from adapters import gguf_files, llamacpp_setup
from harness.dialects.dialect import FILES, Dialect, made_on_the_spot, source_of
from reports.schema import Case


def command(case: Case) -> str:
    """The server with the script's own files: an adapter for each content of the case, numbered in their order."""
    given = re.sub(r"--port \d+", "--port 8000", case.engine_config["command"])
    given = re.sub(r" --lora \S+", "", given)
    given = re.sub(r"--slot-save-path \S+", f"--slot-save-path {FILES}/slots", given)
    if made_on_the_spot(case):
        given = re.sub(r"--model \S+", f"--model {FILES}/model.gguf", given)
    return given + "".join(f" --lora {FILES}/adapter-{content}.gguf" for content in case.recipes)


LLAMACPP = Dialect(
    template="llamacpp.py.j2",
    command=command,
    carries=(source_of(gguf_files), llamacpp_setup.SERVER),
)
