"""Record the calls that TRL makes to a vLLM server in a few training steps, on a CPU and with a tiny model.

TRL's own trainer and clients run unchanged but for the transport: NCCL needs GPUs, so that the tensors of an update go
through a checkpoint on disk. A bridge stands between TRL and the server. It records every call, turns the three calls
of a weight transfer into `reload_weights` from that checkpoint, and forwards everything else.

It needs an environment with TRL and vLLM's Python package (TRL asks for its version), and a running server:

    VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model MODEL --served-model-name base \
        --block-size 32 --max-model-len 2048 --logprobs-mode processed_logprobs --enforce-eager --dtype float32
    python benchmarks/rl_loop/trl_loop.py --server http://127.0.0.1:8000 --model MODEL --calls calls.json

`--loop grpo`: GRPOTrainer with vllm_mode="server". `--loop async`: the client of AsyncGRPOTrainer, with a request in
flight over each update. `--leave-out PATH` answers these calls without forwarding them. `--busy`: another client keeps
the server busy. judge_calls.py judges the file.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import requests

STEPS = 3
PREAMBLE = "You are a careful assistant. Answer in a few words, and say so if you do not know the answer. Question: "
QUESTIONS = ("What is the capital of France?", "How many legs has a spider?")  # two blocks of 32 tokens are shared
TRANSFER = {"/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"}
UPDATE, GENERATE, RESET = "/update_weights", "/v1/completions", "/reset_prefix_cache"
HITS = "vllm:prefix_cache_hits_total"
LONG, SHORT = 1500, 8  # tokens of an answer in flight over an update, and of others
TIMEOUT = 300


class Bridge:
    """Records calls and forwards them. `checkpoints`: the folders of the updates whose tensors have been written."""

    def __init__(self, server: str, *, left_out: Iterable[str] = ()) -> None:
        self.server, self.left_out = server.rstrip("/"), frozenset(left_out)
        self.calls: list[dict[str, Any]] = []
        self.checkpoints: queue.Queue[Path] = queue.Queue()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, method: str, target: str, raw: bytes) -> tuple[int, bytes]:
        """Answer one call, and record it with its times."""
        path, query = urlsplit(target).path, urlsplit(target).query
        hits, began = self.hit_tokens() if path == GENERATE else 0, time.monotonic()
        status, content = self.response(method, target, path, raw)
        facts = {"began": began, "ended": time.monotonic(), "method": method, "path": path, "query": query}
        if path == GENERATE:
            facts |= {**generation_facts(json.loads(raw)), "hit_tokens": self.hit_tokens() - hits}
        if path == RESET:
            facts |= {"success": json.loads(content).get("success")}
        self.calls.append({**facts, "status": status, "left_out": path in self.left_out})
        return status, content

    def hit_tokens(self) -> int:
        """Return how many prompt tokens the server has found in its cache so far. The counts of an answer do not add
        up the prompts of a request.
        """
        lines = requests.get(f"{self.server}/metrics", timeout=TIMEOUT).text.splitlines()
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(HITS))

    def response(self, method: str, target: str, path: str, raw: bytes) -> tuple[int, bytes]:
        """Return the server's answer, or the bridge's own."""
        if path in self.left_out:
            return 200, b'{"success": true}'
        if path in TRANSFER:
            return self.transfer(path)
        there = requests.request(
            method, self.server + target, data=raw, headers={"Content-Type": "application/json"}, timeout=TIMEOUT
        )
        if path != "/server_info":
            return there.status_code, there.content
        page = there.json()  # TRL refuses a server without a weight transfer engine, which needs a GPU
        page["vllm_config"]["weight_transfer_config"] = {"backend": "nccl"}
        return there.status_code, json.dumps(page).encode()

    def transfer(self, path: str) -> tuple[int, bytes]:
        """Load the checkpoint of an update. The other calls of a transfer have nothing to do."""
        if path != UPDATE:
            return 200, b"{}"
        kwargs = {"weights_path": str(self.checkpoints.get(timeout=TIMEOUT))}
        there = requests.post(
            f"{self.server}/collective_rpc", json={"method": "reload_weights", "kwargs": kwargs}, timeout=TIMEOUT
        )
        return there.status_code, b"{}"


def generation_facts(body: dict[str, Any]) -> dict[str, Any]:
    """Return the prompts of a request, and how many answers of which length it wants."""
    prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
    return {"prompts": prompts, "answers": body.get("n", 1), "max_tokens": body["max_tokens"]}


def handler_of(bridge: Bridge) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers the bridge's calls."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """The record has it."""

        def serve(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, content = bridge.answer(self.command, self.path, raw)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = serve  # noqa: N815 - the names that the base class looks for

    return Handler


def sender(bridge: Bridge, model: Path, folder: Path) -> Callable[..., None]:
    """Return what replaces TRL's broadcast: it writes the tensors as a checkpoint of the served model."""
    from safetensors.torch import save_file

    def send(iterator: Iterable[tuple[str, Any]], **_group: Any) -> None:
        target = folder / f"update-{len(list(folder.iterdir()))}"
        target.mkdir()
        for file in model.iterdir():
            if file.suffix != ".safetensors":
                shutil.copyfile(file, target / file.name)
        save_file(
            {name: tensor.detach().contiguous().clone() for name, tensor in iterator}, target / "model.safetensors"
        )
        bridge.checkpoints.put(target)

    return send


def use_bridge(module: Any, send: Callable[..., None]) -> None:
    """Replace the transport in one of TRL's modules. Its calls to the server stay."""
    module.open_trainer_endpoint = lambda _info: SimpleNamespace(group=SimpleNamespace(store=None, socket=None))
    module.packed_nccl_broadcast_producer = send


def train_grpo(bridge: Bridge, model: Path, folder: Path) -> None:
    """Run a few steps of GRPOTrainer against the bridge."""
    import trl.generation.vllm_client as client
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    use_bridge(client, sender(bridge, model, folder))
    join = client.VLLMClient.init_communicator
    client.VLLMClient.init_communicator = lambda self, **_: join(self, device="cuda")  # it refuses a CPU
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.eos_token or "<|end|>"
    settings = GRPOConfig(
        output_dir=str(folder.parent / "trainer"),
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=bridge.url,
        max_steps=STEPS,
        per_device_train_batch_size=2 * len(QUESTIONS),
        num_generations=2,
        max_completion_length=SHORT,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
    )
    GRPOTrainer(
        model=str(model),
        args=settings,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        train_dataset=Dataset.from_list([{"prompt": PREAMBLE + question} for question in QUESTIONS]),
    ).train()


def update_in_flight(bridge: Bridge, model: Path, folder: Path) -> None:
    """Run the weight updates of AsyncGRPOTrainer with its own clients, each over a request in flight."""
    import torch
    import trl.experimental.async_grpo.weight_transfer as transfer
    from accelerate import PartialState
    from transformers import AutoModelForCausalLM
    from trl.experimental.async_grpo.vllm_client import VLLMClient

    PartialState(cpu=True)  # its logger wants one
    use_bridge(transfer, sender(bridge, model, folder))
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    named = list(policy.named_parameters())
    info = {
        "names": [name for name, _ in named],
        "dtype_names": ["float32"] * len(named),
        "shapes": [list(tensor.shape) for _, tensor in named],
    }
    syncing = transfer.WeightTransferClient(VLLMClient(bridge.url), info)
    syncing.init_weight_transfer()
    for _ in range(STEPS):
        flight = threading.Thread(target=generate, args=(bridge, LONG))
        flight.start()
        time.sleep(0.5)
        with torch.no_grad():
            for _, tensor in named:
                tensor.add_(0.02 * torch.randn_like(tensor))
        syncing.pause()
        syncing.send_weights(iter(named))
        syncing.resume()
        flight.join()
        generate(bridge, SHORT)


def generate(bridge: Bridge, tokens: int) -> None:
    """Send one request, as a rollout worker does."""
    prompt = list((PREAMBLE + QUESTIONS[0]).encode())
    body = {"model": "base", "prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "n": 1, "ignore_eos": True}
    requests.post(bridge.url + GENERATE, json=body, timeout=TIMEOUT).raise_for_status()


def keep_busy(server: str, over: threading.Event) -> None:
    """Send long requests one after the other, as another client of the server would. They are not recorded."""
    body = {"model": "base", "prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": True}
    while not over.is_set():
        requests.post(server + GENERATE, json=body, timeout=TIMEOUT)


LOOPS = {"grpo": train_grpo, "async": update_in_flight}


def main() -> None:
    """Run one loop and write its calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the URL of the vLLM server")
    parser.add_argument("--model", required=True, type=Path, help="the folder of the served model")
    parser.add_argument("--calls", required=True, type=Path, help="the file for the recorded calls")
    parser.add_argument("--loop", choices=LOOPS, default="grpo")
    parser.add_argument("--busy", action="store_true", help="another client always has a request in flight")
    parser.add_argument("--leave-out", action="append", default=[], help="do not forward calls to this path")
    options = parser.parse_args()
    bridge = Bridge(options.server, left_out=options.leave_out)
    folder = options.calls.absolute().with_suffix(".checkpoints")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    over = threading.Event()
    if options.busy:
        threading.Thread(target=keep_busy, args=(bridge.server, over), daemon=True).start()
    LOOPS[options.loop](bridge, options.model.absolute(), folder)
    over.set()
    shutil.rmtree(folder)
    calls = sorted(bridge.calls, key=lambda call: call["began"])
    options.calls.write_text("[\n" + ",\n".join(map(json.dumps, calls)) + "\n]\n")


if __name__ == "__main__":
    main()
