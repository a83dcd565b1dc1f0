#!/usr/bin/env python3
"""EMBED-1-f10da19e: Request 1 to 'base' differs from the cold answer at token 0 (64 of its 96 prompt tokens came from the cache); it equals no known cold answer.

Stand-alone script: needs Python 3.11 and `torch` and `vllm`, not Coldproof.

  python EMBED-1-f10da19e.py          runs the engine in this process, with a tiny random model in ./coldproof-files


Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import array
import enum
import functools
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
from collections.abc import Iterator, Sequence
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Any, NamedTuple

ATTEMPTS = 5
STALL_SECONDS = 60
SCORE_NATS = 0.02  # tolerance for the order of additions; a wrong block changes scores by tenths
FILES = Path("coldproof-files").resolve()
NOISE = None  # None: cold answers are deterministic
COMMAND = 'DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1 --model coldproof-files/model --served-model-name base --host 127.0.0.1 --port 8000 --enforce-eager --dtype float32 --block-size 32 --max-model-len 2048 --enable-prompt-tokens-details --enable-lora --max-loras 4 --max-lora-rank 16 --enable-scale-out --enable-prefix-caching --enable-prompt-embeds'
RECIPES = {}


def scenario(server):
    """Run the steps. A prompt is a list of (segment, length, changed token); equal names share tokens.

    A fourth number is the position of a token that is swapped with the next one.
    """
    server.ask([dict(n=0, to=None, prompt=[('stem', 59, None, None, {'spans': ((29, 59),), 'blank': True}), ('tail', 33, None)], continues=None, tokens=8)])
    server.ask([dict(n=1, to=None, prompt=[('stem', 59, None, None, {'spans': ((30, 59),), 'blank': True}), ('tail', 33, None)], continues=None, tokens=8)])


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


class Server(Story):
    """vLLM in this process. Its prompts have token ids and images; or token ids, embedding rows, and a mask.

    The fifth item of a segment describes its rows, or the image that it is. The requests of a step arrive together.
    """

    engine = None  # one for all attempts
    QUIET_STEPS = 2000

    def __init__(self, _url):
        super().__init__()
        Server.engine = Server.engine or start_engine()
        self.width = Server.engine.llm_engine.model_config.get_inputs_embeds_size()
        self.loras, self.hidden, self.crash = {}, {}, None
        self.sessions, self.turns = {}, {}  # the latest input of each; request number by the name in outputs

    def set_adapter(self, name, *, content, path, in_place=False, unload_first=False, **_route):
        """Write the adapter's files to the folder of the step, and load or replace the adapter."""
        folder = FILES / self.nonce / path.replace("..", "_")
        self.write(content, folder)
        if unload_first:
            self.unload(name)
        number = self.loras[name].lora_int_id if name in self.loras else None
        self.loras[name] = self.load(self.spelled(name), folder, number=number, load_inplace=in_place)
        self.changed(name, content)

    def load(self, name, folder, *, number=None, **options):
        """Load an adapter and return what a request has to name."""
        from vllm.lora.request import LoRARequest

        Server.loads = getattr(Server, "loads", 0) + 1
        lora = LoRARequest(lora_name=name, lora_int_id=number or Server.loads, lora_path=str(folder), **options)
        Server.engine.llm_engine.add_lora(lora)
        return lora

    def unload(self, name):
        """Forget an adapter's name, as vLLM's server does."""
        self.loras.pop(name, None)
        self.behind.pop(name, None)

    def reset(self, *scope, prefix=True):
        """Empty the prefix cache, unless told otherwise, and the caches in `scope`."""
        if prefix:
            print("reset:", Server.engine.reset_prefix_cache(reset_running_requests="running requests" in scope))
        if "the multimodal processor's cache" in scope:
            Server.engine.llm_engine.reset_mm_cache()
        if "the encoder cache" in scope:
            Server.engine.llm_engine.reset_encoder_cache()

    def update_weights(self, version, same_path=False):
        """Load other weights: generated ones, or a checkpoint that was put into the folder."""
        folder = FILES / f"weights-{'of-this-path' if same_path else version}"
        Server.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})

    def segment(self, name, length, changed, swapped=None, content=None):
        """Return the ids of what the model sees at each position of a named segment."""
        return [seen for seen, _ in self.positions(name, length, changed, swapped, content)]

    def positions(self, name, length, changed, swapped=None, content=None):
        """Return what the model sees at each position, and what the request carries there without it."""
        if content is None:
            return [(token, NO_ROW) for token in super().segment(name, length, changed, swapped)]
        return self.rows(name, length, changed, swapped, content) if "spans" in content else self.image(length, content)

    def image(self, length, image):
        """Return the positions of an image. The first one carries how it is sent."""
        variant = 0 if image.get("pixel") is None else 1 + image["pixel"]
        uuid = 0 if image.get("uuid") is None else uuid_number(f"{self.nonce}/{image['uuid']}")
        arguments = Arguments(image.get("arguments", 0))
        sent = SentImage(Encoding(image.get("encoding", 0)), uuid, arguments).hidden()
        seen = image_positions(image_id(f"{self.nonce}/{image['name']}", variant, arguments.look), length)
        return list(zip(seen, [sent] + [NO_ROW] * (length - 1)))

    def rows(self, name, length, changed, swapped, rows):
        """Return the positions of a segment with embedding rows."""
        tokens, edited = super().segment(name, length, None), super().segment(name, length, changed)
        found = []
        for place in range(length):
            alone = rows.get("alone", False)
            blank, own = rows.get("blank", False), 0 if rows.get("equal", False) else place
            if any(first <= place < end for first, end in rows["spans"]):
                variant = 1 + place % (VARIANTS - 1) if place == rows.get("nudged") else 0
                row = row_id(f"{self.nonce}/{name}/{'changed' if place == changed else own}", variant)
                if blank and alone and place != changed and not variant:
                    row = ZERO_ROW
                found.append((row, 0 if blank or alone else tokens[place]))
            else:
                row = NO_ROW if alone else row_id(f"{self.nonce}/{name}/{own}")
                found.append((0 if blank and place != changed else edited[place], row))
        if swapped is not None:
            found[swapped : swapped + 2] = found[swapped + 1], found[swapped]
        return found

    def prompt(self, spec):
        """Return the ids of what the model sees. A prompt that begins with a row begins with a nonce of rows."""
        ids = super().prompt(spec)
        own = [hidden for segment in spec["prompt"] for _, hidden in self.positions(*segment)]
        if spec["continues"] is not None:
            earlier = self.hidden[spec["continues"]] + [NO_ROW] * len(self.replies[spec["continues"]].ids)
            self.hidden[spec["n"]] = earlier[slice(*spec.get("cut", (None,)))] + own
            return ids
        start = len(ids) - len(own)
        self.hidden[spec["n"]] = [NO_ROW] * start + own
        return [row_id(f"{self.nonce} {place}") for place in range(start)] + ids[start:] if is_row(ids[start]) else ids

    def ask(self, specs, after_tokens=0, change=None):
        """Send requests together. Make the change after the first request has produced `after_tokens` tokens."""
        from vllm import SamplingParams

        engine = Server.engine.llm_engine
        for spec in specs:
            self.sent[spec["n"]] = spec | {"ids": self.prompt(spec)}
            self.versions[spec["n"]], self.replies[spec["n"]] = [self.behind.get(spec["to"])], Reply()
            salt = None if spec.get("salt") is None else self.spelled(spec["salt"])
            prompt = self.engine_prompt(self.sent[spec["n"]]["ids"], self.hidden[spec["n"]], salt)
            lora = None if spec["to"] is None else self.loras[spec["to"]]
            sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=spec["tokens"], ignore_eos=True)
            if spec.get("session"):
                self.send_turn(spec, sampling, lora, salt)
            else:
                engine.add_request(f"{self.nonce}-{spec['n']}", prompt, sampling, lora_request=lora)
        quiet = 0  # steps without an output: some engines wait for ever
        while self.crash is None and not all(self.replies[spec["n"]].over for spec in specs):
            try:
                outputs = engine.step()
            except Exception as problem:
                self.crash = problem
                return
            quiet = 0 if outputs else quiet + 1
            if quiet > self.QUIET_STEPS:
                self.crash = TimeoutError(f"no output in {self.QUIET_STEPS} steps")
            for output in outputs:
                self.take(output)
            if change and len(self.replies[specs[0]["n"]].ids) >= after_tokens:
                change()
                change = None

    def send_turn(self, spec, sampling, lora, salt):
        """Send a turn of a session, as `AsyncLLM.generate` does with a stream of inputs: only its new tokens."""
        from vllm.sampling_params import RequestOutputKind

        engine, own = Server.engine.llm_engine, spec["prompt"] if spec["continues"] is not None else []
        sampling.output_kind = RequestOutputKind.DELTA
        ids = self.sent[spec["n"]]["ids"]
        new = ids[len(ids) - sum(segment[1] for segment in own) :] if own else ids
        prompt = self.engine_prompt(new, [NO_ROW] * len(new), salt)
        known = self.sessions.get(spec["session"])
        turn = engine.input_processor.process_inputs(
            request_id=known.request_id if known else f"{self.nonce}-{spec['n']}",
            prompt=engine.renderer.render_cmpl([prompt])[0],
            params=sampling,
            supported_tasks=engine.get_supported_tasks(),
            lora_request=lora,
            resumable=True,
        )
        if known:
            turn.external_req_id = known.external_req_id
        else:
            engine.input_processor.assign_request_id(turn)
        self.sessions[spec["session"]] = turn
        self.turns[turn.external_req_id] = spec["n"]
        self.add(turn)

    def close_session(self, name, *, aborted):
        """End a session: by an input that is not resumable, or by a disconnect."""
        turn = self.sessions.pop(name)
        if aborted:
            Server.engine.llm_engine.abort_request([turn.request_id], internal=True)
        else:
            turn.resumable = False
            self.add(turn)

    def add(self, turn):
        """Hand an input to the parts of the engine, each with its own list of tokens, to which it appends."""
        import copy

        Server.engine.llm_engine.output_processor.add_request(turn, None, None, 0)
        core = copy.copy(turn)
        core.prompt_token_ids = list(turn.prompt_token_ids)
        Server.engine.llm_engine.engine_core.add_request(core)

    def take(self, output):
        """Record what a request has so far. Disconnect where the scenario does."""
        number = self.turns.get(output.request_id, int(output.request_id.rpartition("-")[2]))
        reply, (answer,) = self.replies[number], output.outputs
        before = reply.ids if output.request_id in self.turns else []  # the outputs of a session have new tokens only
        reply.answers, reply.text, reply.end = {0: before + list(answer.token_ids)}, answer.text, answer.finish_reason
        reply.cached, reply.over = output.num_cached_tokens, answer.finish_reason is not None
        after, _ = self.sent[number].get("abort", (None, 0))
        if after is not None and len(reply.ids) >= max(1, after) and not reply.over:
            Server.engine.llm_engine.abort_request([output.request_id])
            reply.over = True

    def is_wrong(self, number, **bounds):
        """Return whether a step failed; else compare an answer or a cached-token count, as in every script."""
        if self.crash is not None:
            print(f"a step of the engine failed: {type(self.crash).__name__}: {self.crash}")
            return True
        return super().is_wrong(number, **bounds)

    def cold_answers(self, spec, content):
        """Yield the answer to the same request alone, with a new adapter name, folder and salt."""
        lora = None
        if content is not None:
            name = f"cold-{secrets.token_hex(4)}"
            self.write(content, FILES / name)
            lora = self.load(name, FILES / name)
        return self.generate(spec, lora, f"cold-{secrets.token_hex(8)}")

    def generate(self, spec, lora, salt):
        """Yield the answer to one request, in OpenAI's form. Its images have no names: these are keys of caches too.

        vLLM's `generate` waits until no session is open.
        """
        from vllm import SamplingParams

        for name in list(self.sessions):
            self.close_session(name, aborted=True)

        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=spec["tokens"], ignore_eos=True)
        hidden = [NO_ROW] * len(spec["ids"]) if has_images(spec["ids"]) else self.hidden[spec["n"]]
        prompt = self.engine_prompt(spec["ids"], hidden, salt)
        (output,) = Server.engine.generate([prompt], sampling, lora_request=lora, use_tqdm=False)
        (answer,) = output.outputs
        part = {"token_ids": list(answer.token_ids), "text": answer.text, "finish_reason": answer.finish_reason}
        yield {"choices": [part], "usage": {"prompt_tokens_details": {"cached_tokens": output.num_cached_tokens}}}

    def engine_prompt(self, seen, hidden, salt):
        """Return a prompt in vLLM's form."""
        import torch

        prompt = {} if salt is None else {"cache_salt": salt}
        if has_images(seen):
            return prompt | self.image_prompt(seen, hidden)
        if not has_rows(seen):
            return prompt | {"prompt_token_ids": list(seen)}
        are_tokens = [not is_row(number) for number in seen]
        triples = list(zip(seen, hidden, are_tokens))
        rows = [list(row_bytes(under if token else own, self.width)) for own, under, token in triples]
        dtype = Server.engine.llm_engine.model_config.dtype
        prompt["prompt_embeds"] = ((torch.tensor(rows) - ZERO) / STEPS).to(dtype)
        if any(are_tokens):
            prompt["prompt_token_ids"] = [own if token else under for own, under, token in triples]
            prompt["prompt_is_token_ids"] = are_tokens
        return prompt


    def image_prompt(self, seen, hidden):
        """Return a prompt with images: one placeholder for each."""
        import io

        from PIL import Image
        from vllm.multimodal.media import MediaWithBytes

        config = Server.engine.llm_engine.model_config.hf_config
        side = config.vision_config.image_size
        found = list(images_of(seen))
        starts = {place for place, _ in found}
        kept = [i for i, number in enumerate(seen) if i in starts or not is_image(number)]
        media, uuids = [], []
        for place, number in found:
            sent = sent_image(hidden[place])
            image = Image.frombytes("RGB", (side, side), pixels(number, side))
            if sent.encoding is not Encoding.PIXELS:
                file = io.BytesIO()
                image.save(file, format=sent.encoding.name)
                image = MediaWithBytes(Image.open(io.BytesIO(file.getvalue())).convert("RGB"), file.getvalue())
            media.append(image)
            uuids.append(f"image-{sent.uuid}" if sent.uuid else None)
        tokens = [config.image_token_id if i in starts else seen[i] for i in kept]
        prompt = {"prompt_token_ids": tokens, "multi_modal_data": {"image": media}}
        arguments = arguments_of(seen, hidden).fields()
        prompt |= {"mm_processor_kwargs": arguments} if arguments else {}
        return prompt | ({"multi_modal_uuids": {"image": uuids}} if any(uuids) else {})


def start_engine():
    """Start vLLM with the environment and the flags of COMMAND."""
    import shlex

    if "/image-model " in COMMAND:
        image_model(FILES / "model", FILES / "image-model")

    words = shlex.split(COMMAND)
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        os.environ.setdefault(name, value)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known, _only_of_servers = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_known_args(words)
    return LLM.from_engine_args(EngineArgs.from_cli_args(known))


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


FIRST_ROW = 1 << 44  # no vocabulary is that large; ids stay below 2**53, so that every reader of JSON keeps them exact
SEEDS = 1 << 36
VARIANTS = 1 << 8
ZERO_ROW = FIRST_ROW  # a row of zeros that the model gets
NO_ROW = 0  # in `hidden`, under a token: a row of zeros
AFTER_ROWS = 1 << 50
ZERO, STEPS = 128, 64  # the byte of the value 0, and the number of steps from it to the value 1


def row_id(name: str, variant: int = 0) -> int:
    """Return the id of a row. The rows of two names differ in most values.

    `variant`: 0, or the number of the value, counted from 1, in which the row differs from the row of variant 0.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return FIRST_ROW + seed % SEEDS * VARIANTS + variant


def is_row(number: int) -> bool:
    """Return whether an id of a prompt is that of a row."""
    return FIRST_ROW <= number < AFTER_ROWS


def has_rows(prompt: Sequence[int]) -> bool:
    """Return whether a prompt contains rows."""
    return max(prompt, default=0) >= FIRST_ROW and any(map(is_row, prompt))


@functools.lru_cache(maxsize=65536)
def row_bytes(number: int, width: int) -> bytes:
    """Return one byte for each value of a row; those of a row of zeros for other ids."""
    if not is_row(number) or number == ZERO_ROW:
        return bytes([ZERO]) * width
    seed, variant = divmod(number - FIRST_ROW, VARIANTS)
    values = bytearray(hashlib.shake_128(f"row {seed}".encode()).digest(width))
    if variant:
        values[(variant - 1) % width] ^= ZERO  # the value moves by 2
    return bytes(values)


FIRST_IMAGE = 1 << 50  # above all rows; ids stay below 2**53, so that every reader of JSON keeps them exact
IMAGE_POSITIONS = 1 << 8
IMAGE_SEEDS = 1 << 30
IMAGE_VARIANTS = 1 << 8
IMAGES_OF_A_LOOK = IMAGE_SEEDS * IMAGE_VARIANTS
UUIDS = 1 << 33  # numbers of a client's name for an image
PATCHES = 4  # colours in each direction
CHANGE = 128  # of one channel of one pixel


class Encoding(enum.IntEnum):
    """How a client sends the pixels. All of them keep every pixel."""

    PIXELS = 0  # a decoded image
    PNG = 1
    BMP = 2


class Look(enum.IntEnum):
    """What the model sees of the pixels. `mean_and_deviation`: it sees (pixel - mean) / deviation, which is exact in
    float32 and bfloat16.
    """

    AS_SENT = 0
    DOUBLED = 1
    HALVED = 2
    LOWERED = 3

    @property
    def mean_and_deviation(self) -> tuple[float, float]:
        """Return the numbers that turn a pixel into what the model sees."""
        return ((0.0, 1.0), (0.0, 0.5), (1.0, 2.0), (2.0, 1.0))[self]


class Arguments(enum.IntEnum):
    """What a request tells the engine's processor to do with its images, by the names of Hugging Face's processors.

    Some arguments differ and make the same pixels. Those of HALVED and LOWERED have equal values under other names.
    """

    NONE = 0
    AS_CONFIGURED = 1
    RESCALED = 2
    NORMALIZED = 3
    HALVED = 4
    LOWERED = 5

    @property
    def look(self) -> Look:
        """Return what the model sees with them."""
        looks = (Look.AS_SENT, Look.AS_SENT, Look.DOUBLED, Look.DOUBLED, Look.HALVED, Look.LOWERED)
        return looks[self]

    def fields(self) -> dict[str, Any]:
        """Return them as a request carries them. Without them, the processor does as it is configured: nothing."""
        mean, deviation = self.look.mean_and_deviation
        if self is Arguments.NONE:
            return {}
        if self is Arguments.AS_CONFIGURED:
            return {"do_rescale": False}
        if self is Arguments.RESCALED:
            return {"do_rescale": True, "rescale_factor": 1 / deviation}
        return {"do_normalize": True, "image_mean": [mean] * 3, "image_std": [deviation] * 3}

    def text(self) -> str:
        """Return them for people; an empty string for NONE."""
        return ", ".join(f"{name}={value}" for name, value in self.fields().items())


class SentImage(NamedTuple):
    """What a request says of an image beside its pixels. `uuid`: the number of the client's name for it; 0: none."""

    encoding: Encoding = Encoding.PIXELS
    uuid: int = 0
    arguments: Arguments = Arguments.NONE

    def hidden(self) -> int:
        """Return this as a number: what the first position of the image carries without the model seeing it."""
        return (self.arguments * UUIDS + self.uuid) * len(Encoding) + self.encoding


def sent_image(hidden: int) -> SentImage:
    """Return what `SentImage.hidden` made a number of."""
    rest, encoding = divmod(hidden, len(Encoding))
    arguments, uuid = divmod(rest, UUIDS)
    return SentImage(Encoding(encoding), uuid, Arguments(arguments))


def image_id(name: str, variant: int = 0, look: Look = Look.AS_SENT) -> int:
    """Return the id of an image. `variant`: 0, or the number of the pixel, counted from 1, that differs."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return look * IMAGES_OF_A_LOOK + seed % IMAGE_SEEDS * IMAGE_VARIANTS + variant


def look_of(image: int) -> Look:
    """Return what the model sees of an image's pixels."""
    return Look(image // IMAGES_OF_A_LOOK)


def uuid_number(name: str) -> int:
    """Return the number of a client's name for an image, from 1."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def image_positions(image: int, count: int) -> tuple[int, ...]:
    """Return the ids of the positions of an image that takes `count` of them."""
    return tuple(FIRST_IMAGE + image * IMAGE_POSITIONS + offset for offset in range(count))


def is_image(number: int) -> bool:
    """Return whether an id of a prompt is a position of an image."""
    return number >= FIRST_IMAGE


def image_and_offset(number: int) -> tuple[int, int]:
    """Return the image of a position, and how far within it the position is."""
    return divmod(number - FIRST_IMAGE, IMAGE_POSITIONS)


def has_images(prompt: Sequence[int]) -> bool:
    """Return whether a prompt contains images."""
    return max(prompt, default=0) >= FIRST_IMAGE


def images_of(prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the images of a prompt: the first position of each, and its id."""
    for place, number in enumerate(prompt):
        if is_image(number) and not image_and_offset(number)[1]:
            yield place, image_and_offset(number)[0]


def arguments_of(prompt: Sequence[int], hidden: Sequence[int]) -> Arguments:
    """Return what a request tells the processor: of one prompt, it processes all images alike.

    `hidden`: what the request carries at each position without the model seeing it. Where it is unknown or empty, these
    are arguments with which the model sees the images. Raises ValueError if there are none for all of them.
    """
    found = set()
    for place, image in images_of(prompt):
        sent, look = sent_image(hidden[place] if hidden else 0).arguments, look_of(image)
        found.add(sent if sent.look is look else next(one for one in Arguments if one.look is look))
    if len(found) > 1:
        raise ValueError("the images of one prompt have several arguments of the processor")
    return found.pop() if found else Arguments.NONE


def as_sent(image: int) -> int:
    """Return the image of the same pixels of which the model sees what was sent."""
    return image % IMAGES_OF_A_LOOK


@functools.lru_cache(maxsize=4096)
def pixels(image: int, side: int) -> bytes:
    """Return the pixels of a square image as they are sent, row by row, three bytes each: patches of one colour."""
    seed, variant = divmod(as_sent(image), IMAGE_VARIANTS)
    colours = hashlib.shake_128(f"image {seed}".encode()).digest(3 * PATCHES * PATCHES)
    found = bytearray()
    for row in range(side):
        for column in range(side):
            patch = row * PATCHES // side * PATCHES + column * PATCHES // side
            found += colours[3 * patch : 3 * patch + 3]
    if variant:
        found[3 * ((variant - 1) * 7 % (side * side))] ^= CHANGE
    return bytes(found)


SIDE, PATCH = 32, 8  # pixels
GRID = (SIDE // PATCH) ** 2
DELIMITERS = 3  # positions of an image that are no patches
IMAGE_TOKENS = GRID + DELIMITERS
# The processor's names, in the order of their ids: a patch, both ends of an image, its kind, the end of a message.
NEW_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
WEIGHT_FILES = "*.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
TOKEN_OPTIONS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def image_model(model: Path, folder: Path) -> Path:
    """Write the model's folder, unless it exists, and return it. Two engines that start together may both write it.

    `model`: the folder of a decoder, whose tokenizer gets a token more.
    """
    if folder.exists():
        return folder
    scratch = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    write_image_model(model, scratch)
    try:
        os.replace(scratch, folder)
    except OSError:  # another one was faster
        shutil.rmtree(scratch)
    return folder


def write_image_model(model: Path, folder: Path) -> None:
    """Write the model's files to a new folder."""
    folder.mkdir(parents=True)
    text = json.loads((model / "config.json").read_text())
    token = int(text["vocab_size"])
    for source in (*(model / name for name in TOKENIZER), *model.glob(WEIGHT_FILES)):
        if source.is_file():
            shutil.copyfile(source, folder / source.name)
    write_processor(folder, token)
    write_text(folder / "config.json", idefics3(text, token))


def write_processor(folder: Path, token: int) -> None:
    """Add the processor's tokens, of which `token` is the first, to the tokenizer in a folder, and write its files."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [
        {"id": token + i, "content": name, "special": True, **TOKEN_OPTIONS} for i, name in enumerate(NEW_TOKENS)
    ]
    write_text(folder / "tokenizer.json", tokenizer)
    write_text(folder / "preprocessor_config.json", PREPROCESSOR)
    write_text(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": GRID})


def idefics3(text: dict[str, Any], image_token: int) -> dict[str, Any]:
    """Return the configuration of an Idefics3 with a decoder and a small vision tower."""
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": {**text, "vocab_size": image_token + len(NEW_TOKENS)},
        "vision_config": VISION,
        "image_token_id": image_token,
        "scale_factor": 1,
        "pad_token_id": None,
        **{name: text[name] for name in ("torch_dtype", "tie_word_embeddings", "eos_token_id") if name in text},
    }


VISION: dict[str, object] = {
    "model_type": "idefics3_vision",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
PREPROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    **dict.fromkeys(("do_resize", "do_image_splitting", "do_rescale", "do_normalize"), False),
    **dict.fromkeys(("do_convert_rgb", "do_pad"), True),
    **{edge: {"longest_edge": SIDE} for edge in ("size", "max_image_size")},
}


def write_text(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())