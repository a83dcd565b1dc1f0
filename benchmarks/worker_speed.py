"""Requests a second of the fingerprint worker against the tiny real model, in process and over HTTP.

The same bursts, warm and cold prompts among them, go to four engines in turn, several rounds of them, so that a busy
machine slows all alike; the medians and their ratios are printed. Run: python -m benchmarks.worker_speed
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.adapters.vllm import server
from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model

ROUNDS, BURSTS, SIDE_BY_SIDE, PROMPT, ANSWER = 5, 6, 6, 70, 16


def bursts(round_number: int) -> list[list[Arrival]]:
    """Each burst shares a stem within itself and with the one before."""
    source = random.Random(round_number)
    made, stem = [], [0]
    for number in range(BURSTS):
        stem = source.choices(range(32, 127), k=PROMPT) if number % 2 == 0 else stem
        tails = [source.choices(range(32, 127), k=7) for _ in range(SIDE_BY_SIDE)]
        prompts = [tuple(stem + tail) for tail in tails]
        made.append([Arrival(CompletionRequest(model="base", prompt=p, max_tokens=ANSWER)) for p in prompts])
    return made


def seconds(engine: Engine, round_number: int) -> float:
    """Of one round's bursts, all answered."""
    began = time.monotonic()
    for burst in bursts(round_number):
        served = engine.serve(burst, lambda *_: None, lambda: None)
        assert all(isinstance(one.result, Completion) for one in served)
    return time.monotonic() - began


def main() -> None:
    """Start the four, run the rounds, print."""
    model = str(tiny_model(generated_files()))
    with tempfile.TemporaryDirectory() as folder:

        def options(name: str, *, fingerprint: bool) -> server.VllmOptions:
            log = Path(folder) / f"{name}.log"
            return server.VllmOptions(model=model, log=log, topology=FULL_ATTENTION if fingerprint else None)

        starts: dict[str, Callable[[], Engine]] = {
            "in process, fingerprint": lambda: vllm_inproc.start(options("a", fingerprint=True)),
            "in process, model": lambda: vllm_inproc.start(options("b", fingerprint=False)),
            "HTTP, fingerprint": lambda: server.spawn(options("c", fingerprint=True), on_process=lambda _: None),
            "HTTP, model": lambda: server.spawn(options("d", fingerprint=False), on_process=lambda _: None),
        }
        engines, up = {}, {}
        for name, start in starts.items():
            began = time.monotonic()
            engines[name] = start()
            up[name] = time.monotonic() - began
            seconds(engines[name], -1)  # what is compiled at first use
        try:
            rates = {name: [] for name in engines}
            for number in range(ROUNDS):
                for name, engine in engines.items():
                    rates[name].append(BURSTS * SIDE_BY_SIDE / seconds(engine, number))
        finally:
            for engine in engines.values():
                engine.stop()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        base = medians[name.replace("fingerprint", "model")]
        said = f"{name}: up in {up[name]:.1f} s, {median:.1f} requests a second, {median / base:.1f} times the model's"
        sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main()
