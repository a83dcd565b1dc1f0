#!/usr/bin/env python3
"""ENTRY-1-9ff942e6: Request 0 at /v1/responses was answered with priority 9223372036854775808, which /inference/v1/generate refuses: this door ignores priorities.

Stand-alone script: needs Python 3.11 and `requests`, not Coldproof.

  1.  python ENTRY-1-9ff942e6.py
  2.  start the server with COMMAND (below)

  3.  python ENTRY-1-9ff942e6.py http://127.0.0.1:8000


Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import array
import hashlib
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
from pathlib import Path

import requests

ATTEMPTS = 5
STALL_SECONDS = 60
SCORE_NATS = 0.02  # tolerance for the order of additions; a wrong block changes scores by tenths
FILES = Path("coldproof-files").resolve()
NOISE = None  # None: cold answers are deterministic
COMMAND = '# your server at http://127.0.0.1:30100'
RECIPES = {}


def scenario(server):
    """Run the steps. A prompt is a list of (segment, length, changed token); equal names share tokens.

    A fourth number is the position of a token that is swapped with the next one.
    """
    server.ask([dict(n=0, to=None, prompt=[('prelude', 40, None), ('question', 5, None)], continues=None, tokens=4, chat=True, door='/v1/responses', extra={'priority': 9223372036854775808})])
    server.ask([dict(n=1, to=None, prompt=[('prelude', 40, None), ('question', 5, None)], continues=None, tokens=4, chat=True, door='/inference/v1/generate', extra={'priority': 9223372036854775808})])


def is_wrong(server):
    """Return whether the answer to request 0 of the scenario is wrong."""
    return server.ignores_what_others_refuse(0)


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

    def ignores_what_others_refuse(self, number):
        """Return whether a request was answered, while another one with the same invalid field was refused."""
        others = [n for n, spec in self.sent.items() if spec.get("extra") == self.sent[number]["extra"] and n != number]
        refused = [n for n in others if self.replies[n].failed]
        print(f"request {number}: {self.replies[number].ids or 'no answer'}; refused: {refused}")
        return bool(self.replies[number].ids) and bool(refused)

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
    """An SGLang server, used through its own routes."""

    def __init__(self, url):
        super().__init__()
        self.url = url.rstrip("/")

    def set_adapter(self, name, *, content, path, **_route):
        """Write the adapter's files to the step's path and load them. A name that is loaded is unloaded first."""
        folder = FILES / self.nonce / path.replace("..", "_")
        self.write(content, folder)
        if name in self.behind:
            self.unload(name)
        self.post("/load_lora_adapter", {"lora_name": self.spelled(name), "lora_path": str(folder)})
        self.changed(name, content)

    def unload(self, name):
        """Unload a name."""
        self.post("/unload_lora_adapter", {"lora_name": self.spelled(name)})
        self.behind.pop(name, None)

    def answers(self, spec, patience):
        """Send one request and yield the events of its answer."""
        adapter = None if spec["to"] is None else self.spelled(spec["to"])
        salt = None if spec.get("salt") is None else self.spelled(spec["salt"])
        door = spec.get("door") or ("/v1/chat/completions" if spec.get("chat") else None)
        if door not in (None, "/inference/v1/generate"):  # this one stands for /generate
            return self.at_door(door, spec, adapter, salt)
        return self.stream(spec, adapter, salt, patience)

    def cold_answers(self, spec, content):
        """Send the request alone, with an adapter name, a folder and a salt that were never used before."""
        adapter = None
        if content is not None:
            adapter = f"cold-{secrets.token_hex(4)}"
            self.write(content, FILES / adapter)
            self.post("/load_lora_adapter", {"lora_name": adapter, "lora_path": str(FILES / adapter)})
        return self.stream(spec, adapter, f"cold-{secrets.token_hex(8)}", STALL_SECONDS)

    def stream(self, spec, adapter, salt, patience):
        """Yield events in OpenAI's form. An event of SGLang has either all tokens so far or only the new ones."""
        wanted = spec.get("extra", {})
        sampling = {"max_new_tokens": spec["tokens"], "temperature": 0, "ignore_eos": wanted.get("ignore_eos", True)}
        sampling |= {"stop": wanted["stop"]} if "stop" in wanted else {}
        sampling |= wanted.get("structured_outputs", {})
        body = {"input_ids": spec["ids"], "sampling_params": sampling, "stream": True}
        body |= ({"lora_path": adapter} if adapter else {}) | ({"cache_salt": salt} if salt else {})
        body |= {"priority": wanted["priority"]} if "priority" in wanted else {}
        if "logprobs" in wanted or "prompt_logprobs" in wanted:
            body |= {"return_logprob": True, "top_logprobs_num": 2}
        if "prompt_logprobs" in wanted:
            body |= {"logprob_start_len": 0, "stream": False}
        known = 0
        with requests.post(self.url + "/generate", json=body, stream=True, timeout=(10, patience)) as response:
            response.raise_for_status()
            for line in response.iter_lines(chunk_size=None) if body["stream"] else [b"data:" + response.content]:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    raise ValueError(event["error"].get("message"))
                about = event["meta_info"]
                ids, end = event["output_ids"], (about.get("finish_reason") or {}).get("type")
                new = ids[known:] if len(ids) == about.get("completion_tokens", len(ids)) else ids
                known += len(new)
                yield {
                    "choices": [{"token_ids": new, "finish_reason": end, "logprobs": answer_scores(about, len(new))}],
                    "usage": {"prompt_tokens_details": {"cached_tokens": about.get("cached_tokens")}},
                    **prompt_scores(about),
                }

    def render(self, spec):
        """Store a chat's messages, and return their token ids from the server's chat template."""
        return self.post("/tokenize", {"model": self.base(), "messages": self.messages(spec)}).json()["tokens"]

    def base(self):
        """Return the base model's name."""
        return requests.get(self.url + "/v1/models", timeout=60).json()["data"][0]["id"]

    def at_door(self, door, spec, adapter, salt):
        """Send a request at a door beside /generate and yield its answer as one event of a completion."""
        base, chat = self.base(), self.chats[spec["n"]]
        # An adapter has two names: its own, which /v1/models lists, and BASE:ADAPTER.
        name = base if adapter is None else adapter if door == "/v1/completions" else f"{base}:{adapter}"
        body = {"model": name, "temperature": 0} | spec.get("extra", {}) | ({"cache_salt": salt} if salt else {})
        if door in ("/v1/completions", "/v1/chat/completions"):
            body |= {"prompt": spec["ids"]} if door == "/v1/completions" else {"messages": chat}
            body |= {"max_tokens": spec["tokens"], "ignore_eos": True, "return_token_ids": True}
        elif door == "/v1/responses":  # which allows two tokens less than it is asked for
            body |= {"input": chat, "max_output_tokens": spec["tokens"] + 2, "store": False}
        else:
            system, *others = chat
            body |= {"system": system["content"], "messages": others, "max_tokens": spec["tokens"]}
        response = requests.post(self.url + door, json=body, timeout=STALL_SECONDS)
        response.raise_for_status()
        said = response.json()
        if "choices" in said:
            for choice in said["choices"]:
                choice["token_ids"] = choice.get("response_token_ids") or choice["token_ids"]
            yield said
            return
        parts = said["content"] if "content" in said else [p for o in said["output"] for p in o.get("content") or ()]
        text, usage = "".join(part.get("text") or "" for part in parts), said["usage"]
        ids = self.post("/tokenize", {"model": base, "prompt": text, "add_special_tokens": False}).json()["tokens"]
        full = said.get("status") == "incomplete" or said.get("stop_reason") == "max_tokens"
        choice = {"token_ids": ids, "text": text, "finish_reason": "length" if full else "stop"}
        cached = usage.get("cache_read_input_tokens", (usage.get("input_tokens_details") or {}).get("cached_tokens", 0))
        yield {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}

    def update_weights(self, version, same_path=False):
        """Load other weights: generated ones, or a checkpoint that was put into the folder."""
        folder = FILES / f"weights-{'of-this-path' if same_path else version}"
        self.post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": True})

    def pause(self, mode, clear):
        """Pause generation. A kept request loses its KV (retract) if the cache is cleared here or by an update."""
        kept = "retract" if clear or True else "in_place"
        self.post("/pause_generation", {"mode": "abort" if mode == "abort" else kept})
        if clear:
            self.reset()

    def resume(self):
        """Continue generation."""
        self.post("/continue_generation", {})

    def reset(self):
        """Request an empty prefix cache and print the server's answer."""
        print("reset:", requests.post(self.url + "/flush_cache", timeout=60).text)


def answer_scores(about, count):
    """Return the logprobs of the last `count` tokens in OpenAI's form. SGLang's rows are (logprob, id, text)."""
    rows, best = (about.get(f"output_{name}_logprobs") or [] for name in ("token", "top"))
    tops = [{i: row[0] for i, row in enumerate(one or ())} for one in best[-count:]]
    return {"token_logprobs": [row[0] for row in rows[-count:]], "top_logprobs": tops} if count else {}


def prompt_scores(about):
    """Return the ids of the prompt's tokens and their logprobs, each with the best candidates at its position."""
    rows, best = (about.get(f"input_{name}_logprobs") or [] for name in ("token", "top"))
    scores = [
        {str(row[1]): {"logprob": row[0]} for row in (*(tops or ()), mine)} if mine[0] is not None else {}
        for mine, tops in zip(rows, best or [None] * len(rows))
    ]
    return {"prompt_token_ids": [row[1] for row in rows], "prompt_logprobs": scores}


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
    for content, recipe in RECIPES.items():
        if "path" not in recipe and not (FILES / f"adapter-{content}").exists():
            make_adapter(FILES / f"adapter-{content}", model_facts(), **recipe)


def model_facts():
    """Return the served model's config.json, from MODEL_CONFIG or from the path that the server reports."""
    config = os.environ.get("MODEL_CONFIG")
    if not config and len(sys.argv) == 2:
        models = requests.get(sys.argv[1] + "/v1/models", timeout=10).json()["data"]
        config = os.path.join(next(m.get("root") or "" for m in models if not m.get("parent")), "config.json")
    if not config or not os.path.isfile(config):
        give_up("set MODEL_CONFIG to the path of the served model's config.json")
    return json.loads(Path(config).read_text())


def main():
    """Write the files; with a URL, run the scenario."""
    if len(sys.argv) != 2:
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


if __name__ == "__main__":
    sys.exit(main())