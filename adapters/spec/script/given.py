"""What a case gives its script: literals in place of these values, and which of these features it uses.

A script has only the branch of `if FEATURE:` that its case takes. Here every feature is on, so that mypy and tests read
all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILES = Path("coldproof-files").resolve()
ATTEMPTS = 5
STALL_SECONDS = 60
COMMAND = ""  # starts the server
COLD_COMMAND = ""  # starts a server without a second tier
MODEL_FILE = ""  # of llama.cpp
VOCABULARY, WIDTH = 260, 128  # tokens of the model, and numbers for each
KIND = ""  # the architecture, as llama.cpp calls it
READABLE = False  # in a GGUF file, the text of each printable token is its character
CHARACTERS = True  # of a server by URL: it takes texts, of which each character is a token
COLD_WAY = ""  # of a server by URL: how a request gets past its cache
DISPLACING = 0  # of a server by URL: how many other prompts displace one
NAMED = True  # of mlx-lm: requests for an adapter name the model's path
UPDATES_FLUSH = True  # of SGLang: updates of the weights flush the cache
INT8 = False  # of OpenVINO: the weights have 8 bits
ENVIRONMENT: dict[str, str] = {}  # of an engine in the script's process
SETTINGS: dict[str, Any] = {}  # of an engine in the script's process
MODEL: dict[str, Any] = {}  # the config.json of the generated model
SHAPES: dict[str, tuple[int, ...]] = {}  # of its tensors; {} stands for the number of a layer
LAYERS = 2
NAMES: dict[str, str] = {}  # parts of the names of tensors, and what they are in a GGUF file
METADATA: dict[str, Any] = {}  # the key-value pairs of a GGUF file of the model
ADAPTERS: dict[str, dict[str, Any]] = {}  # a recipe for each content
START_SEED = 0  # of the weights with which the engine starts
WEIGHTS = {"start": 0, "A": 1, "B": 2}  # the seeds of the versions of the weights
NOISE: dict[str, float | None] = {"gap": 0.0}  # in nats: by how much correct answers differ
ROUNDING = 1e-4  # by how much a value of a vector may differ

TIERED: bool = True  # there is a second tier, which may find what a new salt does not
LMCACHE: bool = True  # which is LMCache's
GENERATED: bool = True  # the model is the tiny one that the script makes
ADAPTED: bool = True  # adapters are loaded
SWITCHES: bool = True  # and some are switched on for all requests
OWN_ADAPTERS: bool = True  # some of them are files of the user
STEPPED: bool = True  # the script steps the engine itself
TOGETHER: bool = True  # some requests run at the same time, or beside a change
MEANWHILE: bool = True  # a change is made while requests run
MIDWAY_ADAPTERS: bool = True  # and some such change replaces an adapter
LIMITED: bool = True  # some requests limit what a second tier loads or stores for them
LATE: bool = True  # some requests are sent later than others
ABORTS: bool = True  # some clients disconnect
CONTINUES: bool = True  # some prompts continue a request with its answer
CUTS: bool = True  # of which some leave out a part
EDITS: bool = True  # some segments have a changed token, or two that are swapped
FAILS: bool = True  # some requests may fail
FAILURE: bool = True  # the request that the case is about may fail
DIES: bool = True  # and so may the script, with the engine
ONE_BY_ONE: bool = True  # every request is sent alone, and read to its end
AT_ONCE: bool = True  # or all requests of a step are served by one call
COUNTS: bool = True  # the engine reports how many tokens of a prompt were cached
TOKENS_ONLY: bool = True  # of an answer, only its tokens are compared, with one cold answer
CHATS: bool = True
ENDPOINTS: bool = True  # some requests name a route
SALTS: bool = True
HEADERS: bool = True
EXTRA: bool = True  # some requests have more fields than usual
WHOLE: bool = True  # some answers cannot be streamed
SEVERAL: bool = True  # some requests want several answers
SCORES: bool = True  # logprobs are compared
ENDS: bool = True  # the reason why an answer ended is compared
POOLED: bool = True  # some answers are vectors
SESSIONS: bool = True
SCOPES: bool = True  # a reset names caches beside the prefix cache, or leaves that one as it is
CONTENT: bool = True  # some prompts have embedding rows or images
ROWS: bool = True
IMAGES: bool = True
COUNTED: bool = True  # the case is about the server's counter of hits
BOUNDED: bool = True  # the case is about how many tokens of a prompt were cached
HANGS: bool = True  # the case is about an answer that does not come
CRASHES: bool = True  # the case may be about an engine that ends
UPDATES: bool = True  # the weights are updated
RESTARTS: bool = True
REMADE: bool = True  # a restart replaces the weights
SIDES: bool = True  # two servers answer together
NOISY: bool = True  # the engine's correct answers differ
FOUR_BITS: bool = True  # the matrices of llama.cpp's model are in 4 bits
EVENTS: bool = True  # the case is about the KV events that the engine publishes
PAUSES: bool = True  # generation is paused, or the engine sleeps
