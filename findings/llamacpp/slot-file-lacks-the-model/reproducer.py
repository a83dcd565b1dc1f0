#!/usr/bin/env python3
"""TIER-6-ed4e46d8: Request 1 to 'base' differs from the cold answer at token 0 (10 of its 11 prompt tokens came from the cache): its cached prefix was written by request 0 for base model with other weights at the same path, while this request is for base model.

Stand-alone script: needs Python 3.11 and `requests`, not Coldproof.

  1.  python TIER-6-ed4e46d8.py          writes a tiny random model and the adapters to ./coldproof-files
  2.  start the server with COMMAND (below), or with the Python package xllamacpp: python TIER-6-ed4e46d8.py serve

  3.  python TIER-6-ed4e46d8.py http://127.0.0.1:8000


Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import importlib
import json
import math
import os
import queue
import random
import re
import secrets
import shutil
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

ATTEMPTS = 1
STALL_SECONDS = 60
SCORE_NATS = 0.02  # tolerance for the order of additions; a wrong block changes scores by tenths
FILES = Path("coldproof-files").resolve()
NOISE = None  # None: cold answers are deterministic
COMMAND = 'llama-server --model coldproof-files/model.gguf --port 8000 --no-warmup --metrics --slots --lora-init-without-apply --cache-type-k f32 --cache-type-v f32 --flash-attn off --threads 1 --threads-batch 1 --parallel 1 --slot-save-path coldproof-files/slots --cache-ram 0 --ctx-size 8192'
RECIPES = {}


def scenario(server):
    """Run the steps. A prompt is a list of (segment, length, changed token); equal names share tokens.

    A fourth number is the position of a token that is swapped with the next one.
    """
    server.ask([dict(n=0, to=None, prompt=[('stem', 7, None)], continues=None, tokens=8)])
    server.save('kept')
    server.restart('other weights at the same path')
    server.restore('kept')
    server.ask([dict(n=1, to=None, prompt=[('stem', 7, None)], continues=None, tokens=8)])


def is_wrong(server):
    """Return whether the answer to request 1 of the scenario is wrong."""
    return server.is_wrong(1, cached_at_most=None, cached_at_least=None)


class Story:
    """State of one attempt. A nonce makes names and prompts unique."""

    def __init__(self):
        self.nonce = secrets.token_hex(3)
        self.behind, self.sent, self.replies, self.versions, self.chats = {}, {}, {}, {}, {}

    def spelled(self, symbol):
        """Return a name or salt as this attempt sends it. Parts joined by + are sent with hyphens."""
        return "-".join(f"{part}-{self.nonce}" for part in symbol.split("+"))

    def changed(self, name, content):
        """Record the new content of a name. A running request may be answered with the old or the new content."""
        self.behind[name] = content
        for number, spec in self.sent.items():
            if spec["to"] == name and not self.replies[number].over:
                self.versions[number].append(content)

    def update_weights(self, _version, same_path=False):
        """Stop the script: only a server with a route for it has this method."""
        raise SystemExit(f"this script cannot change the weights of this engine ({same_path=})")

    def restart(self, before):
        """Wait until the user has replaced the server by one over the same storage."""
        self.behind.clear()
        input(f"The server has {before}. Stop it, press Enter: ")
        weights = FILES / "model" / "model.safetensors"
        others = weights.read_bytes()
        make_model(FILES / "model")
        if weights.read_bytes() == others:
            give_up("the server had the model's own weights from the start: begin again with step 1")
        translate_files()
        input("Start it again with COMMAND, and when it is ready, press Enter: ")

    def ask(self, specs, after_tokens=0, change=None):
        """Send requests concurrently. Make the change after the first request has produced `after_tokens` tokens."""
        due = threading.Event()
        threads = [
            threading.Thread(target=self.ask_one, args=(spec, due, after_tokens if i == 0 and change else None))
            for i, spec in enumerate(specs)
        ]
        for spec in specs:
            self.sent[spec["n"]] = spec | {"ids": self.render(spec) if spec.get("chat") else self.prompt(spec)}
            self.versions[spec["n"]], self.replies[spec["n"]] = [self.behind.get(spec["to"])], Reply()
        for thread in threads:
            thread.start()
        if change:
            due.wait(60 if after_tokens else 0)
            change()
        for thread in threads:
            thread.join()

    def ask_one(self, spec, due, after_tokens):
        """Send one request. Sets `due` after enough tokens, and disconnects where the scenario does."""
        time.sleep(spec.get("offset_ms", 0) / 1000)
        reply, (disconnect_after, disconnect_ms) = self.replies[spec["n"]], spec.get("abort", (None, 0))
        try:
            for event in self.answers(self.sent[spec["n"]], disconnect_ms / 1000 or STALL_SECONDS):
                reply.add(event)
                if after_tokens is not None and len(reply.ids) >= after_tokens:
                    due.set()
                if disconnect_after is not None and len(reply.ids) >= max(1, disconnect_after):
                    break
        except (OSError, RuntimeError, ValueError) as problem:
            print(f"request {spec['n']}: {problem}")
            reply.failed = True
        reply.over = True
        due.set()

    def first(self):
        """Return the first tokens of every prompt of this attempt."""
        return [32 + byte % 95 for byte in hashlib.sha256(self.nonce.encode()).digest()[:4]]

    def segment(self, name, length, changed, swapped=None):
        """Return the tokens of a named segment."""
        source = random.Random(f"{self.nonce}/{name}")
        part = [source.randint(32, 126) for _ in range(length)]
        if changed is not None:
            part[changed] = 32 + (part[changed] - 31) % 95
        if swapped is not None:
            part[swapped : swapped + 2] = part[swapped + 1], part[swapped]
        return part

    def prompt(self, spec):
        """Return the token ids of a prompt."""
        ids = [i for segment in spec["prompt"] for i in self.segment(*segment)]
        if spec["continues"] is not None:
            history = self.sent[spec["continues"]]["ids"] + self.replies[spec["continues"]].ids
            return history[slice(*spec.get("cut", (None,)))] + ids
        return self.first() + ids

    def messages(self, spec):
        """Store a chat's messages and return them."""
        texts = [bytes(self.segment(*segment)).decode() for segment in spec["prompt"]]
        if spec["continues"] is None:
            messages = [("system", bytes(self.first()).decode() + texts.pop(0))]
        else:
            messages = [(m["role"], m["content"]) for m in self.chats[spec["continues"]]]
            messages.append(("assistant", self.replies[spec["continues"]].text))
        messages += [(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
        self.chats[spec["n"]] = [{"role": role, "content": content} for role, content in messages]
        return self.chats[spec["n"]]

    def write(self, content, folder):
        """Write an adapter's two files to a folder, over existing ones."""
        recipe = RECIPES[content]
        source = Path(recipe["path"]) if "path" in recipe else FILES / f"adapter-{content}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(source / name, folder / name)

    def post(self, path, body):
        """Send a POST request and return the response. End the script if the server refuses it."""
        response = requests.post(self.url + path, json=body, timeout=60)
        if response.status_code >= 400:
            give_up(f"{path} was answered with HTTP {response.status_code}: {response.text[:300]}")
        return response

    def cold(self, number, content):
        """Return the cold answer to a request."""
        reply = Reply()
        for event in self.cold_answers(self.sent[number], content):
            reply.add(event)
        return reply

    def is_wrong(self, number, *, cached_at_most, cached_at_least):
        """Compare an answer with the cold answer, or a cached-token count with its bounds."""
        if number is None:
            give_up("the scenario ran, but the failure is not in a single answer: check the server's /metrics")
        mine = self.replies[number]
        print(f"request {number}: {mine.cached} of {len(self.sent[number]['ids'])} prompt tokens cached")
        if cached_at_most is not None and mine.cached is not None:
            print(f"  allowed: {cached_at_least or 0} to {cached_at_most}")
            return not (cached_at_least or 0) <= mine.cached <= cached_at_most
        print(f"  answer   {mine.ids}")
        found = []
        for content in dict.fromkeys(self.versions[number]):
            cold = self.cold(number, content)
            found.append(differences(self, number, content, cold))
            whose = "base model" if content is None else f"adapter content {content}"
            print(f"  cold     {cold.ids}  ({whose})  differs in: {', '.join(found[-1]) or 'nothing'}")
        return all(found)


class Server(Story):
    """A llama.cpp server with the adapters of RECIPES, in their order."""

    def __init__(self, url):
        super().__init__()
        self.url, self.switched_on = url.rstrip("/"), None
        self.switch(None)

    def set_adapter(self, name, *, content, path, for_every_request=False, **_route):
        """Bind a name to an adapter. With `for_every_request`, switch it on for all requests that choose none."""
        if for_every_request:
            self.switch(content)
            self.switched_on = name
        self.changed(name, content)

    def unload(self, name):
        """Unbind a name, and switch off its adapter if it is switched on."""
        if name == self.switched_on:
            self.switch(None)
            self.switched_on = None
        self.behind.pop(name, None)

    def switch(self, content):
        """Switch on one adapter, or none, for all requests that choose none."""
        self.post("/lora-adapters", scales(content))

    def answers(self, spec, patience):
        """Send one request and yield its events. A request to the base model names no adapter, unless one is on."""
        if spec["to"] is None:
            chosen = scales(None) if self.switched_on is not None else None
        else:
            chosen = None if spec["to"] == self.switched_on else scales(self.behind[spec["to"]])
        return self.stream(spec, patience, {} if chosen is None else {"lora": chosen})

    def cold_answers(self, spec, content):
        """Send the request alone, without the cache and with the right adapter."""
        return self.stream(spec, STALL_SECONDS, {"lora": scales(content), "cache_prompt": False})

    def stream(self, spec, patience, more):
        """Yield events in OpenAI's form."""
        prompt = spec["ids"]
        body = {"prompt": prompt, "n_predict": spec["tokens"], "temperature": 0, "ignore_eos": True}
        body |= {"return_tokens": True, "stream": True, "cache_prompt": True} | more
        with requests.post(self.url + "/completion", json=body, stream=True, timeout=(10, patience)) as response:
            response.raise_for_status()
            for line in response.iter_lines(chunk_size=None):
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise ValueError(event["error"].get("message"))
                    cached = (event.get("timings") or {}).get("cache_n") if event["stop"] else None
                    end = "length" if event["stop"] else None
                    yield {
                        "choices": [{"token_ids": event.get("tokens"), "finish_reason": end}],
                        "usage": {"prompt_tokens_details": {"cached_tokens": cached}},
                    }

    def save(self, name):
        """Save every slot to a file."""
        self.move("save", name)

    def restore(self, name):
        """Restore every slot from its file."""
        self.move("restore", name)

    def move(self, action, name):
        """Save or restore every slot."""
        for slot in requests.get(self.url + "/slots", timeout=60).json():
            number = slot["id"]
            self.post(f"/slots/{number}?action={action}", {"filename": f"{self.spelled(name)}-{number}.bin"})

    def reset(self):
        """Print that llama.cpp cannot reset its cache."""
        print("reset: llama.cpp has no route for it")


def scales(content):
    """Return the scales of all adapters: 1 for `content`, 0 for the others."""
    return [{"id": number, "scale": float(name == content)} for number, name in enumerate(RECIPES)]


def translate_files():
    """Write the model and the adapters as GGUF files, and create a folder for saved slots."""
    (FILES / "slots").mkdir(parents=True, exist_ok=True)
    if (FILES / "model").exists():
        file = Path(COMMAND.split("--model ")[1].split()[0]).name
        write_model(FILES / "model", FILES / file, four_bits=file.endswith("-q4.gguf"))
    for content, recipe in RECIPES.items():
        source = Path(recipe.get("path", FILES / f"adapter-{content}"))
        write_adapter(source, FILES / f"adapter-{content}.gguf", model=FILES / "model")


class Reply:
    """The answer to one request, as far as it has arrived."""

    def __init__(self):
        self.answers, self.text, self.end, self.cached, self.over = {}, "", None, None, False
        self.failed = False
        self.scores, self.leads, self.prompt_scores, self.prompt_best = [], [], [], []

    @property
    def ids(self):
        """Return the tokens of the first answer."""
        return self.answers.get(0, [])

    def add(self, event):
        """Add one event of a stream, or a whole response."""
        cached = ((event.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached = self.cached if cached is None else cached
        for part in (event, *event.get("choices", ())):
            for row, token in zip(part.get("prompt_logprobs") or (), part.get("prompt_token_ids") or ()):
                by_name = {name: one["logprob"] for name, one in (row or {}).items()}
                self.prompt_scores.append(by_name.get(str(token)))
                self.prompt_best.append(max(by_name.values(), default=None))
        for choice in event.get("choices", ()):
            index, scores = choice.get("index") or 0, choice.get("logprobs") or {}
            self.answers.setdefault(index, []).extend(choice.get("token_ids") or ())
            if index == 0:
                said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                self.text += said.get("content") or ""
                self.end = choice.get("finish_reason") or self.end
                rows = scores.get("content") or ()  # of a chat
                self.scores += scores.get("token_logprobs") or [one["logprob"] for one in rows]
                best = [sorted((row or {}).values()) for row in scores.get("top_logprobs") or ()]
                best = best or [sorted(top["logprob"] for top in one.get("top_logprobs") or ()) for one in rows]
                self.leads += [row[-1] - row[-2] if len(row) > 1 else 0.0 for row in best]


def differences(server, number, _content, cold):
    """Return which parts of an answer differ from the cold answer. An aborted answer is compared as far as it goes."""
    mine = server.replies[number]
    if "abort" in server.sent[number]:
        return [] if mine.ids == cold.ids[: len(mine.ids)] else ["tokens"]
    wrong = {
        "tokens": mine.answers != cold.answers,
        "finish reason": mine.end != cold.end,
        "scores": far(mine.scores, cold.scores) or far(mine.prompt_scores, cold.prompt_scores),
    }
    return [what for what, differs in wrong.items() if differs]


def far(mine, cold, allowed=SCORE_NATS):
    """Return whether scores are missing or differ by more than `allowed` nats."""
    missing = [score is None for score in mine] != [score is None for score in cold]
    return missing or any(abs(a - b) > allowed for a, b in zip(mine, cold) if a is not None)


def give_up(why):
    """Print why the bug could not be tested, and exit with code 2."""
    print(f"could not test: {why}")
    sys.exit(2)


def make_files():
    """Write the model and the adapters, generated from their seeds."""
    if len(sys.argv) != 2 or not (FILES / "model").exists():  # before the restart, the server has other weights
        make_model(FILES / "model", seed=7)
    config = json.loads((FILES / "model" / "config.json").read_text())
    for content, recipe in RECIPES.items():
        make_adapter(FILES / f"adapter-{content}", config, **recipe)
    translate_files()


def main():
    """Write the files; with a URL, run the scenario."""
    if sys.argv[1:] == ["serve"]:
        make_files()
        serve(COMMAND.split()[1:])
    if len(sys.argv) != 2:
        make_files()
        print(__doc__)
        print(f"Start the server with:\n\n{COMMAND}\n")
        return 2
    try:
        make_files()
        return attempts(sys.argv[1])
    except Exception as problem:
        give_up(f"{type(problem).__name__}: {problem}")


def attempts(url):
    """Run the scenario until an answer is wrong, at most ATTEMPTS times."""
    for attempt in range(1, ATTEMPTS + 1):
        server = Server(url)
        scenario(server)
        wrong = is_wrong(server)
        print(f"attempt {attempt}: {'WRONG' if wrong else 'correct'}")
        if wrong:
            return 1
    return 0


# The code below generates the model and the adapters. Coldproof uses the same code.

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# 0.2 instead of the usual 0.02: with small weights a random model's answers hardly depend on the context, and a wrong
# KV block would not be detected. With 0.2 one changed token changes everything after it.
WEIGHT_SPREAD = 0.2
# An adapter is as strong as the weights that it changes, so that its answers differ from the base model's at once.
ADAPTER_SPREAD = 0.3
# Greedy answers consist of these byte values only. An answer can then be read in a report, and it survives the
# conversion tokens -> text -> tokens in the next turn of a chat.
PRINTABLE = range(32, 127)
# Gemma divides attention scores by the square root of this. With normalised queries and keys a small number makes
# attention select single tokens, so that each token matters to the answer.
ATTENTION_SCALAR = 1
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_model(folder: Path, *, seed: int = 0, layers: int = 2, hidden: int = 128, max_tokens: int = 4096) -> None:
    """Write a folder with a random float32 Qwen2-shaped decoder and a byte-level tokenizer.

    Its greedy answers are printable ASCII and never end before `max_tokens`: see `zero_unprintable_rows`.
    """
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    write_decoder(folder, config, seed=seed, norms=norms, biased=("q_proj", "k_proj", "v_proj"))


def make_sliding_window_model(
    folder: Path, *, seed: int = 0, layers: int = 6, hidden: int = 128, window: int = 64, max_tokens: int = 4096
) -> None:
    """Write a random float32 Gemma-3-shaped decoder: every sixth layer attends to all tokens, the others to `window`.

    An engine keeps the two kinds of layers in different KV-cache groups.
    """
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)]
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "layer_types": kinds,
        "sliding_window": window,
        "query_pre_attn_scalar": ATTENTION_SCALAR,
        "head_dim": hidden // 4,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in sorted(set(kinds))},
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    sides = ("post_attention", "pre_feedforward", "post_feedforward")
    write_decoder(
        folder,
        config,
        seed=seed,
        norms=("input_layernorm", *(f"{side}_layernorm" for side in sides)),
        head_norms=("q_norm", "k_norm"),
        norm_weight=0.0,  # Gemma's norms add one
    )


def common_config(*, layers: int, hidden: int, max_tokens: int) -> dict[str, object]:
    """Return the config.json fields that all generated models share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256 + len(SPECIAL),
        "max_position_embeddings": max_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 256,
        "bos_token_id": None,
    }


def write_decoder(
    folder: Path,
    config: dict[str, object],
    *,
    seed: int,
    norms: tuple[str, ...],
    head_norms: tuple[str, ...] = (),
    biased: tuple[str, ...] = (),
    norm_weight: float = 1.0,
) -> None:
    """Write the weights of the decoder that `config` describes, its configuration and its tokenizer."""
    vocabulary, hidden = integer(config, "vocab_size"), integer(config, "hidden_size")
    sizes = projection_sizes(config)
    head = sizes["q_proj"][0] // integer(config, "num_attention_heads")
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(integer(config, "num_hidden_layers")):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.{norm}.weight": (hidden,) for norm in norms}
        shapes |= {f"{block}.self_attn.{norm}.weight": (head,) for norm in head_norms}
        for target, (outputs, inputs) in sizes.items():
            shapes[f"{block}.{module_of(target)}.{target}.weight"] = (outputs, inputs)
            if target in biased:
                shapes[f"{block}.{module_of(target)}.{target}.bias"] = (outputs,)
    tensors = {
        name: (shape, array.array("f", [norm_weight] * shape[0]))
        if "norm" in name
        else (shape, draw(f"model {seed} {name}", shape, WEIGHT_SPREAD))
        for name, shape in shapes.items()
    }
    write_model_files(folder, config, tensors)


def write_model_files(
    folder: Path, config: dict[str, object], tensors: dict[str, tuple[tuple[int, ...], array.array[float]]]
) -> None:
    """Write a model's folder. Only printable tokens can be its greedy answers: see `zero_unprintable_rows`."""
    zero_unprintable_rows(*tensors["lm_head.weight"])
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": 256})
    write_tokenizer(folder)


def module_of(target: str) -> str:
    """Return the module of a layer that a projection belongs to."""
    return "self_attn" if target in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer without merges: token id = byte value, then the special tokens."""
    alphabet = byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + i, "content": text, "special": True, **off} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, object] = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": [],
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    }
    whole = {
        "version": "1.0",
        "model": model,
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
    }
    write_json(folder / "tokenizer.json", whole)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "model_max_length": 1 << 20,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def byte_alphabet() -> list[str]:
    """Return GPT-2's printable character for each byte value. Printable bytes are their own character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def make_adapter(
    folder: Path,
    config: dict[str, object],
    *,
    seed: int,
    rank: int = 8,
    targets: tuple[str, ...] = TARGETS,
    spread: float = ADAPTER_SPREAD,
) -> None:
    """Write a random PEFT LoRA adapter for the model that `config` (its config.json) describes.

    `spread`: standard deviation of its weights. Raises KeyError if the config has no sizes of a Llama- or Qwen2-shaped
    decoder.
    """
    sizes = projection_sizes(config)
    tensors: dict[str, tuple[tuple[int, ...], array.array[float]]] = {}
    for layer in range(integer(config, "num_hidden_layers")):
        for target in targets:
            outputs, inputs = sizes[target]
            key = f"base_model.model.model.layers.{layer}.{module_of(target)}.{target}"
            for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                name = f"{key}.lora_{side}.weight"
                tensors[name] = (shape, draw(f"adapter {seed} {rank} {name}", shape, spread))
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": rank,
            "lora_alpha": rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": list(targets),
        },
    )


def projection_sizes(config: dict[str, object]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each projection that an adapter may target."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner = integer(config, "intermediate_size")
    kv_heads = integer(config, "num_key_value_heads") if "num_key_value_heads" in config else heads
    head = integer(config, "head_dim") if config.get("head_dim") else hidden // heads
    return {
        "q_proj": (heads * head, hidden),
        "k_proj": (kv_heads * head, hidden),
        "v_proj": (kv_heads * head, hidden),
        "o_proj": (hidden, heads * head),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def integer(config: dict[str, object], key: str) -> int:
    """Return a size from a config.json. Raises KeyError if there is none."""
    value = config[key]
    if not isinstance(value, int):
        raise KeyError(key)
    return value


def draw(label: str, shape: tuple[int, ...], spread: float) -> array.array[float]:
    """Return float32 draws, uniform in [-spread * sqrt 3, spread * sqrt 3] (standard deviation `spread`), by label."""
    source = random.Random(hashlib.sha256(label.encode()).digest())
    table = [spread * 1.7320508 * (2 * i / 1023 - 1) for i in range(1024)]
    return array.array("f", source.choices(table, k=math.prod(shape)))


def zero_unprintable_rows(shape: tuple[int, ...], rows: array.array[float]) -> None:
    """Zero the output layer's rows of all tokens that are not printable.

    Their logit is then 0. It is never the largest, because then all 95 printable logits would have to be negative. (At
    temperature 1 about one token in ten is still unprintable or the end token.)
    """
    vocabulary, width = shape
    zeros = array.array("f", bytes(4 * width))
    for token in range(vocabulary):
        if token not in PRINTABLE:
            rows[token * width : (token + 1) * width] = zeros


def write_safetensors(path: Path, tensors: dict[str, tuple[tuple[int, ...], array.array[float]]]) -> None:
    """Write float32 tensors in the safetensors format: header length, JSON header, tensor bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            if sys.byteorder == "big":
                values.byteswap()
            out.write(values.tobytes())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(value, indent=1, sort_keys=True))
    os.replace(scratch, path)


ARCHITECTURES = {"qwen2": "qwen2", "gemma3_text": "gemma3"}  # by config.json's model_type
LLAMA = "llama"  # its adapters are written, not the model itself
ROTATED = (".q_proj.", ".k_proj.")  # projections whose rows a Llama file has in another order
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_PARTS = {
    **PARTS,
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LAYER = re.compile(r"model\.layers\.(\d+)\.(?:\w+\.)?(\w+)\.(weight|bias)")
LORA = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
ALIGNMENT = 32
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata values
F32, Q4_0 = 0, 2  # types of tensors
GROUP = 32  # numbers that share a scale in Q4_0


class NotTranslated(Exception):
    """A model or an adapter has a form that Coldproof does not generate."""


def write_model(source: Path, target: Path, *, four_bits: bool = False, readable: bool = False) -> None:
    """Write the model in `source` (config.json, model.safetensors). Raises NotTranslated for an unsupported model.

    `four_bits`: with all matrices in 4 bits (Q4_0). `readable`: the text of each printable token is its character.
    """
    config = json.loads((source / "config.json").read_text())
    kind = architecture(source)
    theta = (config if "rope_theta" in config else config["rope_parameters"]["full_attention"])["rope_theta"]
    values = {
        "general.architecture": kind,
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{kind}.rope.freq_base": float(theta),
        f"{kind}.vocab_size": config["vocab_size"],
        **tokenizer(config["vocab_size"], end=config["eos_token_id"], readable=readable),
    }
    if "sliding_window" in config:
        values[f"{kind}.attention.sliding_window"] = config["sliding_window"]
        values |= dict.fromkeys((f"{kind}.attention.key_length", f"{kind}.attention.value_length"), config["head_dim"])
    written = {}
    for name, (shape, raw) in read_tensors(source / "model.safetensors").items():
        plus_one = kind == "gemma3" and "norm" in name  # Gemma's norms add one; the weights in a GGUF file include it
        written[gguf_name(name, kind)] = shape, add_one(raw) if plus_one else raw
    write_gguf(target, values, written, four_bits=four_bits)


def architecture(model: Path) -> str:
    """Return the GGUF name of a model's architecture. Raises NotTranslated for an unsupported model."""
    kind = json.loads((model / "config.json").read_text()).get("model_type")
    if kind not in ARCHITECTURES:
        raise NotTranslated(f"{model} is a {kind} model; only {' and '.join(ARCHITECTURES)} can be written as GGUF")
    return ARCHITECTURES[kind]


def write_adapter(source: Path, target: Path, *, model: Path) -> None:
    """Write the PEFT LoRA adapter in `source` for a model. Raises NotTranslated for unsupported tensors."""
    config = json.loads((source / "adapter_config.json").read_text())
    of_model = json.loads((model / "config.json").read_text())
    kind = LLAMA if of_model.get("model_type") == LLAMA else architecture(model)
    values = {
        "general.architecture": kind,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(config["lora_alpha"]),
    }
    tensors = {}
    for name, tensor in read_tensors(source / "adapter_model.safetensors").items():
        found = LORA.fullmatch(name)
        if found is None:
            raise NotTranslated(f"{source} has a tensor {name!r} that is not part of a LoRA adapter")
        if kind == LLAMA and name.endswith("lora_B.weight") and any(part in name for part in ROTATED):
            heads = of_model["num_attention_heads" if ROTATED[0] in name else "num_key_value_heads"]
            tensor = tensor[0], interleaved(*tensor, heads=heads)
        tensors[f"{gguf_name(found[1] + '.weight', kind)}.lora_{found[2].lower()}"] = tensor
    write_gguf(target, values, tensors)


def tokenizer(vocabulary: int, *, end: int, readable: bool = False) -> dict[str, Any]:
    """Return the metadata of a tokenizer with a text for each token id.

    Requests use token ids, but llama.cpp reports scores only of tokens whose text is valid UTF-8. Requests with images
    use text: `readable` gives each printable token its character (\u0120 is GPT-2's space).
    """
    texts = [f"t{number}" for number in range(vocabulary)]
    if readable:
        texts[32:127] = ["\u0120", *map(chr, range(33, 127))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * vocabulary,
        # llama.cpp refuses an empty list. No text has these two: a byte 0 is \u0100.
        "tokenizer.ggml.merges": ["\u0100 \u0100"] if readable else ["t 0"],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def gguf_name(name: str, kind: str) -> str:
    """Return a tensor's name in GGUF. Raises NotTranslated for a tensor that this architecture does not have."""
    found, parts = LAYER.fullmatch(name), GEMMA_PARTS if kind == "gemma3" else PARTS
    if name in WHOLE:
        return WHOLE[name]
    if found is None or found[2] not in parts:
        raise NotTranslated(f"no GGUF name is known for the tensor {name!r}")
    return f"blk.{found[1]}.{parts[found[2]]}.{found[3]}"


def read_tensors(file: Path) -> dict[str, tuple[list[int], bytes]]:
    """Return a file's float32 tensors as name -> (shape, little-endian bytes). Raises NotTranslated for other types."""
    raw = file.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, facts in header.items():
        if facts["dtype"] != "F32":
            raise NotTranslated(f"{file} has the tensor {name!r} with dtype {facts['dtype']}; only F32 is supported")
        start, stop = facts["data_offsets"]
        found[name] = (facts["shape"], raw[8 + size + start : 8 + size + stop])
    return found


def write_gguf(
    target: Path, values: dict[str, Any], tensors: dict[str, tuple[list[int], bytes]], *, four_bits: bool = False
) -> None:
    """Write a GGUF file with these key-value pairs and float32 tensors. `four_bits`: the matrices in 4 bits."""
    described, data = b"", b""
    for name, (shape, raw) in tensors.items():
        kind, stored = (Q4_0, in_four_bits(raw)) if four_bits and len(shape) == 2 else (F32, raw)
        dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        described += string(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, len(data))
        data += padded(stored)
    pairs = b"".join(pair(key, value) for key, value in values.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + pairs + described
    target.write_bytes(padded(head) + data)


def interleaved(shape: list[int], raw: bytes, *, heads: int) -> bytes:
    """Return the rows of a projection in the order of a Llama file (llama.cpp's `LlamaModel.permute`).

    Its rotary embedding turns neighbouring rows of a head together, and that of Hugging Face the halves of a head.
    """
    rows, size = shape[0], len(raw) // shape[0]
    half = rows // heads // 2
    order = [start + part * half + i for start in range(0, rows, 2 * half) for i in range(half) for part in (0, 1)]
    return b"".join(raw[row * size : (row + 1) * size] for row in order)


def in_four_bits(raw: bytes) -> bytes:
    """Return float32 values as Q4_0: for each group a scale in half precision, and its numbers in halves of bytes.

    The scale maps the number of the largest magnitude to -8 (`quantize_row_q4_0_ref` in llama.cpp).
    """
    numbers, found = struct.unpack(f"<{len(raw) // 4}f", raw), []
    for start in range(0, len(numbers), GROUP):
        group = numbers[start : start + GROUP]
        scale = max(group, key=abs) / -8
        whole = [min(15, int(number / scale + 8.5)) if scale else 8 for number in group]
        pairs = zip(whole[: GROUP // 2], whole[GROUP // 2 :], strict=True)
        found.append(struct.pack("<e", scale) + bytes(low | high << 4 for low, high in pairs))
    return b"".join(found)


def add_one(raw: bytes) -> bytes:
    """Return float32 values, as bytes, with 1 added to each."""
    count = len(raw) // 4
    return struct.pack(f"<{count}f", *(number + 1 for number in struct.unpack(f"<{count}f", raw)))


def padded(raw: bytes) -> bytes:
    """Return bytes padded with zeros to a multiple of the alignment."""
    return raw + b"\0" * (-len(raw) % ALIGNMENT)


def string(words: str) -> bytes:
    """Return a string's length and UTF-8 bytes."""
    return struct.pack("<Q", len(words.encode())) + words.encode()


def pair(key: str, value: str | float | list[str] | list[int] | list[float]) -> bytes:
    """Return a key-value pair. Integers are unsigned, but signed in a list."""
    match value:
        case str():
            kind, raw = STRING, string(value)
        case bool():
            kind, raw = BOOL, struct.pack("<?", value)
        case int():
            kind, raw = UINT32, struct.pack("<I", value)
        case float():
            kind, raw = FLOAT32, struct.pack("<f", value)
        case [float(), *_]:
            kind, raw = ARRAY, struct.pack(f"<IQ{len(value)}f", FLOAT32, len(value), *value)
        case _:
            of = STRING if isinstance(value[0], str) else INT32
            items = [string(one) if isinstance(one, str) else struct.pack("<i", one) for one in value]
            kind, raw = ARRAY, struct.pack("<IQ", of, len(items)) + b"".join(items)
    return string(key) + struct.pack("<I", kind) + raw


NUMBERS = {
    "--port": "port",
    "--ctx-size": "n_ctx",
    "--parallel": "n_parallel",
    "--batch-size": "n_batch",
    "--ubatch-size": "n_ubatch",
    "--cache-ram": "cache_ram_mib",
    "--cache-reuse": "n_cache_reuse",
    "--ctx-checkpoints": "n_ctx_checkpoints",
    "--rope-freq-base": "rope_freq_base",
}
SWITCHES = {
    "--context-shift": "ctx_shift",
    "--kv-unified": "kv_unified",
    "--swa-full": "swa_full",
    "--lora-init-without-apply": "lora_init_without_apply",
    "--metrics": "endpoint_metrics",
    "--slots": "endpoint_slots",
}
TYPES = {name: f"GGML_TYPE_{name.upper()}" for name in ("f32", "f16", "bf16", "q8_0", "q4_0")}
FLASH = {
    name: f"LLAMA_FLASH_ATTN_TYPE_{kind}" for name, kind in (("on", "ENABLED"), ("off", "DISABLED"), ("auto", "AUTO"))
}


def serve(arguments: Sequence[str]) -> None:
    """Start a server with these flags and run until the process ends."""
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--mmproj", default="")
    parser.add_argument("--slot-save-path", default="")
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--cache-type-k", choices=TYPES, default="f16")
    parser.add_argument("--cache-type-v", choices=TYPES, default="f16")
    parser.add_argument("--flash-attn", choices=FLASH, default="auto")
    parser.add_argument("--threads", type=int, default=-1)
    parser.add_argument("--threads-batch", type=int, default=-1)
    for flag, field in NUMBERS.items():
        parser.add_argument(flag, type=int, dest=field, default=argparse.SUPPRESS)
    for flag, field in SWITCHES.items():
        parser.add_argument(flag, action="store_true", dest=field, default=argparse.SUPPRESS)
    options = vars(parser.parse_args(arguments))
    library = importlib.import_module("xllamacpp")
    parameters = library.CommonParams()
    parameters.warmup = not options.pop("no_warmup")
    parameters.model.path = options.pop("model")
    parameters.mmproj.path = options.pop("mmproj")
    parameters.cpuparams.n_threads = options.pop("threads")
    parameters.cpuparams_batch.n_threads = options.pop("threads_batch")
    parameters.cache_type_k = getattr(library.ggml_type, TYPES[options.pop("cache_type_k")])
    parameters.cache_type_v = getattr(library.ggml_type, TYPES[options.pop("cache_type_v")])
    parameters.flash_attn_type = getattr(library.llama_flash_attn_type, FLASH[options.pop("flash_attn")])
    scale = 0.0 if "lora_init_without_apply" in options else 1.0  # llama-server does this; its library does not
    folder = options.pop("slot_save_path")  # llama-server appends a slash; its library does not
    parameters.slot_save_path = folder if not folder or folder.endswith("/") else f"{folder}/"
    parameters.lora_adapters = [adapter(library, file, scale) for file in options.pop("lora")]
    for field, value in options.items():
        setattr(parameters, field, value)
    server = library.Server(parameters)
    sys.stdout.write(f"llama.cpp of {library.BUILD_INFO} listens at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def adapter(library: Any, file: str, scale: float) -> Any:
    """Return an adapter to register at the start."""
    registered = library.CommonAdapterLoraInfo()
    registered.path, registered.scale = file, scale
    return registered


if __name__ == "__main__":
    sys.exit(main())