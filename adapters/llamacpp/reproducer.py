"""How a reproducer starts and uses llama.cpp's server."""

from __future__ import annotations

import re

from coldproof.adapters.llamacpp import gguf, setup
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction, source_of, template_beside


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files, with one adapter for each content, in their order."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config["command"])
    words = re.sub(r" --lora \S+", "", words)
    words = re.sub(r"--slot-save-path \S+", f"--slot-save-path {FILES}/slots", words)
    if engine.generated_model:
        words = re.sub(r"--model \S+", f"--model {FILES}/model.gguf", words)
    return words + "".join(f" --lora {FILES}/adapter-{content}.gguf" for content in engine.contents)


LLAMACPP = Reproduction(template=template_beside(__file__), command=command, carries=(source_of(gguf), setup.SERVER))
