#!/usr/bin/env python3
"""CHAT-1-b683fc36: Request 1 to 'base' differs from the cold answer at token 0 (an unknown number of its 108 prompt tokens came from the cache); it equals no known cold answer.

Stand-alone script: needs Python 3.11 and `openvino-genai` and `openvino` and `numpy`, not Coldproof.

  python CHAT-1-b683fc36.py          runs the engine in this process, with a tiny random model in ./coldproof-files


Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import array
import hashlib
import importlib
import json
import math
import os
import queue
import random
import secrets
import shutil
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ATTEMPTS = 5
STALL_SECONDS = 60
SCORE_NATS = 0.02  # tolerance for the order of additions; a wrong block changes scores by tenths
FILES = Path("coldproof-files").resolve()
NOISE = None  # None: cold answers are deterministic
COMMAND = '["num_kv_blocks=128", "max_num_batched_tokens=48"]'
RECIPES = {}


def scenario(server):
    """Run the steps. A prompt is a list of (segment, length, changed token); equal names share tokens.

    A fourth number is the position of a token that is swapped with the next one.
    """
    server.ask([dict(n=0, to=None, prompt=[('prelude', 64, None), ('question 1', 16, None)], continues=None, tokens=8)])
    server.ask([dict(n=1, to=None, prompt=[('left', 16, None)], continues=0, tokens=8), dict(n=2, to=None, prompt=[('right', 16, None)], continues=0, tokens=8)])


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
        input(f"Until now the server must have had a difference ({before}). Stop it, start COMMAND, press Enter: ")

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


REGISTERED, INT8, PARTS = "adapters=registered", "weights=int8", "parts=images"
STEP_MS = 10  # one step in the engine's time, which decides when requests arrive and clients disconnect


class Server(Story):
    """A pipeline that this script steps; with adapters, requests go through generate(), one adapter after the other."""

    def __init__(self, _url):
        super().__init__()
        self.warm, self.cold_one = Pipeline(caching=True), None

    def set_adapter(self, name, *, content, path, **_route):
        """Bind a name to an adapter, which was registered when the pipeline was created."""
        self.changed(name, content)

    def unload(self, name):
        """Remove a name."""
        self.behind.pop(name, None)

    def reset(self):
        """Report that the engine has no reset."""
        print("reset: not possible; only a new pipeline has an empty cache")

    def ask(self, specs, after_tokens=0, change=None):
        """Send requests together, each one at its step."""
        for spec in specs:
            self.sent[spec["n"]] = spec | {"ids": self.prompt(spec), "content": self.behind.get(spec["to"])}
            self.versions[spec["n"]], self.replies[spec["n"]] = [self.behind.get(spec["to"])], Reply()
        self.warm.serve([self.sent[spec["n"]] for spec in specs], self.replies)

    def cold(self, number, content):
        """Return the cold answer: the same request alone, in a pipeline without a prefix cache."""
        self.cold_one = self.cold_one or Pipeline(caching=False)
        spec, replies = self.sent[number] | {"content": content, "abort": None, "offset_ms": 0}, {number: Reply()}
        self.cold_one.serve([spec], replies)
        return replies[number]


class Pipeline:
    """OpenVINO GenAI's continuous batching, configured by COMMAND."""

    def __init__(self, *, caching):
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.openvino, self.genai, words = numpy, openvino, openvino_genai, json.loads(COMMAND)
        scheduler = self.genai.SchedulerConfig()
        scheduler.enable_prefix_caching = caching
        given = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        for name, _, value in (word.partition("=") for word in words if word not in (REGISTERED, INT8, PARTS)):
            if name.isupper():
                given[name] = value
            else:
                kind = type(getattr(scheduler, name))
                setattr(scheduler, name, value == "true" if kind is bool else int(value))
        self.adapters = {}
        if REGISTERED in words:
            for content, recipe in RECIPES.items():
                folder = Path(recipe.get("path", FILES / f"adapter-{content}"))
                self.adapters[content] = self.genai.Adapter(folder / "adapter_model.safetensors")
            given["adapters"] = self.genai.AdapterConfig(list(self.adapters.values()))
        self.budget = scheduler.max_num_batched_tokens if scheduler.dynamic_split_fuse else None
        self.pipeline = self.genai.ContinuousBatchingPipeline(str(FILES / "ir"), scheduler, "CPU", given, {}, {})
        self.numbers = 0

    def serve(self, specs, replies):
        """Serve all requests, and add the outputs to their replies."""
        if not self.adapters:
            return self.step(sorted(specs, key=lambda spec: spec.get("offset_ms", 0)), replies)
        batches = []
        for spec in specs:
            if not batches or batches[-1][0]["content"] != spec["content"]:
                batches.append([])
            batches[-1].append(spec)
        for batch in batches:
            self.generate(batch, replies)

    def generate(self, batch, replies):
        """Serve requests of one adapter."""
        configurations = [self.configuration(spec) for spec in batch]
        for spec, configuration in zip(batch, configurations):
            chosen = () if spec["content"] is None else (self.adapters[spec["content"]],)
            configuration.adapters = self.genai.AdapterConfig(*chosen)
        for spec, answer in zip(batch, self.pipeline.generate([self.tensor(spec) for spec in batch], configurations)):
            ids = answer.m_generation_ids[0] if answer.m_generation_ids else []
            replies[spec["n"]].add({"choices": [{"token_ids": ids, "finish_reason": "length"}]})

    def step(self, waiting, replies):
        """Serve requests by step(). For a single request, the steps give the maximum number of cached tokens."""
        live, steps, alone = {}, 0, len(waiting) == 1
        while waiting or live:
            while waiting and waiting[0].get("offset_ms", 0) <= steps * STEP_MS:
                spec = waiting.pop(0)
                self.numbers += 1
                handle = self.pipeline.add_request(self.numbers, *self.content(spec), self.configuration(spec))
                live[spec["n"]] = (spec, handle, steps)
            self.disconnect(live, replies, steps)
            if self.pipeline.has_non_finished_requests():
                self.pipeline.step()
            steps += 1
            for number, (spec, handle, began) in list(live.items()):
                reply, first = replies[number], not replies[number].ids
                while handle.can_read():
                    for output in handle.read().values():
                        reply.add(event(spec, output, first=not reply.ids))
                if alone and first and reply.ids and self.budget:
                    reply.cached = max(0, len(spec["ids"]) - self.budget * (steps - began - 1) - 1)
                if handle.get_status().name in ("FINISHED", "IGNORED"):
                    del live[number]
            self.disconnect(live, replies, steps)

    def disconnect(self, live, replies, steps):
        """Cancel the requests whose clients disconnect now."""
        for number, (spec, handle, began) in list(live.items()):
            after_tokens, after_ms = spec.get("abort") or (None, 0)
            came = len(replies[number].ids)
            waited = after_tokens == 0 and (steps - began) * STEP_MS >= after_ms
            if after_tokens is not None and (came >= max(1, after_tokens) if came else waited):
                handle.cancel()
                del live[number]

    def configuration(self, spec):
        """Return the configuration of a request."""
        result, extra = self.genai.GenerationConfig(), spec.get("extra", {})
        result.max_new_tokens, result.ignore_eos = spec["tokens"], True
        result.echo = extra.get("prompt_logprobs") is not None
        result.logprobs = int(result.echo or bool(extra.get("logprobs")))
        return result

    def content(self, spec):
        """Return a prompt as what add_request() takes of it."""
        return (self.tensor(spec),)

    def tensor(self, spec):
        """Return a prompt in the engine's form."""
        return self.openvino.Tensor(self.numpy.array([spec["ids"]], dtype=self.numpy.int64))


def event(spec, output, *, first):
    """Return a step's output in the form of OpenAI's events. The first one has the scores of an echoed prompt."""
    ids, scores, prompt_fields = list(output.generated_ids), list(output.generated_log_probs), {}
    extra = spec.get("extra", {})
    if first and extra.get("prompt_logprobs") is not None:
        prompt, ids, echoed, scores = spec["ids"], ids[len(spec["ids"]) :], scores[:-1], scores[-1:]
        rows = [None if score > 0 else {str(token): {"logprob": score}} for token, score in zip(prompt, echoed)]
        prompt_fields = {"prompt_token_ids": prompt, "prompt_logprobs": [None] * (len(prompt) - len(rows)) + rows}
    choice = {"token_ids": ids, "finish_reason": "length" if output.finish_reason.name == "LENGTH" else None}
    if extra.get("logprobs"):
        choice["logprobs"] = {"token_logprobs": scores}
    return {"choices": [choice], **prompt_fields}


def translate_files():
    """Write the model in OpenVINO's format."""
    write_model(FILES / "model", FILES / "ir", int8=INT8 in json.loads(COMMAND))


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
    if not (FILES / "model").exists():
        make_model(FILES / "model")
    config = json.loads((FILES / "model" / "config.json").read_text())
    for content, recipe in RECIPES.items():
        make_adapter(FILES / f"adapter-{content}", config, **recipe)
    translate_files()


def main():
    """Write the files and run the scenario."""
    try:
        make_files()
        return attempts(None)
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


MODEL_TYPES = ("qwen2", "llama")
MODEL_FILE, CONFIG_FILE = "openvino_model.xml", "config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DYNAMIC = -1
TO_HEADS = (0, 2, 1, 3)  # batch, token, head, feature <-> batch, head, token, feature


class UnsupportedModel(Exception):
    """The model cannot be written as IR. The message has the reason."""


def write_model(source: Path, target: Path, *, int8: bool = False) -> None:
    """Write the model in `source` (config.json, model.safetensors) to a folder. Raises UnsupportedModel.

    `int8`: with the weights of all products in 8 bits.
    """
    config = json.loads((source / CONFIG_FILE).read_text())
    if config.get("model_type") not in MODEL_TYPES:
        raise UnsupportedModel(
            f"only {' and '.join(MODEL_TYPES)} models are written as IR, and {source} is a {config.get('model_type')}"
        )
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config))
    model = Decoder(config, load_tensors(source / "model.safetensors"), int8=int8).model()
    importlib.import_module("openvino").save_model(model, target / MODEL_FILE, compress_to_fp16=False)


def load_tensors(file: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name. Raises UnsupportedModel if one is not float32."""
    raw, numpy = file.read_bytes(), importlib.import_module("numpy")
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, facts in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        if facts["dtype"] != "F32":
            raise UnsupportedModel(f"{file} holds {name!r} as {facts['dtype']}, not as F32")
        first, end = (start + offset for offset in facts["data_offsets"])
        found[name] = numpy.frombuffer(raw[first:end], dtype="<f4").reshape(facts["shape"])
    return found


class Decoder:
    """Builds the graph of the model. `weights`: arrays by their names in the safetensors file."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any], *, int8: bool = False) -> None:
        self.op, self.openvino, self.numpy = map(importlib.import_module, ("openvino.opset13", "openvino", "numpy"))
        self.config, self.int8 = config, int8
        self.weights = {HEAD: weights[EMBEDDING], **weights}  # without a head of its own, the embedding's table serves
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head: int = config["hidden_size"] // self.heads
        whole = self.openvino.PartialShape([DYNAMIC, DYNAMIC])
        self.prompt = self.prompt_input()
        self.attention_mask = self.parameter("attention_mask", whole, self.numpy.int64)
        self.positions = self.parameter("position_ids", whole, self.numpy.int64)
        self.beams = self.parameter("beam_idx", self.openvino.PartialShape([DYNAMIC]), self.numpy.int32)
        self.batch = self.op.gather(self.op.shape_of(self.prompt), self.integers(0), self.integer(0))
        self.cosine, self.sine = self.rotation()
        self.mask = self.causal_mask()
        self.assignments: list[Any] = []

    def model(self) -> Any:
        """Return the model: embedding, layers, output."""
        hidden = self.embedded()
        for layer in range(self.config["num_hidden_layers"]):
            hidden = self.layer(f"model.layers.{layer}", layer, hidden)
        hidden = self.norm("model.norm", hidden)
        logits = self.op.result(self.linear("lm_head", hidden))
        logits.output(0).set_names({"logits"})
        inputs = [self.prompt, self.attention_mask, self.positions, self.beams]
        return self.openvino.Model(
            results=[logits], sinks=self.assignments, parameters=inputs, name=self.config["model_type"]
        )

    def prompt_input(self) -> Any:
        """Return the input for prompts: token ids."""
        return self.parameter("input_ids", self.openvino.PartialShape([DYNAMIC, DYNAMIC]), self.numpy.int64)

    def embedded(self) -> Any:
        """Return the embeddings of the prompt."""
        return self.op.gather(self.constant(EMBEDDING), self.op.convert(self.prompt, "i32"), self.integer(0))

    def layer(self, name: str, number: int, hidden: Any) -> Any:
        """Return the output of one layer: attention and a gated MLP, both with residual connections."""
        hidden = self.op.add(hidden, self.attention(name, number, self.norm(f"{name}.input_layernorm", hidden)))
        inner = self.norm(f"{name}.post_attention_layernorm", hidden)
        gate = self.op.swish(self.linear(f"{name}.mlp.gate_proj", inner))
        product = self.op.multiply(gate, self.linear(f"{name}.mlp.up_proj", inner))
        return self.op.add(hidden, self.linear(f"{name}.mlp.down_proj", product))

    def attention(self, name: str, number: int, hidden: Any) -> Any:
        """Return the output of the attention over all keys and values so far."""
        query, key, value = (
            self.split(self.linear(f"{name}.self_attn.{part}_proj", hidden), heads)
            for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        keys = self.keep(f"past_key_values.{number}.keypresent.{number}.key", self.rotate(key))
        values = self.keep(f"past_key_values.{number}.valuepresent.{number}.value", value)
        attention = self.op.scaled_dot_product_attention(
            self.rotate(query), self.repeat_heads(keys), self.repeat_heads(values), self.mask
        )
        together = self.op.transpose(attention, self.integers(*TO_HEADS))
        joined = self.op.reshape(together, self.integers(0, 0, self.heads * self.head), special_zero=True)
        return self.linear(f"{name}.self_attn.o_proj", joined)

    def keep(self, variable: str, new: Any) -> Any:
        """Append keys or values to a state variable, and return the variable's new content."""
        shape = self.op.concat([self.batch, self.integers(self.kv_heads, 0, self.head)], 0)
        nothing = self.op.broadcast(self.op.constant(0.0, dtype=self.numpy.float32), shape)
        kept = self.openvino.PartialShape([DYNAMIC, self.kv_heads, DYNAMIC, self.head])
        stored = self.op.read_value(nothing, variable, self.openvino.Type.f32, kept)
        before = self.op.gather(stored, self.beams, self.integer(0))
        extended = self.op.concat([before, new], 2)
        self.assignments.append(self.op.assign(extended, variable))
        return extended

    def repeat_heads(self, kept: Any) -> Any:
        """Return the key or value heads, each repeated for its query heads."""
        each = self.heads // self.kv_heads
        shape = self.op.concat([self.batch, self.integers(self.kv_heads, each, 1, self.head)], 0)
        spread = self.op.broadcast(self.op.unsqueeze(kept, self.integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return self.op.reshape(spread, self.integers(0, self.heads, DYNAMIC, self.head), special_zero=True)

    def split(self, joined: Any, heads: int) -> Any:
        """Return a projection's output, split into heads."""
        shaped = self.op.reshape(joined, self.integers(0, 0, heads, self.head), special_zero=True)
        return self.op.transpose(shaped, self.integers(*TO_HEADS))

    def rotation(self) -> tuple[Any, Any]:
        """Return the cosines and sines of the rotary embedding, for each position and each feature of a head."""
        exponents = self.numpy.arange(0, self.head, 2, dtype=self.numpy.float32) / self.head
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        speeds = (1.0 / theta**exponents).astype(self.numpy.float32)
        positions = self.op.unsqueeze(self.op.convert(self.positions, "f32"), self.integer(2))
        angles = self.op.multiply(positions, self.op.constant(speeds.reshape(1, 1, -1)))
        both = self.op.concat([angles, angles], 2)
        return tuple(self.op.unsqueeze(wave, self.integer(1)) for wave in (self.op.cos(both), self.op.sin(both)))

    def rotate(self, heads: Any) -> Any:
        """Return queries or keys with the rotary embedding applied."""
        first, second = self.op.split(heads, self.integer(3), 2).outputs()
        minus = self.op.multiply(second, self.op.constant(-1.0, dtype=self.numpy.float32))
        turned = self.op.concat([minus, first], 3)
        return self.op.add(self.op.multiply(heads, self.cosine), self.op.multiply(turned, self.sine))

    def causal_mask(self) -> Any:
        """Return a causal mask. Paged attention does not use it, but the engine looks for it in the graph."""
        count = self.op.gather(self.op.shape_of(self.attention_mask), self.integer(1), self.integer(0))
        positions = self.op.range(self.integer(0), count, self.integer(1), "i64")
        later = self.op.greater(positions, self.op.unsqueeze(self.positions, self.integer(2)))
        least, zero = (self.op.constant(value, dtype=self.numpy.float32) for value in (-65504.0, 0.0))
        return self.op.unsqueeze(self.op.select(later, least, zero), self.integer(1))

    def linear(self, name: str, hidden: Any) -> Any:
        """Return the product with a module's weights, named as the module, plus its bias if it has one."""
        weights = self.rounded(f"{name}.weight") if self.int8 else self.constant(f"{name}.weight")
        node = self.op.matmul(hidden, weights, False, True)
        node.set_friendly_name(name)
        return self.op.add(node, self.constant(f"{name}.bias")) if f"{name}.bias" in self.weights else node

    def norm(self, name: str, hidden: Any) -> Any:
        """Return the input after root mean square normalisation."""
        squares = self.op.power(hidden, self.op.constant(2.0, dtype=self.numpy.float32))
        mean = self.op.reduce_mean(squares, self.integers(DYNAMIC), keep_dims=True)
        tiny = self.op.constant(self.config["rms_norm_eps"], dtype=self.numpy.float32)
        scale = self.op.divide(self.op.constant(1.0, dtype=self.numpy.float32), self.op.sqrt(self.op.add(mean, tiny)))
        return self.op.multiply(self.op.multiply(hidden, scale), self.constant(f"{name}.weight"))

    def constant(self, name: str) -> Any:
        """Return a weight as a constant."""
        node = self.op.constant(self.weights[name])
        node.set_friendly_name(name)
        return node

    def rounded(self, name: str) -> Any:
        """Return a weight as 8-bit integers and a scale for each row, the form in which the engine keeps them."""
        values = self.weights[name]
        scale = self.numpy.maximum(self.numpy.abs(values).max(axis=1, keepdims=True) / 127, 1e-12)
        whole = self.op.constant(self.numpy.round(values / scale).astype(self.numpy.int8))
        return self.op.multiply(self.op.convert(whole, "f32"), self.op.constant(scale.astype(self.numpy.float32)))

    def parameter(self, name: str, shape: Any, dtype: Any) -> Any:
        """Return an input of the model."""
        node = self.op.parameter(shape, dtype)
        node.set_friendly_name(name)
        node.output(0).set_names({name})
        return node

    def integer(self, value: int) -> Any:
        """Return an integer scalar."""
        return self.op.constant(value, dtype=self.numpy.int64)

    def integers(self, *values: int) -> Any:
        """Return a vector of integers."""
        return self.op.constant(list(values), dtype=self.numpy.int64)


if __name__ == "__main__":
    sys.exit(main())