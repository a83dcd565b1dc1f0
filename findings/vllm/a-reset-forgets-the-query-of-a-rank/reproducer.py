#!/usr/bin/env python3
"""A pause, or a reset of the encoder cache, between the query and the documents of a /rerank ends the engine.

Stand-alone script: needs Python 3.11, `requests`, `transformers` and an installed vLLM, not Coldproof.

  python reproducer.py          writes a tiny ColBERT without weights to ./coldproof-files and starts the server

It ranks documents, pauses with mode=keep (which documents that requests go on afterwards) and resumes meanwhile, and does
the same with /reset_encoder_cache on another server.

Exit code: 1 if the bug occurs, 0 if it does not, 2 if the script could not test it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import string
import subprocess
import sys
import threading
import time
from pathlib import Path

import requests

FILES = Path("coldproof-files").resolve()
START_SECONDS, ATTEMPT_SECONDS = 300, 20
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for pauses and resets
}
DISTURBANCES = {
    "nothing": (),
    "pause with mode=keep, resume": ("/pause?mode=keep&clear_cache=true", "/resume"),
    "reset of the encoder cache": ("/reset_encoder_cache",),
}


def make_model(folder):
    """Write the config of a ModernBERT of two layers with a projection for ColBERT, and a tokenizer of characters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokens = (*SPECIAL, *string.printable[:94])
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL)))
    fast.save_pretrained(folder)
    config = {
        "architectures": ["ColBERTModernBertModel"],
        "model_type": "modernbert",
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "global_attn_every_n_layers": 1,
        "local_attention": 128,
        "torch_dtype": "float32",
        "colbert_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
    }
    (folder / "config.json").write_text(json.dumps(config))


class Server:
    """A server of the tiny model, in a process group of its own."""

    def __init__(self, model, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port), "--runner", "pooling"]
        command += ["--load-format", "dummy", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env=os.environ | ENVIRONMENT, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: see {log}")
            time.sleep(0.5)

    def answers(self):
        """Return whether the server says that its engine runs."""
        try:
            return requests.get(f"{self.url}/health", timeout=10).ok
        except requests.RequestException:
            return False

    def rank(self):
        """Rank 60 documents, and return the status: 0 if the connection broke."""
        documents = [secrets.token_hex(200) for _ in range(60)]
        body = {"model": "base", "query": secrets.token_hex(20), "documents": documents}
        try:
            return requests.post(f"{self.url}/rerank", json=body, timeout=60).status_code
        except requests.RequestException:
            return 0

    def disturb(self, paths):
        """Post to some routes. A server that has just ended does not answer."""
        try:
            for path in paths:
                requests.post(self.url + path, timeout=30)
        except requests.RequestException:
            time.sleep(1)

    def stop(self):
        """End all processes of the server."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def ends(model, name, paths):
    """Return whether the engine ends while documents are ranked and the server is disturbed."""
    server = Server(model, FILES / "server.log")
    try:
        if server.rank() != 200:
            raise RuntimeError(f"documents cannot be ranked: see {server.log}")
        statuses, deadline = [], time.monotonic() + ATTEMPT_SECONDS

        def rank():
            while time.monotonic() < deadline and (not statuses or statuses[-1] == 200):
                statuses.append(server.rank())

        ranking = threading.Thread(target=rank)
        ranking.start()
        while ranking.is_alive():
            server.disturb(paths)
            time.sleep(0.01)
        ranking.join()
        alive = server.answers()
        said = f"status {statuses[-1]} after {len(statuses) - 1} that were answered" if statuses[-1] != 200 else ""
        print(f"{name}: {said or f'{len(statuses)} were answered'}; the engine {'runs' if alive else 'has ended'}")
        errors = [line for line in server.log.read_text().splitlines() if "ValueError: late-interaction" in line]
        if errors:
            print(f"  {errors[0][errors[0].index('ValueError') :]}")
        return not alive
    finally:
        server.stop()


def main():
    """Rank without a disturbance, and with each of the others."""
    try:
        model = FILES / "colbert"
        make_model(model)
        ended = {name: ends(model, name, paths) for name, paths in DISTURBANCES.items()}
    except Exception as problem:
        print(f"could not test: {type(problem).__name__}: {problem}")
        return 2
    if ended["nothing"]:
        print("could not test: the engine ends without a disturbance")
        return 2
    found = any(ended.values())
    print("wrong" if found else "right")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
