"""Loads a model in Transformers and makes the manager of its continuous batching.

Torch and Transformers are imported here only, and only when an engine is started.
"""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from adapters.base import EngineStartError
from adapters.transformers_loop import Loop

PACKAGES = ("torch", "transformers")
INSTALL = "pip install torch transformers peft accelerate"
LOGGER = "ContinuousBatchingLogger"
# Exact: float32, no graphs, no second batch in flight, the attention that every machine has.
MODEL_FIELDS = {"device": "cpu", "dtype": "float32", "attn_implementation": "sdpa"}
FIELDS: dict[str, object] = {
    "page_size": 16,
    "num_blocks": 256,
    "max_batch_tokens": 256,
    "use_cuda_graph": False,
    "use_async_batching": False,
    "auto_switch_to_flash": False,
    "return_logprobs": True,
}
SHARING = "allow_block_sharing"

_first = threading.Lock()
_frozen = False


class TransformersOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: a model folder, `NAME=VALUE` fields of a ContinuousBatchingConfig (or device, dtype,
    attn_implementation of the model), and where the log goes."""

    model: str
    prefix_caching: bool
    arguments: tuple[str, ...] = ()
    log: Path

    @property
    def given(self) -> dict[str, object]:
        """The fields by name: ours, the cache switched as wanted, and behind them those that were given."""
        said = dict(argument.partition("=")[::2] for argument in self.arguments)
        return {**MODEL_FIELDS, **FIELDS, SHARING: self.prefix_caching, **{n: value_of(v) for n, v in said.items()}}

    @property
    def words(self) -> str:
        """The fields in a line, as JSON."""
        return json.dumps(self.given)


class Built(msgspec.Struct, frozen=True):
    """A loop that stands at its first pause, its model and tokenizer (None where the folder has none), its log."""

    loop: Loop
    model: Any
    tokenizer: Any
    log: logging.Handler


def value_of(text: str) -> object:
    """A field's value: a Python literal, or the word itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_installed() -> None:
    """Raise EngineStartError where a package is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineStartError(f"{' and '.join(missing)} not installed for {sys.executable}: {INSTALL}")


def build(options: TransformersOptions) -> Built:
    """For the driver's thread: everything up to the first pause. Raises EngineStartError."""
    check_installed()
    quiet()
    given = options.given
    model_fields = {name: given.pop(name) for name in MODEL_FIELDS}
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = logged_to(options.log)
    try:
        model = load_model(options.model, **model_fields)
        generation = importlib.import_module("transformers.generation.configuration_utils")
        manager = model.init_continuous_batching(
            generation.GenerationConfig(do_sample=False, eos_token_id=-1),
            generation.ContinuousBatchingConfig(**given),
        )
        if not hasattr(manager, "pause"):
            raise EngineStartError(f"transformers {version()} has no pause: install 5.23 or newer")
        built = Built(Loop(manager), model, load_tokenizer(options.model), log)
        also_of(log, manager._generation_thread)
        return built
    except EngineStartError:
        close_log(log)
        raise
    except Exception as problem:
        close_log(log)
        raise EngineStartError(f"Transformers did not start ({options.words}): {problem}") from problem


def load_model(folder: str, *, device: object, dtype: object, attn_implementation: object) -> Any:
    """The model, ready to answer."""
    torch, library = importlib.import_module("torch"), importlib.import_module("transformers")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as many as a tiny model can use
    model = library.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, str(dtype)), attn_implementation=attn_implementation, local_files_only=True
    )
    return model.to(device)


def load_tokenizer(folder: str) -> Any:
    """Its tokenizer, None where there is none."""
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        return None


def quiet() -> None:
    """Nothing of Transformers' on our standard error; once also what an engine's end would search for garbage in."""
    global _frozen
    with _first:
        words = importlib.import_module("transformers.utils.logging")
        words.set_verbosity_error()
        words.disable_progress_bar()
        importlib.import_module("transformers.generation.continuous_batching")
        logging.getLogger(LOGGER).setLevel(logging.INFO)
        for handler in [h for h in logging.getLogger(LOGGER).handlers if type(h) is logging.StreamHandler]:
            logging.getLogger(LOGGER).removeHandler(handler)
        if not _frozen:
            gc.freeze()  # stopping a manager collects garbage: half a second each time with torch's modules among it
            _frozen = True


class OfThese(logging.Filter):
    """Lets pass what was logged by an engine's own two threads: the driver, and the loop that this one starts."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = {threading.get_ident()}

    def filter(self, record: logging.LogRecord) -> bool:
        """By the thread's number."""
        return record.thread in self.threads


def logged_to(path: Path) -> logging.Handler:
    """What continuous batching logs goes there."""
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s"))
    handler.addFilter(OfThese())
    logging.getLogger(LOGGER).addHandler(handler)
    return handler


def also_of(log: logging.Handler, thread: threading.Thread) -> None:
    """Have another thread's words in a log, too."""
    for each in log.filters:
        if isinstance(each, OfThese) and thread.ident is not None:
            each.threads.add(thread.ident)


def close_log(log: logging.Handler) -> None:
    """No more of it."""
    logging.getLogger(LOGGER).removeHandler(log)
    log.close()


def version() -> str:
    """The package's."""
    return str(importlib.import_module("transformers").__version__)
