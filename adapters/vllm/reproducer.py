"""How a reproducer uses vLLM: in the script's process, or as a server that the script starts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.reproduction import (
    FILES,
    RecordedEngine,
    Reproduction,
    attached_command,
    usual_layers,
)
from coldproof.adapters.vllm.cells.cell import VllmCell
from coldproof.adapters.vllm.server import CPU_ENVIRONMENT, PAIR

# Flags of the server alone, and those that mean nothing in a script: how many values follow each.
OF_SERVERS = {
    "--served-model-name": 1,
    "--host": 1,
    "--port": 1,
    "--worker-cls": 1,
    "--additional-config": 1,
    "--enable-prompt-tokens-details": 0,
    "--enable-scale-out": 0,
    "--trust-request-chat-template": 0,
    "--trust-request-mm-kwargs": 0,
    "--use-tqdm-on-load": 0,
    "--no-use-tqdm-on-load": 0,
}
TRANSFER = "--kv-transfer-config"
CONNECTORS = "coldproof.adapters.vllm.fingerprint.connectors."
TIER_FOLDER = re.compile(r"(?:\S*/)?[\w-]+\.tier")
GENERATED_LAYERS = {"full": ModelLayers.FULL, "window": ModelLayers.WINDOW, "state": ModelLayers.STATE}
STARTED = re.compile(r"(?:[A-Z_]+=\S+ )*python (?:-m vllm\.entrypoints\.openai\.api_server|SCRIPT pair) ")
PAIR_MODE = {"pair": "coldproof.adapters.vllm.prefill_decode:run_pair"}
FINGERPRINT_FLAGS = ("--worker-cls", "--additional-config")


def needs_worker(engine: RecordedEngine) -> bool:
    """Return whether a script cannot do without the fingerprint worker."""
    return why_worker(engine) != ""


def why_worker(engine: RecordedEngine) -> str:
    """Return why a case is one of the fingerprint worker alone; an empty string if the generated model shows it."""
    line, cell = engine.config.get("command", ""), engine.cell
    topology = cell.topology if isinstance(cell, VllmCell) else "full"
    if topology not in GENERATED_LAYERS:
        return "its layers are of kinds that no model this small has"
    if "--worker-cls " not in line:
        return ""
    if '"method":"ngram"' in line.replace(" ", ""):
        return "answers of so small a model accept no drafts from n-grams"
    if topology == "state":
        return "a CPU has no kernel that keeps states inside of a chunk"
    if topology == "window" and "--num-gpu-blocks-override" in line:
        return "its pool is too small for a model with such layers"
    return ""


def layers(cell: Cell | None) -> ModelLayers:
    """Return the layers of the generated model for a cell: those of its topology."""
    if not isinstance(cell, VllmCell) or cell.topology == "full":
        return ModelLayers.IMAGES if isinstance(cell, VllmCell) and cell.images else usual_layers(cell)
    return GENERATED_LAYERS.get(cell.topology, cell.model)


def note(engine: RecordedEngine) -> str:
    """Return what the engine needs in addition to vLLM; an empty string if nothing."""
    why = why_worker(engine)
    if not why:
        return model_note(engine)
    needs = "The script needs Coldproof's fingerprint worker (`pip install .` in a checkout of Coldproof)"
    return f"{needs}, because {why}."


def model_note(engine: RecordedEngine) -> str:
    """Return what a model that is named without a folder stands for; an empty string for others."""
    named = re.search(r"--model ([\w.-]+)(?: |$)", command(engine))
    if engine.generated_model or named is None:
        return ""
    return f"Replace `--model {named[1]}` by the folder of that model (`coldproof model NAME` fetches Coldproof's)."


def server_note(engine: RecordedEngine) -> str:
    """Return what the server needs in addition to vLLM: Coldproof, if its command names a module of it."""
    if "coldproof." not in command(engine):
        return model_note(engine)
    return "The server needs Coldproof (`pip install .` in a checkout of Coldproof), of which it uses a module."


def command(engine: RecordedEngine) -> str:
    """Return the engine's command, preceded by its environment, with the model folder and port of the script."""
    return f"{engine.config.get('environment', '')} {line_of(engine)}".strip()


def line_of(engine: RecordedEngine) -> str:
    """Return the engine's command without its environment: a quote in that must not change the command's words."""
    line = engine.config.get("command")
    if line is None:
        return attached_command(engine)
    line = re.sub(r"--port \d+", "--port 8000", line)
    if not needs_worker(engine):  # then any model works, and the script does not need Coldproof
        line = re.sub(r"--worker-cls \S+ --additional-config '[^']*' ?", "", line)
    line = line.replace(f"-m {PAIR} ", "SCRIPT pair ")  # the script is the router of both, too
    line = re.sub(r"--weight-transfer-config '[^']*' ?", "", line)  # the script loads the same weights by a reload
    if engine.generated_model:
        line = re.sub(r"--model \S+", f"--model {FILES}/model", line)
        line = re.sub(r'("method": "draft_model", "model": )"[^"]+"', rf'\1"{FILES}/model"', line)
    return line


def arguments(engine: RecordedEngine) -> dict[str, Any]:
    """Return the arguments of vLLM's class LLM with which it is the engine of a case."""
    words = words_of(engine)
    words = words[words.index("-m") + 2 :] if "-m" in words else []  # without it, it was not written by a run
    found: dict[str, Any] = {}
    while words:
        flag = words.pop(0)
        values = [] if not words or words[0].startswith("--") else [words.pop(0)]
        if flag in OF_SERVERS and not (flag in FINGERPRINT_FLAGS and needs_worker(engine)):
            continue
        name = flag.removeprefix("--").replace("-", "_")
        if values:
            found[name] = value(values[0])
        else:
            found[name.removeprefix("no_")] = not name.startswith("no_")
    if engine.generated_model and "kv_transfer_config" in found:
        found["kv_transfer_config"] = in_the_script(found["kv_transfer_config"])
    with_images = isinstance(engine.cell, VllmCell) and (
        engine.cell.images or layers(engine.cell) is ModelLayers.IMAGES
    )
    return found if with_images else found | {"skip_tokenizer_init": True}


def words_of(engine: RecordedEngine) -> list[str]:
    """Return the words of the engine's command; all of it as one word if it was not written by a run."""
    try:
        return shlex.split(line_of(engine))
    except ValueError:  # a quote is not closed
        return [line_of(engine)]


def in_the_script(value: Any) -> Any:
    """Return the options of a connector with its class in the script, and its folder below the script's."""
    if isinstance(value, dict):
        return {name: in_the_script(one) for name, one in value.items()}
    if isinstance(value, list):
        return [in_the_script(one) for one in value]
    if isinstance(value, str) and value.startswith(CONNECTORS):
        return "__main__"
    return f"{FILES}/tier" if isinstance(value, str) and TIER_FOLDER.fullmatch(value) else value


def parts(engine: RecordedEngine) -> Mapping[str, str]:
    """Return Coldproof's classes that the options of the connector name, with their modules."""
    options = {"kv_connector_extra_config": {}, **recorded_connector(engine)}
    named = [(options.get("kv_connector"), options.get("kv_connector_module_path"))]
    extra = options["kv_connector_extra_config"]
    named.append((extra.get("spec_name"), extra.get("spec_module_path")))
    return {str(name): str(module) for name, module in named if str(module).startswith(CONNECTORS)}


def recorded_connector(engine: RecordedEngine) -> dict[str, Any]:
    """Return the options of the connector that a case records."""
    words = words_of(engine)
    return dict(value(words[words.index(TRANSFER) + 1])) if TRANSFER in words else {}


def value(word: str) -> Any:
    """Return a flag's value: of JSON or a number, what it stands for; else the text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return what a script in the engine's process needs."""
    recorded = (pair.partition("=") for pair in engine.config.get("environment", "").split())
    variables = {name: value for name, _, value in recorded if name.startswith("VLLM_CPU_")}
    return {"ENVIRONMENT": variables | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, "SETTINGS": arguments(engine)}


def startable(engine: RecordedEngine) -> bool:
    """Return whether a script may start the command of a case: it is vLLM's server, and not just any program."""
    return STARTED.match(command(engine)) is not None


def server_settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the commands of the server, and of one without a second tier; empty if a script may not start it."""
    started = command(engine) if startable(engine) else ""
    return {"COMMAND": started, "COLD_COMMAND": re.sub(rf"{TRANSFER} '[^']*'(?:\"'\"'[^']*')* ?", "", started)}


LEFT_OUT = (*("DO_NOT_TRACK", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS"), *CPU_ENVIRONMENT)
IN_PROCESS = Reproduction(
    client="coldproof.adapters.vllm.script:InProcess",
    command=command,
    settings=settings,
    packages=("vllm",),
    in_process=True,
    together=True,
    steps=True,
    note=note,
    layers=layers,
    parts=parts,
    left_out=LEFT_OUT,
    lacks=("CHATS", "ENDPOINTS", "POOLED", "HEADERS", "SIDES", "PAUSES", "SCORES", "NOISY"),
    otherwise=lambda: OPENAI,
)
OPENAI: Reproduction = Reproduction(
    client="coldproof.adapters.vllm.script_server:Server",
    command=command,
    settings=server_settings,
    packages=("vllm",),
    started=startable,
    modes=lambda engine: PAIR_MODE if "SCRIPT pair " in command(engine) else {},
    note=server_note,
    layers=layers,
    left_out=LEFT_OUT,
    lacks=("SESSIONS", "CONTENT"),
    otherwise=lambda: IN_PROCESS,
)
