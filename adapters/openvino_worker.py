"""OpenVINO GenAI's pipeline in a process of its own, which it may end: `python -m adapters.openvino_worker SOCKET`.

The first message says what to make. Every other one is a method of `Worker` with its arguments, and is answered by what
that returns, or by the reason why the engine says no. Nothing happens in between: the caller drives.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import msgspec

from adapters.openvino_files import CONFIG_FILE, write_model
from adapters.openvino_setup import DEVICE, PACKAGE, THREADS, Facts, Made, Output, Stepped, settings

OVER = ("FINISHED", "IGNORED")


class Worker:
    """One pipeline. Raises what the engine raises."""

    def __init__(self, made: Made) -> None:
        self.genai, self.openvino, self.numpy = (
            importlib.import_module(name) for name in ("openvino_genai", "openvino", "numpy")
        )
        self.handles: dict[int, Any] = {}
        folder = Path(made.folder)
        write_model(Path(made.model), folder)
        self.scheduler, properties = settings(self.genai, made.words, caching=made.caching)
        self.adapters = [self.genai.Adapter(Path(path) / "adapter_model.safetensors") for path in made.adapters]
        given: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS, **properties}
        if self.adapters:
            given["adapters"] = self.genai.AdapterConfig(self.adapters)
        self.pipeline = self.genai.ContinuousBatchingPipeline(str(folder), self.scheduler, DEVICE, given, {}, {})
        self.facts = Facts(
            version=importlib.metadata.version(PACKAGE),
            blocks=self.scheduler.num_kv_blocks or None,
            budget=self.scheduler.max_num_batched_tokens if self.scheduler.dynamic_split_fuse else None,
            longest=json.loads((folder / CONFIG_FILE).read_text())["max_position_embeddings"],
            scheduler=" ".join(self.scheduler.to_string().split()),
            properties=" ".join(f"{name}={value}" for name, value in sorted(properties.items())),
        )

    def add(self, number: int, prompt: list[int], max_tokens: int, scored: bool, echo: bool) -> None:
        """Add a request."""
        configuration = self.configuration(max_tokens, scored=scored, echo=echo)
        self.handles[number] = self.pipeline.add_request(number, self.tensor(prompt), configuration)

    def cancel(self, number: int) -> None:
        """Its client has hung up; the next step lets go of it."""
        self.handles.pop(number).cancel()

    def step(self) -> Stepped:
        """One step, with or without requests, and what it brought."""
        self.pipeline.step()
        outputs = [
            Output(number, list(one.generated_ids), list(one.generated_log_probs), one.finish_reason.name)
            for number, handle in self.handles.items()
            for one in read(handle)
        ]
        ended = {number: handle.get_status().name for number, handle in self.handles.items()}
        ended = {number: status for number, status in ended.items() if status in OVER}
        for number in ended:
            del self.handles[number]
        gauges = self.pipeline.get_metrics()
        return Stepped(
            outputs=outputs,
            ended=ended,
            usage=gauges.cache_usage,
            scheduled=gauges.scheduled_requests,
            waiting=self.pipeline.has_non_finished_requests(),
        )

    def generate(self, adapter: int | None, prompts: list[list[int]], most_tokens: list[int]) -> list[Output]:
        """Requests under one adapter, side by side."""
        configurations = [self.configuration(count) for count in most_tokens]
        for made in configurations:
            made.adapters = self.genai.AdapterConfig(*(() if adapter is None else (self.adapters[adapter],)))
        answers = self.pipeline.generate([self.tensor(prompt) for prompt in prompts], configurations)
        return [
            Output(number, list(one.m_generation_ids[0]), [], one.finish_reasons[0].name)
            if one.m_generation_ids
            else Output(number, [], [], "NONE")
            for number, one in enumerate(answers)
        ]

    def configuration(self, max_tokens: int, *, scored: bool = False, echo: bool = False) -> Any:
        """What a request asks for, greedily."""
        made = self.genai.GenerationConfig()
        made.max_new_tokens, made.ignore_eos = max_tokens, True
        made.logprobs, made.echo = int(scored or echo), echo
        return made

    def tensor(self, prompt: list[int]) -> Any:
        """A prompt as the engine takes it."""
        return self.openvino.Tensor(self.numpy.array([prompt], dtype=self.numpy.int64))


def read(handle: Any) -> list[Any]:
    """What a handle has ready."""
    found = []
    while handle.can_read():
        found += handle.read().values()
    return found


def answer(connection: Connection, worker: Worker) -> None:
    """Do what one message asks for."""
    name, *arguments = msgspec.msgpack.decode(connection.recv_bytes())
    try:
        reply = [True, getattr(worker, name)(*arguments)]
    except RuntimeError as problem:
        reply = [False, str(problem)]
    connection.send_bytes(msgspec.msgpack.encode(reply))


def main() -> None:
    """Make a pipeline as the first message says, and serve until the caller is gone."""
    connection = Client(sys.argv[1], "AF_UNIX")
    made = msgspec.msgpack.decode(connection.recv_bytes(), type=Made)
    try:
        worker = Worker(made)
    except Exception as problem:  # noqa: BLE001 - whatever it is, there is no engine, and the caller says why
        connection.send_bytes(msgspec.msgpack.encode([False, f"{type(problem).__name__}: {problem}"]))
        return
    connection.send_bytes(msgspec.msgpack.encode([True, worker.facts]))
    while True:
        try:
            answer(connection, worker)
        except EOFError:
            return


if __name__ == "__main__":
    main()
